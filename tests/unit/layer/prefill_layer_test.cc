// SPDX-License-Identifier: Apache-2.0
#include "flashprime/prefill_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "numerics/convert.h"
#include "unit/layer/layer_batch.h"

namespace flashprime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LayerBatch;
using testing::Workspace;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ContextPlan greedy(const LayerBatch& batch, int64_t workspace_rows) {
  ContextPlanOptions options;
  options.workspace_rows = workspace_rows;
  StatusOr<ContextPlan> plan = plan_context_greedy(batch.context_lens, options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : ContextPlan{};
}

ContextPlan equal_slices(const LayerBatch& batch, int64_t workspace_rows) {
  ContextPlanOptions options;
  options.workspace_rows = workspace_rows;
  StatusOr<ContextPlan> plan = plan_context_equal_slices(batch.context_lens, options);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *plan : ContextPlan{};
}

struct Result {
  Status status;
  std::vector<uint8_t> out;  // bytes of out_dtype
  std::vector<float> lse;    // [H, T]

  const float* out32() const { return reinterpret_cast<const float*>(out.data()); }
  bool operator==(const Result& other) const {
    return out == other.out &&
           std::equal(lse.begin(), lse.end(), other.lse.begin(), other.lse.end(),
                      [](float a, float b) {  // bits: NaN equals itself
                        return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
                      });
  }
};

ExecutionOptions on(const std::string& kernel) {
  ExecutionOptions options;
  options.kernel = kernel;
  return options;
}

const float kOutputScale = 0.02f;

// Gives `args` NaN-filled outputs in `result`.
void add_outputs(const LayerBatch& batch, PrefillArgs* args, Result* result) {
  const auto [dtype, tokens, heads] =
      std::tuple{batch.problem.out_dtype, batch.tokens(), batch.heads()};
  result->out.assign(
      static_cast<size_t>(tokens * heads * batch.problem.dims.v * dtype_bytes(dtype)), 0xff);
  args->out = MutableTensorView::contiguous(result->out.data(), dtype,
                                            {tokens, heads, batch.problem.dims.v});
  if (batch.problem.return_lse) {
    result->lse.assign(static_cast<size_t>(tokens * heads), kNan);
    args->lse = MutableTensorView::contiguous(result->lse.data(), Dtype::kFp32, {heads, tokens});
  }
  if (dtype == Dtype::kE4m3) {
    args->output_scale = TensorView::contiguous(&kOutputScale, Dtype::kFp32, {1});
  }
}

Result run_layer(LayerBatch& batch, const ContextPlan& plan, const ExecutionOptions& options,
                 uint8_t workspace_fill = 0xff) {
  Result result;
  PrefillArgs args = batch.new_token_args();
  add_outputs(batch, &args, &result);
  const StatusOr<int64_t> bytes = prefill_layer_workspace_bytes(batch.problem, args, plan, options);
  EXPECT_TRUE(bytes.ok()) << bytes.status().to_string();
  if (!bytes.ok()) return result;
  Workspace workspace(*bytes, workspace_fill);
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  result.status = prefill_layer(batch.problem, args, plan, batch.gathering_source(), options);
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_TRUE(workspace.guard_is(workspace_fill)) << "written behind the workspace";
  return result;
}

Result run_prefill(const LayerBatch& batch, PrefillArgs args, const ExecutionOptions& options) {
  Result result;
  add_outputs(batch, &args, &result);
  result.status = prefill(batch.problem, args, options);
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  return result;
}

struct Oracle {
  std::vector<double> out, lse;
};

Oracle one_pass(const LayerBatch& batch) {
  Oracle oracle;
  PrefillProblem problem = batch.problem;
  problem.out_dtype = Dtype::kFp64;
  PrefillArgs args = batch.one_pass_args();
  const int64_t tokens = batch.tokens();
  oracle.out.resize(static_cast<size_t>(tokens * batch.heads() * problem.dims.v));
  oracle.lse.resize(static_cast<size_t>(tokens * batch.heads()));
  args.out = MutableTensorView::contiguous(oracle.out.data(), Dtype::kFp64,
                                           {tokens, batch.heads(), problem.dims.v});
  args.lse =
      MutableTensorView::contiguous(oracle.lse.data(), Dtype::kFp64, {batch.heads(), tokens});
  const Status status = prefill(problem, args, on("cpu_reference"));
  EXPECT_TRUE(status.ok()) << status.to_string();
  return oracle;
}

// Largest error of fp32 outputs and LSE; infinite where one side is not finite and the other is.
double worst_error(const Result& result, const Oracle& oracle) {
  double worst = 0;
  const auto add = [&](double got, double wanted) {
    if (got == wanted) return;
    const double error = std::abs(got - wanted);
    worst = std::isnan(error) ? kInfinity : std::max(worst, error);
  };
  for (size_t i = 0; i < oracle.out.size(); ++i) {
    add(static_cast<double>(result.out32()[i]), oracle.out[i]);
  }
  for (size_t i = 0; i < oracle.lse.size(); ++i) {
    add(static_cast<double>(result.lse[i]), oracle.lse[i]);
  }
  return worst;
}

const HeadDims kSmall{16, 8, 16};

class PrefillLayer : public ::testing::TestWithParam<std::string> {
 protected:
  ExecutionOptions options() const { return on(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, PrefillLayer, ::testing::Values("cpu_reference", "cpu_fast"),
                         [](const auto& kernel) { return kernel.param; });

// 1e-5: fp32 sums of up to 500 terms of magnitude 3 with weights that add up to 1, and LSEs up to
// 10; measured 2e-6.
TEST_P(PrefillLayer, EqualsOneAttentionOverContextAndNewTokens) {
  LayerBatch batch({7, 40, 1, 0, 5, 12}, {100, 0, 257, 33, 0, 64}, kSmall, 3);
  const Oracle oracle = one_pass(batch);
  for (int64_t rows : {64, 128, 1000}) {
    EXPECT_LT(worst_error(run_layer(batch, greedy(batch, rows), options()), oracle), 1e-5) << rows;
    EXPECT_LT(worst_error(run_layer(batch, equal_slices(batch, rows), options()), oracle), 1e-5)
        << rows;
  }
}

// The bound holds for 1 chunk and for 64 alike; bf16 partial states would have errors of 4e-3.
// Most of it is the LSE, near 10, which each merge rounds to fp32: measured 3e-6 with 64 chunks.
TEST_P(PrefillLayer, KeepsItsErrorBoundWhateverTheNumberOfChunks) {
  LayerBatch batch({24}, {4096}, {32, 16, 32}, 2);
  const Oracle oracle = one_pass(batch);
  for (int64_t rows : {64, 128, 200, 1000, 4096}) {
    EXPECT_LT(worst_error(run_layer(batch, greedy(batch, rows), options()), oracle), 1e-5) << rows;
    EXPECT_LT(worst_error(run_layer(batch, equal_slices(batch, rows), options()), oracle), 1e-5)
        << rows;
  }
}

TEST_P(PrefillLayer, LeavesRequestsAloneThatAChunkHasNoKeysOf) {
  // With 128 rows for four requests, chunks 1.. have keys of request 1 and, at first, request 3.
  LayerBatch batch({5, 6, 7, 8}, {20, 400, 3, 90}, kSmall, 2);
  const ContextPlan plan = equal_slices(batch, 128);
  ASSERT_GT(plan.chunks.size(), 3u);
  ASSERT_TRUE(plan.chunks[1].has_empty_slice);
  EXPECT_LT(worst_error(run_layer(batch, plan, options()), one_pass(batch)), 1e-5);
}

// With one new key the mask hides it from the first 3 of 4 queries, whose new-token state is empty;
// all their context stays visible.
TEST_P(PrefillLayer, GivesContextAloneToQueriesThatSeeNoNewKey) {
  LayerBatch batch({4}, {50}, kSmall, 2);
  const std::vector<int32_t> one = {0, 1}, fifty = {0, 50}, fifty_one = {0, 51};
  const auto with_keys = [&](PrefillArgs args, const std::vector<int32_t>& cu) {
    args.k = TensorView::contiguous(args.k.data, Dtype::kBf16, {cu.back(), 2, 24});
    args.v = TensorView::contiguous(args.v.data, Dtype::kBf16, {cu.back(), 2, 16});
    args.cu_seqlens_k = LayerBatch::cu_view(cu);
    return args;
  };
  Result result;
  PrefillArgs args = with_keys(batch.new_token_args(), one);
  add_outputs(batch, &args, &result);
  Workspace workspace(1 << 16);
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  const Status status =
      prefill_layer(batch.problem, args, greedy(batch, 16), batch.gathering_source(), options());
  ASSERT_TRUE(status.ok()) << status.to_string();

  batch.problem.mask.kind = MaskKind::kFull;
  const Result context_only =
      run_prefill(batch, with_keys(batch.one_pass_args(), fifty), options());
  const Result all = run_prefill(batch, with_keys(batch.one_pass_args(), fifty_one), options());
  for (size_t t = 0; t < 4; ++t) {
    const Result& wanted = t < 3 ? context_only : all;
    for (size_t i = t * 32; i < (t + 1) * 32; ++i) {
      EXPECT_NEAR(result.out32()[i], wanted.out32()[i], 1e-6f);
    }
    for (size_t i : {t, 4 + t}) EXPECT_NEAR(result.lse[i], wanted.lse[i], 2e-6f);
  }
}

TEST_P(PrefillLayer, IsPrefillBitForBitWithoutContext) {
  LayerBatch batch({9, 0, 33}, {0, 0, 0}, kSmall, 3);
  for (Dtype out_dtype : {Dtype::kBf16, Dtype::kFp32, Dtype::kE4m3}) {
    batch.problem.out_dtype = out_dtype;
    const Result wanted = run_prefill(batch, batch.new_token_args(), options());
    EXPECT_EQ(run_layer(batch, ContextPlan{}, options()), wanted);
    EXPECT_EQ(run_layer(batch, greedy(batch, 64), options()), wanted);
  }
}

TEST_P(PrefillLayer, IsPrefillBitForBitForRequestsWithoutContext) {
  LayerBatch batch({9, 20, 33, 4}, {0, 70, 0, 5}, kSmall, 3);
  for (Dtype out_dtype : {Dtype::kBf16, Dtype::kE4m3}) {
    batch.problem.out_dtype = out_dtype;
    const Result alone = run_prefill(batch, batch.new_token_args(), options());
    const Result layer = run_layer(batch, greedy(batch, 64), options());
    const size_t row_bytes = static_cast<size_t>(3 * kSmall.v * dtype_bytes(out_dtype));
    for (int r : {0, 2}) {
      EXPECT_EQ(std::memcmp(alone.out.data() + static_cast<size_t>(batch.cu_new[r]) * row_bytes,
                            layer.out.data() + static_cast<size_t>(batch.cu_new[r]) * row_bytes,
                            static_cast<size_t>(batch.new_lens[r]) * row_bytes),
                0);
      for (int64_t t = batch.cu_new[r]; t < batch.cu_new[r + 1]; ++t) {
        EXPECT_EQ(alone.lse[static_cast<size_t>(t)], layer.lse[static_cast<size_t>(t)]);
      }
    }
    EXPECT_NE(alone, layer);
  }
}

TEST_P(PrefillLayer, RoundsToTheOutputTypeOnceAfterTheLastMerge) {
  LayerBatch batch({17, 3}, {300, 41}, kSmall, 2);
  const ContextPlan plan = greedy(batch, 64);
  const Result exact = run_layer(batch, plan, options());
  const size_t count = exact.out.size() / 4;

  batch.problem.out_dtype = Dtype::kBf16;
  const Result bf16 = run_layer(batch, plan, options());
  batch.problem.out_dtype = Dtype::kE4m3;
  const Result e4m3 = run_layer(batch, plan, options());
  batch.problem.return_lse = false;
  const Result without_lse = run_layer(batch, plan, options());
  for (size_t i = 0; i < count; ++i) {
    uint16_t code;
    std::memcpy(&code, bf16.out.data() + 2 * i, 2);
    ASSERT_EQ(code, float_to_bf16(exact.out32()[i])) << i;
    ASSERT_EQ(e4m3.out[i], float_to_e4m3(exact.out32()[i] * (1.0f / kOutputScale))) << i;
  }
  EXPECT_EQ(bf16.lse, exact.lse);
  EXPECT_EQ(e4m3.lse, exact.lse);
  EXPECT_EQ(without_lse.out, e4m3.out);
}

TEST_P(PrefillLayer, HasTheSameBitsWhateverTheWorkspaceHeldAndOnEveryRun) {
  LayerBatch batch({30, 2, 8}, {150, 0, 80}, kSmall, 3);
  batch.problem.out_dtype = Dtype::kBf16;
  for (bool return_lse : {true, false}) {
    batch.problem.return_lse = return_lse;
    const ContextPlan plan = greedy(batch, 64);
    const Result first = run_layer(batch, plan, options(), 0xff);
    EXPECT_EQ(run_layer(batch, plan, options(), 0xff), first);
    EXPECT_EQ(run_layer(batch, plan, options(), 0x00), first);
    EXPECT_EQ(run_layer(batch, plan, options(), 0x7f), first);
  }
}

TEST_P(PrefillLayer, TakesAnEmptyBatchAndABatchWithoutNewTokens) {
  LayerBatch nothing({}, {}, kSmall, 2);
  EXPECT_TRUE(run_layer(nothing, ContextPlan{}, options()).status.ok());
  LayerBatch no_tokens({0, 0}, {30, 0}, kSmall, 2);
  EXPECT_TRUE(run_layer(no_tokens, greedy(no_tokens, 16), options()).status.ok());
  EXPECT_EQ(no_tokens.chunks_seen, (std::vector<int32_t>{0, 1}));
}

TEST_P(PrefillLayer, TakesPartsOfQAndKAndStridedOutputsWithTheSameBits) {
  LayerBatch batch({6, 11}, {40, 70}, kSmall, 2);
  const ContextPlan plan = greedy(batch, 64);
  const Result wanted = run_layer(batch, plan, options());

  // k_pe is shared by all heads here, so make the joined keys agree first.
  const auto share_pe = [&](std::vector<uint16_t>* k) {
    for (size_t row = 0; row < k->size(); row += 48) {
      std::copy_n(k->begin() + static_cast<int64_t>(row) + 16, 8,
                  k->begin() + static_cast<int64_t>(row) + 24 + 16);
    }
  };
  share_pe(&batch.k_all);
  share_pe(&batch.k_new);
  const Result joined = run_layer(batch, plan, options());
  EXPECT_NE(joined, wanted);

  const auto nope_of = [](const TensorView& joined_view) {
    TensorView view = joined_view;
    view.shape[2] = 16;
    return view;
  };
  const auto pe_of = [](const TensorView& joined_view, int64_t heads) {
    TensorView view = joined_view;
    view.data = static_cast<const uint16_t*>(view.data) + 16;
    view.shape[1] = heads;
    view.shape[2] = 8;
    return view;
  };
  PrefillArgs args = batch.new_token_args();
  args.q_nope = nope_of(args.q);
  args.q_pe = pe_of(args.q, 2);
  args.k_nope = nope_of(args.k);
  args.k_pe = pe_of(args.k, 1);
  args.q = args.k = {};
  // Rows of 20 elements in a [H, T, 20] buffer, LSE as [T, H] in rows of 3.
  const int64_t tokens = batch.tokens();
  std::vector<float> out(static_cast<size_t>(2 * tokens * 20), kNan);
  std::vector<float> lse(static_cast<size_t>(tokens * 3), kNan);
  args.out =
      MutableTensorView::strided(out.data(), Dtype::kFp32, {tokens, 2, 16}, {20, tokens * 20, 1});
  args.lse = MutableTensorView::strided(lse.data(), Dtype::kFp32, {tokens, 2}, {3, 1});
  PrefillProblem problem = batch.problem;
  problem.lse_layout = LseLayout::kTokensHeads;
  const StatusOr<int64_t> bytes = prefill_layer_workspace_bytes(problem, args, plan, options());
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  Workspace workspace(*bytes);
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  const ContextSource joined_source = batch.gathering_source();
  const Status status = prefill_layer(
      problem, args, plan,
      [&](const ContextChunk& chunk, StreamHandle stream) -> StatusOr<KeyValueViews> {
        KeyValueViews views = *joined_source(chunk, stream);
        views.k_nope = nope_of(views.k);
        views.k_pe = pe_of(views.k, 1);
        views.k = {};
        return views;
      },
      options());
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t h = 0; h < 2; ++h) {
      EXPECT_EQ(lse[static_cast<size_t>(t * 3 + h)],
                joined.lse[static_cast<size_t>(h * tokens + t)]);
      for (int64_t c = 0; c < 20; ++c) {
        const float got = out[static_cast<size_t>((h * tokens + t) * 20 + c)];
        if (c < 16) {
          EXPECT_EQ(got, joined.out32()[(t * 2 + h) * 16 + c]);
        } else {
          EXPECT_TRUE(std::isnan(got));
        }
      }
    }
    EXPECT_TRUE(std::isnan(lse[static_cast<size_t>(t * 3 + 2)]));
  }
}

TEST(PrefillLayerSource, IsCalledOncePerChunkInOrderEvenWithoutQueries) {
  LayerBatch batch({0, 3}, {100, 50}, kSmall, 1);
  const ContextPlan plan = greedy(batch, 32);
  run_layer(batch, plan, on("cpu_reference"));
  std::vector<int32_t> wanted(plan.chunks.size());
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(batch.chunks_seen, wanted);
}

TEST(PrefillLayerSource, ReturnsReadyViewsByChunk) {
  LayerBatch batch({4, 6}, {16, 16}, kSmall, 2);
  const ContextPlan plan = greedy(batch, 16);
  const Result wanted = run_layer(batch, plan, on("cpu_reference"));
  std::vector<KeyValueViews> views(2);
  for (int r : {0, 1}) {
    const int64_t row = batch.cu_all[r];
    views[r].k = TensorView::contiguous(batch.k_all.data() + row * 48, Dtype::kBf16, {16, 2, 24});
    views[r].v = TensorView::contiguous(batch.v_all.data() + row * 32, Dtype::kBf16, {16, 2, 16});
  }
  PrefillArgs args = batch.new_token_args();
  Result result;
  add_outputs(batch, &args, &result);
  Workspace workspace(1 << 16);
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  ASSERT_TRUE(prefill_layer(batch.problem, args, plan, context_from_views(views)).ok());
  EXPECT_LT(std::abs(result.out32()[0] - wanted.out32()[0]), 1e-5f);

  views.pop_back();
  const Status status = prefill_layer(batch.problem, args, plan, context_from_views(views));
  EXPECT_EQ(status.code(), StatusCode::kPlan);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("views: got 1"), HasSubstr("chunk 1")));
}

