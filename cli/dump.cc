// SPDX-License-Identifier: Apache-2.0
// flashprime dump: source, PTX, cubin, compiler report and SASS of one kernel.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "cli/kernel_options.h"
#include "cli/text.h"

extern char** environ;

namespace flashprime::cli {
namespace {

struct DumpOptions {
  KernelOptions kernels;
  int64_t index = 0;
  std::string cubin;
  bool source = false;
  bool ptx = false;
  bool sass = false;
  bool log = false;
};

// What a program writes to stdout; nothing if it cannot be run or fails.
std::string output_of(const std::vector<std::string>& command) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return {};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  std::string text;
  char buffer[1 << 16];
  for (ssize_t count = 0; error == 0;) {
    count = read(pipe_fds[0], buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
  }
  close(pipe_fds[0]);
  int status = 0;
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0) return {};
  return text;
}

Status write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (file) return ok_status();
  return Status(StatusCode::kIo, "cannot write " + path + ": " + std::strerror(errno));
}

int print_sass(Session& session, const KernelArtifacts& artifacts, std::string path) {
  bool keep = true;
  if (path.empty()) {
    std::string name = "/flashprime_kernel.XXXXXX";
    const char* folder = std::getenv("TMPDIR");
    path = (folder != nullptr && folder[0] == '/' ? folder : "/tmp") + name;
    const int fd = mkstemp(path.data());
    if (fd < 0) return session.fail(kExitEnvironment, "cannot create " + path);
    close(fd);
    keep = false;
  }
  if (const Status written = write_file(path, artifacts.cubin); !written.ok()) {
    return session.fail(written);
  }
  std::string sass = output_of({"nvdisasm", "--print-code", path});
  if (sass.empty()) sass = output_of({"cuobjdump", "--dump-sass", path});
  if (sass.empty()) {
    return session.fail(
        kExitEnvironment,
        "--sass: neither nvdisasm nor cuobjdump could be run; the cubin is " + path);
  }
  if (!keep) unlink(path.c_str());
  session.out += sass;
  return kExitOk;
}

int run_dump(Session& session, const DumpOptions& options) {
  const StatusOr<KernelCache> cache = open_cache(options.kernels);
  if (!cache.ok()) return session.fail(kExitUsage, cache.status().to_string());
  const StatusOr<KernelPlan> plan = make_plan(*cache, options.kernels);
  if (!plan.ok()) {
    const bool usage = plan.status().code() == StatusCode::kFormat;
    return usage ? session.fail(kExitUsage, plan.status().message()) : session.fail(plan.status());
  }
  const auto count = static_cast<int64_t>(plan->kernels.size());
  if (options.index >= count) {
    return session.fail(kExitUsage,
                        fmt::format("--index: got {}, there are {} kernels", options.index, count));
  }
  const PlannedKernel& kernel = plan->kernels[static_cast<size_t>(options.index)];
  const StatusOr<KernelArtifacts> artifacts = cache->dump(kernel);
  if (!artifacts.ok()) return session.fail(artifacts.status());
  if (!options.cubin.empty()) {
    const Status written = write_file(options.cubin, artifacts->cubin);
    if (!written.ok()) return session.fail(written);
  }
  if (session.json) {
    session.print_json({{"kernel", kernel.kernel},
                        {"arch", kernel.arch},
                        {"kernel_id", kernel.kernel_id},
                        {"key", kernel.key},
                        {"compiler", artifacts->compiler},
                        {"options", artifacts->options},
                        {"headers", artifacts->headers},
                        {"source", artifacts->source},
                        {"ptx", artifacts->ptx},
                        {"log", artifacts->log},
                        {"cubin_bytes", artifacts->cubin.size()}});
    return kExitOk;
  }
  if (options.source) session.out += artifacts->source;
  if (options.ptx) session.out += artifacts->ptx;
  if (options.log) session.out += artifacts->log;
  if (options.sass) return print_sass(session, *artifacts, options.cubin);
  if (!options.source && !options.ptx && !options.log) {
    session.out +=
        kernel.key + '\n' +
        align_columns(
            {{"id", kernel.kernel_id},
             {"compiler", artifacts->compiler},
             {"options", fmt::format("{}", fmt::join(artifacts->options, " "))},
             {"headers", fmt::format("{}", fmt::join(artifacts->headers, " "))},
             {"ptx", with_commas(static_cast<int64_t>(artifacts->ptx.size())) + " bytes"},
             {"cubin", with_commas(static_cast<int64_t>(artifacts->cubin.size())) + " bytes" +
                           (options.cubin.empty() ? "" : ", " + options.cubin)}}) +
        '\n' + artifacts->log + "repro: " + session.repro + '\n';
  }
  return kExitOk;
}

}  // namespace

void add_dump(CLI::App& root, Session& session) {
  CLI::App* app =
      root.add_subcommand("dump", "Source, PTX, cubin, ptxas report or SASS of one kernel");
  auto options = std::make_shared<DumpOptions>();
  app->add_flag("--json", session.json, "JSON on stdout");
  add_plan_options(*app, options->kernels);
  add_integer(*app, "--index", &options->index, 0, 1 << 20,
              "Which of the kernels that `warmup --list` prints (default 0)");
  app->add_flag("--source", options->source, "The translation unit");
  app->add_flag("--ptx", options->ptx, "PTX");
  app->add_flag("--log", options->log, "The compiler's report");
  app->add_flag("--sass", options->sass, "SASS, if nvdisasm or cuobjdump can be run");
  app->add_option("--cubin", options->cubin, "Write the cubin here")->type_name("FILE");
  app->callback([&session, options] {
    session.selected = [&session, options] { return run_dump(session, *options); };
  });
}

}  // namespace flashprime::cli
