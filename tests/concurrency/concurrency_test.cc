// SPDX-License-Identifier: Apache-2.0
// What the headers promise about threads. ./check runs these once plainly and once under
// ThreadSanitizer, for which they are kept small.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"
#include "flashprime/backend.h"
#include "flashprime/merge.h"
#include "flashprime/prefill.h"
#include "flashprime/random.h"

namespace flashprime {
namespace {

constexpr int kThreads = 4;

// A causal batch of 3 sequences whose tiles straddle every edge.
struct Batch {
  static constexpr int64_t kTokens = 200;
  static constexpr int32_t kHeads = 3;
  static constexpr int64_t kDim = 48;  // nope 32, rope 16
  static constexpr int64_t kDimV = 32;

  Batch() {
    fill(q, kDim, 0);
    fill(k, kDim, 1);
    fill(v, kDimV, 2);
    problem.dims = {32, 16, 32};
    problem.num_heads = kHeads;
    problem.return_lse = true;
  }

  static void fill(std::vector<uint16_t>& data, int64_t dim, uint32_t tensor_id) {
    data.resize(static_cast<size_t>(kTokens * kHeads * dim));
    const auto view =
        MutableTensorView::contiguous(data.data(), Dtype::kBf16, {kTokens, kHeads, dim});
    RandomSpec spec;
    spec.tensor_id = tensor_id;
    ASSERT_TRUE(fill_random(view, spec).ok());
  }

  PrefillProblem problem;
  std::vector<uint16_t> q, k, v;
  std::vector<int32_t> cu_seqlens{0, 1, 130, 200};
};

struct Result {
  std::vector<uint16_t> out = std::vector<uint16_t>(Batch::kTokens * Batch::kHeads * Batch::kDimV);
  std::vector<float> lse = std::vector<float>(Batch::kTokens * Batch::kHeads);

