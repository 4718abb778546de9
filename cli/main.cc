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
    if (parsed) {
      exit_code = *parsed;
    } else if (const flashprime::Status status = check_environment(); !status.ok()) {
      exit_code = session.fail(kExitUsage, status.message());
    } else {
      exit_code = session.selected();
    }
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
