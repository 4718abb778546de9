// SPDX-License-Identifier: Apache-2.0
// Head dimensions and softmax scales of published MLA models.
#pragma once

#include "flashprime/export.h"

#include <string_view>
#include <vector>

#include "flashprime/status.h"
#include "flashprime/types.h"

namespace flashprime {

struct ModelPreset {
  std::string_view name;  ///< "deepseek-v3"
  HeadDims dims;
  int32_t num_heads = 0;   ///< of the whole model; a rank has num_heads / tp
  int32_t num_layers = 0;  ///< attention layers of these dims; 0: not known
  int32_t kv_lora_rank = 0;
  int32_t q_lora_rank = 0;  ///< 0: the model has none; negative: not known
  /// Factor that the model multiplies (nope + rope)^-0.5 by: YaRN's mscale squared, or 1.
  double scale_factor = 1.0;
  std::string_view source;  ///< where the figures come from

  /// softmax_scale of a layer.
  FLASHPRIME_API float softmax_scale() const;
};

/// All presets, in the order in which `flashprime models` prints them.
FLASHPRIME_API const std::vector<ModelPreset>& list_models();

/// The preset of that name; kUnsupported naming the known ones otherwise.
FLASHPRIME_API StatusOr<ModelPreset> find_model(std::string_view name);

/// Query heads per rank: num_heads / tp. kShape unless tp >= 1 divides num_heads.
FLASHPRIME_API StatusOr<int32_t> heads_per_rank(const ModelPreset& model,
                                                int32_t tensor_parallel_size);

}  // namespace flashprime
