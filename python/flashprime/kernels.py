# SPDX-License-Identifier: Apache-2.0
"""GPU kernels before the first request: plan, compile, cache and ship them; no GPU is needed.

A kernel is compiled for head dims, dtype, mask and architecture. Heads, batch, lengths and strides
are run-time values. ``docs/jit_and_cache.md`` of the project has the whole story.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from . import _library
from ._errors import ERRORS, FlashPrimeError, FormatError, InternalError
from ._tensors import dtype_code
from .ops import mask_of
from .selection import dims_of

Freeze: TypeAlias = Literal["allow", "warn", "error"]
Mode: TypeAlias = Literal["missing", "force", "load_only", "dry_run"]
_FREEZE = ("allow", "warn", "error")
_MODES = ("missing", "force", "load_only", "dry_run")

logger = logging.getLogger("flashprime")


def _index(name: str, value: str, words: tuple[str, ...]) -> int:
    if value not in words:
        raise FormatError(f"{name}: got {value!r}, wanted one of {', '.join(words)}")
    return words.index(value)


@dataclasses.dataclass(frozen=True)
class PlannedKernel:
    """One kernel for one architecture."""

    kernel: str
    arch: str
    key: str
    """All compile-time fields, one a line."""
    kernel_id: str
    """SHA-256 of key, sources and compiler options."""


@dataclasses.dataclass(frozen=True)
class SkippedKernel:
    """What cannot be built, and why."""

    what: str
    arch: str
    reason: str


@dataclasses.dataclass(frozen=True)
class KernelPlan:
    """Kernels to have. A value: store it as text, send it to another machine."""

    kernels: tuple[PlannedKernel, ...]
    skipped: tuple[SkippedKernel, ...]
    text: str

    def __len__(self) -> int:
        return len(self.kernels)


@dataclasses.dataclass(frozen=True)
class KernelReport:
    """How one kernel of a warmup was made or found."""

    kernel: PlannedKernel
    origin: str
    """failed, memory, bundle, disk, waited, compiled or skipped."""
    problem: str
    """Why it failed or was skipped; else empty."""
    queue_ms: float
    lock_ms: float
    compile_ms: float
    publish_ms: float
    load_ms: float
    cubin_bytes: int
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int
    warnings: list[str]
    compiler: str
    min_driver: str


@dataclasses.dataclass(frozen=True)
class WarmupReport:
    """All kernels of a warmup, in the order of its plan."""

    kernels: tuple[KernelReport, ...]
    wall_ms: float
    cpu_ms: float
    peak_rss_bytes: int
    publish_failures: int
    cache: str
    """Where kernels are published, or why nowhere."""

    def count(self, origin: str) -> int:
        """How many kernels came from there: "compiled", "disk", ..."""
        return sum(kernel.origin == origin for kernel in self.kernels)

    @property
    def complete(self) -> bool:
        """All kernels are there."""
        return not self.count("failed") and not self.count("skipped")

    def __str__(self) -> str:
        origins = dict.fromkeys(kernel.origin for kernel in self.kernels)
        counts = ", ".join(f"{self.count(origin)} {origin}" for origin in origins)
        return f"{len(self.kernels)} kernels: {counts or 'none'}; {self.wall_ms / 1000:.1f} s"


@dataclasses.dataclass(frozen=True)
class CacheEntry:
    """A kernel in a cache folder or a bundle."""

    path: str
    kernel: str
    arch: str
    key: str
    kernel_id: str
    compiler: str
    bytes: int
    age_seconds: int
    problem: str
    """Why it may not be used; else empty."""


@dataclasses.dataclass(frozen=True)
class PruneReport:
    """What was removed from a cache folder."""

    removed: int
    removed_bytes: int
    kept: int
    kept_bytes: int


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """A cache's folders, bundles and compiler."""

    cache: str
    cache_writable: bool
    read_only_dirs: list[str]
    bundles: list[str]
    compiler: str
    compiler_found: bool
    freeze: str
    log: str
    counters: dict[str, int]


@dataclasses.dataclass(frozen=True)
class KernelArtifacts:
    """What the compiler makes of a kernel."""

    source: str
    headers: list[str]
    options: list[str]
    ptx: str
    cubin: bytes
    log: str
    compiler: str


Progress: TypeAlias = Callable[[int, int, "KernelReport | None"], Any]
"""Called with (done, total, the kernel that just finished or None), after each kernel and ten times
a second, on the thread that warms up. A true result cancels what is left."""
EventHandler: TypeAlias = Callable[[str, str], Any]
"""Called with (kind, message) on any thread. Kinds: compiled_late, refused_late, cache_unusable,
publish_failed, quarantined."""