// A call that works, for tests that break one thing of it.
struct GoodCall {
  GoodCall() {
    batch.problem.out_dtype = Dtype::kBf16;
    plan = greedy(batch, 32);
    args = batch.new_token_args();
    add_outputs(batch, &args, &result);
    source = batch.gathering_source();
    const StatusOr<int64_t> needed = prefill_layer_workspace_bytes(batch.problem, args, plan);
    EXPECT_TRUE(needed.ok()) << needed.status().to_string();
    workspace = Workspace(*needed);
    args.workspace = workspace.data();
    args.workspace_bytes = workspace.bytes();
    untouched = result;
  }
  Status run() { return prefill_layer(batch.problem, args, plan, source, on("cpu_reference")); }
  // Runs and wants this error, before any output is written.
  void refuse(StatusCode code, const std::string& message) {
    const Status status = run();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_EQ(result, untouched) << "an output was written";
  }

  LayerBatch batch{{3, 5, 2}, {40, 0, 20}, kSmall, 2};
  ContextPlan plan;
  PrefillArgs args;
  ContextSource source;
  Workspace workspace{0};
  Result result, untouched;
};

TEST(PrefillLayerErrors, StartFromACallThatWorks) {
  GoodCall call;
  EXPECT_TRUE(call.run().ok());
  EXPECT_NE(call.result, call.untouched);
}

