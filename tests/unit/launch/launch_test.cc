// SPDX-License-Identifier: Apache-2.0
// The host side of GPU calls, with a driver that only takes notes: what is launched, with which
// arguments, and what is refused before anything is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/shared/sm90_prefill_params.h"
#include "launch/device_values.h"
#include "launch/launch.h"
#include "launch/launch_merge.h"
#include "launch/launch_prefill.h"
#include "problem/validate_problem.h"
#include "select/kernel_keys_of.h"
#include "unit/jit/fake_gpu.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

class LaunchTest : public FakeGpuTest {
 protected:
  LaunchTest() {
    state_->params_bytes = sizeof(PrefillParams);
    device_.driver = driver_.get();
    device_.properties = properties_;
    device_.archs = archs_for_device(properties_.sm);
    device_.context = context_;
    unsigned long long id = 0;
    driver_->api().cuCtxGetId(context_, &id);
    device_.context_id = id;
    device_.kernels = &kernels_;
  }

  PrefillProblem problem(int32_t heads = 16) const {
    PrefillProblem result;
    result.num_heads = heads;
    result.batch_invariant = true;
    return result;
  }

  // Tensors of T and Tk rows at made-up addresses: nothing on the host reads them.
  PrefillArgs args(const PrefillProblem& p, int64_t total_q, int64_t total_k, int64_t batch) const {
    const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
    PrefillArgs result;
    result.q = TensorView::contiguous(at(0x10000), p.dtype, {total_q, p.num_heads, 192});
    result.k = TensorView::contiguous(at(0x20000000), p.dtype, {total_k, p.num_heads, 192});
    result.v = TensorView::contiguous(at(0x40000000), p.dtype, {total_k, p.num_heads, 128});
    result.out =
        MutableTensorView::contiguous(at(0x60000000), p.out_dtype, {total_q, p.num_heads, 128});
    result.cu_seqlens_q = TensorView::contiguous(at(0x1000), Dtype::kInt32, {batch + 1});
    result.cu_seqlens_k = TensorView::contiguous(at(0x2000), Dtype::kInt32, {batch + 1});
    result.softmax_scale = 0.125f;
    return result;
  }

  Status launch(const PrefillProblem& p, const PrefillArgs& a, StreamHandle stream = nullptr) {
    return launch_prefill(kernel_, device_, p, make_params(p, a), {a.workspace, a.workspace_bytes},
                          stream);
  }

  PrefillParams launched_params() const {
    PrefillParams params;
    std::memcpy(&params, state_->params, sizeof params);
    return params;
  }

  PrefillKernel kernel_ = PrefillKernel::kSm80;
  LoadedKernels kernels_{store_, *driver_};
  GpuDevice device_;
};

TEST_F(LaunchTest, PacksTheArgumentsAndTheGridOfOneLaunch) {
  const PrefillProblem p = problem();
  const PrefillArgs a = args(p, 1000, 3000, 3);
  const auto stream = reinterpret_cast<StreamHandle>(uintptr_t{0x77});
  ASSERT_TRUE(launch(p, a, stream).ok());
  EXPECT_EQ(state_->launches, 1);
  EXPECT_EQ(fake_nvrtc().compilations, 1);
  const KernelKey key = prefill_key(kernel_, make_traits(p), device_.archs.front());
  const LaunchShape shape = key.launch_shape();
  const int32_t block_q = std::get<Sm80MlaPrefillKernel>(key.kernel).policy.block_q();
  EXPECT_EQ(state_->config.grid_x, (1000u / static_cast<unsigned>(block_q) + 3) * 16);
  EXPECT_EQ(state_->config.grid_y, 1u);
  EXPECT_EQ(state_->config.grid_z, 1u);
  EXPECT_EQ(state_->config.block_x, static_cast<unsigned>(shape.num_threads));
  EXPECT_EQ(state_->config.shared_bytes, static_cast<unsigned>(shape.shared_bytes));
  EXPECT_EQ(state_->config.stream, stream);
  EXPECT_EQ(state_->launch_context, device_.context);
  const PrefillParams params = launched_params();
  EXPECT_EQ(params.q_nope.data, a.q.data);
  EXPECT_EQ(params.q_pe.data, static_cast<const char*>(a.q.data) + 128 * 2);
  EXPECT_EQ(params.k_nope.stride_token, 16 * 192);
  EXPECT_EQ(params.v.stride_head, 128);
  EXPECT_EQ(params.out.data, a.out.data);
  EXPECT_EQ(params.cu_seqlens_q, a.cu_seqlens_q.data);
  EXPECT_EQ(params.batch, 3);
  EXPECT_EQ(params.total_q, 1000);
  EXPECT_EQ(params.total_k, 3000);
  EXPECT_EQ(params.num_heads, 16);
  EXPECT_EQ(params.num_splits, 1);
  EXPECT_EQ(params.softmax_scale, 0.125f);
  // The second call finds everything.
  ASSERT_TRUE(launch(p, a, stream).ok());
  EXPECT_EQ(fake_nvrtc().compilations, 1);
  EXPECT_EQ(state_->launches, 2);
}

