// SPDX-License-Identifier: Apache-2.0
// Whatever a call is, its kernels are among those that warmup plans.
#include "select/kernel_keys_of.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>
#include <unordered_set>

#include "flashprime/jit.h"
#include "flashprime/models.h"
#include "jit/plan_kernels.h"
#include "launch/launch_prefill.h"
#include "problem/validate_problem.h"

namespace flashprime {
namespace {

using ::testing::IsEmpty;

const std::vector<std::string> kArchs = {"sm_80",   "sm_86",   "sm_89",   "sm_90",  "sm_90a",
                                         "sm_100a", "sm_103a", "sm_120a", "sm_121a"};
constexpr int kDraws = 100'000;

// A call of the domain that warmup covers: the model's dims and dtype; new tokens causal, context
// full and with LSE; output in the model's dtype, or e4m3 where that is warmed. All else is drawn
// from what is legal.
class Draw {
 public:
  Draw(const HeadDims& dims, Dtype dtype, bool e4m3) : dims_(dims), dtype_(dtype), e4m3_(e4m3) {}

  void next() {
    const bool context = one_in(3);
    problem = {};
    problem.dims = dims_;
    problem.num_heads = static_cast<int32_t>(number(1, 256));
    problem.dtype = dtype_;
    problem.out_dtype = e4m3_ && one_in(2) ? Dtype::kE4m3 : dtype_;
    problem.mask.kind = context ? MaskKind::kFull : MaskKind::kCausal;
    problem.return_lse = context || one_in(2);
    problem.lse_layout = one_in(2) ? LseLayout::kHeadsTokens : LseLayout::kTokensHeads;
    problem.self_attention = !context && one_in(4);
    problem.batch_invariant = one_in(4);
    problem.num_splits =
        static_cast<int32_t>(one_in(2) ? 0 : number(1, problem.batch_invariant ? 1 : 128));

    const int64_t batch = number(0, one_in(20) ? 300 : 4);
    const int64_t longest = int64_t{1} << number(0, 17);
    cu_q_ = {0};
    cu_k_ = {0};
    for (int64_t b = 0; b < batch; ++b) {
      cu_q_.push_back(cu_q_.back() + static_cast<int32_t>(number(0, std::min(longest, 8192L))));
      cu_k_.push_back(problem.self_attention
                          ? cu_q_.back()
                          : cu_k_.back() + static_cast<int32_t>(number(0, longest)));
    }
    const int64_t heads = problem.num_heads;
    const int64_t total_q = cu_q_.back();
    const int64_t total_k = cu_k_.back();
    args = {};
    address_ = 1 << 20;
    if (one_in(2)) {
      args.q = rows(total_q, heads, dims_.nope + dims_.rope);
    } else {
      args.q_nope = rows(total_q, heads, dims_.nope);
      if (dims_.rope > 0) args.q_pe = rows(total_q, heads, dims_.rope);
    }
    if (one_in(2)) {
      args.k = rows(total_k, heads, dims_.nope + dims_.rope);
    } else {
      args.k_nope = rows(total_k, heads, dims_.nope);
      if (dims_.rope > 0) {
        args.k_pe =
            TensorView::contiguous(take(total_k * dims_.rope), dtype_, {total_k, dims_.rope});
      }
    }
    args.v = rows(total_k, heads, dims_.v);
    const TensorView out = rows(total_q, heads, dims_.v);
    args.out =
        MutableTensorView::strided(const_cast<void*>(out.data), problem.out_dtype,
                                   {total_q, heads, dims_.v}, {out.stride[0], out.stride[1], 1});
    if (problem.return_lse) {
      void* data = take(total_q * heads * 2);
      args.lse = problem.lse_layout == LseLayout::kHeadsTokens
                     ? MutableTensorView::contiguous(data, Dtype::kFp32, {heads, total_q})
                     : MutableTensorView::contiguous(data, Dtype::kFp32, {total_q, heads});
    }
    if (problem.out_dtype == Dtype::kE4m3) {
      args.output_scale = TensorView::contiguous(&kScale, Dtype::kFp32, {1});
    }
    args.cu_seqlens_q = TensorView::contiguous(cu_q_.data(), Dtype::kInt32, {batch + 1});
    args.cu_seqlens_k = TensorView::contiguous(cu_k_.data(), Dtype::kInt32, {batch + 1});
    args.softmax_scale = static_cast<float>(number(1, 1000)) / 1000.0f;

    // A merge makes a state again, or the output.
    merge.dim_v = dims_.v;
    merge.dtype = one_in(2) ? Dtype::kFp32 : dtype_;
    const bool state = one_in(2);
    merge.out_dtype = state ? merge.dtype : problem.out_dtype;
    merge.return_lse = state || one_in(2);
  }

