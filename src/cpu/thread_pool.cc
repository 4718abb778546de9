// SPDX-License-Identifier: Apache-2.0
#include "cpu/thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace flashprime::cpu {
namespace {

constexpr int32_t kMaxThreads = 1024;

// One loop in flight. Lives on the stack of the thread that called the loop, which leaves only
// when no helper is inside any more.
struct Loop {
  const std::function<void(int64_t)>* body;
  int64_t n;
  std::atomic<int64_t> next{0};
  int32_t helpers_wanted;      // guarded by Pool::mutex_
  int32_t helpers_inside = 0;  // guarded by Pool::mutex_

  void run() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) (*body)(i);
  }
};

// Threads that wait for loops. Several loops may be in flight; each takes the helpers it can get,
// and its own caller always works, so that no loop ever waits for another.
class Pool {
 public:
  void run(int64_t n, int32_t num_threads, const std::function<void(int64_t)>& body) {
    Loop loop{&body, n, {}, static_cast<int32_t>(std::min<int64_t>(num_threads, n)) - 1};
    if (loop.helpers_wanted > 0) {
      std::lock_guard lock(mutex_);
      grow(loop.helpers_wanted);
      loops_.push_back(&loop);
      work_.notify_all();
    }
    loop.run();
    std::unique_lock lock(mutex_);
    std::erase(loops_, &loop);
    done_.wait(lock, [&] { return loop.helpers_inside == 0; });
  }

 private:
  // Starts threads until there are `wanted`. Where the system refuses one, the loop runs with
  // fewer: its result is the same.
  void grow(int32_t wanted) {
    while (num_workers_ < wanted) {
      try {
        std::thread([this] { work(); }).detach();
      } catch (const std::system_error&) {
        return;
      }
      ++num_workers_;
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto open = std::find_if(loops_.begin(), loops_.end(),
                                     [](const Loop* loop) { return loop->helpers_wanted > 0; });
      if (open == loops_.end()) {
        work_.wait(lock);
        continue;
      }
      Loop* loop = *open;
      --loop->helpers_wanted;
      ++loop->helpers_inside;
      lock.unlock();
      loop->run();
      lock.lock();
      if (--loop->helpers_inside == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  std::vector<Loop*> loops_;
  int32_t num_workers_ = 0;
};

// Never destroyed: detached workers may outlive static destructors.
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

// A forked child has the parent's pool object but none of its threads.
const pid_t pool_owner = getpid();

int32_t usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

}  // namespace

StatusOr<int32_t> default_num_threads() {
  const char* text = std::getenv("FLASHPRIME_THREADS");
  if (text == nullptr) return std::min(usable_processors(), kMaxThreads);
  int32_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || rest != end || value < 1 || value > kMaxThreads) {
    return Status(StatusCode::kNumeric, std::string("FLASHPRIME_THREADS: got \"") + text +
                                            "\", wanted an integer from 1 to 1024");
  }
  return value;
}

ParallelFor pool_parallel_for(int32_t num_threads) {
  return [num_threads](int64_t n, const std::function<void(int64_t)>& body) {
    if (n <= 0) return;
    if (num_threads <= 1 || n == 1 || getpid() != pool_owner) {
      for (int64_t i = 0; i < n; ++i) body(i);
      return;
    }
    pool().run(n, num_threads, body);
  };
}

}  // namespace flashprime::cpu