  bool operator==(const Result&) const = default;
};

Status run(const Batch& batch, const ExecutionOptions& options, Result* result) {
  const auto rows = [](const std::vector<uint16_t>& data, int64_t dim) {
    return TensorView::contiguous(data.data(), Dtype::kBf16, {Batch::kTokens, Batch::kHeads, dim});
  };
  PrefillArgs args;
  args.q = rows(batch.q, Batch::kDim);
  args.k = rows(batch.k, Batch::kDim);
  args.v = rows(batch.v, Batch::kDimV);
  args.cu_seqlens_q = TensorView::contiguous(batch.cu_seqlens.data(), Dtype::kInt32, {4});
  args.cu_seqlens_k = args.cu_seqlens_q;
  args.softmax_scale = 0.125f;
  args.out = MutableTensorView::contiguous(result->out.data(), Dtype::kBf16,
                                           {Batch::kTokens, Batch::kHeads, Batch::kDimV});
  args.lse = MutableTensorView::contiguous(result->lse.data(), Dtype::kFp32,
                                           {Batch::kHeads, Batch::kTokens});
  return prefill(batch.problem, args, options);
}

ExecutionOptions on_threads(int32_t num_threads) {
  ExecutionOptions options;
  options.num_threads = num_threads;
  return options;
}

// Runs body(i) on kThreads threads that start together.
template <typename Body>
void at_once(const Body& body) {
  std::atomic<int> waiting{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (--waiting; waiting > 0;) std::this_thread::yield();
      body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Concurrency, CallsAtOnceOnSharedInputsGiveTheBitsOfASingleCall) {
  const Batch batch;
  Result expected;
  ASSERT_TRUE(run(batch, on_threads(1), &expected).ok());
  std::vector<Result> results(kThreads);
  std::vector<Status> statuses(kThreads);
  at_once([&](int i) {
    const size_t slot = static_cast<size_t>(i);
    // Different thread counts, so that calls compete for the pool's helpers while it grows.
    for (int repeat = 0; repeat < 3; ++repeat) {
      results[slot] = Result();
      statuses[slot] = run(batch, on_threads(1 + (i + repeat) % 4), &results[slot]);
    }
  });
  for (size_t i = 0; i < kThreads; ++i) {
    ASSERT_TRUE(statuses[i].ok()) << statuses[i].to_string();
    EXPECT_EQ(results[i], expected) << "thread " << i;
  }
}

TEST(Concurrency, TheCallersOwnThreadsGiveTheSameBits) {
  const Batch batch;
  Result expected;
  ASSERT_TRUE(run(batch, on_threads(1), &expected).ok());
  ExecutionOptions options;
  options.parallel_for = [](int64_t n, const std::function<void(int64_t)>& body) {
    std::atomic<int64_t> next{n};  // backwards: no order is promised
    at_once([&](int) {
      for (int64_t i; (i = --next) >= 0;) body(i);
    });
  };
  Result result;
  ASSERT_TRUE(run(batch, options, &result).ok());
  EXPECT_EQ(result, expected);
}

TEST(Concurrency, TheRegistryAndTheSelectorAnswerManyThreadsAtOnce) {
  const Batch batch;
  std::vector<std::string> kernels(kThreads);
  at_once([&](int i) {
    const size_t slot = static_cast<size_t>(i);
    kernels[slot] = explain(batch.problem).kernel + " of " + std::to_string(list_kernels().size()) +
                    " " + numerics_id() + " " + cpu_info().isa_target;
  });
  for (const std::string& kernel : kernels) EXPECT_EQ(kernel, kernels.front());
}

TEST(Concurrency, MergesAtOnceOnSharedPartialsGiveTheSameBits) {
  const Batch batch;
  Result prefix;
  Result suffix;
  ASSERT_TRUE(run(batch, {}, &prefix).ok());
  suffix = prefix;
  std::vector<Result> results(kThreads);
  std::vector<Status> statuses(kThreads);
  at_once([&](int i) {
    const size_t slot = static_cast<size_t>(i);
    const auto out_shape = {Batch::kTokens, int64_t{Batch::kHeads}, Batch::kDimV};
    const auto lse_shape = {int64_t{Batch::kHeads}, Batch::kTokens};
    MergeArgs args;
    args.prefix_out = TensorView::contiguous(prefix.out.data(), Dtype::kBf16, out_shape);
    args.prefix_lse = TensorView::contiguous(prefix.lse.data(), Dtype::kFp32, lse_shape);
    args.suffix_out = TensorView::contiguous(suffix.out.data(), Dtype::kBf16, out_shape);
    args.suffix_lse = TensorView::contiguous(suffix.lse.data(), Dtype::kFp32, lse_shape);
    args.out = MutableTensorView::contiguous(results[slot].out.data(), Dtype::kBf16, out_shape);
    args.lse = MutableTensorView::contiguous(results[slot].lse.data(), Dtype::kFp32, lse_shape);
    statuses[slot] = merge_states(args, on_threads(1 + i));
  });
  for (size_t i = 0; i < kThreads; ++i) {
    ASSERT_TRUE(statuses[i].ok()) << statuses[i].to_string();
    EXPECT_EQ(results[i], results[0]);
    // Equal states merge into themselves with an LSE that is ln 2 higher.
    EXPECT_EQ(results[i].out, prefix.out);
    EXPECT_NEAR(results[i].lse[7], prefix.lse[7] + 0.693147f, 1e-5);
  }
}

TEST(ThreadPool, RunsEveryIndexOnceWhenLoopsOfManyThreadsMeet) {
  constexpr int64_t kIndices = 1000;
  std::vector<std::vector<std::atomic<int>>> visits(kThreads);
  for (auto& counts : visits) counts = std::vector<std::atomic<int>>(kIndices);
  at_once([&](int i) {
    auto& counts = visits[static_cast<size_t>(i)];
    cpu::pool_parallel_for(3)(kIndices,
                              [&](int64_t index) { ++counts[static_cast<size_t>(index)]; });
  });
  for (const auto& counts : visits) {
    for (const auto& count : counts) ASSERT_EQ(count, 1);
  }
}

TEST(ThreadPool, RunsALoopInsideALoop) {
  std::atomic<int> visits{0};
  const ParallelFor outer = cpu::pool_parallel_for(3);
  const ParallelFor inner = cpu::pool_parallel_for(2);
  // Long enough for helpers to wake up and take part.
  const auto visit = [&](int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++visits;
  };
  outer(8, [&](int64_t) { inner(8, visit); });
  EXPECT_EQ(visits, 64);
}

TEST(ThreadPool, WorksSeriallyInAForkedChild) {
  const Batch batch;
  Result expected;
  ASSERT_TRUE(run(batch, on_threads(3), &expected).ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Result result;
    const bool ok = run(batch, on_threads(3), &result).ok() && result == expected;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace flashprime
