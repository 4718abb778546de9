// SPDX-License-Identifier: Apache-2.0
// What every verb shares: exit codes, where results and errors go, Ctrl-C.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "flashprime/status.h"

namespace CLI {
class App;
}

namespace flashprime::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitCheckFailed = 1,  // accuracy, guard, coverage gap
  kExitUsage = 2,
  kExitBadInput = 3,  // a file does not follow its format
  kExitUnsupported = 4,
  kExitEnvironment = 5,  // device, driver, memory, I/O
  kExitInternal = 70,
  kExitInterrupted = 130,
};

// The exit code of a library error that is not the user's argument.
int exit_code_of(StatusCode code);

using Json = nlohmann::ordered_json;

// One run of the command.
struct Session {
  bool json = false;
  std::string repro;              // the command line, quoted for a shell
  std::string out;                // stdout, written once at the end
  std::function<int()> selected;  // set by the chosen verb

  // Appends `result` and its repro line in JSON.
  void print_json(Json result);
  // One line on stderr, and with --json an object on stdout. Returns `exit_code`.
  int fail(int exit_code, std::string_view what);
  int fail(const Status& status) { return fail(exit_code_of(status.code()), status.to_string()); }
};

// The command line as a shell would take it again.
std::string quote_command_line(int argc, const char* const* argv);

// Sets the flag that interrupted() reads on SIGINT and SIGTERM; a second signal ends the process.
void install_interrupt_handler();
bool interrupted();

// Writes all of `text` to stdout. False and `errno` on failure.
bool write_stdout(std::string_view text);

// An error for a FLASHPRIME_ variable whose value this build cannot take.
Status check_environment();

void add_info(CLI::App& root, Session& session);
void add_models(CLI::App& root, Session& session);
void add_explain(CLI::App& root, Session& session);
void add_bench(CLI::App& root, Session& session);
void add_check(CLI::App& root, Session& session);
void add_replay(CLI::App& root, Session& session);
void add_warmup(CLI::App& root, Session& session);
void add_cache(CLI::App& root, Session& session);
void add_dump(CLI::App& root, Session& session);
void add_manual(CLI::App& root, Session& session);  // and completion
void add_run(CLI::App& root, Session& session);

}  // namespace flashprime::cli
