// SPDX-License-Identifier: Apache-2.0
#include "problem/tensor_checks.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>

namespace flashprime {
namespace {

// Addresses only: nothing is read or written through them.
const void* address(uint64_t value) {
  return reinterpret_cast<const void*>(value);
}

// Every byte that the view covers, as often as it covers it.
std::multiset<uint64_t> bytes_of(const TensorView& view) {
  std::multiset<uint64_t> bytes;
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    for (int64_t j = 0; j < view.shape[1]; ++j) {
      for (int64_t k = 0; k < view.shape[2]; ++k) {
        const int64_t element = i * view.stride[0] + j * view.stride[1] + k * view.stride[2];
        for (int64_t byte = 0; byte < dtype_bytes(view.dtype); ++byte) {
          bytes.insert(reinterpret_cast<uint64_t>(view.data) +
                       static_cast<uint64_t>(element * dtype_bytes(view.dtype) + byte));
        }
      }
    }
  }
  return bytes;
}

TensorView random_view(std::mt19937& random, Dtype dtype) {
  const auto below = [&](uint32_t n) { return static_cast<int64_t>(random() % n); };
  const auto size = static_cast<uint64_t>(dtype_bytes(dtype));
  return TensorView::strided(address(4096 + size * static_cast<uint64_t>(below(80))), dtype,
                             {1 + below(4), 1 + below(4), 1 + below(5)},
                             {below(30), below(14), 1 + below(3)});
}

TEST(Overlap, AgreesWithCountingBytes) {
  std::mt19937 random(7);
  int overlapping = 0;
  constexpr int kPairs = 20000;
  for (int pair = 0; pair < kPairs; ++pair) {
    const TensorView a = random_view(random, Dtype::kBf16);
    const TensorView b = random_view(random, pair % 2 ? Dtype::kBf16 : Dtype::kFp32);
    const std::multiset<uint64_t> bytes_a = bytes_of(a), bytes_b = bytes_of(b);
    bool shared = false;
    for (uint64_t byte : bytes_a) shared = shared || bytes_b.contains(byte);
    ASSERT_EQ(overlap(a, b), shared)
        << shape_text(a) << " " << shape_text(a.stride.data(), 3) << " at " << a.data << ", "
        << shape_text(b) << " " << shape_text(b.stride.data(), 3) << " at " << b.data;
    ASSERT_EQ(overlap(b, a), shared);
    overlapping += shared ? 1 : 0;
  }
  EXPECT_GT(overlapping, kPairs / 10);  // both answers are exercised
  EXPECT_LT(overlapping, kPairs * 9 / 10);
}

TEST(CheckMemory, RefusesWrittenTensorsExactlyWhenElementsOverlap) {
  std::mt19937 random(8);
  int overlapping = 0;
  constexpr int kViews = 20000;
  for (int i = 0; i < kViews; ++i) {
    const TensorView view = random_view(random, i % 2 ? Dtype::kFp16 : Dtype::kFp32);
    const std::multiset<uint64_t> bytes = bytes_of(view);
    const std::set<uint64_t> distinct(bytes.begin(), bytes.end());
    TensorSpec spec{"view", view.dtype};
    spec.dense_last_axis = false;
    ASSERT_TRUE(check_memory(view, spec).ok());
    spec.access = Access::kWrite;
    const Status status = check_memory(view, spec);
    ASSERT_EQ(status.ok(), distinct.size() == bytes.size())
        << shape_text(view) << " " << shape_text(view.stride.data(), 3);
    ASSERT_EQ(status.code(), status.ok() ? StatusCode::kOk : StatusCode::kStride);
    overlapping += status.ok() ? 0 : 1;
  }
  EXPECT_GT(overlapping, kViews / 10);
  EXPECT_LT(overlapping, kViews * 9 / 10);
}

TEST(Overlap, IsExactForSlicesOfOneHugeBuffer) {
  // k_nope and v as halves of an up-projection's last axis, a million rows of 128 heads.
  const int64_t rows = 1 << 20;
  const auto half = [&](uint64_t first) {
    return TensorView::strided(address(4096 + 2 * first), Dtype::kBf16, {rows, 128, 128},
                               {32768, 256, 1});
  };
  EXPECT_FALSE(overlap(half(0), half(128)));
  EXPECT_TRUE(overlap(half(0), half(127)));
  EXPECT_TRUE(overlap(half(0), half(255)));
  EXPECT_FALSE(overlap(half(0), half(256 * 128 * uint64_t{1 << 20})));
}

TEST(Overlap, DecidesAtTheEdgesOfTheAddressSpace) {
  const int64_t far = std::numeric_limits<int64_t>::max() / 2 - 1;  // as far as spans go
  const auto low = TensorView::strided(address(8), Dtype::kBf16, {2}, {far});
  const auto high = TensorView::strided(address(uint64_t{1} << 63), Dtype::kBf16, {2}, {far});
  EXPECT_FALSE(overlap(low, high));
  EXPECT_TRUE(overlap(low, low));
}

TEST(Overlap, EmptyTensorsOverlapNothing) {
  const auto empty = TensorView::contiguous(address(4096), Dtype::kBf16, {0, 4});
  const auto full = TensorView::contiguous(address(4096), Dtype::kBf16, {4, 4});
  EXPECT_FALSE(overlap(empty, full));
  EXPECT_FALSE(overlap(full, empty));
}

}  // namespace
}  // namespace flashprime
