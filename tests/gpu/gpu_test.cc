// SPDX-License-Identifier: Apache-2.0
// What only a GPU can show: graphs, streams, where tensors are, lengths that lie, splits, layers.
// Run by tests/gpu/run; everything here is skipped on a machine without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "cuda/dynamic_library.h"
#include "flashprime/backend.h"
#include "flashprime/device_memory.h"
#include "flashprime/merge.h"
#include "tests/cases/accuracy.h"
#include "tests/cases/case.h"
#include "tests/cases/dense_batch.h"
#include "tests/cases/number_formats.h"
#include "tests/cases/staging.h"

namespace flashprime {
namespace {

using cases::Case;
using cases::DenseBatch;
using cases::DenseResult;
using testing::HasSubstr;

constexpr HeadDims kDeepSeek{128, 64, 128};
const Mask kCausal{MaskKind::kCausal, -1, -1};
const Mask kFull{MaskKind::kFull, -1, -1};

ExecutionOptions on_gpu() {
  ExecutionOptions options;
  options.device = {DeviceKind::kCuda, 0};
  return options;
}

ExecutionOptions on_cpu() {
  ExecutionOptions options;
  options.device = {DeviceKind::kCpu, 0};
  return options;
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    const Explanation explanation = explain({}, on_gpu());
    if (!explanation.supported) GTEST_SKIP() << explanation.verdicts.front().reasons.front();
  }
};

// Entry points that the library itself does not need.
struct Streams {
  int (*create)(StreamHandle*, unsigned int) = nullptr;
  int (*destroy)(StreamHandle) = nullptr;
  int (*begin_capture)(StreamHandle, int) = nullptr;
  int (*end_capture)(StreamHandle, void**) = nullptr;
  int (*instantiate)(void**, void*, unsigned long long) = nullptr;
  int (*launch)(void*, StreamHandle) = nullptr;
  int (*push)(cuda::Context) = nullptr;

  Streams() {
    const StatusOr<DynamicLibrary> library = DynamicLibrary::open("libcuda.so.1");
    EXPECT_TRUE(library.ok());
    EXPECT_TRUE(library->load("cuStreamCreate", create));
    EXPECT_TRUE(library->load("cuStreamDestroy_v2", destroy));
    EXPECT_TRUE(library->load("cuStreamBeginCapture_v2", begin_capture));
    EXPECT_TRUE(library->load("cuStreamEndCapture", end_capture));
    EXPECT_TRUE(library->load("cuGraphInstantiateWithFlags", instantiate));
    EXPECT_TRUE(library->load("cuGraphLaunch", launch));
    EXPECT_TRUE(library->load("cuCtxPushCurrent_v2", push));
    push(*cuda::primary_context(**cuda::Driver::get(), 0));
  }
  StreamHandle make() const {
    StreamHandle stream = nullptr;
    EXPECT_EQ(create(&stream, 1), 0);  // non-blocking
    return stream;
  }
};

template <typename T>
DeviceBuffer upload(const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  DeviceBuffer buffer = *DeviceBuffer::allocate(0, bytes);
  EXPECT_TRUE(buffer.copy_from_host(values.data(), bytes).ok());
  return buffer;
}

std::vector<int32_t> prefix_sums(const std::vector<int32_t>& lens) {
  std::vector<int32_t> sums{0};
  for (const int32_t len : lens) sums.push_back(sums.back() + len);
  return sums;
}

// A batch whose tensors stay on the device from call to call.
struct Resident {
  explicit Resident(const DenseBatch& batch)
      : problem(batch.problem),
        q(upload(batch.q)),
        k(upload(batch.k)),
        v(upload(batch.v)),
        cu_q(upload(prefix_sums(batch.q_lens))),
        cu_k(upload(prefix_sums(batch.k_lens))),
        rows(batch.total_q()) {
    const int64_t heads = problem.num_heads;
    const int64_t d = problem.dims.nope + problem.dims.rope;
    const int64_t dim_v = problem.dims.v;
    out = *DeviceBuffer::allocate(0, rows * heads * dim_v * dtype_bytes(problem.out_dtype));
    lse = *DeviceBuffer::allocate(0, rows * heads * 4);
    args.q = TensorView::contiguous(q.data(), problem.dtype, {rows, heads, d});
    args.k = TensorView::contiguous(k.data(), problem.dtype, {batch.total_k(), heads, d});
    args.v = TensorView::contiguous(v.data(), problem.dtype, {batch.total_k(), heads, dim_v});
    const int64_t entries = batch.sequences() + 1;
    args.cu_seqlens_q = TensorView::contiguous(cu_q.data(), Dtype::kInt32, {entries});
    args.cu_seqlens_k = TensorView::contiguous(cu_k.data(), Dtype::kInt32, {entries});
    args.softmax_scale = batch.softmax_scale;
    args.out = MutableTensorView::contiguous(out.data(), problem.out_dtype, {rows, heads, dim_v});
    args.lse = MutableTensorView::contiguous(lse.data(), Dtype::kFp32, {heads, rows});
    clear();
  }

