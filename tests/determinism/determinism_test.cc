// SPDX-License-Identifier: Apache-2.0
// The same bits, whatever surrounds a call: earlier contents of its outputs, other sequences, other
// heads, memory layouts, threads and schedules. All comparisons are bitwise.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/cases/accuracy.h"
#include "tests/cases/dense_batch.h"
#include "tests/cases/number_formats.h"
#include "tests/cases/staging.h"
#include "tests/cases/tensors.h"

namespace flashprime {
namespace {

using cases::Case;
using cases::DenseBatch;
using cases::DenseResult;
using cases::Layout;

// cpu_fast, or the kernel that the environment names.
ExecutionOptions fast(int32_t threads = 0) {
  ExecutionOptions options = cases::execution_under_test();
  if (options.kernel.empty()) options.kernel = "cpu_fast";
  options.num_threads = threads;
  return options;
}

bool on_gpu() {
  return fast().device.kind == DeviceKind::kCuda;
}

Mask mask_of(MaskKind kind, int64_t left = -1, int64_t right = -1) {
  return {kind, left, right};
}

DenseResult run_ok(DenseBatch batch, const ExecutionOptions& options = fast(),
                   unsigned char garbage = 0xff) {
  batch.problem.batch_invariant = true;
  DenseResult result = cases::run(batch, options, garbage);
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  return result;
}

// Lengths on tile edges and beside them, with and without context.
DenseBatch mixed_batch(const Mask& mask, int32_t heads, uint64_t seed) {
  return DenseBatch::random({128, 64, 128}, heads, Dtype::kBf16, mask,
                            {1, 64, 129, 0, 63, 17, 128, 5}, {300, 64, 400, 9, 65, 0, 128, 3},
                            seed);
}

const Mask kMasks[] = {mask_of(MaskKind::kCausal), mask_of(MaskKind::kFull),
                       mask_of(MaskKind::kWindow, 70, 3)};

TEST(RunToRun, OldContentsOfTheOutputsNeverMatter) {
  for (const Mask& mask : kMasks) {
    const DenseBatch batch = mixed_batch(mask, 3, 1);
    const DenseResult first = run_ok(batch);
    for (const int garbage : {0x00, 0x3c, 0x7f, 0xff}) {
      EXPECT_TRUE(run_ok(batch, fast(), static_cast<unsigned char>(garbage)).same_bits(first));
    }
  }
}

TEST(RunToRun, RepeatedCallsGiveTheSameBits) {
  const DenseBatch batch = mixed_batch(kMasks[0], 3, 2);
  const DenseResult first = run_ok(batch);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(run_ok(batch).same_bits(first)) << "call " << i;
}

TEST(BatchInvariance, ASequenceAloneHasTheBitsItHasInABatch) {
  for (const Mask& mask : kMasks) {
    const DenseBatch batch = mixed_batch(mask, 2, 3);
    const DenseResult together = run_ok(batch);
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const DenseResult alone = run_ok(batch.select({s}));
      for (int64_t i = 0; i < alone.rows; ++i) {
        ASSERT_EQ(together.row_bytes(batch.first_q(s) + i), alone.row_bytes(i))
            << "sequence " << s << " row " << i;
      }
    }
  }
}

TEST(BatchInvariance, OrderAndRepetitionOfSequencesDoNotMatter) {
  const DenseBatch batch = mixed_batch(kMasks[0], 2, 4);
  const DenseResult together = run_ok(batch);
  const std::vector<int64_t> order{7, 2, 2, 0, 6, 5, 4, 3, 1, 2};
  const DenseBatch shuffled = batch.select(order);
  const DenseResult result = run_ok(shuffled);
  for (size_t n = 0; n < order.size(); ++n) {
    for (int64_t i = 0; i < shuffled.q_lens[n]; ++i) {
      ASSERT_EQ(result.row_bytes(shuffled.first_q(static_cast<int64_t>(n)) + i),
                together.row_bytes(batch.first_q(order[n]) + i));
    }
  }
}

TEST(BatchInvariance, LengthHintsDoNotMatter) {
  DenseBatch batch = mixed_batch(kMasks[0], 2, 5);
  const DenseResult plain = run_ok(batch);
  for (const int64_t hint : {400, 4096, 2'000'000'000}) {
    batch.max_seqlen_q = batch.max_seqlen_k = hint;
    EXPECT_TRUE(run_ok(batch).same_bits(plain)) << hint;
  }
}

// Decoding the last token alone, or any suffix of the new tokens, repeats the prefill's bits.
TEST(BatchInvariance, ARowHasTheSameBitsHoweverManyRowsComeBeforeIt) {
  for (const int32_t length : {64, 65, 129, 512}) {
    const DenseBatch batch =
        DenseBatch::random({128, 64, 128}, 4, Dtype::kBf16, kMasks[0], {length}, {length}, 6);
    const DenseResult whole = run_ok(batch);
    for (const int32_t rows : {1, 2, 7, 33, 63, 64}) {
      const DenseResult part = run_ok(batch.cut(0, length - rows, length, 0, length));
      for (int64_t i = 0; i < rows; ++i) {
        ASSERT_EQ(whole.row_bytes(length - rows + i), part.row_bytes(i))
            << length << " rows " << rows << " row " << i;
      }
    }
  }
}

TEST(BatchInvariance, AnUnmaskedRowAloneHasTheBitsItHasAmongOthers) {
  const DenseBatch batch =
      DenseBatch::random({128, 64, 128}, 2, Dtype::kBf16, kMasks[1], {70}, {333}, 7);
  const DenseResult whole = run_ok(batch);
  for (int64_t i = 0; i < 70; ++i) {
    ASSERT_EQ(whole.row_bytes(i), run_ok(batch.cut(0, i, i + 1, 0, 333)).row_bytes(0)) << i;
  }
}

TEST(HeadInvariance, AHeadAloneHasTheBitsItHasAmongOthers) {
  const DenseBatch all =
      DenseBatch::random({128, 64, 128}, 56, Dtype::kBf16, kMasks[0], {33, 1}, {90, 70}, 8);
  const DenseResult among56 = run_ok(all);
  for (const int32_t heads : {1, 3, 7, 16}) {
    std::vector<int32_t> chosen;
    for (int32_t h = 0; h < heads; ++h) chosen.push_back((h * 17 + 5) % 56);
    const DenseResult result = run_ok(all.select_heads(chosen));
    for (int64_t row = 0; row < result.rows; ++row) {
      for (int32_t h = 0; h < heads; ++h) {
        ASSERT_EQ(result.row_head_bytes(row, h),
                  among56.row_head_bytes(row, chosen[static_cast<size_t>(h)]))
            << heads << " heads, head " << h;
      }
    }
  }
}

// out and LSE of a case as rows of values, whatever their layout.
std::vector<double> values_of(const Case& c, uint64_t seed) {
  const cases::InputTensors inputs(c, seed);
  cases::OutputTensors outputs(c, c.out_dtype, 99.0);
  PrefillArgs args = inputs.args();
  args.out = outputs.out();
  args.lse = outputs.lse();
  PrefillProblem problem = c.problem();
  problem.batch_invariant = true;
  const Status status = cases::staged_prefill(problem, args, fast());
  EXPECT_TRUE(status.ok()) << status.to_string();
  std::vector<double> values;
  const bool heads_first = c.lse_layout == LseLayout::kHeadsTokens;
  for (int64_t row = 0; row < c.total_q(); ++row) {
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t i = 0; i < c.dims.v; ++i) {
        values.push_back(cases::load(args.out.data, c.out_dtype,
                                     row * args.out.stride[0] + h * args.out.stride[1] + i));
      }
      values.push_back(cases::load(
          args.lse.data, Dtype::kFp32,
          h * args.lse.stride[heads_first ? 0 : 1] + row * args.lse.stride[heads_first ? 1 : 0]));
    }
  }
  return values;
}

