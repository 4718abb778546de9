// SPDX-License-Identifier: Apache-2.0
// A case as one word of a command line: what `flashprime check --case` takes and its repro prints.
#pragma once

#include <string>
#include <string_view>

#include "flashprime/status.h"
#include "tests/cases/case.h"

namespace flashprime::cases {

/// KEY=VALUE joined by commas; what has its default is left out. No character needs quoting.
///   dims=128/64/128        nope/rope/v
///   lens=3x17/513_1/1      [count x] new tokens / keys of each sequence, or none
///   heads=2  dtype=bf16|fp16|fp32  out=bf16|fp16|fp32|e4m3 (default: dtype)
///   mask=causal|full|window:LEFT:RIGHT      a reach may be inf
///   lse=heads-tokens|tokens-heads|none  lse_gapped=1
///   q_split=1  k_split=1  k_pe_rank3=1
///   q_layout= k_layout= v_layout= out_layout=   a layout_name()
///   data=                  a distribution_name()
///   poison=k:0:-1:nan+...  tensor, sequence, row (-1: all), nan|inf|huge
///   max_q= max_k=          as stated to the call
///   scale= out_scale=      decimal numbers that read back as the same bits
std::string case_spec(const Case& c);

/// The case of a spec. kFormat names the field, what was got and wanted;
/// also for a case whose tensors would take more than 4 GiB.
StatusOr<Case> parse_case_spec(std::string_view spec);

}  // namespace flashprime::cases