  void clear() {
    const std::vector<std::byte> nan(static_cast<size_t>(std::max(out.bytes(), lse.bytes())),
                                     std::byte{0xff});
    EXPECT_TRUE(out.copy_from_host(nan.data(), out.bytes()).ok());
    EXPECT_TRUE(lse.copy_from_host(nan.data(), lse.bytes()).ok());
  }

  Status run(StreamHandle stream = nullptr, const ExecutionOptions& options = on_gpu()) const {
    return prefill(problem, args, options, stream);
  }

  // out, then lse.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> result(static_cast<size_t>(out.bytes() + lse.bytes()));
    EXPECT_TRUE(out.copy_to_host(result.data(), out.bytes()).ok());
    EXPECT_TRUE(lse.copy_to_host(result.data() + out.bytes(), lse.bytes()).ok());
    return result;
  }

  PrefillProblem problem;
  DeviceBuffer q, k, v, cu_q, cu_k, out, lse;
  PrefillArgs args;
  int64_t rows;
};

DenseBatch small_batch(uint64_t seed, const Mask& mask = kCausal) {
  DenseBatch batch = DenseBatch::random(kDeepSeek, 4, Dtype::kBf16, mask, {70, 1, 0, 200},
                                        {70, 129, 5, 391}, seed);
  return batch;
}

TEST_F(Gpu, RunsWhereTheTensorsAreAndNowhereElse) {
  const DenseBatch batch = small_batch(1);
  const Resident resident(batch);
  ExecutionOptions automatic;
  ASSERT_TRUE(resident.run(nullptr, automatic).ok());
  ASSERT_TRUE(synchronize(0).ok());
  EXPECT_NE(resident.bits(), std::vector<std::byte>(resident.bits().size(), std::byte{0xff}));
  const Status on_host = resident.run(nullptr, on_cpu());
  EXPECT_EQ(on_host.code(), StatusCode::kDevice);
  EXPECT_THAT(on_host.message(), HasSubstr("q: got memory of cuda:0, wanted host memory"));

  PrefillArgs mixed = resident.args;
  mixed.v.data = batch.v.data();
  const Status status = prefill(resident.problem, mixed, automatic);
  EXPECT_EQ(status.code(), StatusCode::kDevice);
  EXPECT_THAT(status.message(), HasSubstr("v: got host memory, wanted memory of cuda:0"));

  ExecutionOptions no_such;
  no_such.device = {DeviceKind::kCuda, 77};
  EXPECT_EQ(resident.run(nullptr, no_such).code(), StatusCode::kDevice);
}

