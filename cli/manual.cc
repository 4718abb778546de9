// SPDX-License-Identifier: Apache-2.0
#include "cli/manual.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/session.h"
#include "cli/text.h"
#include "flashprime/models.h"
#include "flashprime/version.h"

namespace flashprime::cli {
namespace {

struct Example {
  const char* verb;
  const char* command;  // after "flashprime"
};
constexpr Example kExamples[] = {
    {"info", "info --json"},
    {"models", "models"},
    {"explain", "explain --model deepseek-v3 --tp 8 --batch 8q512s8k"},
    {"explain", "explain --dims 100,64,128 --heads 4 --dtype fp16 --mask window:512,0"},
    {"run", "run --input step.safetensors --output result.safetensors --verify 64"},
    {"check", "check --suite known-bugs --kernel cpu_reference"},
    {"check", "check --case dims=128/64/128,lens=17/513,heads=2 --seed 3"},
    {"bench", "bench --model deepseek-v3 --tp 8 --batch q512..4k,8q64s4k"},
    {"bench", "bench --model deepseek-v3 --tp 8 --batch q1k,q4k --vs torch -o csv"},
    {"bench", "bench --model deepseek-v3 --tp 8 --batch q1k,q4k --guard before.csv"},
    {"replay", "replay --trace azure.csv --model mistral-small-4 --tp 4 --verify 16"},
    {"warmup", "warmup --model deepseek-v3 --arch sm_90a,sm_120a -j 4"},
    {"warmup", "warmup --model glm-5 --arch sm_100a --list --json"},
    {"cache ls", "cache ls --json"},
    {"cache stat", "cache stat"},
    {"cache verify", "cache verify kernels.fpb"},
    {"cache prune", "cache prune --dry-run"},
    {"cache clear", "cache clear"},
    {"cache path", "cache path"},
    {"cache pack", "cache pack kernels.fpb --model deepseek-v3 --arch sm_90a"},
    {"cache unpack", "cache unpack kernels.fpb"},
    {"cache covers", "cache covers kernels.fpb --model deepseek-v3 --arch sm_90a"},
    {"dump", "dump --model deepseek-v3 --arch sm_90a --index 0 --source"},
    {"completion", "completion bash > ~/.local/share/bash-completion/completions/flashprime"},
    {"manual", "manual roff > flashprime.1"},
};
constexpr std::string_view kExampleHeading = "Example:\n";

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string join(const std::vector<std::string>& parts, const std::string& separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
}

// CLI11 writes a set of values as "TEXT:{a,b}".
std::string value_text(const std::string& type_name) {
  const size_t open = type_name.find('{');
  const size_t close = type_name.find('}');
  if (open == std::string::npos || close == std::string::npos) return type_name;
  return replaced(type_name.substr(open + 1, close - open - 1), ",", "|");
}

OptionText describe_option(const CLI::Option& option) {
  OptionText text;
  text.positional = option.get_positional();
  text.names = split(option.get_name(text.positional, true), ',');
  text.required = option.get_required();
  text.description = option.get_description();
  if (option.get_items_expected_max() == 0) return text;
  text.value = value_text(option.get_type_name());
  if (text.names.back() == "--model") {
    for (const ModelPreset& model : list_models()) text.choices.emplace_back(model.name);
    return text;
  }
  text.file =
      text.value.find("FILE") != std::string::npos || text.value.find("DIR") != std::string::npos;
  if (text.file) return text;
  // "auto|cpu|cuda[:N]" offers its three words.
  for (const std::string& part : split(text.value, '|')) {
    const std::string word = part.substr(0, part.find('['));
    if (is_word(word)) text.choices.push_back(word);
  }
  return text;
}

void describe_verb(const CLI::App& app, const std::string& name, const std::string& shared_footer,
                   std::vector<VerbText>* verbs) {
  VerbText verb;
  verb.name = name;
  verb.summary = app.get_description();
  std::string footer = app.get_footer();
  if (footer.substr(0, kExampleHeading.size()) == kExampleHeading) {
    footer.erase(0, std::min(footer.find("\n\n"), footer.size() - 2) + 2);
  }
  if (footer != shared_footer || name.empty()) verb.notes = footer;
  for (const Example& example : kExamples) {
    if (name == example.verb) verb.examples.push_back(std::string("flashprime ") + example.command);
  }
  for (const CLI::Option* option : app.get_options()) {
    verb.options.push_back(describe_option(*option));
  }
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : below) verb.verbs.push_back(sub->get_name());
  verbs->push_back(std::move(verb));
  for (const CLI::App* sub : below) {
    describe_verb(*sub, name.empty() ? sub->get_name() : name + ' ' + sub->get_name(),
                  shared_footer, verbs);
  }
}

// "-r, --repeats N"
std::string usage_of(const OptionText& option) {
  std::string text = join(option.names, ", ");
  if (option.positional) return option.value.empty() ? text : text + ": " + option.value;
  return option.value.empty() ? text : text + ' ' + option.value;
}

std::string meaning_of(const OptionText& option) {
  return option.required ? option.description + " (required)" : option.description;
}

// In single quotes of a shell.
std::string shell_quoted(const std::string& text) {
  std::string result = "'";
  result += replaced(text, "'", "'\\''");
  result += '\'';
  return result;
}

std::string roff(std::string text) {
  text = replaced(std::move(text), "\\", "\\e");
  text = replaced(std::move(text), "-", "\\-");
  if (!text.empty() && (text[0] == '.' || text[0] == '\'')) text.insert(0, "\\&");
  text = replaced(std::move(text), "\n.", "\n\\&.");
  return replaced(std::move(text), "\n'", "\n\\&'");
}

// Text that is laid out already.
std::string roff_verbatim(const std::string& text) {
  return ".PP\n.nf\n" + roff(text) + "\n.fi\n";
}

std::string zsh_argument(const OptionText& option) {
  const auto escaped = [](std::string text) {
    for (const char* special : {"\\", "[", "]", ":"}) {
      text = replaced(std::move(text), special, std::string("\\") + special);
    }
    return text;
  };
  std::string action;
  if (!option.value.empty()) {
    action = ':' + escaped(option.value) + ':';
    if (option.file) action += "_files";
    if (!option.choices.empty()) action += '(' + join(option.choices, " ") + ')';
  }
  if (option.positional) return "      " + shell_quoted(action) + " \\\n";
  std::string lines;
  for (const std::string& name : option.names) {
    lines +=
        "      " + shell_quoted(name + '[' + escaped(option.description) + ']' + action) + " \\\n";
  }
  return lines;
}

}  // namespace