  PrefillProblem problem;
  PrefillArgs args;
  MergeTraits merge;

 private:
  static constexpr float kScale = 0.5f;

  int64_t number(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return number(1, n) == 1; }

  // Addresses that nothing reads: validation looks at pointers and shapes only.
  void* take(int64_t elements) {
    void* data = reinterpret_cast<void*>(address_);
    address_ += static_cast<uintptr_t>(elements * 2 + 1024) / 256 * 256;
    return data;
  }
  // Dense rows, rows with gaps, or a slice of wider rows.
  TensorView rows(int64_t tokens, int64_t heads, int64_t columns) {
    const int64_t head_stride = columns + 8 * number(0, 20);
    const int64_t token_stride = heads * head_stride + 8 * number(0, 20);
    return TensorView::strided(take(tokens * token_stride + 512), dtype_, {tokens, heads, columns},
                               {token_stride, head_stride, 1});
  }

  const HeadDims dims_;
  const Dtype dtype_;
  const bool e4m3_;
  std::mt19937_64 random_{20260605};
  std::vector<int32_t> cu_q_;
  std::vector<int32_t> cu_k_;
  uintptr_t address_ = 0;
};

class EveryModel : public ::testing::TestWithParam<ModelPreset> {};

TEST_P(EveryModel, FindsTheKernelsOfEveryLegalCallAmongTheWarmedOnesAndNeedsThemAll) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    for (const bool e4m3 : {false, true}) {
      const StatusOr<KernelSelection> warmed = enumerate_kernels(
          {.dims = GetParam().dims, .dtype = dtype, .archs = kArchs, .e4m3_output = e4m3});
      ASSERT_TRUE(warmed.ok()) << warmed.status().to_string();
      ASSERT_THAT(warmed->skipped, IsEmpty());
      const std::unordered_set<KernelKey> planned(warmed->keys.begin(), warmed->keys.end());
      std::unordered_set<KernelKey> needed;
      Draw draw(GetParam().dims, dtype, e4m3);
      for (int i = 0; i < kDraws / 4; ++i) {
        draw.next();
        for (const Status& legal :
             {validate_views(draw.problem, draw.args), validate_values(draw.problem, draw.args),
              check_gpu_layout(draw.args)}) {
          ASSERT_TRUE(legal.ok()) << legal.to_string();
        }
        const Arch arch = *parse_arch(kArchs[static_cast<size_t>(i) % kArchs.size()]);
        std::vector<KernelKey> keys = call_keys(draw.problem, arch);
        if (draw.problem.mask.kind == MaskKind::kCausal) {
          for (const KernelKey& key : layer_keys(draw.problem, arch)) keys.push_back(key);
        }
        keys.push_back(merge_key(draw.merge, arch));
        for (const KernelKey& key : keys) {
          ASSERT_TRUE(planned.contains(key)) << "draw " << i << ": " << key.to_string();
          needed.insert(key);
        }
      }
      // Both ways: nothing is compiled that no call runs.
      EXPECT_EQ(needed.size(), planned.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KernelKeysOf, EveryModel, ::testing::ValuesIn(list_models()),
                         [](const auto& param) {
                           std::string name(param.param.name);
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); },
                               '_');
                           return name;
                         });

PrefillProblem causal_problem() {
  PrefillProblem problem;
  problem.dims = {128, 64, 128};
  problem.num_heads = 16;
  return problem;
}

const Arch kHopper = *parse_arch("sm_90a");