def _plan(fields: Any) -> KernelPlan:
    kernels, skipped, text = _library.plain(fields)
    return KernelPlan(
        tuple(PlannedKernel(*kernel) for kernel in kernels),
        tuple(SkippedKernel(*kernel) for kernel in skipped),
        text,
    )


def _fields(plan: KernelPlan) -> list[tuple[str, ...]]:
    return [dataclasses.astuple(kernel) for kernel in plan.kernels]


def _report(fields: Any) -> KernelReport:
    kernel, *rest = _library.plain(fields)
    return KernelReport(PlannedKernel(*kernel), *rest)


def _path(value: str | os.PathLike[str] | None) -> str | None:
    return None if value is None else os.fspath(value)


def log_events(kind: str, message: str) -> None:
    """An event handler: each event is a warning of the logger "flashprime"."""
    logger.warning("%s: %s", kind, message)


class KernelCache:
    """Kernels in memory, bundles and cache folders, and the compiler behind them.

    What is not given is taken from the environment (``FLASHPRIME_CACHE_DIR`` and so on), once.

    Args:
        cache_dir: an absolute folder, "off", or "ro:FOLDER".
        read_only_dirs: more folders, looked at first, never written.
        bundles: files of :meth:`pack`, with their SHA-256 in ``bundle_sha256`` where wanted.
        freeze: what happens when a kernel would be compiled late: "allow", "warn" or "error".
        on_event: called with (kind, message) of what a server's log should have.

    Raises:
        FormatError: a setting that means nothing, or a bundle that is none.
        IoError: a bundle that cannot be read.
    """

    def __init__(
        self,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        shared_by_group: bool | None = None,
        max_megabytes: int | None = None,
        read_only_dirs: Sequence[str | os.PathLike[str]] = (),
        bundles: Sequence[str | os.PathLike[str]] | None = None,
        bundle_sha256: Sequence[str] | None = None,
        freeze: Freeze | None = None,
        lock_wait_seconds: float | None = None,
        dump_dir: str | os.PathLike[str] | None = None,
        nvrtc_path: str | os.PathLike[str] | None = None,
        kernel_dir: str | os.PathLike[str] | None = None,
        log: str | None = None,
        on_event: EventHandler | None = None,
    ) -> None:
        self._handle = _library.cache_open(
            _path(cache_dir),
            shared_by_group,
            max_megabytes,
            [os.fspath(folder) for folder in read_only_dirs],
            None if bundles is None else [os.fspath(bundle) for bundle in bundles],
            None if bundle_sha256 is None else list(bundle_sha256),
            None if freeze is None else _index("freeze", freeze, _FREEZE),
            lock_wait_seconds,
            _path(dump_dir),
            _path(nvrtc_path),
            _path(kernel_dir),
            log,
            on_event,
        )

    @classmethod
    def _of(cls, handle: Any) -> KernelCache:
        cache = cls.__new__(cls)
        cache._handle = handle
        return cache

    def plan(
        self,
        model: str | None = None,
        *,
        dims: tuple[int, int, int] | None = None,
        dtype: Any = "bf16",
        archs: Sequence[str] | None = None,
        e4m3_output: bool = False,
        all: bool = False,
    ) -> KernelPlan:
        """The kernels that a server of a model needs, and what cannot be built. No device is asked
        unless ``archs`` is None: then it is what this machine's first GPU wants.
        """
        return _plan(
            _library.cache_plan(
                self._handle,
                *dims_of(model, dims),
                dtype_code("dtype", dtype),
                [device_architecture()] if archs is None else list(archs),
                e4m3_output,
                all,
            )
        )

    def warmup(
        self,
        plan: KernelPlan,
        *,
        mode: Mode = "missing",
        threads: int = 0,
        deadline: float | None = None,
        rank: int = 0,
        world: int = 1,
        device: int = 0,
        progress: Progress | bool | None = None,
    ) -> WarmupReport:
        """Makes a plan's kernels available; see :func:`warmup` for the arguments."""
        return _warm_up(
            _library.cache_warmup,
            self,
            plan,
            mode,
            threads,
            deadline,
            rank,
            world,
            device,
            progress,
        )

    def pack(
        self,
        plan: KernelPlan,
        path: str | os.PathLike[str],
        *,
        threads: int = 0,
        progress: Progress | bool | None = None,
    ) -> WarmupReport:
        """Writes a bundle of a plan's kernels, compiling what is missing. The same kernels are the
        same bytes.
        """
        return _warm_up(
            _library.cache_pack,
            self,
            plan,
            "missing",
            threads,
            None,
            0,
            1,
            0,
            progress,
            os.fspath(path),
        )

    def unpack(self, bundle: str | os.PathLike[str]) -> int:
        """Copies a bundle's kernels into the cache folder; how many."""
        return int(_library.cache_unpack(self._handle, os.fspath(bundle)))

    def set_freeze(self, policy: Freeze) -> None:
        """From now on a late compilation is allowed, warned of, or a FrozenError."""
        _library.cache_set_freeze(self._handle, _index("policy", policy, _FREEZE))

    def info(self) -> CacheInfo:
        fields = _library.plain(_library.cache_info(self._handle))
        fields["freeze"] = _FREEZE[fields["freeze"]]
        return CacheInfo(**fields)

    def entries(self) -> list[CacheEntry]:
        """Every entry of the folder, checked in full."""
        return [CacheEntry(**row) for row in _library.plain(_library.cache_entries(self._handle))]

    def prune(self, *, dry_run: bool = False) -> PruneReport:
        """Removes entries that are old or beyond the size limit."""
        return PruneReport(**_library.plain(_library.cache_prune(self._handle, dry_run)))

    def clear(self) -> PruneReport:
        """Removes all entries."""
        return PruneReport(**_library.plain(_library.cache_clear(self._handle)))

    def dump(self, kernel: PlannedKernel) -> KernelArtifacts:
        """Compiles a kernel for inspection, past all caches. NoCompilerError without NVRTC."""
        fields = _library.cache_dump(self._handle, [dataclasses.astuple(kernel)])
        return KernelArtifacts(**_library.plain(fields))


