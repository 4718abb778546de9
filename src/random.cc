// SPDX-License-Identifier: Apache-2.0
#include "flashprime/random.h"

#include <algorithm>
#include <cmath>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "checks.h"
#include "numerics/checked.h"
#include "numerics/convert.h"
#include "problem/tensor_checks.h"

namespace flashprime {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

namespace {

// A value depends on nothing but the sum of a word's four bytes, so every value that a tensor can
// hold is converted once and then looked up.
constexpr int kNumSums = 4 * 255 + 1;

// Philox calls that are made at once, with counters that differ in their first word only.
constexpr int kBatch = 8;

struct SumStream {
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 3> counter;  // its words after the first
};

// sums[4 * i + w] = byte sum of word w of philox({first_block + i, stream.counter}, stream.key).
void batch_sums_scalar(const SumStream& stream, uint32_t first_block, uint16_t* sums) {
  const auto [c1, c2, c3] = stream.counter;
  for (uint32_t i = 0; i < kBatch; ++i) {
    for (uint32_t word : philox4x32_10({first_block + i, c1, c2, c3}, stream.key)) {
      *sums++ = static_cast<uint16_t>((word & 0xffu) + ((word >> 8) & 0xffu) +
                                      ((word >> 16) & 0xffu) + (word >> 24));
    }
  }
}

#if defined(__x86_64__)
// The same, four calls a vector: 64-bit lanes of which Philox uses the lower halves. Twice as fast
// as what g++ 12 makes of the scalar loop. Integers only, so the bits cannot differ.
[[gnu::target("avx2")]] void batch_sums_avx2(const SumStream& stream, uint32_t first_block,
                                             uint16_t* sums) {
  using Lanes = __m256i;
  constexpr int kVectors = kBatch / 4;
  const Lanes low_half = _mm256_set1_epi64x(0xffffffff);
  const Lanes multiplier0 = _mm256_set1_epi64x(0xD2511F53);
  const Lanes multiplier1 = _mm256_set1_epi64x(0xCD9E8D57);
  Lanes x0[kVectors], x1[kVectors], x2[kVectors], x3[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    x0[i] = _mm256_add_epi32(_mm256_set1_epi64x(first_block),
                             _mm256_set_epi64x(4 * i + 3, 4 * i + 2, 4 * i + 1, 4 * i));
    x1[i] = _mm256_set1_epi64x(stream.counter[0]);
    x2[i] = _mm256_set1_epi64x(stream.counter[1]);
    x3[i] = _mm256_set1_epi64x(stream.counter[2]);
  }
  uint32_t key0 = stream.key[0], key1 = stream.key[1];
  for (int round = 0; round < 10; ++round) {
    const Lanes keys0 = _mm256_set1_epi64x(key0), keys1 = _mm256_set1_epi64x(key1);
    for (int i = 0; i < kVectors; ++i) {
      const Lanes product0 = _mm256_mul_epu32(multiplier0, x0[i]);
      const Lanes product1 = _mm256_mul_epu32(multiplier1, x2[i]);
      x0[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), x1[i]), keys0);
      x1[i] = product1;
      x2[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), x3[i]), keys1);
      x3[i] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const Lanes low_bytes = _mm256_set1_epi16(0xff), ones = _mm256_set1_epi16(1);
  const auto word_sums = [&](Lanes even, Lanes odd) __attribute__((target("avx2"))) {
    const Lanes words =
        _mm256_or_si256(_mm256_and_si256(even, low_half), _mm256_slli_epi64(odd, 32));
    const Lanes pairs =
        _mm256_add_epi16(_mm256_and_si256(words, low_bytes), _mm256_srli_epi16(words, 8));
    return _mm256_madd_epi16(pairs, ones);  // one sum in each 32 bits
  };
  for (int i = 0; i < kVectors; ++i) {
    // Lanes (s0, s1) and (s2, s3) of each call, to (s0, s1, s2, s3) in 16 bits each.
    const Lanes packed = _mm256_packus_epi32(word_sums(x0[i], x1[i]), word_sums(x2[i], x3[i]));
    const Lanes in_order = _mm256_shuffle_epi32(packed, 0b11'01'10'00);
    _mm256_storeu_si256(reinterpret_cast<Lanes*>(sums + 16 * i), in_order);
  }
}
#endif

using BatchSums = void (*)(const SumStream&, uint32_t, uint16_t*);

BatchSums fastest_batch_sums() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return batch_sums_avx2;
#endif
  return batch_sums_scalar;
}

