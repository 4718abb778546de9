// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <sstream>
#include <string_view>

#include "flashprime/version.h"

namespace flashprime::cli {

std::optional<int> parse_command_line(int argc, const char* const* argv, Session& session) {
  session.repro = quote_command_line(argc, argv);
  // Before parsing, so that a usage error is JSON too.
  for (int i = 1; i < argc; ++i)
    session.json = session.json || std::string_view(argv[i]) == "--json";
  CLI::App app{"MLA prefill attention: try it, check it, replay real traces through it"};
  app.name("flashprime");
  app.set_version_flag("--version", "flashprime " + std::string(version()) + " (" +
                                        std::string(build_description()) + ")");
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 ok, 1 a check failed, 2 usage, 3 bad input file, 4 unsupported,\n"
      "5 environment, 70 internal, 130 interrupted.");
  add_info(app, session);
  add_models(app, session);
  add_explain(app, session);
  add_run(app, session);
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
    if (app.exit(error, out, err) != 0) return session.fail(kExitUsage, error.what());
    session.out += out.str();
    return kExitOk;
  }
  return std::nullopt;
}

}  // namespace flashprime::cli