TEST_F(Gpu, CheckedCallsRefuseLengthsThatAreWrong) {
  const DenseBatch batch = small_batch(2);
  Resident resident(batch);
  ExecutionOptions checked = on_gpu();
  checked.checked = true;
  EXPECT_TRUE(resident.run(nullptr, checked).ok());
  std::vector<int32_t> cu = prefix_sums(batch.k_lens);
  cu[2] = cu[3] + 1;
  ASSERT_TRUE(resident.cu_k.copy_from_host(cu.data(), static_cast<int64_t>(cu.size() * 4)).ok());
  resident.clear();
  const std::vector<std::byte> before = resident.bits();
  const Status status = resident.run(nullptr, checked);
  EXPECT_EQ(status.code(), StatusCode::kCuSeqlens);
  EXPECT_THAT(status.message(), HasSubstr("cu_seqlens_k[3]"));
  EXPECT_EQ(resident.bits(), before);
}

// Unchecked lengths may be anything: the results are then worthless, the memory is not touched
// beyond the tensors, and the context survives.
TEST_F(Gpu, LengthsThatLieNeverReachBeyondTheTensors) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    DenseBatch batch = small_batch(3, round % 2 == 0 ? kCausal : kFull);
    batch.problem.batch_invariant = round % 3 == 0;
    Resident resident(batch);
    for (DeviceBuffer* buffer : {&resident.cu_q, &resident.cu_k}) {
      std::vector<int32_t> cu(static_cast<size_t>(batch.sequences() + 1));
      for (int32_t& entry : cu) {
        const int32_t limits[] = {300, 3000, 2'000'000'000, 10};
        const int32_t limit = limits[random() % 4];
        entry = std::uniform_int_distribution<int32_t>(-limit, limit)(random);
      }
      ASSERT_TRUE(buffer->copy_from_host(cu.data(), static_cast<int64_t>(cu.size() * 4)).ok());
    }
    const int64_t bytes = *prefill_workspace_bytes(resident.problem, resident.args, on_gpu());
    const DeviceBuffer workspace = *DeviceBuffer::allocate(0, bytes);
    resident.args.workspace = workspace.data();
    resident.args.workspace_bytes = bytes;
    ASSERT_TRUE(resident.run().ok());
    ASSERT_TRUE(synchronize(0).ok()) << "round " << round;
  }
  EXPECT_TRUE(Resident(small_batch(4)).run().ok());
}

TEST_F(Gpu, AGraphReplaysWithOtherDataAndOtherLengths) {
  const Streams streams;
  const StreamHandle stream = streams.make();
  DenseBatch batch = small_batch(5);
  Resident resident(batch);
  ASSERT_TRUE(resident.run(stream).ok());  // loads the kernel
  ASSERT_TRUE(synchronize(0, stream).ok());

  ASSERT_EQ(streams.begin_capture(stream, 1), 0);  // thread-local mode
  ASSERT_TRUE(resident.run(stream).ok());
  void* graph = nullptr;
  void* executable = nullptr;
  ASSERT_EQ(streams.end_capture(stream, &graph), 0);
  ASSERT_EQ(streams.instantiate(&executable, graph, 0), 0);

  const std::vector<std::vector<int32_t>> q_lens = {
      {70, 1, 0, 200}, {0, 0, 0, 271}, {271, 0, 0, 0}, {64, 64, 64, 79}};
  const std::vector<std::vector<int32_t>> k_lens = {
      {70, 129, 5, 391}, {1, 2, 3, 589}, {300, 200, 95, 0}, {64, 64, 64, 403}};
  for (size_t i = 0; i < q_lens.size(); ++i) {
    const std::vector<int32_t> cu_q = prefix_sums(q_lens[i]);
    const std::vector<int32_t> cu_k = prefix_sums(k_lens[i]);
    ASSERT_TRUE(resident.cu_q.copy_from_host(cu_q.data(), 20).ok());
    ASSERT_TRUE(resident.cu_k.copy_from_host(cu_k.data(), 20).ok());
    resident.clear();
    ASSERT_EQ(streams.launch(executable, stream), 0);
    ASSERT_TRUE(synchronize(0, stream).ok());
    const std::vector<std::byte> replayed = resident.bits();
    resident.clear();
    ASSERT_TRUE(resident.run().ok());
    EXPECT_EQ(replayed, resident.bits()) << "lengths " << i;
    DenseBatch wanted = batch;
    wanted.q_lens = q_lens[i];
    wanted.k_lens = k_lens[i];
    const DenseResult staged = cases::run(wanted, on_gpu());
    EXPECT_EQ(std::memcmp(staged.out.data(), replayed.data(), staged.out.size()), 0);
  }
}

