// SPDX-License-Identifier: Apache-2.0
// A tiled fp32 prefill of its own, with a switch for each mistake that a kernel could make. It
// tests the harness: right code must pass it, every mistake must not.
#pragma once

#include <ostream>
#include <vector>

#include "flashprime/prefill.h"

namespace flashprime {

enum class Fault {
  kNone,
  kWeightsTruncatedToBf16,
  kWeightsRoundedToBf16,
  kDenominatorOfTruncatedWeights,
  kCoarseExponential,
  kFirstKeyDropped,
  kLastKeyDropped,
  kPartialTileSkipped,
  kMaskOneTooStrict,
  kMaskOneTooLoose,
  kCausalTopLeft,
  kWindowLeftOneTooWide,
  kWindowRightIgnored,
  kScaleOffBy64Ulps,
  kScaleAppliedTwice,
  kScaleWithoutLog2e,
  kBf16AccumulatorReversedTiles,
  kKeyRowShifted,
  kValueRowShifted,
  kValueTreatedAsDense,
  kKeysAtQueryOffsets,
  kNeighbourTimesZero,
  kRunningMaxResetPerTile,
  kOutputNotRescaled,
  kMaximumStartsAtZero,
  kNanLogitIgnored,
  kLseBaseTwo,
  kLseOfMaximumOnly,
  kLseStridesIgnored,
  kEmptyRowLsePlusInfinity,
  kEmptyRowNotWritten,
  kEmptyRowAverages,
  kLastRowNotWritten,
  kOneElementPastTheEnd,
  kOutputTruncated,
  kHeadsSwapped,
  kRopePartDropped,
  kRopeOfFirstHead,
  kFp8MultipliesByScale,
  kFp8FlushesSubnormals,
  kFp8WrapsInsteadOfSaturating,
  kNanBecomesLargestFp8,
};

struct FaultName {
  Fault fault;
  const char* name;
};
void PrintTo(const FaultName& value, std::ostream* out);  // for gtest

/// Every fault but kNone.
const std::vector<FaultName>& all_faults();

/// prefill() with one mistake. Takes what prefill() takes, unchecked.
Status faulty_prefill(const PrefillProblem& problem, const PrefillArgs& args, Fault fault);

}  // namespace flashprime
