// SPDX-License-Identifier: Apache-2.0
// The command line of all verbs.
#pragma once

#include <optional>

#include "cli/session.h"

namespace flashprime::cli {

// Parses, and runs nothing: afterwards session.selected() runs the verb. An exit code instead if
// there is none to run: after --help and --version, which are in session.out, and usage errors.
std::optional<int> parse_command_line(int argc, const char* const* argv, Session& session);

}  // namespace flashprime::cli