std::multiset<std::string> names_of(const std::vector<KernelKey>& keys) {
  std::multiset<std::string> names;
  for (const KernelKey& key : keys) names.emplace(key.name());
  return names;
}

TEST(KernelKeysOf, ACallThatMayNotSplitIsOneKernel) {
  PrefillProblem problem = causal_problem();
  EXPECT_EQ(call_keys(problem, kHopper).size(), 3u);
  problem.num_splits = 1;
  EXPECT_EQ(call_keys(problem, kHopper).size(), 1u);
  problem.num_splits = 0;
  problem.batch_invariant = true;
  EXPECT_EQ(call_keys(problem, kHopper),
            std::vector<KernelKey>{prefill_key(make_traits(problem), kHopper)});
}

TEST(KernelKeysOf, TheSplitsOfACallAreFp32StatesThatAreJoinedIntoItsOutput) {
  PrefillProblem problem = causal_problem();
  problem.out_dtype = Dtype::kE4m3;
  const std::vector<KernelKey> keys = call_keys(problem, kHopper);
  ASSERT_EQ(keys.size(), 3u);
  const PrefillTraits partial = std::get<Sm90MlaPrefillKernel>(keys[1].kernel).traits;
  EXPECT_EQ(partial.out_dtype, Dtype::kFp32);
  EXPECT_TRUE(partial.return_lse);
  EXPECT_EQ(partial.mask, MaskKind::kCausal);
  const MergeTraits combine = std::get<CombineSplitsKernel>(keys[2].kernel).traits;
  EXPECT_EQ(combine.dtype, Dtype::kFp32);
  EXPECT_EQ(combine.out_dtype, Dtype::kE4m3);
  EXPECT_FALSE(combine.return_lse);
}

TEST(KernelKeysOf, ALayerAlsoRunsFullAttentionOverContextAndTheMerges) {
  PrefillProblem problem = causal_problem();
  problem.batch_invariant = true;
  EXPECT_EQ(names_of(layer_keys(problem, kHopper)),
            (std::multiset<std::string>{"merge_states", "merge_states", "sm90_mla_prefill",
                                        "sm90_mla_prefill", "sm90_mla_prefill"}));
  // An fp32 output is a state itself.
  problem.out_dtype = Dtype::kFp32;
  problem.return_lse = true;
  EXPECT_EQ(names_of(layer_keys(problem, kHopper)),
            (std::multiset<std::string>{"merge_states", "sm90_mla_prefill", "sm90_mla_prefill"}));
}

TEST(KernelKeysOf, TheHopperKernelIsTakenOnItsArchitectureForWhatItComputes) {
  const auto taken = [](const PrefillProblem& problem, const char* arch) {
    return std::string(prefill_key(make_traits(problem), *parse_arch(arch)).name());
  };
  PrefillProblem problem = causal_problem();
  EXPECT_EQ(taken(problem, "sm_90a"), "sm90_mla_prefill");
  // Its instructions are in no cubin for plain sm_90, nor on any other architecture.
  for (const char* arch : {"sm_90", "sm_89", "sm_100a", "sm_120a"}) {
    EXPECT_EQ(taken(problem, arch), "sm80_mla_prefill") << arch;
  }
  problem.mask = {MaskKind::kWindow, 100, 0};
  EXPECT_EQ(taken(problem, "sm_90a"), "sm80_mla_prefill");
  problem = causal_problem();
  problem.dims = {64, 64, 64};
  EXPECT_EQ(taken(problem, "sm_90a"), "sm80_mla_prefill");
}

TEST(KernelKeysOf, ThePortableKernelIsWarmedBesideAnotherOnlyIfAllAreWanted) {
  const auto portable = [](bool all) {
    const auto keys =
        enumerate_kernels({.dims = {128, 64, 128}, .archs = {"sm_90a"}, .all = all})->keys;
    return std::count_if(keys.begin(), keys.end(),
                         [](const KernelKey& key) { return key.name() == "sm80_mla_prefill"; });
  };
  EXPECT_EQ(portable(false), 0);
  // Causal and full, with and without LSE, and the fp32 states of both.
  EXPECT_EQ(portable(true), 6);
}

