// SPDX-License-Identifier: Apache-2.0
// Host time of a warmed prefill() call on a GPU, and how long loading warmed kernels takes there.
// Prints CSV: what, value, unit.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "flashprime/device_memory.h"
#include "flashprime/jit.h"
#include "flashprime/prefill.h"

namespace {

using flashprime::DeviceBuffer;
using flashprime::Dtype;
using flashprime::MutableTensorView;
using flashprime::TensorView;
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

#define CHECK_OK(status)                                         \
  do {                                                           \
    const flashprime::Status checked = (status);                 \
    if (!checked.ok()) {                                         \
      std::fprintf(stderr, "%s\n", checked.to_string().c_str()); \
      return 1;                                                  \
    }                                                            \
  } while (false)

}  // namespace

int main() {
  const auto arch = flashprime::device_architecture(0);
  CHECK_OK(arch.status());
  const auto cache = flashprime::default_kernel_cache();
  CHECK_OK(cache.status());
  flashprime::PlanOptions plan_options;
  plan_options.archs = {*arch};
  const auto plan = cache->plan(plan_options);
  CHECK_OK(plan.status());
  // The first call also makes the context, which every program that uses the GPU has to.
  std::vector<DeviceBuffer> buffers;
  const auto memory = [&](int64_t bytes) {
    buffers.push_back(*DeviceBuffer::allocate(0, bytes));
    const std::vector<unsigned char> zeros(static_cast<size_t>(bytes));
    (void)buffers.back().copy_from_host(zeros.data(), bytes);
    return buffers.back().data();
  };
  constexpr int64_t kTokens = 128, kHeads = 16;
  const int32_t cu[] = {0, kTokens};
  void* cu_seqlens = memory(sizeof cu);
  CHECK_OK(buffers.back().copy_from_host(cu, sizeof cu));
  flashprime::WarmupOptions load;
  load.mode = flashprime::WarmupMode::kLoadOnly;
  const auto begin_load = Clock::now();
  const auto report = cache->warmup(*plan, load);
  CHECK_OK(report.status());
  CHECK_OK(report->status);
  std::printf("warm start of %zu kernels from disk with loading,%.2f,ms\n", report->kernels.size(),
              microseconds_since(begin_load) / 1e3);

  flashprime::PrefillProblem problem;
  problem.num_heads = kHeads;
  flashprime::PrefillArgs args;
  const auto view = [&](int64_t dim) {
    return TensorView::contiguous(memory(kTokens * kHeads * dim * 2), Dtype::kBf16,
                                  {kTokens, kHeads, dim});
  };
  args.q = view(192);
  args.k = view(192);
  args.v = view(128);
  args.out = MutableTensorView::contiguous(memory(kTokens * kHeads * 128 * 2), Dtype::kBf16,
                                           {kTokens, kHeads, 128});
  args.cu_seqlens_q = args.cu_seqlens_k = TensorView::contiguous(cu_seqlens, Dtype::kInt32, {2});
  args.softmax_scale = 0.07f;
  for (const auto kind : {flashprime::DeviceKind::kAuto, flashprime::DeviceKind::kCuda}) {
    flashprime::ExecutionOptions options;
    options.device = {kind, 0};
    CHECK_OK(flashprime::prefill(problem, args, options));
    CHECK_OK(flashprime::synchronize(0));
    std::vector<double> times;
    for (int round = 0; round < 200; ++round) {
      // Few enough calls that the stream's queue never makes one wait.
      constexpr int kCalls = 100;
      const auto begin = Clock::now();
      for (int i = 0; i < kCalls; ++i) CHECK_OK(flashprime::prefill(problem, args, options));
      times.push_back(microseconds_since(begin) / kCalls);
      CHECK_OK(flashprime::synchronize(0));
    }
    std::sort(times.begin(), times.end());
    const char* name = kind == flashprime::DeviceKind::kAuto ? "auto" : "cuda:0";
    std::printf("host time of a warmed call (device %s) median,%.2f,us\n", name,
                times[times.size() / 2]);
    std::printf("host time of a warmed call (device %s) p90,%.2f,us\n", name,
                times[times.size() * 9 / 10]);
  }
  return 0;
}
