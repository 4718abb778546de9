// SPDX-License-Identifier: Apache-2.0
// Prints a hash of the bits that the library computes, a line per operation. Built by several
// compilers and compared: results are promised per ISA target, not per compiler.
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "flashprime/backend.h"
#include "flashprime/merge.h"
#include "flashprime/random.h"
#include "tests/cases/dense_batch.h"

namespace {

using namespace flashprime;

uint64_t hash_of(const void* data, size_t bytes, uint64_t hash = 0xcbf29ce484222325ull) {
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ p[i]) * 0x100000001b3ull;
  return hash;
}

bool failed = false;

void print(const std::string& name, const cases::DenseResult& result) {
  if (!result.status.ok()) {
    std::printf("%s: %s\n", name.c_str(), result.status.to_string().c_str());
    failed = true;
    return;
  }
  uint64_t hash = hash_of(result.out.data(), result.out.size());
  hash = hash_of(result.lse.data(), result.lse.size() * sizeof(float), hash);
  std::printf("%s %016" PRIx64 "\n", name.c_str(), hash);
}

cases::DenseResult merge(const cases::DenseResult& prefix, const cases::DenseResult& suffix) {
  cases::DenseResult result = prefix;
  MergeArgs args;
  const auto out = [](const cases::DenseResult& r) {
    return TensorView::contiguous(r.out.data(), r.dtype, {r.rows, r.heads, r.dim_v});
  };
  const auto lse = [](const cases::DenseResult& r) {
    return TensorView::contiguous(r.lse.data(), Dtype::kFp32, {r.heads, r.rows});
  };
  args.prefix_out = out(prefix);
  args.prefix_lse = lse(prefix);
  args.suffix_out = out(suffix);
  args.suffix_lse = lse(suffix);
  args.out = MutableTensorView::contiguous(result.out.data(), result.dtype,
                                           {result.rows, result.heads, result.dim_v});
  args.lse =
      MutableTensorView::contiguous(result.lse.data(), Dtype::kFp32, {result.heads, result.rows});
  result.status = merge_states(args);
  return result;
}

}  // namespace

int main() {
  std::printf("numerics %s\n", numerics_id().c_str());
  std::vector<float> numbers(1000);
  RandomSpec spec;
  spec.seed = 42;
  const auto view = MutableTensorView::contiguous(numbers.data(), Dtype::kFp32, {10, 100});
  if (!fill_random(view, spec).ok()) return 1;
  std::printf("fill_random %016" PRIx64 "\n", hash_of(numbers.data(), numbers.size() * 4));

  const HeadDims dims[] = {{128, 64, 128}, {192, 64, 256}, {17, 3, 5}};
  const Mask masks[] = {
      {MaskKind::kCausal, -1, -1}, {MaskKind::kFull, -1, -1}, {MaskKind::kWindow, 20, 3}};
  for (const HeadDims& d : dims) {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32}) {
      for (const Mask& mask : masks) {
        const cases::DenseBatch batch =
            cases::DenseBatch::random(d, 2, dtype, mask, {33, 1, 70, 0, 4}, {65, 90, 70, 3, 0}, 7);
        const std::string name = std::to_string(d.nope) + "," + std::to_string(d.rope) + "," +
                                 std::to_string(d.v) + " dtype " +
                                 std::to_string(static_cast<int>(dtype)) + " mask " +
                                 std::to_string(static_cast<int>(mask.kind));
        const cases::DenseResult result = cases::run(batch, {});
        print("prefill " + name, result);
        print("merge " + name, merge(result, cases::run(batch.select_heads({1, 0}), {})));
      }
      const cases::DenseBatch layer =
          cases::DenseBatch::random(d, 2, dtype, masks[0], {9, 40}, {200, 130}, 8);
      print("layer " + std::to_string(d.nope) + " dtype " + std::to_string(static_cast<int>(dtype)),
            cases::run_layer(layer, cases::equal_chunks(cases::context_lens(layer), 64), {}));
    }
  }
  return failed ? 1 : 0;
}
