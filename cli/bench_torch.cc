// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_torch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "cli/common_options.h"
#include "cli/session.h"
#include "cli/text.h"

extern char** environ;

namespace flashprime::cli {
namespace {

// One request a line on stdin, one answer a line on stdout. Everything that can go wrong is an
// answer, so that stderr stays ours.
constexpr const char* kScript = R"python(
import sys, time

def say(*words):
    print(*words, flush=True)

def in_one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())

try:
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_grad_enabled(False)
except Exception as error:
    say("error", in_one_line(error))
    sys.exit()
say("ready", torch.__version__)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

def visible(q, k, left, right):
    """None, or which keys each row sees where is_causal does not say it."""
    if left < 0 and (right < 0 or (right == 0 and q == k)):
        return None
    mask = torch.ones(q, k, dtype=torch.bool)
    if right >= 0:
        mask = mask.tril(k - q + right)
    return mask if left < 0 else mask.triu(k - q - left)

def route(dtype, padding, groups, heads, width, width_v, left, right, scale, seed):
    torch.manual_seed(seed)
    calls = []
    for count, q, k in groups:
        def data(tokens, dim):
            return torch.randn(count, heads, tokens, dim).to(dtype)
        if q == 0 or k == 0:
            continue
        mask = visible(q, k, left, right)
        calls.append((data(q, width), data(k, width), pad(data(k, width_v), (0, padding)), mask,
                      mask is None and right == 0))

    def run():
        for q, k, v, mask, causal in calls:
            scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
    return run

def seconds_of(run, calls):
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls

def prepare(dtype, heads, width, width_v, left, right, scale, seed, *groups):
    groups = [tuple(map(int, group.split(":"))) for group in groups]
    numbers = (int(heads), int(width), int(width_v), int(left), int(right), float(scale), int(seed))
    best = None
    for name in dict.fromkeys((dtype, "fp32")):
        paddings = (0, numbers[1] - numbers[2]) if numbers[2] < numbers[1] else (0,)
        for padding in paddings:
            run = route(DTYPES[name], padding, groups, *numbers)
            run()
            seconds = seconds_of(run, 1)
            if best is None or seconds < best[0]:
                best = (seconds, name + (" padded" if padding else ""), run)
    return best

try:
    best = None
    for line in sys.stdin:
        command, *words = line.split()
        try:
            if command == "prepare":
                best = None  # frees the tensors
                best = prepare(*words)
                calls = max(1, int(0.002 / max(best[0], 1e-9)))
                say("route", best[1])
            elif command == "time":
                say("seconds", repr(seconds_of(best[2], calls)))
        except Exception as error:
            say("error", in_one_line(error))
except KeyboardInterrupt:
    pass
)python";

void close_fd(int* fd) {
  if (*fd >= 0) ::close(*fd);
  *fd = -1;
}

}  // namespace

StatusOr<std::unique_ptr<TorchContender>> TorchContender::start(const std::string& python,
                                                                int32_t threads) {
  std::unique_ptr<TorchContender> contender(new TorchContender);
  contender->python_ = python;
  int in[2];
  int out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return Status(StatusCode::kIo, std::strerror(errno));
  contender->to_child_ = in[1];
  if (pipe2(out, O_CLOEXEC) != 0) {
    const Status failed(StatusCode::kIo, std::strerror(errno));
    ::close(in[0]);
    return failed;
  }
  contender->from_child_ = out[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string count = std::to_string(threads);
  std::string words[] = {python, "-c", kScript, count};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  const int error =
      posix_spawnp(&contender->child_, python.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  if (error != 0) {
    contender->child_ = -1;
    return Status(StatusCode::kIo,
                  fmt::format("cannot run '{}': {}; name a Python that has torch with --python",
                              printable(python, 200), std::strerror(error)));
  }
  StatusOr<std::string> ready = contender->receive("ready");
  if (!ready.ok()) {
    return Status(StatusCode::kIo,
                  fmt::format("'{}' has no usable torch: {}; name a Python that has with --python",
                              printable(python, 200), ready.status().message()));
  }
  contender->version_ = *ready;
  return contender;
}

TorchContender::~TorchContender() {
  close_fd(&to_child_);  // its loop over stdin ends
  close_fd(&from_child_);
  if (child_ < 0) return;
  for (int waited_ms = 0; waited_ms < 2000; waited_ms += 10) {
    if (waitpid(child_, nullptr, WNOHANG) != 0) return;
    usleep(10'000);
  }
  kill(child_, SIGKILL);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status TorchContender::send(const std::string& line) {
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = ::write(to_child_, left.data(), left.size());
    if (written < 0 && errno == EINTR && !interrupted()) continue;
    if (written < 0)
      return {StatusCode::kIo, "cannot write to it: " + std::string(strerror(errno))};
    left.remove_prefix(static_cast<size_t>(written));
  }
  return ok_status();
}

StatusOr<std::string> TorchContender::receive(const std::string& word) {
  constexpr size_t kLongestLine = 4096;
  size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    if (interrupted()) return Status(StatusCode::kIo, "interrupted");
    pollfd waiting = {from_child_, POLLIN, 0};
    if (poll(&waiting, 1, 200) <= 0) continue;
    char bytes[512];
    const ssize_t count = ::read(from_child_, bytes, sizeof bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Status(StatusCode::kIo, "it ended without an answer");
    buffer_.append(bytes, static_cast<size_t>(count));
    if (buffer_.size() > kLongestLine)
      return Status(StatusCode::kIo, "it does not answer in lines");
  }
  const std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  const size_t space = line.find(' ');
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (line.substr(0, space) == word) return printable(rest, 300);
  if (line.substr(0, space) == "error") return Status(StatusCode::kIo, printable(rest, 300));
  return Status(StatusCode::kIo, "got '" + printable(line) + "' from it, want " + word);
}

StatusOr<std::string> TorchContender::prepare(const PrefillProblem& problem, float softmax_scale,
                                              const std::vector<BatchRequest>& batch,
                                              int64_t seed) {
  std::map<std::pair<int64_t, int64_t>, int64_t> groups;
  for (const BatchRequest& request : batch) ++groups[{request.new_tokens, request.total_keys}];
  const bool causal = problem.mask.kind == MaskKind::kCausal;
  std::string line = fmt::format(
      "prepare {} {} {} {} {} {} {:.9g} {}", dtype_name(problem.dtype), problem.num_heads,
      problem.dims.nope + problem.dims.rope, problem.dims.v, problem.mask.window_left,
      causal ? 0 : problem.mask.window_right, static_cast<double>(softmax_scale), seed);
  for (const auto& [lengths, count] : groups) {
    line += fmt::format(" {}:{}:{}", count, lengths.first, lengths.second);
  }
  if (Status status = send(line + '\n'); !status.ok()) return status;
  return receive("route");
}

StatusOr<double> TorchContender::time() {
  if (Status status = send("time\n"); !status.ok()) return status;
  const StatusOr<std::string> answer = receive("seconds");
  if (!answer.ok()) return answer.status();
  char* end = nullptr;
  const double seconds = std::strtod(answer->c_str(), &end);
  if (end == answer->c_str() || !std::isfinite(seconds) || seconds < 0.0) {
    return Status(StatusCode::kIo, "got '" + *answer + "' as seconds");
  }
  return seconds;
}

}  // namespace flashprime::cli
