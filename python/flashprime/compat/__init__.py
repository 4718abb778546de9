# SPDX-License-Identifier: Apache-2.0
"""``flash_attn_varlen_func`` as its four dialects have it.

``fa2``, ``fa3`` and ``fa4`` are FlashAttention's, ``vllm`` is that of vLLM's build. They order
their arguments differently and name the same ones otherwise, so everything after q, k and v is by
keyword here. What changes nothing is accepted (``deterministic``, ``pack_gqa``,
``scheduler_metadata``, ...); what FlashPrime does not compute is an UnsupportedError that names the
argument.

In all of them LSE is fp32, natural logarithm, [H, T]; a row that sees no key has out 0 and LSE -inf
(FlashAttention 2, and the host paths of 3, have +inf there). Keys have as many heads as queries, or
one head.
"""