TEST_F(LaunchTest, NoQueriesNoLaunch) {
  const PrefillProblem p = problem();
  EXPECT_TRUE(launch(p, args(p, 0, 0, 0)).ok());
  EXPECT_TRUE(launch(p, args(p, 0, 50, 2)).ok());
  EXPECT_EQ(state_->launches, 0);
  EXPECT_EQ(launch(p, args(p, 5, 5, 0)).code(), StatusCode::kCuSeqlens);
}

TEST_F(LaunchTest, ReportsAFailedLaunchAtItsCall) {
  const PrefillProblem p = problem();
  state_->launch_result = cuda::kErrorIllegalAddress;
  const Status status = launch(p, args(p, 100, 100, 1));
  EXPECT_EQ(status.code(), StatusCode::kPriorCudaError);
  EXPECT_THAT(status.message(), HasSubstr("cuLaunchKernelEx: CUDA_ERROR_FAKE (700)"));
}

TEST_F(LaunchTest, GridsBeyondTheDeviceAreRefused) {
  const PrefillProblem p = problem(1 << 20);
  const Status status = launch(p, args(p, 1 << 20, 1, 1));
  EXPECT_EQ(status.code(), StatusCode::kRange);
  EXPECT_THAT(status.message(), HasSubstr("2147483647"));
  EXPECT_EQ(state_->launches, 0);
}

TEST_F(LaunchTest, ACaptureOnlyRunsWhatIsLoaded) {
  const PrefillProblem p = problem();
  const PrefillArgs a = args(p, 100, 100, 1);
  state_->capture_status = cuda::kCaptureActive;
  const Status cold = launch(p, a);
  EXPECT_EQ(cold.code(), StatusCode::kNotWarm);
  EXPECT_THAT(cold.message(), HasSubstr("warm it up before the capture"));
  EXPECT_EQ(fake_nvrtc().compilations, 0);
  EXPECT_EQ(state_->launches, 0);
  state_->capture_status = cuda::kCaptureNone;
  ASSERT_TRUE(launch(p, a).ok());
  state_->capture_status = cuda::kCaptureActive;
  EXPECT_TRUE(launch(p, a).ok());
  EXPECT_EQ(state_->launches, 2);
  EXPECT_EQ(validate_device_values(device_, p, a, nullptr).code(), StatusCode::kStream);
}

TEST_F(LaunchTest, AStreamOfAnotherContextIsRefused) {
  const PrefillProblem p = problem();
  state_->stream_context = reinterpret_cast<cuda::Context>(uintptr_t{0x999});
  const auto stream = reinterpret_cast<StreamHandle>(uintptr_t{0x77});
  const Status status = launch(p, args(p, 100, 100, 1), stream);
  EXPECT_EQ(status.code(), StatusCode::kStream);
  EXPECT_EQ(state_->launches, 0);
}

TEST_F(LaunchTest, PutsTheCallersContextBack) {
  const auto mine = reinterpret_cast<cuda::Context>(uintptr_t{0x4242});
  driver_->api().cuCtxPushCurrent_v2(mine);
  const PrefillProblem p = problem();
  ASSERT_TRUE(launch(p, args(p, 100, 100, 1)).ok());
  EXPECT_EQ(state_->launch_context, device_.context);
  cuda::Context current = nullptr;
  driver_->api().cuCtxGetCurrent(&current);
  EXPECT_EQ(current, mine);
  driver_->api().cuCtxPopCurrent_v2(&current);
}

TEST_F(LaunchTest, SplitsFillTheDeviceUnlessTheyAreForbidden) {
  PrefillProblem p = problem();
  p.mask.kind = MaskKind::kFull;
  const PrefillArgs few = args(p, 64, 32768, 1);
  const PrefillArgs many = args(p, 8192, 8192, 1);
  const auto splits = [&](const PrefillArgs& a) {
    return choose_num_splits(kernel_, p, make_params(p, a), device_);
  };
  EXPECT_EQ(splits(few), 1);
  p.batch_invariant = false;
  EXPECT_GT(splits(few), 4);
  EXPECT_LE(splits(few), kMaxSplits);
  EXPECT_EQ(splits(many), 1);
  p.num_splits = 1;
  EXPECT_EQ(splits(few), 1);
  p.num_splits = 5;
  EXPECT_EQ(splits(few), 5);
  EXPECT_EQ(splits(args(p, 64, 64, 1)), 1);  // there is one block of keys
}