TEST(PrefillLayerErrors, RefuseABadWorkspace) {
  GoodCall call;
  const int64_t needed = call.args.workspace_bytes;
  call.args.workspace = nullptr;
  call.refuse(StatusCode::kWorkspace, "workspace: got a null pointer, wanted");
  call.args.workspace = static_cast<char*>(call.workspace.data()) + 128;
  call.refuse(StatusCode::kWorkspace, "not a multiple of 256");
  call.args.workspace = call.workspace.data();
  call.args.workspace_bytes = needed - 1;
  call.refuse(StatusCode::kWorkspace, "workspace_bytes: got " + std::to_string(needed - 1) +
                                          ", wanted at least " + std::to_string(needed));
}

TEST(PrefillLayerErrors, RefuseAWorkspaceThatOverlapsATensor) {
  GoodCall call;
  std::vector<std::byte> big(1 << 16);
  call.args.workspace = big.data() + (256 - reinterpret_cast<uintptr_t>(big.data()) % 256);
  call.args.out.data = static_cast<char*>(call.args.workspace) + 1024;
  call.refuse(StatusCode::kAlias, "workspace: got memory that overlaps out");
}

TEST(PrefillLayerErrors, RefuseFp64WithContext) {
  GoodCall call;
  std::vector<double> out(10 * 2 * 16), lse(20);
  call.batch.problem.out_dtype = Dtype::kFp64;
  call.args.out = MutableTensorView::contiguous(out.data(), Dtype::kFp64, {10, 2, 16});
  call.args.lse = MutableTensorView::contiguous(lse.data(), Dtype::kFp64, {2, 10});
  call.refuse(StatusCode::kUnsupported, "out_dtype: got fp64 with 3 context chunks");
}

