// SPDX-License-Identifier: Apache-2.0
#include "cli/session.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace flashprime::cli {
namespace {

volatile std::sig_atomic_t interrupt_count = 0;

void on_interrupt(int) {
  interrupt_count = interrupt_count + 1;
  if (interrupt_count > 1) _exit(kExitInterrupted);
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
}

std::string quote(std::string_view argument) {
  bool plain = !argument.empty();
  for (char c : argument) plain = plain && is_plain(c);
  if (plain) return std::string(argument);
  std::string quoted = "'";
  for (char c : argument) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace

int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return kExitOk;
    case StatusCode::kFormat: return kExitBadInput;
    case StatusCode::kUnsupported:
    case StatusCode::kArch: return kExitUnsupported;
    case StatusCode::kDevice:
    case StatusCode::kStream:
    case StatusCode::kNotWarm:
    case StatusCode::kFrozen:
    case StatusCode::kDriver:
    case StatusCode::kNoCompiler:
    case StatusCode::kOutOfMemory:
    case StatusCode::kPriorCudaError:
    case StatusCode::kIo: return kExitEnvironment;
    default: return kExitInternal;
  }
}

void Session::print_json(Json result) {
  result["repro"] = repro;
  // Paths need not be UTF-8; JSON must be.
  out += result.dump(2, ' ', false, Json::error_handler_t::replace);
  out += '\n';
}

int Session::fail(int exit_code, std::string_view what) {
  std::string line = "flashprime: " + std::string(what);
  // Arguments may hold anything; the terminal gets one printable line.
  for (char& c : line) {
    if (c < ' ' || c > '~') c = c == '\n' || c == '\r' || c == '\t' ? ' ' : '?';
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
  if (json) {
    print_json({{"error", std::string(what)}, {"exit_code", exit_code}});
  }
  return exit_code;
}

std::string quote_command_line(int argc, const char* const* argv) {
  std::string text = "flashprime";
  for (int i = 1; i < argc; ++i) text += ' ' + quote(argv[i]);
  return text;
}

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  // No SA_RESTART: a read from a pipe that never ends must return.
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool interrupted() {
  return interrupt_count != 0;
}

bool write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace flashprime::cli