TEST(LayoutInvariance, StridesOffsetsAndPartsDoNotMatter) {
  const Layout layouts[] = {Layout::kPadded, Layout::kTransposed, Layout::kOdd, Layout::kSlice};
  for (const bool split : {false, true}) {
    for (const Mask& mask : kMasks) {
      Case plain;
      plain.dims = {128, 64, 128};
      plain.heads = 3;
      plain.mask = mask;
      plain.q_lens = {70, 0, 9};
      plain.k_lens = {133, 2, 9};
      plain.k_split = split;  // the shared rope part makes other numbers than separate ones
      const std::vector<double> wanted = values_of(plain, 9);
      for (const Layout layout : layouts) {
        if (on_gpu() && layout == Layout::kOdd) continue;  // refused: rows that are not aligned
        Case c = plain;
        c.q_layout = c.k_layout = c.v_layout = c.out_layout = layout;
        EXPECT_EQ(values_of(c, 9), wanted) << layout_name(layout);
        c.q_split = true;
        c.lse_layout = LseLayout::kTokensHeads;
        c.lse_gapped = true;
        c.k_pe_rank3 = true;
        EXPECT_EQ(values_of(c, 9), wanted) << layout_name(layout) << " in parts";
      }
    }
  }
}

TEST(LayoutInvariance, SharedRopePartEqualsItsCopiesInEveryHead) {
  Case split;
  split.dims = {128, 64, 128};
  split.heads = 3;
  split.q_lens = {40};
  split.k_lens = {170};
  split.k_split = true;
  const cases::InputTensors shared(split, 10);
  DenseBatch joined =
      DenseBatch::random(split.dims, 3, Dtype::kBf16, split.mask, split.q_lens, split.k_lens, 10);
  const cases::ValueSource source(split, 10);
  std::vector<float> row(3 * 192);
  for (int64_t j = 0; j < 170; ++j) {
    source.k_row(j, row.data());
    for (int64_t i = 0; i < 3 * 192; ++i) {
      joined.set(joined.k, j * 3 * 192 + i, static_cast<double>(row[static_cast<size_t>(i)]));
    }
  }
  const DenseResult wanted = run_ok(joined);
  cases::OutputTensors outputs(split, Dtype::kBf16, 0.0);
  PrefillArgs args = shared.args();
  args.out = outputs.out();
  args.lse = outputs.lse();
  PrefillProblem problem = split.problem();
  problem.batch_invariant = true;
  ASSERT_TRUE(cases::staged_prefill(problem, args, fast()).ok());
  EXPECT_EQ(std::memcmp(args.out.data, wanted.out.data(), wanted.out.size()), 0);
  EXPECT_EQ(std::memcmp(args.lse.data, wanted.lse.data(), wanted.lse.size() * 4), 0);
}

