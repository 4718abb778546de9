// SPDX-License-Identifier: Apache-2.0
// The texts that are made from the command line's own definition.
#include "cli/manual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>
#include <string>

#include "cli/command_line.h"

namespace flashprime::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string output_of(std::vector<const char*> words, int* exit_code = nullptr) {
  words.insert(words.begin(), "flashprime");
  Session session;
  const auto code = parse_command_line(static_cast<int>(words.size()), words.data(), session);
  const int result = code ? *code : session.selected();
  if (exit_code != nullptr) *exit_code = result;
  return session.out;
}

// A command with one of everything.
struct SmallCommand {
  CLI::App app{"Does things"};
  bool flag = false;
  std::string text;
  SmallCommand() {
    app.name("flashprime");
    app.footer("Exit codes: 0 ok.");
    CLI::App* check = app.add_subcommand("check", "It's: a [check]");
    check->add_flag("-q,--quiet", flag, "Say less | nothing");
    check->add_option("--device", text, "Where")->type_name("auto|cpu|cuda[:N]");
    check->add_option("--input", text, "From")->type_name("FILE")->required();
    check->add_option("--suite", text, "Which")->check(CLI::IsMember({"quick", "full"}));
    check->add_option("--count", text, "How many")->type_name("N");
    CLI::App* cache = app.add_subcommand("cache", "Cached kernels");
    cache->add_subcommand("ls", "List them")->footer(".notes\nof its own");
  }
};

TEST(Manual, DescribesOptionsWithTheirValuesAndChoices) {
  SmallCommand command;
  const std::vector<VerbText> verbs = describe(command.app);
  ASSERT_EQ(verbs.size(), 4u);
  EXPECT_EQ(verbs[0].name, "");
  EXPECT_THAT(verbs[0].verbs, ElementsAre("check", "cache"));
  EXPECT_EQ(verbs[0].notes, "Exit codes: 0 ok.");
  EXPECT_EQ(verbs[1].notes, "");  // the shared one is said once
  EXPECT_EQ(verbs[3].name, "cache ls");
  EXPECT_EQ(verbs[3].notes, ".notes\nof its own");
  const auto option = [&](const std::string& name) {
    for (const OptionText& o : verbs[1].options) {
      if (o.names.back() == name) return o;
    }
    ADD_FAILURE() << name;
    return OptionText{};
  };
  EXPECT_THAT(option("--quiet").names, ElementsAre("-q", "--quiet"));
  EXPECT_EQ(option("--quiet").value, "");
  EXPECT_THAT(option("--device").choices, ElementsAre("auto", "cpu", "cuda"));
  EXPECT_TRUE(option("--input").file);
  EXPECT_TRUE(option("--input").required);
  EXPECT_EQ(option("--suite").value, "quick|full");
  EXPECT_THAT(option("--suite").choices, ElementsAre("quick", "full"));
  EXPECT_TRUE(option("--count").choices.empty());
}

TEST(Manual, EscapesWhatMarkdownRoffAndZshWouldRead) {
  SmallCommand command;
  const std::vector<VerbText> verbs = describe(command.app);
  const std::string markdown = markdown_reference(verbs);
  EXPECT_THAT(markdown, HasSubstr("| `-q, --quiet` | Say less \\| nothing |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `--device auto\\|cpu\\|cuda[:N]` | Where |\n"));
  EXPECT_THAT(markdown, HasSubstr("| `--input FILE` | From (required) |\n"));
  EXPECT_THAT(markdown, HasSubstr("### flashprime cache ls\n"));
  const std::string roff = man_page(verbs);
  EXPECT_THAT(roff, HasSubstr("\n\\&.notes\nof its own\n"));
  EXPECT_THAT(roff, HasSubstr(".TP\n\\fB\\-q, \\-\\-quiet\\fR\nSay less | nothing\n"));
  EXPECT_THAT(roff, HasSubstr(".SH EXIT STATUS\nExit codes: 0 ok.\n"));
  const std::string zsh = zsh_completion(verbs);
  EXPECT_THAT(zsh, HasSubstr("'check:It'\\''s\\: a [check]'\n"));
  EXPECT_THAT(zsh, HasSubstr("'--device[Where]:auto|cpu|cuda\\[\\:N\\]:(auto cpu cuda)' \\\n"));
  EXPECT_THAT(zsh, HasSubstr("'--input[From]:FILE:_files' \\\n"));
  EXPECT_THAT(zsh, HasSubstr("_flashprime_cache_ls() {\n"));
}

