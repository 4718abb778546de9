// SPDX-License-Identifier: Apache-2.0
// Tensors of a file, by their names, as the arguments of prefill().
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/tensor_file.h"
#include "flashprime/prefill.h"

namespace flashprime::cli {

// q | q_nope, q_pe; k | k_nope, k_pe; v; cu_seqlens_q, cu_seqlens_k.
std::span<const std::string_view> prefill_tensor_names();

// Inputs of prefill() with the memory that they live in. Move-only: args points into it.
struct PrefillInputs {
  TensorCatalog catalog;
  PrefillProblem problem;  // dims, heads and dtype; the rest is the caller's choice
  PrefillArgs args;        // tensors without outputs and scale; data is null until load()
  std::optional<double> softmax_scale;  // what the file's metadata say
  std::optional<bool> causal;
  int64_t bytes = 0;  // that load() allocates

  // Reads the data. Afterwards args is complete but for outputs and scale.
  Status load();

  std::vector<Buffer> buffers;
  std::vector<int32_t> one_sequence_q;  // cu_seqlens of a file that has none
  std::vector<int32_t> one_sequence_k;
};

// Decides from the headers alone what the tensors are. `dtype`: what the user says that q, k and v
// are, which turns uint16 into bf16 and must else agree with the file. `path` is for messages.
// kFormat: a tensor is missing, given twice, or of a type or rank that it cannot have. Shapes that
// contradict each other are left to prefill().
StatusOr<PrefillInputs> describe_prefill_inputs(TensorCatalog catalog, const std::string& path,
                                                std::optional<Dtype> dtype);

}  // namespace flashprime::cli