std::vector<VerbText> describe(const CLI::App& app) {
  std::vector<VerbText> verbs;
  describe_verb(app, "", app.get_footer(), &verbs);
  return verbs;
}

void add_examples(CLI::App& app) {
  std::vector<std::pair<std::string, std::string>> by_verb;
  for (const Example& example : kExamples) {
    if (by_verb.empty() || by_verb.back().first != example.verb)
      by_verb.push_back({example.verb, ""});
    by_verb.back().second += std::string("  flashprime ") + example.command + '\n';
  }
  for (const auto& [name, lines] : by_verb) {
    CLI::App* verb = &app;
    for (const std::string& word : split(name, ' ')) verb = verb->get_subcommand(word);
    verb->footer(std::string(kExampleHeading) + lines + '\n' + verb->get_footer());
  }
}

std::string bash_completion(const std::vector<VerbText>& verbs) {
  std::string values;
  std::string words;
  std::string names;
  for (const VerbText& verb : verbs) {
    if (!verb.name.empty()) names += (names.empty() ? "" : " | ") + shell_quoted(verb.name);
    std::vector<std::string> offered = verb.verbs;
    for (const OptionText& option : verb.options) {
      if (option.positional) {
        offered.insert(offered.end(), option.choices.begin(), option.choices.end());
        continue;
      }
      offered.insert(offered.end(), option.names.begin(), option.names.end());
      if (option.value.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names)
        patterns.push_back(shell_quoted(verb.name + ':' + name));
      values += fmt::format("    {}) ", join(patterns, " | "));
      if (option.file) {
        values +=
            "compopt -o filenames 2> /dev/null; "
            "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return ;;\n";
      } else if (option.choices.empty()) {
        values += "return ;;\n";
      } else {
        values += fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n",
                              join(option.choices, " "));
      }
    }
    words += fmt::format("    {}) words='{}' ;;\n", shell_quoted(verb.name), join(offered, " "));
  }
  return "# bash completion of flashprime, made by `flashprime completion bash`\n"
         "_flashprime() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD - 1]}\"\n"
         "  local verb='' next='' words='' i\n"
         "  COMPREPLY=()\n"
         "  # bash makes three words of --option=value.\n"
         "  if [[ $cur = '=' ]]; then\n"
         "    cur=''\n"
         "  elif [[ $prev = '=' ]]; then\n"
         "    prev=\"${COMP_WORDS[COMP_CWORD - 2]}\"\n"
         "  fi\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    next=\"${verb:+$verb }${COMP_WORDS[i]}\"\n"
         "    case \"$next\" in\n"
         "    " +
         names +
         ") verb=\"$next\" ;;\n"
         "    esac\n"
         "  done\n"
         "  case \"$verb:$prev\" in\n" +
         values +
         "  esac\n"
         "  case \"$verb\" in\n" +
         words +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "}\n"
         "complete -F _flashprime flashprime\n";
}