class _ProgressBar:
    """A bar of tqdm, or lines of its own, on stderr."""

    def __init__(self) -> None:
        self.bar: Any = None
        try:
            import tqdm

            self.tqdm: Any = tqdm.tqdm
        except ImportError:
            self.tqdm = None

    def __call__(self, done: int, total: int, last: KernelReport | None) -> None:
        if self.tqdm is not None:
            if self.bar is None:
                self.bar = self.tqdm(total=total, desc="flashprime kernels", unit="kernel")
            self.bar.update(done - self.bar.n)
        elif last is not None:
            took = f"{last.compile_ms / 1000:.1f} s" if last.compile_ms else ""
            text = f"\r[{done:2}/{total}] {last.kernel.kernel} {last.origin} {took}"
            sys.stderr.write(f"{text:<60}")
            sys.stderr.flush()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.tqdm is None:
            sys.stderr.write("\n")


def _warm_up(
    function: Any,
    cache: KernelCache,
    plan: KernelPlan,
    mode: str,
    threads: int,
    deadline: float | None,
    rank: int,
    world: int,
    device: int,
    progress: Progress | bool | None,
    *rest: str,
) -> WarmupReport:
    if progress is None:
        progress = sys.stderr.isatty()
    bar = _ProgressBar() if progress is True else None
    report_to: Any = bar if bar is not None else (progress if callable(progress) else None)
    raised: list[BaseException] = []

    def on_progress(done: int, total: int, last: Any) -> bool:
        # Also without a listener: an interrupt arrives while Python runs, which is here.
        try:
            if raised:
                return True
            return report_to is not None and bool(
                report_to(done, total, None if last is None else _report(last))
            )
        except BaseException as error:
            raised.append(error)
            return True

    try:
        fields = function(
            cache._handle,
            _fields(plan),
            _index("mode", mode, _MODES),
            threads,
            0.0 if deadline is None else float(deadline),
            rank,
            world,
            device,
            on_progress,
            *rest,
        )
    finally:
        if bar is not None:
            bar.close()
    if raised:
        raise raised[0]
    kernels, code, message, *numbers = fields
    report = WarmupReport(tuple(_report(kernel) for kernel in kernels), *_library.plain(numbers))
    if code:
        error = ERRORS.get(str(code), InternalError)(str(message))
        error.report = report  # type: ignore[attr-defined]
        raise error
    return report


def default_cache() -> KernelCache:
    """The cache that calls on a GPU take their kernels from; opened with the environment's settings
    unless :func:`set_default_cache` came first.
    """
    return KernelCache._of(_library.cache_default())


def set_default_cache(cache: KernelCache) -> None:
    """InternalError once the default is in use: its kernels are loaded."""
    _library.cache_set_default(cache._handle)


def freeze(policy: Freeze = "error") -> None:
    """From now on a kernel that is not there is an error (or only warned of), never compiled."""
    default_cache().set_freeze(policy)