TEST(PrefillLayerErrors, RefuseWhatPrefillRefuses) {
  GoodCall call;
  call.args.softmax_scale = kNan;
  call.refuse(StatusCode::kNumeric, "softmax_scale");
}

TEST(PrefillLayerErrors, RefuseAnEmptySource) {
  GoodCall call;
  call.source = nullptr;
  call.refuse(StatusCode::kNull, "source: got an empty function for 3 context chunks");
}

TEST(PrefillLayerErrors, RefuseAPlanThatContradictsTheCallOrItself) {
  const auto refuse = [](const std::string& message, const auto& edit) {
    SCOPED_TRACE(message);
    GoodCall call;
    edit(call.plan);
    call.refuse(StatusCode::kPlan, message);
    EXPECT_EQ(
        prefill_layer_workspace_bytes(call.batch.problem, call.args, call.plan).status().code(),
        StatusCode::kPlan);
  };
  // Chunks of 32 rows over contexts {40, 0, 20}: {r0: 0..32} {r0: 32..40} {r2: 0..20}.
  ASSERT_EQ(GoodCall().plan.chunks.size(), 3u);
  refuse("plan.context_lens: got 4 requests, wanted 3",
         [](auto& p) { p.context_lens.push_back(0); });
  refuse("plan: got 20 tokens of request 2's context in chunks, wanted all 21",
         [](auto& p) { p.context_lens[2] = 21; });
  refuse("plan: got 0 tokens of request 2's", [](auto& p) { p.chunks.pop_back(); });
  refuse("plan: got 0 tokens of request 0's", [](auto& p) { p.chunks.clear(); });
  refuse("plan.chunks[1].index: got 0", [](auto& p) { p.chunks[1].index = 0; });
  refuse("plan.chunks[2]: got requests [2, 4), wanted a non-empty part of [0, 3)",
         [](auto& p) { p.chunks[2].request_end = 4; });
  refuse("plan.chunks[2]: got requests [-1, 3)", [](auto& p) { p.chunks[2].request_begin = -1; });
  refuse("plan.chunks[2]: got requests [3, 3)", [](auto& p) { p.chunks[2].request_begin = 3; });
  refuse("plan.chunks[0]: got 2 slices and 2 entries",
         [](auto& p) { p.chunks[0].slices.push_back({1, 0, 0}); });
  refuse("plan.chunks[0]: got 1 slices and 1 entries",
         [](auto& p) { p.chunks[0].cu_seqlens_k.pop_back(); });
  refuse("plan.chunks[0].cu_seqlens_k[0]: got 1", [](auto& p) { p.chunks[0].cu_seqlens_k[0] = 1; });
  refuse("plan.chunks[0].cu_seqlens_k[1]: got 33, wanted 32",
         [](auto& p) { p.chunks[0].cu_seqlens_k[1] = 33; });
  refuse("plan.chunks[0].slices[0].request: got 1, wanted 0",
         [](auto& p) { p.chunks[0].slices[0].request = 1; });
  refuse("plan.chunks[1].slices[0]: got start 31 and length 8, wanted to continue request 0 at 32",
         [](auto& p) { p.chunks[1].slices[0].start = 31; });
  refuse("plan.chunks[1].slices[0]: got start 32 and length 9",
         [](auto& p) { p.chunks[1].slices[0].length = 9; });
  refuse("plan.chunks[1].slices[0]: got start 32 and length -8",
         [](auto& p) { p.chunks[1].slices[0].length = -8; });
  refuse("plan.chunks[1].max_seqlen_k: got 7, wanted at least 8",
         [](auto& p) { p.chunks[1].max_seqlen_k = 7; });
  refuse("plan.chunks[3]: got no tokens",
         [](auto& p) { p.chunks.push_back({3, 0, 1, {{0, 40, 0}}, {0, 0}, 0, true}); });
}

