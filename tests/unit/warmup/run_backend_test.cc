// SPDX-License-Identifier: Apache-2.0
// An engine's step over the backend, in both forms of the context call, against one attention over
// all keys.
#include <gmock/gmock.h>

#include <cmath>

#include "flashprime/merge.h"
#include "flashprime/prefill_backend.h"
#include "unit/layer/layer_batch.h"

namespace flashprime {
namespace {

using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using testing::LayerBatch;
using ::testing::SizeIs;

PrefillBackendOptions options_of(const LayerBatch& batch) {
  PrefillBackendOptions options;
  options.dims = batch.problem.dims;
  options.num_heads = batch.problem.num_heads;
  options.softmax_scale = 0.3f;
  return options;
}

// Output rows [T, H, v] and LSE [H, T] in fp32.
struct State {
  State(const LayerBatch& batch, int64_t rows)
      : tokens(rows),
        heads(batch.heads()),
        dim(batch.problem.dims.v),
        out(static_cast<size_t>(tokens * heads * dim), 7.0f),
        lse(static_cast<size_t>(heads * tokens), 7.0f) {}

  MutableTensorView out_view() {
    return MutableTensorView::contiguous(out.data(), Dtype::kFp32, {tokens, heads, dim});
  }
  MutableTensorView lse_view() {
    return MutableTensorView::contiguous(lse.data(), Dtype::kFp32, {heads, tokens});
  }

  int64_t tokens, heads, dim;
  std::vector<float> out, lse;
};

// `state`, from row `begin` on, becomes its merge with `partial`.
void merge_into(State& state, int64_t begin, State& partial) {
  MutableTensorView out = state.out_view();
  out.data = state.out.data() + begin * state.heads * state.dim;
  out.shape[0] = partial.tokens;
  MutableTensorView lse = state.lse_view();
  lse.data = state.lse.data() + begin;
  lse.shape[1] = partial.tokens;
  MergeArgs merge;
  merge.prefix_out = as_const(out);
  merge.prefix_lse = as_const(lse);
  merge.suffix_out = as_const(partial.out_view());
  merge.suffix_lse = as_const(partial.lse_view());
  merge.out = out;
  merge.lse = lse;
  const Status status = merge_states(merge);
  ASSERT_TRUE(status.ok()) << status.to_string();
}

class RunBackend : public ::testing::Test {
 protected:
  PrefillBackendArgs args_for(const KeyValueViews& keys, State& state) const {
    PrefillBackendArgs args;
    args.q = batch_.rows_view(batch_.q, batch_.dim_qk());
    args.k = keys.k;
    args.v = keys.v;
    args.out = state.out_view();
    args.lse = state.lse_view();
    return args;
  }
  PrefillBackendArgs new_tokens(State& state) const {
    const PrefillArgs given = batch_.new_token_args();
    return args_for({.k = given.k, .k_nope = {}, .k_pe = {}, .v = given.v}, state);
  }
  State one_pass() const {
    State state(batch_, batch_.tokens());
    PrefillArgs args = batch_.one_pass_args();
    args.out = state.out_view();
    args.lse = state.lse_view();
    const Status status = prefill(batch_.problem, args);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return state;
  }
  void expect_near(const State& got, const State& wanted) const {
    for (size_t i = 0; i < wanted.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], wanted.out[i], 2e-5) << i;
    }
    for (size_t i = 0; i < wanted.lse.size(); ++i) {
      ASSERT_NEAR(got.lse[i], wanted.lse[i], 2e-5) << i;
    }
  }

  LayerBatch batch_{{5, 3, 7, 2}, {90, 0, 41, 130}, {16, 8, 16}, 2};
};