TEST_F(LaunchTest, ASplitCallIsTwoLaunchesOverItsWorkspace) {
  PrefillProblem p = problem();
  p.batch_invariant = false;
  p.num_splits = 4;
  p.return_lse = true;
  PrefillArgs a = args(p, 64, 32768, 1);
  a.lse =
      MutableTensorView::contiguous(reinterpret_cast<void*>(0x70000000), Dtype::kFp32, {16, 64});
  const int64_t bytes = *gpu_workspace_bytes(kernel_, p, make_params(p, a), device_);
  EXPECT_EQ(bytes, 4 * 64 * 16 * (128 + 1) * 4);

  Status status = launch(p, a);
  EXPECT_EQ(status.code(), StatusCode::kWorkspace);
  EXPECT_THAT(status.message(), HasSubstr("got a null pointer"));
  a.workspace = reinterpret_cast<void*>(0x80000010);
  a.workspace_bytes = bytes;
  EXPECT_THAT(launch(p, a).message(), HasSubstr("multiple of 256"));
  a.workspace = reinterpret_cast<void*>(0x80000000);
  a.workspace_bytes = bytes - 1;
  EXPECT_THAT(launch(p, a).message(), HasSubstr("workspace_bytes: got"));
  EXPECT_EQ(state_->launches, 0);

  a.workspace_bytes = bytes;
  state_->params_bytes = sizeof(CombineParams);
  ASSERT_TRUE(launch(p, a).ok());
  EXPECT_EQ(state_->launches, 2);
  CombineParams combine;
  std::memcpy(&combine, state_->params, sizeof combine);
  EXPECT_EQ(combine.num_splits, 4);
  EXPECT_EQ(combine.tokens, 64);
  EXPECT_EQ(combine.partial_out.data, a.workspace);
  EXPECT_EQ(combine.partial_lse.data,
            static_cast<char*>(a.workspace) + int64_t{4} * 64 * 16 * 128 * 4);
  EXPECT_EQ(combine.out.data, a.out.data);
  EXPECT_EQ(combine.lse.data, a.lse.data);
}

TEST_F(LaunchTest, TakesTheGridOfTheKernelThatWasLoaded) {
  // Only a kernel for plain sm_90 is there, and compiling is not allowed.
  const std::shared_ptr<KernelStore> store = open_store("other");
  const PrefillProblem p = problem();
  const KernelKey plain = prefill_key(kernel_, make_traits(p), *parse_arch("sm_90"));
  ASSERT_TRUE(store->obtain(plain).ok());
  store->set_freeze(FreezePolicy::kError);
  LoadedKernels kernels(store, *driver_);
  device_.kernels = &kernels;
  ASSERT_TRUE(launch(p, args(p, 1000, 1000, 1)).ok());
  const int32_t block_q = std::get<Sm80MlaPrefillKernel>(plain.kernel).policy.block_q();
  EXPECT_EQ(state_->config.grid_x, (1000u / static_cast<unsigned>(block_q) + 1) * 16);
}

TEST_F(LaunchTest, RowsHaveToBeAligned) {
  const PrefillProblem p = problem(2);
  PrefillArgs a = args(p, 4, 4, 1);
  EXPECT_TRUE(check_gpu_layout(a).ok());
  a.v.data = reinterpret_cast<void*>(0x40000002);
  EXPECT_EQ(check_gpu_layout(a).code(), StatusCode::kAlignment);
  EXPECT_THAT(check_gpu_layout(a).message(), HasSubstr("v: got a pointer"));
  a = args(p, 4, 4, 1);
  a.k.stride[0] = 2 * 192 + 1;
  EXPECT_EQ(check_gpu_layout(a).code(), StatusCode::kStride);
  EXPECT_THAT(check_gpu_layout(a).message(), HasSubstr("k: got stride 385 for axis 0"));
  a.k.shape[0] = 1;  // the stride of an axis with one entry means nothing
  EXPECT_TRUE(check_gpu_layout(a).ok());
  a = args(p, 4, 4, 1);
  a.out.data = reinterpret_cast<void*>(0x60000002);
  EXPECT_EQ(check_gpu_layout(a).code(), StatusCode::kAlignment);
  a.out.shape[0] = 0;  // no element, no alignment
  EXPECT_TRUE(check_gpu_layout(a).ok());
  a = args(p, 4, 4, 1);
  a.out.stride[1] = 130;
  EXPECT_EQ(check_gpu_layout(a).code(), StatusCode::kStride);
}

