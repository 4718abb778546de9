// SPDX-License-Identifier: Apache-2.0
// flashprime check, apart from its command line: a test gives it a kernel that is wrong.
#pragma once

#include <string>

#include "cli/common_options.h"
#include "cli/session.h"
#include "tests/cases/accuracy.h"

namespace flashprime::cli {

struct CheckRequest {
  CommonOptions common;
  std::string suite = "quick";
  std::string filter;
  std::string kernel;
  std::string spec;  // one case, `one_case`, instead of a suite; empty: the suite
  cases::Case one_case;
  bool shrink = true;
};

// `implementation`: what is judged instead of the library's prefill(); empty: prefill().
int run_check(Session& session, const CheckRequest& request,
              const cases::Implementation& implementation);

}  // namespace flashprime::cli