TEST(PrefillLayerErrors, OfTheSourceComeBackUnchanged) {
  GoodCall call;
  call.source = [](const ContextChunk& chunk, StreamHandle) -> StatusOr<KeyValueViews> {
    return Status(StatusCode::kIo, "cache: page " + std::to_string(chunk.index) + " is gone");
  };
  const Status status = call.run();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "cache: page 0 is gone");
}

TEST(PrefillLayerErrors, OfTheSourcesViewsNameTheChunk) {
  const auto refuse = [](StatusCode code, const std::string& message, const auto& edit) {
    SCOPED_TRACE(message);
    GoodCall call;
    call.source = [&, good = call.source](const ContextChunk& chunk,
                                          StreamHandle stream) -> StatusOr<KeyValueViews> {
      KeyValueViews views = *good(chunk, stream);
      if (chunk.index == 1) edit(views, call);
      return views;
    };
    const Status status = call.run();
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("context chunk 1: "), HasSubstr(message)));
  };
  refuse(StatusCode::kShape, "v: got 7 rows, wanted 8",
         [](auto& views, auto&) { views.v.shape[0] = 7; });
  refuse(StatusCode::kShape, "k: got neither", [](auto& views, auto&) { views.k = {}; });
  refuse(StatusCode::kShape, "k: got shape [8, 2, 23]",
         [](auto& views, auto&) { views.k.shape[2] = 23; });
  refuse(StatusCode::kDtype, "k: got fp16",
         [](auto& views, auto&) { views.k.dtype = Dtype::kFp16; });
  refuse(StatusCode::kNull, "v: got a null", [](auto& views, auto&) { views.v.data = nullptr; });
  refuse(StatusCode::kRange, "overflows",
         [](auto& views, auto&) { views.k.stride[0] = std::numeric_limits<int64_t>::max() / 4; });
  refuse(StatusCode::kRange, "capacity", [](auto& views, auto&) { views.k.capacity_bytes = 24; });
  refuse(StatusCode::kAlias, "v: got memory that overlaps out",
         [](auto& views, auto& call) { views.v.data = call.args.out.data; });
  refuse(StatusCode::kAlias, "v: got memory that overlaps workspace",
         [](auto& views, auto& call) { views.v.data = call.args.workspace; });
  refuse(StatusCode::kCuSeqlens, "cu_seqlens_k: got a tensor from the context source",
         [](auto& views, auto& call) { views.cu_seqlens_k = call.args.cu_seqlens_k; });
}