TEST_F(RunBackend, ByChunkIndexEveryQueryMeetsEveryChunk) {
  StatusOr<PrefillBackend> backend = PrefillBackend::create(options_of(batch_));
  ASSERT_TRUE(backend.ok()) << backend.status().to_string();
  const StatusOr<ContextPlan> plan =
      plan_context_equal_slices(batch_.context_lens, {.workspace_rows = 96});
  ASSERT_THAT(plan->chunks, SizeIs(::testing::Gt(2u)));
  PrefillBatchMetadata metadata{.cu_seqlens_q = LayerBatch::cu_view(batch_.cu_new)};
  for (const ContextChunk& chunk : plan->chunks) {
    metadata.chunks.push_back({.cu_seqlens_k = LayerBatch::cu_view(chunk.cu_seqlens_k),
                               .max_seqlen_k = chunk.max_seqlen_k});
  }
  backend->prepare(metadata);

  State state(batch_, batch_.tokens());
  ASSERT_TRUE(backend->run_prefill_new_tokens(new_tokens(state)).ok());
  const ContextSource gather = batch_.gathering_source();
  for (const ContextChunk& chunk : plan->chunks) {
    const StatusOr<KeyValueViews> keys = gather(chunk, nullptr);
    State partial(batch_, batch_.tokens());
    const Status status = backend->run_prefill_context_chunk(chunk.index, args_for(*keys, partial));
    ASSERT_TRUE(status.ok()) << status.to_string();
    // The request without context sees nothing, and says so.
    for (int64_t token = batch_.cu_new[1]; token < batch_.cu_new[2]; ++token) {
      EXPECT_EQ(partial.lse[static_cast<size_t>(token)], -INFINITY);
      EXPECT_EQ(partial.out[static_cast<size_t>(token * partial.heads * partial.dim)], 0.0f);
    }
    merge_into(state, 0, partial);
  }
  expect_near(state, one_pass());
}

TEST_F(RunBackend, ByChunkOnlyItsOwnQueriesTakePart) {
  StatusOr<PrefillBackend> backend = PrefillBackend::create(options_of(batch_));
  backend->prepare({.cu_seqlens_q = LayerBatch::cu_view(batch_.cu_new)});
  const StatusOr<ContextPlan> plan =
      plan_context_greedy(batch_.context_lens, {.workspace_rows = 64});
  ASSERT_THAT(plan->chunks, SizeIs(::testing::Gt(3u)));

  State state(batch_, batch_.tokens());
  ASSERT_TRUE(backend->run_prefill_new_tokens(new_tokens(state)).ok());
  const ContextSource gather = batch_.gathering_source();
  for (const ContextChunk& chunk : plan->chunks) {
    const StatusOr<KeyValueViews> keys = gather(chunk, nullptr);
    const int64_t begin = batch_.cu_new[static_cast<size_t>(chunk.request_begin)];
    const int64_t end = batch_.cu_new[static_cast<size_t>(chunk.request_end)];
    std::vector<int32_t> cu_q;
    for (int32_t r = chunk.request_begin; r <= chunk.request_end; ++r) {
      cu_q.push_back(batch_.cu_new[static_cast<size_t>(r)] - static_cast<int32_t>(begin));
    }
    State partial(batch_, end - begin);
    PrefillBackendArgs args = args_for(*keys, partial);
    args.q.data = static_cast<const uint16_t*>(args.q.data) + begin * args.q.stride[0];
    args.q.shape[0] = end - begin;
    const PrefillChunkMetadata metadata{.cu_seqlens_q = LayerBatch::cu_view(cu_q),
                                        .cu_seqlens_k = LayerBatch::cu_view(chunk.cu_seqlens_k),
                                        .max_seqlen_q = 7,
                                        .max_seqlen_k = chunk.max_seqlen_k};
    EXPECT_EQ(*backend->workspace_bytes(metadata, args, MaskKind::kFull), 0);
    const Status status = backend->run_prefill_context_chunk(metadata, args);
    ASSERT_TRUE(status.ok()) << status.to_string();
    merge_into(state, begin, partial);
  }
  expect_near(state, one_pass());
}