// Fills one row: its e-th value goes to the e-th place of its inner axes.
template <typename T>
void fill_row(const SumStream& stream, const T* values, const std::array<int64_t, 3>& shape,
              const std::array<int64_t, 3>& stride, T* row) {
  static const BatchSums next_sums = fastest_batch_sums();
  uint16_t sums[4 * kBatch];
  int64_t element = 0;
  for (int64_t i = 0; i < shape[0]; ++i) {
    for (int64_t j = 0; j < shape[1]; ++j) {
      T* run = row + i * stride[0] + j * stride[1];
      for (int64_t c = 0; c < shape[2];) {
        const int64_t used = element % (4 * kBatch);
        if (used == 0) next_sums(stream, static_cast<uint32_t>(element / 4), sums);
        const int64_t n = std::min(shape[2] - c, 4 * kBatch - used);
        for (int64_t e = 0; e < n; ++e) run[(c + e) * stride[2]] = values[sums[used + e]];
        c += n;
        element += n;
      }
    }
  }
}

template <typename T>
void fill_rows(const MutableTensorView& view, const RandomSpec& spec) {
  T values[kNumSums];
  for (int sum = 0; sum < kNumSums; ++sum) {
    const float value = (static_cast<float>(sum) - 510.0f) * 0x1.bb688cp-8f;
    store_element(values, view.dtype, sum, value * spec.scale);
  }
  std::array<int64_t, 3> shape = {1, 1, 1}, stride = {0, 0, 0};
  for (int32_t axis = 1; axis < view.rank; ++axis) {  // right-aligned
    shape[3 - view.rank + axis] = view.shape[axis];
    stride[3 - view.rank + axis] = view.stride[axis];
  }
  for (int64_t row = 0; row < view.shape[0]; ++row) {
    const uint64_t r = spec.first_row + static_cast<uint64_t>(row);
    SumStream stream;
    stream.key = {static_cast<uint32_t>(spec.seed), static_cast<uint32_t>(spec.seed >> 32)};
    stream.counter = {static_cast<uint32_t>(r), static_cast<uint32_t>(r >> 32), spec.tensor_id};
    fill_row(stream, values, shape, stride, static_cast<T*>(view.data) + row * view.stride[0]);
  }
}

}  // namespace

Status fill_random(const MutableTensorView& view, const RandomSpec& spec) {
  FLASHPRIME_REQUIRE(
      view.dtype == Dtype::kBf16 || view.dtype == Dtype::kFp16 || view.dtype == Dtype::kFp32,
      StatusCode::kDtype, "view: got ", dtype_name(view.dtype), ", wanted bf16, fp16 or fp32");
  FLASHPRIME_REQUIRE(std::isfinite(spec.scale), StatusCode::kNumeric, "scale: got ", spec.scale,
                     ", wanted a finite number");
  TensorSpec memory{"view", view.dtype};
  memory.access = Access::kWrite;
  memory.dense_last_axis = false;
  FLASHPRIME_RETURN_IF_ERROR(check_memory(as_const(view), memory));
  int64_t row_elements = 1;
  for (int32_t axis = 1; axis < view.rank; ++axis) {
    FLASHPRIME_REQUIRE(checked_mul(row_elements, view.shape[axis], &row_elements) &&
                           row_elements <= int64_t{1} << 34,
                       StatusCode::kRange, "view: got shape ", shape_text(as_const(view)),
                       ", wanted rows of at most 2^34 elements, which the counter can number");
  }
  // Rows without elements may be 2^60 in number, and have no memory to point into.
  if (row_elements == 0 || view.shape[0] == 0) return ok_status();

  if (view.dtype == Dtype::kFp32) {
    fill_rows<float>(view, spec);
  } else {
    fill_rows<uint16_t>(view, spec);
  }
  return ok_status();
}

}  // namespace flashprime
