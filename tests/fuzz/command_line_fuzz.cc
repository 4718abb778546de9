// SPDX-License-Identifier: Apache-2.0
// Command lines, parsed and not run: arguments are separated by line ends.
#include "cli/command_line.h"

#include "cli/session.h"
#include "tests/fuzz/fuzz.h"

namespace flashprime::cli {
namespace {

void check(std::string_view text) {
  std::vector<std::string> arguments = {"flashprime"};
  while (!text.empty() && arguments.size() < 64) {
    const size_t end = std::min(text.find('\n'), text.size());
    // An argument ends at its first NUL.
    arguments.emplace_back(text.substr(0, std::min(end, text.find('\0'))));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::vector<const char*> argv;
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  Session session;
  const std::optional<int> exit_code =
      parse_command_line(static_cast<int>(argv.size()), argv.data(), session);
  if (!exit_code) {
    FUZZ_REQUIRE(session.selected != nullptr);
    return;
  }
  FUZZ_REQUIRE(*exit_code == kExitOk || *exit_code == kExitUsage);
  FUZZ_REQUIRE((*exit_code == kExitOk) == !session.out.empty() || session.json);
}

}  // namespace
}  // namespace flashprime::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::cli::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