TEST_F(Gpu, ACaptureNeitherCompilesNorLoads) {
  const Streams streams;
  const StreamHandle stream = streams.make();
  // Dims that no other test of this program uses.
  const Resident resident(DenseBatch::random({80, 32, 48}, 1, Dtype::kBf16, kCausal, {5}, {5}, 6));
  ASSERT_EQ(streams.begin_capture(stream, 1), 0);
  const Status status = resident.run(stream);
  void* graph = nullptr;
  EXPECT_EQ(streams.end_capture(stream, &graph), 0);
  EXPECT_EQ(status.code(), StatusCode::kNotWarm) << status.to_string();
  EXPECT_TRUE(resident.run(stream).ok());
  EXPECT_TRUE(synchronize(0, stream).ok());
}

TEST_F(Gpu, TheDefaultStreamsAndTheCallersOwnAreHonoured) {
  const Streams streams;
  const DenseBatch batch = small_batch(20);
  Resident resident(batch);
  ASSERT_TRUE(resident.run().ok());
  ASSERT_TRUE(synchronize(0).ok());
  const std::vector<std::byte> wanted = resident.bits();
  const auto legacy = reinterpret_cast<StreamHandle>(uintptr_t{1});
  const auto per_thread = reinterpret_cast<StreamHandle>(uintptr_t{2});
  for (const StreamHandle stream : {legacy, per_thread, streams.make()}) {
    resident.clear();
    const Status status = resident.run(stream);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(synchronize(0, stream).ok());
    EXPECT_EQ(resident.bits(), wanted);
  }
}