TEST_F(RunBackend, NewTokensAreExactlyACausalPrefillInTheDtypeOfTheOutput) {
  StatusOr<PrefillBackend> backend = PrefillBackend::create(options_of(batch_));
  backend->prepare({.cu_seqlens_q = LayerBatch::cu_view(batch_.cu_new)});
  std::vector<uint16_t> got(static_cast<size_t>(batch_.tokens() * 2 * 16)), wanted(got.size(), 1);
  const auto view = [&](std::vector<uint16_t>& data) {
    return MutableTensorView::contiguous(data.data(), Dtype::kBf16, {batch_.tokens(), 2, 16});
  };
  State unused(batch_, batch_.tokens());
  PrefillBackendArgs args = new_tokens(unused);
  args.out = view(got);
  args.lse = {};
  ASSERT_TRUE(backend->run_prefill_new_tokens(args).ok());
  PrefillProblem problem = batch_.problem;
  problem.out_dtype = Dtype::kBf16;
  problem.return_lse = false;
  PrefillArgs same = batch_.new_token_args();
  same.out = view(wanted);
  ASSERT_TRUE(prefill(problem, same).ok());
  EXPECT_EQ(got, wanted);
}

TEST_F(RunBackend, OneFlagForbidsSplitsInCallsAndKeys) {
  PrefillBackendOptions options = options_of(batch_);
  options.dims = {128, 64, 128};
  options.num_heads = 16;
  const auto keys = [&] {
    const StatusOr<PrefillBackend> backend = PrefillBackend::create(options);
    EXPECT_TRUE(backend.ok()) << backend.status().to_string();
    return get_warmup_keys(backend->warmup_config({10, 0}, 4))->keys;
  };
  EXPECT_THAT(keys(), AllOf(SizeIs(24), Each(Field(&CompileKey::num_splits, 0))));
  options.batch_invariant = true;
  EXPECT_THAT(keys(), AllOf(SizeIs(8), Each(Field(&CompileKey::num_splits, 1))));
  EXPECT_THAT(keys(), Each(Field(&CompileKey::q_dtype, Dtype::kBf16)));
  const PlanOptions plan = PrefillBackend::create(options)->plan_options({"sm_90a"});
  EXPECT_EQ(plan.dims.v, 128);
  EXPECT_EQ(plan.archs, std::vector<std::string>{"sm_90a"});
}

TEST_F(RunBackend, SaysWhatItCannotDo) {
  PrefillBackendOptions options = options_of(batch_);
  options.dims = {0, 64, 128};
  const Status refused = PrefillBackend::create(options).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.message(), HasSubstr("cpu_fast: dims.nope: got 0"));

  StatusOr<PrefillBackend> backend = PrefillBackend::create(options_of(batch_));
  State state(batch_, batch_.tokens());
  // Nothing is prepared.
  EXPECT_EQ(backend->run_prefill_new_tokens(new_tokens(state)).code(), StatusCode::kCuSeqlens);
  backend->prepare({.cu_seqlens_q = LayerBatch::cu_view(batch_.cu_new)});
  const Status beyond = backend->run_prefill_context_chunk(0, new_tokens(state));
  EXPECT_EQ(beyond.code(), StatusCode::kRange);
  EXPECT_THAT(beyond.message(), HasSubstr("chunk: got 0"));
  const PrefillChunkMetadata chunk{.cu_seqlens_q = LayerBatch::cu_view(batch_.cu_new),
                                   .cu_seqlens_k = LayerBatch::cu_view(batch_.cu_new)};
  PrefillBackendArgs args = new_tokens(state);
  args.lse = {};
  EXPECT_EQ(backend->run_prefill_context_chunk(chunk, args).code(), StatusCode::kShape);
  args = new_tokens(state);
  args.out.dtype = Dtype::kE4m3;
  EXPECT_EQ(backend->run_prefill_context_chunk(chunk, args).code(), StatusCode::kDtype);
  EXPECT_EQ(state.out, State(batch_, batch_.tokens()).out);  // untouched
}

}  // namespace
}  // namespace flashprime
