// SPDX-License-Identifier: Apache-2.0
// Layers of a GPU that only takes notes: what its kernels are given.
#include <gmock/gmock.h>

#include "checks.h"
#include "flashprime/device_memory.h"
#include "flashprime/prefill_layer.h"
#include "unit/jit/fake_gpu.h"

namespace flashprime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LayerOnGpuTest : public FakeGpuTest {
 protected:
  // The public calls open the process's driver and kernel cache once and keep them, so the body of
  // each test runs in a new process, where they are the fake ones.
  void in_process(const std::function<void()>& body) {
    if (std::getenv("FLASHPRIME_TEST_PROCESS") != nullptr) return body();
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    const std::string filter =
        concat("--gtest_filter=", test->test_suite_name(), '.', test->name());
    EXPECT_EQ(in_child([&] {
                setenv("FLASHPRIME_TEST_PROCESS", "1", 1);
                setenv("FLASHPRIME_CACHE_DIR", (dir_ / "layer").c_str(), 1);
                setenv("FLASHPRIME_NVRTC_PATH", FLASHPRIME_FAKE_NVRTC, 1);
                execl("/proc/self/exe", "unit_tests", filter.c_str(), "--gtest_brief=1", nullptr);
                ADD_FAILURE() << "the test could not be started";
              }),
              0);
  }

  // Calls visit() at each launch of a chunk's attention: the new tokens come first, and a merge
  // follows each chunk.
  void on_chunk(const std::function<void(const PrefillParams&)>& visit) {
    state_->launches = 0;
    state_->on_launch = [=, this](void** arguments) {
      if (state_->launches % 2 == 0) visit(*static_cast<const PrefillParams*>(arguments[0]));
    };
  }

  // Three requests with contexts of 0, 20 and 16 tokens, in two chunks.
  struct Layer {
    Layer() {
      problem.num_heads = 2;
      problem.batch_invariant = true;
      args.q = TensorView::contiguous(memory.data(), Dtype::kBf16, {12, 2, 192});
      args.k = args.q;
      args.v = TensorView::contiguous(memory.data(), Dtype::kBf16, {12, 2, 128});
      args.out = MutableTensorView::contiguous(out.data(), Dtype::kBf16, {12, 2, 128});
      args.cu_seqlens_q = args.cu_seqlens_k =
          TensorView::contiguous(memory.data(), Dtype::kInt32, {4});
      args.softmax_scale = 0.1f;
      ContextPlanOptions options;
      options.workspace_rows = 32;
      plan = *plan_context_greedy({0, 20, 16}, options);
      const int64_t bytes = *prefill_layer_workspace_bytes(problem, args, plan);
      workspace = *DeviceBuffer::allocate(0, bytes);
      args.workspace = workspace.data();
      args.workspace_bytes = bytes;
    }

    // With the lengths that lengths_of() gives for each chunk.
    Status run(const std::function<TensorView(const ContextChunk&)>& lengths_of) {
      return prefill_layer(problem, args, plan,
                           [&](const ContextChunk& chunk, StreamHandle) -> StatusOr<KeyValueViews> {
                             KeyValueViews views;
                             views.k = TensorView::contiguous(memory.data(), Dtype::kBf16,
                                                              {chunk.num_tokens(), 2, 192});
                             views.v = TensorView::contiguous(memory.data(), Dtype::kBf16,
                                                              {chunk.num_tokens(), 2, 128});
                             views.cu_seqlens_k = lengths_of(chunk);
                             return views;
                           });
    }

    DeviceBuffer memory = *DeviceBuffer::allocate(0, 1 << 16);
    DeviceBuffer out = *DeviceBuffer::allocate(0, 1 << 16);
    DeviceBuffer workspace;
    PrefillProblem problem;
    PrefillArgs args;
    ContextPlan plan;
  };
};

TensorView no_lengths(const ContextChunk&) {
  return {};
}

TEST_F(LayerOnGpuTest, CopiesTheLengthsOfAChunkFromThePlan) {
  in_process([&] {
    Layer layer;
    std::vector<std::vector<int32_t>> lengths;
    on_chunk([&](const PrefillParams& params) {  // "device" memory can be read
      lengths.emplace_back(params.cu_seqlens_k, params.cu_seqlens_k + params.batch + 1);
    });
    const Status status = layer.run(no_lengths);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_THAT(lengths, ElementsAre(ElementsAre(0, 0, 20, 20), ElementsAre(0, 0, 0, 16)));
  });
}

TEST_F(LayerOnGpuTest, TakesTheLengthsOfAChunkFromItsSource) {
  in_process([&] {
    Layer layer;
    std::vector<const int32_t*> lengths;
    on_chunk([&](const PrefillParams& params) { lengths.push_back(params.cu_seqlens_k); });
    const auto* first = static_cast<const int32_t*>(layer.memory.data());
    const auto from_source = [&](const ContextChunk& chunk) {
      return TensorView::contiguous(first + 64 * (chunk.index + 1), Dtype::kInt32, {4});
    };
    const Status status = layer.run(from_source);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_THAT(lengths, ElementsAre(first + 64, first + 128));
  });
}

TEST_F(LayerOnGpuTest, IsRecordedOnlyWithLengthsFromItsSource) {
  in_process([&] {
    Layer layer;
    ASSERT_TRUE(layer.run(no_lengths).ok());  // loads the kernels
    state_->capture_status = cuda::kCaptureActive;
    const Status absent = layer.run(no_lengths);
    EXPECT_EQ(absent.code(), StatusCode::kStream);
    EXPECT_THAT(absent.message(), HasSubstr("cu_seqlens_k: absent"));
    EXPECT_TRUE(layer.run([&](const ContextChunk&) { return layer.args.cu_seqlens_k; }).ok());
  });
}

TEST_F(LayerOnGpuTest, RefusesLengthsThatDoNotFitTheCall) {
  in_process([&] {
    Layer layer;
    const auto refusal_of = [&](const TensorView& lengths) {
      return layer.run([&](const ContextChunk&) { return lengths; });
    };
    TensorView lengths = layer.args.cu_seqlens_k;
    lengths.shape[0] = 3;
    EXPECT_EQ(refusal_of(lengths).code(), StatusCode::kCuSeqlens);
    lengths = layer.args.cu_seqlens_k;
    lengths.dtype = Dtype::kFp32;
    EXPECT_EQ(refusal_of(lengths).code(), StatusCode::kDtype);
    lengths = layer.args.cu_seqlens_k;
    lengths.data = layer.workspace.data();
    const Status status = refusal_of(lengths);
    EXPECT_EQ(status.code(), StatusCode::kAlias);
    EXPECT_THAT(status.message(), HasSubstr("context chunk 0: cu_seqlens_k: "));
    const int32_t host[4] = {};
    lengths.data = host;
    EXPECT_EQ(refusal_of(lengths).code(), StatusCode::kDevice);
  });
}

}  // namespace
}  // namespace flashprime