TEST(PrefillLayerWorkspace, HoldsOneStateAndTheLargestPartial) {
  // Heads 2, v 16: 32 fp32 of output and 2 of LSE a token. Runs with context: 30 and 8 tokens;
  // every chunk touches at most 30 of them.
  LayerBatch batch({30, 2, 8}, {150, 0, 80}, kSmall, 2);
  const auto bytes = [&](Dtype out_dtype, bool return_lse) {
    batch.problem.out_dtype = out_dtype;
    batch.problem.return_lse = return_lse;
    PrefillArgs args = batch.new_token_args();
    Result result;
    add_outputs(batch, &args, &result);
    const StatusOr<int64_t> needed =
        prefill_layer_workspace_bytes(batch.problem, args, greedy(batch, 64));
    EXPECT_TRUE(needed.ok()) << needed.status().to_string();
    return needed.ok() ? *needed : -1;
  };
  const int64_t partial = 30 * 128 + 256;  // 30 * 8 bytes of LSE rounded up to 256
  const int64_t state = 38 * 128, state_lse = 512;
  EXPECT_EQ(bytes(Dtype::kFp32, true), partial);
  EXPECT_EQ(bytes(Dtype::kFp32, false), partial + state_lse);
  EXPECT_EQ(bytes(Dtype::kBf16, true), partial + state);
  EXPECT_EQ(bytes(Dtype::kBf16, false), partial + state + state_lse);
}

}  // namespace
}  // namespace flashprime