TEST(KernelKeysOf, RunTimeValuesChangeNoKernel) {
  PrefillProblem problem = causal_problem();
  const std::vector<KernelKey> keys = layer_keys(problem, kHopper);
  problem.num_heads = 3;
  problem.lse_layout = LseLayout::kTokensHeads;
  problem.self_attention = true;
  problem.num_splits = 7;
  EXPECT_EQ(layer_keys(problem, kHopper), keys);
}

// What is outside of the domain is not among the warmed kernels: the draw above could fail.
TEST(KernelKeysOf, WindowsOtherDtypesAndFullAttentionWithoutLseAreNotWarmed) {
  const std::vector<KernelKey> planned =
      enumerate_kernels({.dims = {128, 64, 128}, .archs = {"sm_90a"}})->keys;
  const auto is_planned = [&](const PrefillProblem& problem) {
    const KernelKey key = call_keys(problem, kHopper).front();
    return std::find(planned.begin(), planned.end(), key) != planned.end();
  };
  EXPECT_TRUE(is_planned(causal_problem()));
  PrefillProblem window = causal_problem();
  window.mask = {MaskKind::kWindow, 100, 0};
  EXPECT_FALSE(is_planned(window));
  PrefillProblem half = causal_problem();
  half.dtype = half.out_dtype = Dtype::kFp16;
  EXPECT_FALSE(is_planned(half));
  PrefillProblem full = causal_problem();
  full.mask.kind = MaskKind::kFull;
  EXPECT_FALSE(is_planned(full));
}

TEST(KernelKeysOf, EveryCompileKeyOfVllmIsServedByAWarmedKernel) {
  size_t selected = 0;
  for (const ModelPreset& model : list_models()) {
    for (const std::string& name : kArchs) {
      const Arch arch = *parse_arch(name);
      const StatusOr<KernelSelection> plan =
          enumerate_kernels({.dims = model.dims, .archs = {name}});
      const StatusOr<KernelSelection> all =
          enumerate_kernels({.dims = model.dims, .archs = {name}, .all = true});
      for (const bool batch_invariant : {false, true}) {
        const StatusOr<WarmupKeyList> list =
            get_warmup_keys({.dims = model.dims,
                             .num_heads = model.num_heads,
                             .capability = {arch.sm / 10, arch.sm % 10},
                             .batch_invariant = batch_invariant});
        ASSERT_TRUE(list.ok()) << list.status().to_string();
        for (const CompileKey& key : list->keys) {
          const StatusOr<PrefillProblem> problem = problem_of(key);
          ASSERT_TRUE(problem.ok()) << problem.status().to_string();
          EXPECT_EQ(problem->dims.nope, model.dims.nope);
          EXPECT_EQ(problem->dims.rope, model.dims.rope);
          EXPECT_EQ(problem->dims.v, model.dims.v);
          // The one that no layer runs comes with --all.
          const bool only_with_all = !key.causal && !key.return_softmax_lse;
          const auto& planned = only_with_all ? all->keys : plan->keys;
          for (const KernelKey& kernel : call_keys(*problem, arch)) {
            ++selected;
            EXPECT_NE(std::find(planned.begin(), planned.end(), kernel), planned.end())
                << key.to_string() << "\n"
                << kernel.to_string();
          }
        }
      }
    }
  }
  EXPECT_GT(selected, 1000u);
}

TEST(KernelKeysOf, ACompileKeyWithAWindowOrPaddedVIsNoProblem) {
  CompileKey key = get_warmup_keys({.dims = {128, 64, 128}, .capability = {9, 0}})->keys.front();
  ASSERT_TRUE(problem_of(key).ok());
  CompileKey window = key;
  window.window_size = {{128, 0}};
  EXPECT_EQ(problem_of(window).status().code(), StatusCode::kUnsupported);
  CompileKey padded = key;
  padded.v_stride.reset();
  EXPECT_EQ(problem_of(padded).status().code(), StatusCode::kUnsupported);
  CompileKey impossible = key;
  (*impossible.v_stride)[1] = 1000;
  EXPECT_EQ(problem_of(impossible).status().code(), StatusCode::kShape);
}

}  // namespace
}  // namespace flashprime