TEST_F(LaunchTest, PacksAMerge) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<void*>(address); };
  MergeArgs a;
  a.prefix_out = TensorView::contiguous(at(0x1000000), Dtype::kFp32, {10, 3, 128});
  a.suffix_out = TensorView::contiguous(at(0x2000000), Dtype::kFp32, {10, 3, 128});
  a.out = MutableTensorView::contiguous(at(0x3000000), Dtype::kBf16, {10, 3, 128});
  a.prefix_lse = TensorView::contiguous(at(0x4000000), Dtype::kFp32, {3, 10});
  a.suffix_lse = TensorView::contiguous(at(0x5000000), Dtype::kFp32, {3, 10});
  a.tokens_with_prefix = 7;
  state_->params_bytes = sizeof(MergeParams);
  ASSERT_TRUE(launch_merge(device_, a, nullptr).ok());
  MergeParams params;
  std::memcpy(&params, state_->params, sizeof params);
  EXPECT_EQ(params.tokens, 10);
  EXPECT_EQ(params.tokens_with_prefix, 7);
  EXPECT_EQ(params.num_heads, 3);
  EXPECT_EQ(params.prefix_lse.stride_token, 1);
  EXPECT_EQ(params.prefix_lse.stride_head, 10);
  EXPECT_EQ(params.lse.data, nullptr);
  EXPECT_EQ(state_->config.grid_x, (30u + 7) / 8);
  EXPECT_EQ(state_->config.block_x, 256u);

  a.prefix_out = TensorView::contiguous(at(0x1000000), Dtype::kFp32, {10, 3, 100});
  a.suffix_out = TensorView::contiguous(at(0x2000000), Dtype::kFp32, {10, 3, 100});
  a.out = MutableTensorView::contiguous(at(0x3000000), Dtype::kBf16, {10, 3, 100});
  EXPECT_EQ(launch_merge(device_, a, nullptr).code(), StatusCode::kUnsupported);
}

// The Hopper kernel: tensor maps, a persistent grid, a scheduler in the workspace.
class Sm90LaunchTest : public LaunchTest {
 protected:
  Sm90LaunchTest() {
    kernel_ = PrefillKernel::kSm90;
    state_->params_bytes = sizeof(Sm90PrefillParams);
    static_assert(sizeof(Sm90PrefillParams) <= sizeof(FakeDriverState::params));
  }

  Sm90PrefillParams launched() const {
    Sm90PrefillParams params;
    std::memcpy(static_cast<void*>(&params), state_->params, sizeof params);
    return params;
  }

  static FakeTensorMap map(const TensorMap& from) {
    FakeTensorMap result;
    std::memcpy(static_cast<void*>(&result), &from, sizeof result);
    return result;
  }

  static void* workspace() { return reinterpret_cast<void*>(uintptr_t{0x90000000}); }
};

TEST_F(Sm90LaunchTest, FewTilesNeedNoSchedulerAndHaveABlockEach) {
  const PrefillProblem p = problem();
  const PrefillArgs a = args(p, 300, 300, 2);
  EXPECT_EQ(*gpu_workspace_bytes(kernel_, p, make_params(p, a), device_), 0);
  ASSERT_TRUE(launch(p, a).ok());
  EXPECT_EQ(state_->config.grid_x, (300u / 128 + 2) * 16);
  EXPECT_EQ(state_->config.block_x, 384u);
  EXPECT_EQ(launched().scheduler, nullptr);
  EXPECT_EQ(launched().call.total_q, 300);
}

TEST_F(Sm90LaunchTest, MoreTilesThanMultiprocessorsWantAWorkspaceForTheScheduler) {
  const PrefillProblem p = problem();
  PrefillArgs a = args(p, 4096, 4096, 2);
  EXPECT_EQ(*gpu_workspace_bytes(kernel_, p, make_params(p, a), device_), 256);
  Status refused = launch(p, a);
  EXPECT_EQ(refused.code(), StatusCode::kWorkspace);
  EXPECT_THAT(refused.message(), HasSubstr("got a null pointer, wanted 256 bytes"));
  a.workspace = workspace();
  a.workspace_bytes = 255;
  EXPECT_EQ(launch(p, a).code(), StatusCode::kWorkspace);
  a.workspace = reinterpret_cast<void*>(uintptr_t{0x90000010});
  a.workspace_bytes = 256;
  EXPECT_EQ(launch(p, a).code(), StatusCode::kWorkspace);
  EXPECT_EQ(state_->launches, 0);
  a.workspace = workspace();
  ASSERT_TRUE(launch(p, a).ok());
  EXPECT_EQ(state_->config.grid_x, 132u);
  EXPECT_EQ(launched().scheduler, workspace());
  const uint64_t nonce = launched().nonce;
  EXPECT_NE(nonce, 0u);
  ASSERT_TRUE(launch(p, a).ok());
  EXPECT_NE(launched().nonce, nonce);
}