TEST(Threads, TheirNumberDoesNotMatter) {
  if (on_gpu()) GTEST_SKIP() << "threads of the CPU";
  for (const Mask& mask : kMasks) {
    const DenseBatch batch = mixed_batch(mask, 3, 11);
    const DenseResult one = run_ok(batch, fast(1));
    for (const int32_t threads : {2, 3, 8}) {
      EXPECT_TRUE(run_ok(batch, fast(threads)).same_bits(one)) << threads;
    }
  }
}

TEST(Threads, TheCallersLoopMayRunBodiesInAnyOrder) {
  if (on_gpu()) GTEST_SKIP() << "threads of the CPU";
  const DenseBatch batch = mixed_batch(kMasks[0], 3, 12);
  const DenseResult own = run_ok(batch);
  ExecutionOptions reversed = fast();
  int64_t bodies = 0;
  reversed.parallel_for = [&](int64_t n, const std::function<void(int64_t)>& body) {
    for (int64_t i = n - 1; i >= 0; --i) body(i);
    bodies += n;
  };
  EXPECT_TRUE(run_ok(batch, reversed).same_bits(own));
  EXPECT_GT(bodies, 1);
  ExecutionOptions interleaved = fast();
  interleaved.parallel_for = [](int64_t n, const std::function<void(int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = t; i < n; i += 3) body(i);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  EXPECT_TRUE(run_ok(batch, interleaved).same_bits(own));
}

// The fp32 result, rounded once, is the 16-bit result: the output dtype changes the last step only.
TEST(OutputDtype, SixteenBitOutputIsTheFp32OutputRoundedOnce) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    DenseBatch batch =
        DenseBatch::random({128, 64, 128}, 2, dtype, kMasks[0], {70, 3}, {200, 3}, 13);
    const DenseResult narrow = run_ok(batch);
    batch.problem.out_dtype = Dtype::kFp32;
    const DenseResult wide = run_ok(batch);
    ASSERT_EQ(narrow.lse, wide.lse);
    for (int64_t row = 0; row < wide.rows; ++row) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t i = 0; i < 128; ++i) {
          ASSERT_EQ(narrow.out_at(row, h, i), cases::round_to(dtype, wide.out_at(row, h, i)));
        }
      }
    }
  }
}

TEST(Layer, BitsDoNotDependOnThreadsNeighboursOrOldMemory) {
  DenseBatch batch = DenseBatch::random({128, 64, 128}, 3, Dtype::kBf16, kMasks[0], {20, 1, 64, 7},
                                        {20, 301, 200, 90}, 14);
  batch.problem.batch_invariant = true;
  const ContextPlan plan = cases::equal_chunks(cases::context_lens(batch), 96);
  const DenseResult one = cases::run_layer(batch, plan, fast(1));
  ASSERT_TRUE(one.status.ok()) << one.status.to_string();
  for (const int32_t threads : {2, 3, 8}) {
    EXPECT_TRUE(cases::run_layer(batch, plan, fast(threads)).same_bits(one)) << threads;
  }
  for (int64_t s = 0; s < batch.sequences(); ++s) {
    const DenseBatch alone = batch.select({s});
    const DenseResult result =
        cases::run_layer(alone, cases::equal_chunks(cases::context_lens(alone), 96), fast());
    ASSERT_TRUE(result.status.ok());
    for (int64_t i = 0; i < result.rows; ++i) {
      ASSERT_EQ(result.row_bytes(i), one.row_bytes(batch.first_q(s) + i)) << "sequence " << s;
    }
  }
}

}  // namespace
}  // namespace flashprime