TEST(Manual, EveryVerbHasAnExampleInItsHelpAndEveryExampleIsUnderstood) {
  std::istringstream reference(output_of({"manual", "markdown"}));
  std::vector<std::string> verbs;
  int examples = 0;
  bool has_example = true;
  for (std::string line; std::getline(reference, line);) {
    if (line.rfind("### flashprime ", 0) == 0) {
      const std::string verb = line.substr(15);
      // A verb of verbs leaves the examples to those.
      const bool is_group = !verbs.empty() && verb.rfind(verbs.back() + ' ', 0) == 0;
      EXPECT_TRUE(has_example || is_group) << verbs.back();
      verbs.push_back(verb);
      has_example = false;
    }
    if (line.rfind("flashprime ", 0) != 0) continue;
    has_example = true;
    ++examples;
    std::istringstream words(line.substr(0, line.find(" > ")));
    std::vector<std::string> storage;
    for (std::string word; words >> word;) storage.push_back(word);
    std::vector<const char*> argv;
    for (const std::string& word : storage) argv.push_back(word.c_str());
    EXPECT_EQ(line.rfind("flashprime " + verbs.back(), 0), 0u) << line;
    Session session;
    const auto code = parse_command_line(static_cast<int>(argv.size()), argv.data(), session);
    // run and replay look for their files when they parse.
    if (code) {
      EXPECT_TRUE(storage[1] == "run" || storage[1] == "replay") << line;
    }
    std::vector<const char*> help;
    std::istringstream verb_words(verbs.back());
    std::vector<std::string> verb_storage;
    for (std::string word; verb_words >> word;) verb_storage.push_back(word);
    for (const std::string& word : verb_storage) help.push_back(word.c_str());
    help.push_back("--help");
    EXPECT_THAT(output_of(help), HasSubstr("  " + line.substr(0, line.find(" > "))));
  }
  EXPECT_TRUE(has_example) << verbs.back();
  EXPECT_GE(verbs.size(), 9u);
  EXPECT_GE(examples, 9);
}

TEST(Manual, EveryOptionOfEveryHelpIsInAllFourTexts) {
  const std::string texts[] = {output_of({"completion", "bash"}), output_of({"completion", "zsh"}),
                               output_of({"manual", "markdown"}), output_of({"manual", "roff"})};
  int options = 0;
  for (const char* verb :
       {"info", "models", "explain", "run", "check", "bench", "replay", "warmup", "dump"}) {
    std::istringstream help(output_of({verb, "--help"}));
    for (std::string line; std::getline(help, line);) {
      const size_t start = line.find("--");
      if (line.substr(0, 2) != "  " || start == std::string::npos || start > 6) continue;
      std::string name = line.substr(start, line.find_first_of(" ,", start) - start);
      ++options;
      for (const std::string& text : texts) {
        std::string wanted = name;
        if (&text == &texts[3]) {
          wanted.clear();
          for (const char c : name) wanted += c == '-' ? "\\-" : std::string(1, c);
        }
        EXPECT_THAT(text, HasSubstr(wanted)) << verb;
      }
    }
  }
  EXPECT_GT(options, 40);
  EXPECT_THAT(texts[0], HasSubstr("deepseek-v3"));
}

TEST(Manual, AnUnknownShellOrFormIsAUsageError) {
  int exit_code = 0;
  output_of({"completion", "fish"}, &exit_code);
  EXPECT_EQ(exit_code, kExitUsage);
  output_of({"completion"}, &exit_code);
  EXPECT_EQ(exit_code, kExitUsage);
  output_of({"manual", "pdf"}, &exit_code);
  EXPECT_EQ(exit_code, kExitUsage);
}

}  // namespace
}  // namespace flashprime::cli
