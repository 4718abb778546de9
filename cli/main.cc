// SPDX-License-Identifier: Apache-2.0
// The flashprime command: runs a verb, maps failures to exit codes, writes stdout once.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>

#include "cli/command_line.h"
#include "cli/session.h"

namespace {

// Keeps a file that we open from becoming descriptor 0, 1 or 2 when the caller closed those:
// results would be written into it.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) < 0) return;
  }
}

<<<<<<< HEAD
int parse_and_run(int argc, char** argv, Session& session) {
  using namespace flashprime::cli;
  CLI::App app{"MLA prefill attention: try it, check it, replay real traces through it"};
  app.name("flashprime");
  app.set_version_flag("--version", "flashprime " + std::string(flashprime::version()) + " (" +
                                        std::string(flashprime::build_description()) + ")");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 usage, 3 bad input file, 4 unsupported,\n"
      "5 environment, 70 internal, 130 interrupted.");
  add_info(app, session);
  add_models(app, session);
  add_explain(app, session);
  add_check(app, session);
  add_replay(app, session);
  add_warmup(app, session);
  add_cache(app, session);
  add_dump(app, session);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    if (app.exit(error, out, err) == 0) {  // --help, --version
      session.out += out.str();
      return kExitOk;
    }
    return session.fail(kExitUsage, error.what());
  }
  return session.selected();
}

=======
>>>>>>> main
}  // namespace

int main(int argc, char** argv) {
  using namespace flashprime::cli;
  occupy_standard_descriptors();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write()
  install_interrupt_handler();

  Session session;
  int exit_code = kExitInternal;
  try {
    const std::optional<int> parsed = parse_command_line(argc, argv, session);
    exit_code = parsed ? *parsed : session.selected();
  } catch (const std::bad_alloc&) {
    exit_code = session.fail(kExitEnvironment, "out of memory");
  } catch (const std::exception& error) {
    exit_code = session.fail(kExitInternal, std::string("internal error: ") + error.what());
  }
  if (!write_stdout(session.out) && errno != EPIPE) {
    return session.fail(kExitEnvironment,
                        std::string("cannot write to stdout: ") + std::strerror(errno));
  }
  return interrupted() ? kExitInterrupted : exit_code;
}
