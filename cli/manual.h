// SPDX-License-Identifier: Apache-2.0
// Completion scripts, man page and reference, made from the command line's own definition.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace flashprime::cli {

struct OptionText {
  std::vector<std::string> names;    // "-r", "--repeats"; of a positional, its name
  std::string value;                 // "N", "bf16|fp16|fp32"; empty for a flag
  std::vector<std::string> choices;  // that a completion offers
  bool file = false;                 // the value is a path
  bool positional = false;
  bool required = false;
  std::string description;
};

struct VerbText {
  std::string name;  // "cache ls" for a verb of a verb; empty for the command itself
  std::string summary;
  std::string notes;  // of its own, after the options
  std::vector<std::string> examples;
  std::vector<OptionText> options;
  std::vector<std::string> verbs;  // below it, without its own name
};

// The command, then its verbs in order.
std::vector<VerbText> describe(const CLI::App& app);

// Puts the examples of every verb into its --help. Throws CLI::OptionNotFound for a verb that does
// not exist.
void add_examples(CLI::App& app);

std::string bash_completion(const std::vector<VerbText>& verbs);
std::string zsh_completion(const std::vector<VerbText>& verbs);
std::string markdown_reference(const std::vector<VerbText>& verbs);
std::string man_page(const std::vector<VerbText>& verbs);

}  // namespace flashprime::cli
