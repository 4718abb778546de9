// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cpu/cpu_kernels.h"
#include "flashprime/backend.h"
#include "flashprime/version.h"

namespace flashprime {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr size_t kSm90 = 0;  // places in the list
constexpr size_t kSm80 = 1;
constexpr size_t kFast = 2;
constexpr size_t kReference = 3;

// Explanations of this file are those of a CPU unless they say otherwise.
constexpr Device kCpuDevice{DeviceKind::kCpu, 0};

TEST(ListKernels, NamesThemInOrderOfPreferenceGpuFirst) {
  ASSERT_EQ(list_kernels().size(), 4u);
  EXPECT_EQ(list_kernels()[kSm90].name, "sm90_mla_prefill");
  EXPECT_EQ(list_kernels()[kSm90].device, DeviceKind::kCuda);
  EXPECT_EQ(list_kernels()[kSm90].masks, "full, causal");
  EXPECT_EQ(list_kernels()[kSm80].name, "sm80_mla_prefill");
  EXPECT_EQ(list_kernels()[kSm80].device, DeviceKind::kCuda);
  EXPECT_EQ(list_kernels()[kSm80].dtypes, "bf16, fp16");
  EXPECT_EQ(list_kernels()[kFast].name, "cpu_fast");
  EXPECT_EQ(list_kernels()[kReference].name, "cpu_reference");
  EXPECT_EQ(list_kernels()[kFast].dtypes, "bf16, fp16, fp32");
  EXPECT_EQ(list_kernels()[kFast].out_dtypes, "bf16, fp16, fp32, e4m3");
  EXPECT_EQ(list_kernels()[kReference].out_dtypes, "bf16, fp16, fp32, fp64, e4m3");
  EXPECT_EQ(list_kernels()[kReference].masks, "full, causal, window");
}

TEST(Explain, TakesTheFirstKernelThatCan) {
  const Explanation explanation = explain({}, {.device = kCpuDevice, .num_threads = 3});
  EXPECT_TRUE(explanation.supported);
  ASSERT_EQ(explanation.verdicts.size(), 4u);
  EXPECT_TRUE(explanation.verdicts[kReference].supported);
  if (*cpu::fast_isa_target() == '\0') GTEST_SKIP() << "no SIMD target on this processor";
  EXPECT_EQ(explanation.kernel, "cpu_fast");
  EXPECT_THAT(explanation.detail, StartsWith(cpu::fast_isa_target()));
  EXPECT_THAT(explanation.detail, HasSubstr("3 threads"));
  EXPECT_THAT(explanation.verdicts[kFast].reasons, IsEmpty());
  for (const size_t kernel : {kSm90, kSm80}) {
    EXPECT_THAT(explanation.verdicts[kernel].reasons, ElementsAre("device: got cpu, wanted cuda"));
  }
}

TEST(Explain, SaysWhyAKernelWasPassedOver) {
  PrefillProblem problem;
  problem.out_dtype = Dtype::kFp64;
  const Explanation explanation = explain(problem, {.device = kCpuDevice});
  EXPECT_EQ(explanation.kernel, "cpu_reference");
  EXPECT_THAT(explanation.verdicts[kFast].reasons,
              ElementsAre("out_dtype: got fp64, wanted one of bf16, fp16, fp32, e4m3"));
}

TEST(Explain, ForcesTheKernelThatTheCallerNames) {
  const Explanation explanation = explain({}, {.device = kCpuDevice, .kernel = "cpu_reference"});
  EXPECT_EQ(explanation.kernel, "cpu_reference");
  EXPECT_EQ(explanation.detail, "scalar fp64, 1 thread");
  EXPECT_THAT(explanation.verdicts[kFast].reasons,
              ElementsAre("kernel: got cpu_reference, which the caller forces"));
}

TEST(Explain, GivesEveryReasonInTheOrderDeviceDtypeDimsRest) {
  PrefillProblem problem;
  problem.out_dtype = Dtype::kFp64;
  problem.num_splits = 400;
  problem.dims = {100, 60, 128};
  const Explanation explanation =
      explain(problem, {.device = {DeviceKind::kCuda, 99}, .kernel = "cpu_reference"});
  EXPECT_FALSE(explanation.supported);
  EXPECT_EQ(explanation.kernel, "");
  EXPECT_THAT(
      explanation.verdicts[kFast].reasons,
      ElementsAre(StartsWith("device: got cuda:99"), StartsWith("out_dtype: got fp64"),
                  StartsWith("num_splits: got 400"), StartsWith("kernel: got cpu_reference")));
  EXPECT_THAT(explanation.verdicts[kReference].reasons,
              ElementsAre(StartsWith("device: got cuda:99"), StartsWith("num_splits: got 400")));
  // Without a driver the reason is that; with one there is no hundredth device.
  for (const size_t kernel : {kSm90, kSm80}) {
    EXPECT_THAT(explanation.verdicts[kernel].reasons,
                ElementsAre(StartsWith("out_dtype: got fp64"),
                            AnyOf(StartsWith("driver: "), StartsWith("device: ")),
                            StartsWith("dims: got nope 100, rope 60, v 128"),
                            StartsWith("num_splits: got 400"), StartsWith("kernel: ")));
  }
}

TEST(Explain, SaysWhatTheHopperKernelLeavesToThePortableOne) {
  const auto reasons = [](const HeadDims& dims, const Mask& mask, size_t kernel) {
    PrefillProblem problem;
    problem.dims = dims;
    problem.mask = mask;
    std::vector<std::string> found =
        explain(problem, {.device = {DeviceKind::kCuda, 99}}).verdicts[kernel].reasons;
    // Which device is there is another matter.
    std::erase_if(found, [](const std::string& reason) {
      return reason.starts_with("driver: ") || reason.starts_with("device: ");
    });
    return found;
  };
  const Mask causal{MaskKind::kCausal, -1, -1};
  const Mask window{MaskKind::kWindow, 128, 0};
  for (const HeadDims& dims :
       {HeadDims{128, 64, 128}, HeadDims{192, 64, 256}, HeadDims{64, 64, 128},
        HeadDims{128, 0, 128}, HeadDims{192, 64, 128}}) {
    EXPECT_THAT(reasons(dims, causal, kSm90), IsEmpty());
  }
  EXPECT_THAT(reasons({128, 64, 128}, window, kSm90),
              ElementsAre("mask: got window, wanted one of full, causal"));
  EXPECT_THAT(reasons({128, 64, 128}, window, kSm80), IsEmpty());
  for (const HeadDims& dims : {HeadDims{64, 64, 64}, HeadDims{96, 32, 128}, HeadDims{32, 96, 128},
                               HeadDims{128, 64, 256}, HeadDims{64, 0, 128}}) {
    EXPECT_THAT(reasons(dims, causal, kSm90),
                ElementsAre(HasSubstr("wanted multiples of 64 with (nope + rope, v) one of")));
    EXPECT_THAT(reasons(dims, causal, kSm80), IsEmpty());
  }
}

TEST(Explain, GivesEveryDefectOfAProblemThatTheOperatorDoesNotDefine) {
  PrefillProblem problem;
  problem.dims = {0, -1, 0};
  problem.dtype = Dtype::kE4m3;
  problem.mask.window_left = 5;
  problem.num_heads = 0;
  const Explanation explanation = explain(problem, {.device = {DeviceKind::kCuda, 0}});
  EXPECT_FALSE(explanation.supported);
  for (const size_t kernel : {kFast, kReference}) {
    EXPECT_THAT(
        explanation.verdicts[kernel].reasons,
        ElementsAre(StartsWith("device: "), StartsWith("dtype: "), StartsWith("out_dtype: "),
                    StartsWith("dims.nope: "), StartsWith("dims.rope: "), StartsWith("dims.v: "),
                    StartsWith("mask: "), StartsWith("num_heads: ")));
  }
}

TEST(CpuInfo, NamesTheProcessorItsTargetAndTheThreads) {
  const CpuInfo info = cpu_info();
  EXPECT_EQ(info.isa_target, cpu::fast_isa_target());
  EXPECT_NE(info.brand, "");
  EXPECT_GE(info.num_threads, 1);
}

TEST(NumericsId, HoldsTheTargetThatBitsDependOn) {
  const std::string target = cpu::fast_isa_target();
  EXPECT_EQ(numerics_id(), "1/" + (target.empty() ? "scalar" : target));
}

TEST(Version, OfTheLibraryIsThatOfTheHeaders) {
  EXPECT_EQ(version(), FLASHPRIME_VERSION_STRING);
  EXPECT_NE(build_description(), "");
}

TEST(Status, NamesEveryCode) {
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    EXPECT_THAT(std::string(status_code_name(static_cast<StatusCode>(code))), StartsWith("k"));
  }
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(999)), "unknown StatusCode");
  EXPECT_EQ(Status(StatusCode::kShape, "q: got 1").to_string(), "kShape: q: got 1");
  EXPECT_EQ(ok_status().to_string(), "kOk");
}

}  // namespace
}  // namespace flashprime