TEST_F(Sm90LaunchTest, DescribesJoinedTensorsByTheirParts) {
  const PrefillProblem p = problem();
  const PrefillArgs a = args(p, 100, 200, 1);
  ASSERT_TRUE(launch(p, a).ok());
  const Sm90PrefillParams params = launched();
  const FakeTensorMap q = map(params.q_nope);
  EXPECT_EQ(q.address, reinterpret_cast<uintptr_t>(a.q.data));
  EXPECT_THAT(q.extents, testing::ElementsAre(128u, 1u << 30, 16u, 0x7fffffffu, 101u));
  const unsigned long long row = 16 * 192 * 2;
  EXPECT_THAT(q.strides, testing::ElementsAre(row, 192u * 2, (1ull << 34) - row, row));
  EXPECT_THAT(q.box, testing::ElementsAre(64, 64, 1, 1, 1));
  const FakeTensorMap k_pe = map(params.k_pe);
  EXPECT_EQ(k_pe.address, reinterpret_cast<uintptr_t>(a.k.data) + 128 * 2);
  EXPECT_THAT(k_pe.extents, testing::ElementsAre(64u, 1u << 30, 16u, 0x7fffffffu, 201u));
  EXPECT_THAT(k_pe.box, testing::ElementsAre(64, 128, 1, 1, 1));
  EXPECT_TRUE(params.per_head.k_pe);
}

TEST_F(Sm90LaunchTest, ASharedTensorHasOneHead) {
  const PrefillProblem p = problem();
  PrefillArgs a = args(p, 100, 200, 1);
  const void* parts = a.k.data;
  a.k = {};
  a.k_nope = TensorView::strided(parts, p.dtype, {200, 16, 128}, {16 * 256, 256, 1});
  a.k_pe = TensorView::contiguous(parts, p.dtype, {200, 64});
  ASSERT_TRUE(launch(p, a).ok());
  const Sm90PrefillParams params = launched();
  EXPECT_TRUE(params.per_head.k_nope);
  EXPECT_FALSE(params.per_head.k_pe);
  EXPECT_EQ(map(params.k_pe).extents[2], 1u);
  EXPECT_EQ(map(params.k_pe).strides[0], 128u);
}

TEST_F(Sm90LaunchTest, KeysWithoutRowsAreDescribedByAValidAddress) {
  PrefillProblem p = problem();
  p.mask.kind = MaskKind::kFull;
  PrefillArgs a = args(p, 100, 0, 1);
  a.k.data = a.v.data = nullptr;
  ASSERT_TRUE(launch(p, a).ok());
  EXPECT_EQ(map(launched().v).address, reinterpret_cast<uintptr_t>(a.q.data));
}

TEST_F(Sm90LaunchTest, RefusesWhatTensorMapsCannotDescribe) {
  const PrefillProblem p = problem();
  EXPECT_EQ(launch(p, args(p, int64_t{1} << 30, 16, 1)).code(), StatusCode::kRange);
  PrefillArgs a = args(p, 100, 200, 1);
  a.v.stride[0] = int64_t{1} << 33;
  const Status status = launch(p, a);
  EXPECT_EQ(status.code(), StatusCode::kStride);
  EXPECT_THAT(status.message(), HasSubstr("v: got rows 17179869184 bytes apart"));
  EXPECT_EQ(state_->launches, 0);
}

TEST_F(Sm90LaunchTest, SplitsShareTheWorkspaceWithTheScheduler) {
  PrefillProblem p = problem();
  p.batch_invariant = false;
  p.num_splits = 4;
  p.mask.kind = MaskKind::kFull;
  PrefillArgs a = args(p, 512, 32768, 1);
  const int64_t bytes = *gpu_workspace_bytes(kernel_, p, make_params(p, a), device_);
  EXPECT_EQ(bytes, 256 + int64_t{512} * 16 * 4 * 4 * (128 + 1));
  a.workspace = workspace();
  a.workspace_bytes = bytes;
  ASSERT_TRUE(launch(p, a).ok());
  EXPECT_EQ(state_->launches, 2);
}

}  // namespace
}  // namespace flashprime
