// SPDX-License-Identifier: Apache-2.0
// Plain enums and small value types shared by the host library and the device kernels.
// Compiles under NVRTC, where no standard header exists.
#pragma once

#ifndef __CUDACC_RTC__
#include <cstdint>
namespace flashprime {
using ::std::int32_t;
using ::std::int64_t;
using ::std::uint32_t;
using ::std::uint64_t;
using ::std::uint8_t;
}  // namespace flashprime
#else
namespace flashprime {
using int32_t = int;
using int64_t = long long;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uint8_t = unsigned char;
}  // namespace flashprime
#endif

namespace flashprime {

/// Element type of a tensor.
enum class Dtype : uint8_t {
  kBf16 = 0,
  kFp16 = 1,
  kFp32 = 2,
  kFp64 = 3,   ///< outputs of the `cpu_reference` kernel only
  kE4m3 = 4,   ///< OCP fp8 e4m3fn: no infinity, NaN is 0x7f/0xff, largest finite value 448
  kInt32 = 5,  ///< cu_seqlens only
};

/// Size of one element in bytes.
constexpr int64_t dtype_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16:
    case Dtype::kFp16: return 2;
    case Dtype::kFp32:
    case Dtype::kInt32: return 4;
    case Dtype::kFp64: return 8;
    case Dtype::kE4m3: return 1;
  }
  return 0;
}

/// Which keys a query may see. With sq new tokens and sk keys in a sequence, query i and key j
/// (both counted from 0 within the sequence) are aligned at the bottom right: i sits at key
/// position i + (sk - sq).
enum class MaskKind : uint8_t {
  kFull = 0,    ///< every key
  kCausal = 1,  ///< j <= i + (sk - sq)
  kWindow = 2,  ///< i + (sk - sq) - left <= j <= i + (sk - sq) + right
};

/// A mask kind and, for `kWindow`, its two reaches in keys; a negative reach is unbounded.
/// Both reaches must be negative for `kFull` and `kCausal`.
struct Mask {
  MaskKind kind = MaskKind::kCausal;
  int64_t window_left = -1;
  int64_t window_right = -1;
};

/// Order of the axes of an LSE tensor. Strides are free in both.
enum class LseLayout : uint8_t {
  kHeadsTokens = 0,  ///< [H, T], FlashAttention's varlen layout
  kTokensHeads = 1,  ///< [T, H], SGLang's layout
};

/// Head dimensions of MLA prefill in elements. A query or key row is `nope` then `rope`.
struct HeadDims {
  int32_t nope = 128;  ///< qk_nope_head_dim, >= 1
  int32_t rope = 64;   ///< qk_rope_head_dim, >= 0
  int32_t v = 128;     ///< v_head_dim, >= 1
};

}  // namespace flashprime
