// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include "cli/manual.h"
#include "cli/text.h"
#include "flashprime/version.h"

namespace flashprime::cli {
namespace {

std::string in_quotes(std::string_view text) {
  return '\'' + printable(text) + '\'';
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = closest(word, known);
  return near.empty() ? "" : " (did you mean " + in_quotes(near) + "?)";
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// What is wrong where the verb or a required option is missing, or a word is left over. CLI11 says
// what is missing; a misspelt word is the likelier reason, and is what this names.
std::string leftover_text(const CLI::App& app) {
  const std::vector<std::string> leftovers = app.remaining(true);
  if (app.get_subcommands().empty()) {
    std::vector<std::string> verbs;
    std::string list;
    for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
      verbs.push_back(verb->get_name());
      list += (list.empty() ? "" : ", ") + verb->get_name();
    }
    const std::string wanted = "want one of " + list + "; see `flashprime --help`";
    if (leftovers.empty()) return "no verb; " + wanted;
    const std::string& word = leftovers.front();
    if (word.starts_with('-')) return "got " + in_quotes(word) + " instead of a verb; " + wanted;
    return "unknown verb " + in_quotes(word) + did_you_mean(word, verbs) + "; " + wanted;
  }
  if (leftovers.empty()) return {};
  const CLI::App& verb = *app.get_subcommands().front();
  const std::string name = verb.get_name();
  const std::string help = "; see `flashprime " + name + " --help`";
  const std::string& word = leftovers.front();
  if (!word.starts_with('-'))
    return name + ": got " + in_quotes(word) + ", which it does not take" + help;
  const std::vector<std::string> options = option_names(verb);
  if (std::find(options.begin(), options.end(), word) != options.end()) {
    return in_quotes(word) + " goes after the verb: flashprime " + name + ' ' + word;
  }
  return name + ": unknown option " + in_quotes(word) + did_you_mean(word, options) + help;
}

}  // namespace

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
  add_bench(app, session);
  add_replay(app, session);
  add_warmup(app, session);
  add_cache(app, session);
  add_dump(app, session);
  add_manual(app, session);
  add_examples(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    if (app.exit(error, out, err) != 0) {
      const bool missing_or_left = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr ||
                                   dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
      const std::string leftover = missing_or_left ? leftover_text(app) : std::string();
      return session.fail(kExitUsage, leftover.empty() ? error.what() : leftover);
    }
    session.out += out.str();
    return kExitOk;
  }
  return std::nullopt;
}

}  // namespace flashprime::cli