TEST_F(Gpu, FourStreamsAndThreadsGiveTheBitsOfOne) {
  const Streams streams;
  constexpr int kStreams = 4;
  std::vector<std::vector<std::byte>> wanted;
  std::vector<Resident> residents;
  for (int i = 0; i < kStreams; ++i) {
    residents.emplace_back(small_batch(10 + static_cast<uint64_t>(i), i % 2 ? kFull : kCausal));
    ASSERT_TRUE(residents.back().run().ok());
    ASSERT_TRUE(synchronize(0).ok());
    wanted.push_back(residents.back().bits());
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(kStreams, 0);
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([&, i] {
      const StreamHandle stream = Streams().make();
      for (int round = 0; round < 200; ++round) {
        Resident& resident = residents[static_cast<size_t>(i)];
        if (round % 50 == 0) resident.clear();
        const bool ran = resident.run(stream).ok() && synchronize(0, stream).ok();
        wrong[static_cast<size_t>(i)] +=
            !ran || (round % 50 == 49 && resident.bits() != wanted[static_cast<size_t>(i)]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

TEST_F(Gpu, AHundredThousandSequences) {
  std::vector<int32_t> q_lens(100'000), k_lens(100'000);
  std::mt19937 random(7);
  for (size_t i = 0; i < q_lens.size(); ++i) {
    q_lens[i] = static_cast<int32_t>(random() % 4);
    k_lens[i] = q_lens[i] + static_cast<int32_t>(random() % 3);
  }
  DenseBatch batch = DenseBatch::random(kDeepSeek, 1, Dtype::kBf16, kCausal, q_lens, k_lens, 7);
  batch.problem.batch_invariant = true;
  const DenseResult gpu = cases::run(batch, on_gpu());
  const DenseResult cpu = cases::run(batch, on_cpu());
  ASSERT_TRUE(gpu.status.ok()) << gpu.status.to_string();
  ASSERT_TRUE(cpu.status.ok());
  for (int64_t row = 0; row < gpu.rows; ++row) {
    ASSERT_NEAR(gpu.lse_at(row, 0), cpu.lse_at(row, 0), 1e-4) << row;
    for (int64_t i = 0; i < 128; ++i) {
      ASSERT_NEAR(gpu.out_at(row, 0, i), cpu.out_at(row, 0, i), 0.05) << row;
    }
  }
}

// Every case that the kernel takes, its keys in so many parts.
class Splits : public testing::TestWithParam<int32_t> {};

TEST_P(Splits, AgreeWithTheOracle) {
  if (!explain({}, on_gpu()).supported) GTEST_SKIP() << "no GPU";
  int64_t checked = 0;
  for (const Case& c : cases::case_table()) {
    PrefillProblem problem = c.problem();
    if (!explain(problem, on_gpu()).supported || c.total_k() > 20'000) continue;
    cases::CheckOptions options;
    options.weights = c.dtype;
    options.oracle_work = 3'000'000;
    auto checker = cases::CaseChecker::make(c, options);
    ASSERT_TRUE(checker.ok());
    Status status;
    const cases::Verdict verdict =
        (*checker)->check([&](PrefillProblem split, const PrefillArgs& args) {
          split.num_splits = GetParam();
          return status = cases::staged_prefill(split, args, on_gpu());
        });
    if (status.code() == StatusCode::kAlignment || status.code() == StatusCode::kStride) continue;
    ++checked;
    for (const std::string& line : verdict.violations) ADD_FAILURE() << c.name << ": " << line;
  }
  EXPECT_GT(checked, 100);
}

INSTANTIATE_TEST_SUITE_P(Of, Splits, testing::Values(2, 7));

TEST_F(Gpu, SplitsNeedAWorkspaceAndSayHowMuch) {
  DenseBatch batch = DenseBatch::random(kDeepSeek, 2, Dtype::kBf16, kFull, {9}, {4000}, 8);
  batch.problem.batch_invariant = false;
  batch.problem.num_splits = 8;
  Resident resident(batch);
  const int64_t bytes = *prefill_workspace_bytes(resident.problem, resident.args, on_gpu());
  EXPECT_EQ(bytes, 8 * 9 * 2 * (128 + 1) * 4);
  EXPECT_EQ(resident.run().code(), StatusCode::kWorkspace);
  const DeviceBuffer workspace = *DeviceBuffer::allocate(0, bytes);
  resident.args.workspace = workspace.data();
  resident.args.workspace_bytes = bytes - 1;
  EXPECT_EQ(resident.run().code(), StatusCode::kWorkspace);
  resident.args.workspace_bytes = bytes;
  EXPECT_TRUE(resident.run().ok());
  EXPECT_TRUE(synchronize(0).ok());
}

// A layer on the device against the same layer on the CPU, whose partial states are fp32 too.
TEST_F(Gpu, LayersAgreeWithTheCpu) {
  for (const Dtype out_dtype : {Dtype::kBf16, Dtype::kFp32}) {
    DenseBatch batch = DenseBatch::random(kDeepSeek, 3, Dtype::kBf16, kCausal, {64, 1, 130, 0, 33},
                                          {64, 901, 400, 77, 2000}, 9);
    batch.problem.out_dtype = out_dtype;
    batch.problem.batch_invariant = out_dtype == Dtype::kFp32;  // else chunks are split
    const std::vector<int64_t> context = cases::context_lens(batch);
    const ContextPlan greedy = *plan_context_greedy(context, {.workspace_rows = 512});
    for (const ContextPlan& plan :
         {cases::equal_chunks(context, 96), greedy, ContextPlan{context, {}}}) {
      if (plan.chunks.empty()) continue;
      const DenseResult gpu = cases::run_layer(batch, plan, on_gpu());
      const DenseResult cpu = cases::run_layer(batch, plan, on_cpu());
      ASSERT_TRUE(gpu.status.ok()) << gpu.status.to_string();
      ASSERT_TRUE(cpu.status.ok()) << cpu.status.to_string();
      double error = 0, norm = 0;
      for (int64_t row = 0; row < gpu.rows; ++row) {
        for (int64_t h = 0; h < 3; ++h) {
          ASSERT_NEAR(gpu.lse_at(row, h), cpu.lse_at(row, h), 2e-5) << row;
          for (int64_t i = 0; i < 128; ++i) {
            const double difference = gpu.out_at(row, h, i) - cpu.out_at(row, h, i);
            ASSERT_FALSE(std::isnan(difference)) << row;
            error += difference * difference;
            norm += cpu.out_at(row, h, i) * cpu.out_at(row, h, i);
          }
        }
      }
      EXPECT_LT(std::sqrt(error / norm), 3e-3);
    }
  }
}

TEST_F(Gpu, MergesAgreeWithTheCpu) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  constexpr int64_t kTokens = 37, kHeads = 3, kDim = 128;
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
    for (const Dtype out_dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kE4m3}) {
      const auto elements = static_cast<size_t>(kTokens * kHeads * kDim);
      std::vector<std::byte> prefix(elements * 4), suffix(elements * 4);
      std::vector<std::byte> outs[2] = {std::vector<std::byte>(elements * 4, std::byte{0xff}),
                                        std::vector<std::byte>(elements * 4, std::byte{0xff})};
      for (size_t i = 0; i < elements; ++i) {
        cases::store(prefix.data(), dtype, static_cast<int64_t>(i), normal(random));
        cases::store(suffix.data(), dtype, static_cast<int64_t>(i), normal(random));
      }
      std::vector<float> prefix_lse(kTokens * kHeads), suffix_lse(kTokens * kHeads);
      for (size_t i = 0; i < prefix_lse.size(); ++i) {
        prefix_lse[i] = i % 7 == 0 ? -INFINITY : 5 * normal(random);
        suffix_lse[i] = i % 5 == 0 ? INFINITY : 5 * normal(random);
      }
      std::vector<float> lses[2] = {std::vector<float>(kTokens * kHeads),
                                    std::vector<float>(kTokens * kHeads)};
      const float scale = 0.02f;
      for (int side = 0; side < 2; ++side) {
        MergeArgs args;
        args.prefix_out = TensorView::contiguous(prefix.data(), dtype, {kTokens, kHeads, kDim});
        args.suffix_out = TensorView::contiguous(suffix.data(), dtype, {kTokens, kHeads, kDim});
        args.prefix_lse =
            TensorView::contiguous(prefix_lse.data(), Dtype::kFp32, {kHeads, kTokens});
        args.suffix_lse =
            TensorView::contiguous(suffix_lse.data(), Dtype::kFp32, {kHeads, kTokens});
        args.out =
            MutableTensorView::contiguous(outs[side].data(), out_dtype, {kTokens, kHeads, kDim});
        args.lse =
            MutableTensorView::contiguous(lses[side].data(), Dtype::kFp32, {kHeads, kTokens});
        if (out_dtype == Dtype::kE4m3) {
          args.output_scale = TensorView::contiguous(&scale, Dtype::kFp32, {1});
        }
        args.tokens_with_prefix = 30;
        const Status status = cases::staged_merge_states(args, side == 0 ? on_cpu() : on_gpu());
        ASSERT_TRUE(status.ok()) << status.to_string();
      }
      for (size_t i = 0; i < lses[0].size(); ++i) {
        if (std::isinf(lses[0][i])) {
          ASSERT_EQ(lses[0][i], lses[1][i]);
        } else {
          ASSERT_NEAR(lses[0][i], lses[1][i], 1e-5);
        }
      }
      for (size_t i = 0; i < elements; ++i) {
        const double cpu = cases::load(outs[0].data(), out_dtype, static_cast<int64_t>(i));
        const double gpu = cases::load(outs[1].data(), out_dtype, static_cast<int64_t>(i));
        ASSERT_NEAR(cpu, gpu, 2 * cases::ulp_of(out_dtype, cpu) + 1e-6 * (1 + std::fabs(cpu)))
            << "element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace flashprime
