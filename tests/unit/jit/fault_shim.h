// SPDX-License-Identifier: Apache-2.0
// Makes system calls of this process fail, or die in them. Replaces the C library's functions for
// the whole test program; harmless while nothing is planned.
#pragma once

namespace flashprime {

struct FaultPlan {
  int countdown = 0;           // the call after so many more fails; 0: none does
  bool sticky = false;         // and all that follow
  int error = 0;               // with this errno
  bool kill = false;           // dies by SIGKILL instead
  const char* only = nullptr;  // counts calls of this function alone
  int calls = 0;               // that were counted
};

// Of the calling thread. Reset by assigning a new one.
FaultPlan& fault_plan();

}  // namespace flashprime