std::string zsh_completion(const std::vector<VerbText>& verbs) {
  std::string text =
      "#compdef flashprime\n"
      "# zsh completion of flashprime, made by `flashprime completion zsh`\n\n";
  // One function for each verb: it is called with its own name as the first word.
  for (const VerbText& verb : verbs) {
    text +=
        "_flashprime" + (verb.name.empty() ? "" : '_' + replaced(verb.name, " ", "_")) + "() {\n";
    if (!verb.verbs.empty()) {
      text += "  if (( CURRENT > 2 )); then\n    case \"$words[2]\" in\n";
      for (const std::string& sub : verb.verbs) {
        const std::string path = verb.name.empty() ? sub : verb.name + ' ' + sub;
        text += fmt::format("    {}) shift words; (( CURRENT-- )); _flashprime_{}; return ;;\n",
                            sub, replaced(path, " ", "_"));
      }
      text += "    esac\n  fi\n  local -a verbs=(\n";
      for (const VerbText& sub : verbs) {
        const std::string prefix = verb.name.empty() ? "" : verb.name + ' ';
        for (const std::string& name : verb.verbs) {
          if (sub.name != prefix + name) continue;
          text += "    " + shell_quoted(name + ':' + replaced(sub.summary, ":", "\\:")) + '\n';
        }
      }
      text += "  )\n  _describe 'verb' verbs\n";
    }
    text += "  _arguments \\\n";
    for (const OptionText& option : verb.options) text += zsh_argument(option);
    text.erase(text.size() - 3);  // the last line goes on no further
    text += "\n}\n\n";
  }
  return text +
         "if [[ \"$funcstack[1]\" = _flashprime ]]; then\n"
         "  _flashprime \"$@\"\n"
         "else\n"
         "  compdef _flashprime flashprime\n"
         "fi\n";
}

std::string markdown_reference(const std::vector<VerbText>& verbs) {
  std::string text;
  for (const VerbText& verb : verbs) {
    if (!text.empty()) text += '\n';
    text += verb.name.empty() ? "### flashprime\n\n" : "### flashprime " + verb.name + "\n\n";
    text += verb.summary + ".\n\n";
    if (!verb.examples.empty()) text += "```sh\n" + join(verb.examples, "\n") + "\n```\n\n";
    std::vector<std::vector<std::string>> rows = {{"option", "meaning"}};
    for (const OptionText& option : verb.options) {
      rows.push_back({'`' + replaced(usage_of(option), "|", "\\|") + '`',
                      replaced(meaning_of(option), "|", "\\|")});
    }
    text += markdown_table(rows);
    if (!verb.notes.empty()) {
      const size_t end = verb.notes.find_last_not_of('\n') + 1;
      text += "\n```text\n" + verb.notes.substr(0, end) + "\n```\n";
    }
  }
  return text;
}

std::string man_page(const std::vector<VerbText>& verbs) {
  const VerbText& command = verbs.front();
  std::string text = fmt::format(".TH FLASHPRIME 1 \"\" \"FlashPrime {}\" \"User Commands\"\n",
                                 roff(std::string(version())));
  text += ".SH NAME\nflashprime \\- " + roff(command.summary) +
          "\n.SH SYNOPSIS\n.B flashprime\n.I VERB\n[\\fIOPTION\\fR...]\n.SH VERBS\n";
  for (const VerbText& verb : verbs) {
    if (verb.name.empty()) continue;
    text += ".SS " + roff(verb.name) + '\n' + roff(verb.summary) + ".\n";
    for (const OptionText& option : verb.options) {
      text += ".TP\n\\fB" + roff(join(option.names, ", ")) + "\\fR";
      if (!option.value.empty()) text += " \\fI" + roff(option.value) + "\\fR";
      text += '\n' + roff(meaning_of(option)) + '\n';
    }
    if (!verb.notes.empty()) text += roff_verbatim(verb.notes);
    if (!verb.examples.empty()) text += roff_verbatim("Example:\n  " + join(verb.examples, "\n  "));
  }
  return text + ".SH EXIT STATUS\n" + roff(command.notes) + '\n';
}

void add_manual(CLI::App& root, Session& session) {
  struct Form {
    const char* verb;
    const char* summary;
    const char* argument;
    std::vector<std::pair<std::string, std::string (*)(const std::vector<VerbText>&)>> kinds;
  };
  const Form forms[] = {
      {"completion",
       "Completion script of a shell, on stdout",
       "SHELL",
       {{"bash", bash_completion}, {"zsh", zsh_completion}}},
      {"manual",
       "Every verb and option, as a man page or as Markdown",
       "FORM",
       {{"roff", man_page}, {"markdown", markdown_reference}}},
  };
  for (const Form& form : forms) {
    CLI::App* app = root.add_subcommand(form.verb, form.summary);
    auto kind = std::make_shared<std::string>();
    std::vector<std::string> names;
    for (const auto& [name, make] : form.kinds) names.push_back(name);
    app->add_option(form.argument, *kind, "Which one")->required()->check(CLI::IsMember(names));
    // Made here: afterwards the definition of the command line is gone.
    app->callback([&root, &session, kind, kinds = form.kinds] {
      for (const auto& [name, make] : kinds) {
        if (name != *kind) continue;
        session.selected = [&session, text = make(describe(root))] {
          session.out += text;
          return static_cast<int>(kExitOk);
        };
      }
    });
  }
}

}  // namespace flashprime::cli
