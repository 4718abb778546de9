// SPDX-License-Identifier: Apache-2.0
#include "jit/disk_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "checks.h"

namespace flashprime {
namespace {

constexpr const char* kVersion = "v1";
constexpr std::string_view kSuffix = ".fpk";
constexpr std::string_view kMagic = "FPKERNEL";
constexpr int64_t kMaxEntryBytes = int64_t{64} << 20;
constexpr int64_t kMinute = 60;
constexpr int64_t kHour = 60 * kMinute;
constexpr int64_t kDay = 24 * kHour;
constexpr int64_t kMaxAge = 90 * kDay;
constexpr int64_t kMaxAgeOfOtherVersions = 30 * kDay;
constexpr int64_t kMaxTemporaryAge = kHour;
// A younger entry may be one that another process is about to load.
constexpr int64_t kMinAge = 10 * kMinute;
constexpr size_t kBadKept = 16;

constexpr const char* kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds compiled GPU kernels of FlashPrime. It can be deleted at any time.\n";

std::string version_folder(const char* name) {
  return std::string(kVersion) + '/' + name;
}

std::string entry_folder(const std::string& arch, const std::string& kernel_id) {
  return concat(kVersion, '/', arch, '/', kernel_id.substr(0, 2));
}

std::string entry_name(const CompiledKernel& kernel) {
  return kernel.kernel_id + '.' + kernel.compiler_id + std::string(kSuffix);
}

bool is_entry_name(std::string_view name) {
  const std::string_view digits = "0123456789abcdef";
  if (name.size() != 64 + 1 + 16 + kSuffix.size() || name[64] != '.' || !name.ends_with(kSuffix)) {
    return false;
  }
  return name.substr(0, 64).find_first_not_of(digits) == std::string_view::npos &&
         name.substr(65, 16).find_first_not_of(digits) == std::string_view::npos;
}

// Others must not be able to replace the folder by one of theirs.
Status check_ancestors(const std::string& path) {
  for (size_t end = path.rfind('/'); end != std::string::npos && end > 0;
       end = path.rfind('/', end - 1)) {
    struct stat info = {};
    const std::string ancestor = path.substr(0, end);
    if (lstat(ancestor.c_str(), &info) != 0) continue;
    FLASHPRIME_REQUIRE((info.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (info.st_mode & S_ISVTX) != 0,
                       StatusCode::kIo, "kernel cache: ", ancestor,
                       " can be written by others, who could replace what is in it");
  }
  return ok_status();
}

// The path with the links of everything above its last part resolved, as far as it exists.
std::string resolve_parent(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos || slash == 0) return path;
  char resolved[PATH_MAX];
  const std::string parent = path.substr(0, slash);
  if (realpath(parent.c_str(), resolved) == nullptr) {
    return resolve_parent(parent) + path.substr(slash);
  }
  return (std::string(resolved) == "/" ? "" : std::string(resolved)) + path.substr(slash);
}

}  // namespace

Status DiskCache::check_access(const struct stat& info, const std::string& path) const {
  const bool own = info.st_uid == geteuid() || info.st_uid == 0;
  FLASHPRIME_REQUIRE(own || options_.shared_by_group, StatusCode::kIo, "kernel cache: ", path,
                     " belongs to user ", info.st_uid, ", want this user or root");
  FLASHPRIME_REQUIRE((info.st_mode & S_IWOTH) == 0, StatusCode::kIo, "kernel cache: ", path,
                     " can be written by everyone");
  FLASHPRIME_REQUIRE((info.st_mode & S_IWGRP) == 0 || options_.shared_by_group, StatusCode::kIo,
                     "kernel cache: ", path,
                     " can be written by its group; FLASHPRIME_CACHE_SHARED=group allows that");
  return ok_status();
}

StatusOr<UniqueFd> DiskCache::open_root(bool create) const {
  std::string path = options_.root;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  path = resolve_parent(path);
  FLASHPRIME_RETURN_IF_ERROR(check_ancestors(path));
  if (create) {
    for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
      mkdir(path.substr(0, end).c_str(), 0700);
    }
    make_folder(AT_FDCWD, path);
  }
  UniqueFd root = open_at(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
  if (!root.ok()) return io_error("kernel cache: cannot open", path, errno);
  struct stat info = {};
  if (fstat(root.get(), &info) != 0) return io_error("kernel cache: cannot read", path, errno);
  FLASHPRIME_RETURN_IF_ERROR(check_access(info, path));
  return root;
}

Status DiskCache::check_root() const {
  const StatusOr<UniqueFd> root = open_root(false);
  struct stat info = {};
  if (!root.ok() && lstat(options_.root.c_str(), &info) != 0) return ok_status();
  return root.status();
}

bool DiskCache::make_folder(int parent, const std::string& path) const {
  if (mkdirat(parent, path.c_str(), 0700) != 0) return errno == EEXIST;
  // The group's folders hand their group down. The process's umask must not narrow this.
  if (options_.shared_by_group) fchmodat(parent, path.c_str(), 02770, 0);
  return true;
}

DiskCache::Found DiskCache::read_entry(int root, const std::string& folder, const std::string& name,
                                       const EntryQuery* query) const {
  const std::string path = folder + '/' + name;
  // O_NONBLOCK: somebody's FIFO must not hang us.
  const UniqueFd file = open_at(root, path, O_RDONLY | O_NONBLOCK);
  if (!file.ok()) {
    return {{}, errno == ENOENT ? "absent" : "unreadable", io_error("open", path, errno).message()};
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1) {
    return {{}, "unreadable", path + ": not a regular file with one name"};
  }
  if (const Status access = check_access(info, path); !access.ok()) {
    return {{}, "permissions", access.message()};
  }
  const StatusOr<std::string> bytes = read_all(file.get(), path, kMaxEntryBytes);
  if (!bytes.ok()) return {{}, "unreadable", bytes.status().message()};
  StatusOr<CompiledKernel> kernel = decode_entry(*bytes);
  if (!kernel.ok()) return {{}, "damaged", kernel.status().message()};
  if (entry_name(*kernel) != name ||
      (query != nullptr && (kernel->kernel_id != query->kernel_id || kernel->key != query->key ||
                            kernel->arch.to_string() != query->arch))) {
    return {{}, "foreign", "the entry is another kernel's"};
  }
  // The sign that it is in use, for pruning. Once a day is enough.
  if (query != nullptr && options_.writable && std::time(nullptr) - info.st_mtime > kDay) {
    futimens(file.get(), nullptr);
  }
  return {*std::move(kernel), {}, {}};
}

DiskCache::Found DiskCache::find(const EntryQuery& query) const {
  const StatusOr<UniqueFd> root = open_root(false);
  if (!root.ok()) {
    struct stat info = {};
    const bool exists = lstat(options_.root.c_str(), &info) == 0;
    return {{}, exists ? "root" : "absent", root.status().message()};
  }
  const std::string folder = entry_folder(query.arch, query.kernel_id);
  std::vector<std::string> names;
  if (!query.compiler_id.empty()) {
    names.push_back(query.kernel_id + '.' + query.compiler_id + std::string(kSuffix));
  } else {
    std::vector<std::pair<int64_t, std::string>> candidates;
    for (const std::string& name : names_in(root->get(), folder)) {
      struct stat info = {};
      if (is_entry_name(name) && name.starts_with(query.kernel_id) &&
          fstatat(root->get(), (folder + '/' + name).c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
        candidates.emplace_back(-info.st_mtime, name);
      }
    }
    std::sort(candidates.begin(), candidates.end());
    for (auto& [age, name] : candidates) names.push_back(std::move(name));
  }
  Found found{{}, "absent", folder};
  for (const std::string& name : names) {
    found = read_entry(root->get(), folder, name, &query);
    if (found.kernel) return found;
    if (options_.writable && (found.miss == "damaged" || found.miss == "foreign")) {
      move_to_bad(root->get(), folder, name);
    }
  }
  return found;
}

void DiskCache::move_to_bad(int root, const std::string& folder, const std::string& name) const {
  const std::string bad = version_folder("bad");
  make_folder(root, bad);
  const std::string from = folder + '/' + name;
  const std::string to = bad + '/' + name + '.' + random_name();
  if (renameat(root, from.c_str(), root, to.c_str()) != 0) return;
  std::vector<std::pair<int64_t, std::string>> kept;
  for (const std::string& other : names_in(root, bad)) {
    struct stat info = {};
    const std::string path = bad + '/' + other;
    if (fstatat(root, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      kept.emplace_back(-info.st_ctime, path);
    }
  }
  std::sort(kept.begin(), kept.end());
  for (size_t i = kBadKept; i < kept.size(); ++i) unlinkat(root, kept[i].second.c_str(), 0);
}

void DiskCache::quarantine(const CompiledKernel& kernel) const {
  if (!options_.writable) return;
  const StatusOr<UniqueFd> root = open_root(false);
  if (!root.ok()) return;
  move_to_bad(root->get(), entry_folder(kernel.arch.to_string(), kernel.kernel_id),
              entry_name(kernel));
}

Status DiskCache::publish(const CompiledKernel& kernel) const {
  const StatusOr<UniqueFd> root = open_root(true);
  if (!root.ok()) return root.status();
  const std::string arch = kernel.arch.to_string();
  const std::string folder = entry_folder(arch, kernel.kernel_id);
  for (const std::string& path :
       {std::string(kVersion), version_folder("tmp"), version_folder(arch.c_str()), folder}) {
    if (!make_folder(root->get(), path)) {
      return io_error("kernel cache: cannot create", options_.root + '/' + path, errno);
    }
  }
  const UniqueFd tag = open_at(root->get(), "CACHEDIR.TAG", O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (tag.ok()) write_all(tag.get(), kCacheTag);

  const std::string temporary =
      concat(version_folder("tmp"), '/', getpid(), '.', random_name(), ".tmp");
  const std::string target = folder + '/' + entry_name(kernel);
  const UniqueFd file = open_at(root->get(), temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (!file.ok()) return io_error("kernel cache: cannot create", temporary, errno);
  int error = write_all(file.get(), encode_entry(kernel));
  if (error == 0 && options_.shared_by_group && fchmod(file.get(), 0660) != 0) error = errno;
  // Before the rename: a name must never lead to bytes that a power failure takes away.
  if (error == 0 && fsync(file.get()) != 0) error = errno;
  if (error == 0 && renameat(root->get(), temporary.c_str(), root->get(), target.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    unlinkat(root->get(), temporary.c_str(), 0);
    return io_error("kernel cache: cannot publish", options_.root + '/' + target, error);
  }
  const UniqueFd opened = open_at(root->get(), folder, O_RDONLY | O_DIRECTORY);
  if (opened.ok()) fsync(opened.get());  // if it fails, the entry may be lost, no more
  sweep_daily(root->get());
  return ok_status();
}

KernelLock DiskCache::try_lock(const std::string& kernel_id) const {
  if (!options_.writable) return {};
  const StatusOr<UniqueFd> root = open_root(true);
  if (!root.ok()) return {};
  make_folder(root->get(), kVersion);
  make_folder(root->get(), version_folder("locks"));
  const std::string path = version_folder("locks") + '/' + kernel_id + ".lock";
  const mode_t mode = options_.shared_by_group ? 0660 : 0600;
  UniqueFd file = open_at(root->get(), path, O_RDWR | O_CREAT, mode);
  if (!file.ok()) return {};
  if (options_.shared_by_group) fchmod(file.get(), mode);  // whatever the umask says
  int error = 0;
  do {
    error = flock(file.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EWOULDBLOCK) return {KernelLock::State::kBusy, UniqueFd()};
  if (error != 0) return {};
  // For people who look; nothing reads it.
  const std::string holder = concat("pid ", getpid(), '\n');
  if (ftruncate(file.get(), 0) == 0) write_all(file.get(), holder);
  return {KernelLock::State::kHeld, std::move(file)};
}

std::vector<DiskCache::EntryFile> DiskCache::files(int root) const {
  std::vector<EntryFile> found;
  for (const std::string& version : names_in(root, ".")) {
    if (version.size() < 2 || version[0] != 'v' ||
        version.find_first_not_of("0123456789", 1) != std::string::npos) {
      continue;
    }
    for (const std::string& arch : names_in(root, version)) {
      if (!arch.starts_with("sm_")) continue;
      const std::string arch_folder = version + '/' + arch;
      for (const std::string& shard : names_in(root, arch_folder)) {
        const std::string folder = arch_folder + '/' + shard;
        for (const std::string& name : names_in(root, folder)) {
          struct stat info = {};
          if (!is_entry_name(name) ||
              fstatat(root, (folder + '/' + name).c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 ||
              !S_ISREG(info.st_mode)) {
            continue;
          }
          found.push_back({folder, name, info.st_size, info.st_mtime, version == kVersion});
        }
      }
    }
  }
  return found;
}

std::vector<CacheEntry> DiskCache::entries() const {
  std::vector<CacheEntry> entries;
  const StatusOr<UniqueFd> root = open_root(false);
  if (!root.ok()) return entries;
  for (const EntryFile& file : files(root->get())) {
    if (!file.current_version) continue;
    CacheEntry entry;
    entry.path = options_.root + '/' + file.folder + '/' + file.name;
    entry.kernel_id = file.name.substr(0, 64);
    entry.arch = file.folder.substr(3, file.folder.find('/', 3) - 3);
    entry.bytes = file.bytes;
    entry.age_seconds = std::time(nullptr) - file.mtime;
    Found found = read_entry(root->get(), file.folder, file.name, nullptr);
    if (found.kernel) {
      const StatusOr<KernelKey> key = parse_kernel_key(found.kernel->key);
      entry.kernel = key.ok() ? key->name() : "unknown";
      entry.key = found.kernel->key;
      entry.compiler = found.kernel->compiler;
    } else {
      entry.status = Status(StatusCode::kFormat, found.miss + ": " + found.detail);
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

PruneReport DiskCache::sweep(int root, bool dry_run, bool everything) const {
  PruneReport report;
  const int64_t now = std::time(nullptr);
  const auto remove = [&](const std::string& path, int64_t bytes) {
    if (!dry_run && unlinkat(root, path.c_str(), 0) != 0) return;
    ++report.removed;
    report.removed_bytes += bytes;
  };
  // Only what starts like an entry is ours to delete.
  const auto is_ours = [&](const std::string& path) {
    const UniqueFd file = open_at(root, path, O_RDONLY | O_NONBLOCK);
    char magic[8] = {};
    return file.ok() && read(file.get(), magic, sizeof magic) == sizeof magic &&
           std::string_view(magic, sizeof magic) == kMagic;
  };
  std::vector<EntryFile> kept;
  for (EntryFile& file : files(root)) {
    const int64_t age = now - file.mtime;
    const bool old = age > (file.current_version ? kMaxAge : kMaxAgeOfOtherVersions);
    const std::string path = file.folder + '/' + file.name;
    if ((everything || old) && is_ours(path)) {
      remove(path, file.bytes);
    } else {
      report.kept_bytes += file.bytes;
      kept.push_back(std::move(file));
    }
  }
  std::sort(kept.begin(), kept.end(),
            [](const EntryFile& a, const EntryFile& b) { return a.mtime < b.mtime; });
  report.kept = static_cast<int64_t>(kept.size());
  for (const EntryFile& file : kept) {
    if (report.kept_bytes <= options_.max_bytes) break;
    const std::string path = file.folder + '/' + file.name;
    if (now - file.mtime < kMinAge || !is_ours(path)) continue;
    remove(path, file.bytes);
    report.kept_bytes -= file.bytes;
    --report.kept;
  }
  for (const char* name : {"tmp", "bad"}) {
    const std::string folder = version_folder(name);
    for (const std::string& file : names_in(root, folder)) {
      struct stat info = {};
      const std::string path = folder + '/' + file;
      if (fstatat(root, path.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      const int64_t age = now - info.st_mtime;
      if (everything || age > (name[0] == 't' ? kMaxTemporaryAge : kMaxAge)) {
        remove(path, info.st_size);
      }
    }
  }
  return report;
}

StatusOr<PruneReport> DiskCache::prune(bool dry_run, bool everything) const {
  FLASHPRIME_REQUIRE(options_.writable, StatusCode::kIo, "kernel cache: ", options_.root,
                     " is read-only here");
  const StatusOr<UniqueFd> root = open_root(false);
  if (!root.ok()) return root.status();
  return sweep(root->get(), dry_run, everything);
}

void DiskCache::sweep_daily(int root) const {
  const std::string path = version_folder("prune.lock");
  struct stat info = {};
  if (fstatat(root, path.c_str(), &info, 0) == 0 && std::time(nullptr) - info.st_mtime < kDay) {
    return;
  }
  const UniqueFd file =
      open_at(root, path, O_RDWR | O_CREAT, options_.shared_by_group ? 0660 : 0600);
  if (!file.ok() || flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  futimens(file.get(), nullptr);
  sweep(root, false, false);
}

}  // namespace flashprime