def warmup(
    model: str | None = None,
    *,
    dims: tuple[int, int, int] | None = None,
    dtype: Any = "bf16",
    archs: Sequence[str] | None = None,
    e4m3_output: bool = False,
    all: bool = False,
    cache: KernelCache | None = None,
    mode: Mode = "missing",
    threads: int = 0,
    deadline: float | None = None,
    rank: int = 0,
    world: int = 1,
    device: int = 0,
    progress: Progress | bool | None = None,
) -> WarmupReport:
    """Makes the kernels that a server of a model needs available before its first request.

    Args:
        model: a preset's name, or
        dims: (nope, rope, v).
        dtype: of q, k and v.
        archs: "sm_90a", ...; None: what GPU ``device`` of this machine wants. With names no GPU is
            needed.
        e4m3_output: also the kernels with e4m3 output.
        all: also full attention without LSE, which no layer calls.
        cache: instead of the default one.
        mode: "missing" compiles what is nowhere; "force" compiles everything; "load_only" compiles
            nothing and loads what is there onto the device; "dry_run" says what would happen.
        threads: 0: by cores and memory, 8 at most.
        deadline: seconds after which what is left is skipped.
        rank, world: of processes that warm the same plan and share the work through the cache.
        progress: a callback (see ``Progress``), True for a bar, False for none; None: a bar if
            stderr is a terminal.

    Returns:
        A report on every kernel.

    Raises:
        DriverError: ``archs`` is None and there is no GPU.
        NoCompilerError: NVRTC is wanted and not there.
        FlashPrimeError: kernels failed; every failure is in the text, and ``report`` is an
            attribute. What ``progress`` raises comes back.
    """
    cache = default_cache() if cache is None else cache
    plan = cache.plan(
        model,
        dims=dims,
        dtype=dtype,
        archs=[device_architecture(device)] if archs is None else archs,
        e4m3_output=e4m3_output,
        all=all,
    )
    return cache.warmup(
        plan,
        mode=mode,
        threads=threads,
        deadline=deadline,
        rank=rank,
        world=world,
        device=device,
        progress=progress,
    )


def kernels_of(
    model: str | None = None,
    *,
    arch: str,
    dims: tuple[int, int, int] | None = None,
    num_heads: int = 1,
    dtype: Any = "bf16",
    out_dtype: Any = None,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    return_lse: bool = False,
    batch_invariant: bool = False,
    num_splits: int = 0,
) -> KernelPlan:
    """The kernels that one :func:`prefill` of a problem runs on an architecture.

    Raises:
        UnsupportedError: with the reason.
    """
    code = dtype_code("dtype", dtype)
    return _plan(
        _library.kernels_of(
            *dims_of(model, dims),
            num_heads,
            code,
            code if out_dtype is None else dtype_code("out_dtype", out_dtype),
            *mask_of(causal, window),
            return_lse,
            batch_invariant,
            num_splits,
            arch,
        )
    )


def parse_plan(text: str) -> KernelPlan:
    """The plan whose ``text`` this is, with the ids that these sources give its kernels."""
    return _plan(_library.parse_plan(text))


def list_bundle(path: str | os.PathLike[str]) -> list[CacheEntry]:
    """Every kernel of a bundle, checked in full."""
    return [CacheEntry(**row) for row in _library.plain(_library.list_bundle(os.fspath(path)))]


def missing_from_bundle(path: str | os.PathLike[str], plan: KernelPlan) -> list[PlannedKernel]:
    """The kernels of a plan that a bundle lacks; empty: it covers the plan."""
    missing = _library.missing_from_bundle(os.fspath(path), _fields(plan))
    return [PlannedKernel(*kernel) for kernel in _library.plain(missing)]


def device_architecture(device: int = 0) -> str:
    """What to compile for a GPU of this machine: "sm_90a". DriverError without a driver."""
    return str(_library.device_architecture(device))


def known_architectures() -> list[str]:
    """All that kernels can be compiled for."""
    architectures: list[str] = _library.plain(_library.known_architectures())
    return architectures


def architectures_for_capability(major: int, minor: int) -> list[str]:
    """What runs on a compute capability, best first."""
    architectures: list[str] = _library.plain(_library.architectures_for_capability(major, minor))
    return architectures


__all__ = [
    "CacheEntry",
    "CacheInfo",
    "EventHandler",
    "FlashPrimeError",
    "Freeze",
    "KernelArtifacts",
    "KernelCache",
    "KernelPlan",
    "KernelReport",
    "Mode",
    "PlannedKernel",
    "Progress",
    "PruneReport",
    "SkippedKernel",
    "WarmupReport",
    "architectures_for_capability",
    "default_cache",
    "device_architecture",
    "freeze",
    "kernels_of",
    "known_architectures",
    "list_bundle",
    "log_events",
    "missing_from_bundle",
    "parse_plan",
    "set_default_cache",
    "warmup",
]
