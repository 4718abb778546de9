// SPDX-License-Identifier: Apache-2.0
#include "flashprime/models.h"

#include <cmath>
#include <string>

namespace flashprime {
namespace {

// Square of YaRN's attention factor: every model here that has one multiplies its softmax scale by
// mscale^2, mscale = 0.1 * mscale_all_dim * ln(factor) + 1.
double yarn_scale_factor(double factor, double mscale_all_dim) {
  const double mscale = 0.1 * mscale_all_dim * std::log(factor) + 1.0;
  return mscale * mscale;
}

std::vector<ModelPreset> make_models() {
  const HeadDims deepseek{.nope = 128, .rope = 64, .v = 128};
  const HeadDims glm{.nope = 192, .rope = 64, .v = 256};
  std::vector<ModelPreset> models;
  models.push_back({.name = "deepseek-v2-lite",
                    .dims = deepseek,
                    .num_heads = 16,
                    .num_layers = 27,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 0,
                    .scale_factor = yarn_scale_factor(40.0, 0.707),
                    .source = "config.json of deepseek-ai/DeepSeek-V2-Lite (YaRN factor 40, "
                              "mscale_all_dim 0.707)"});
  models.push_back({.name = "deepseek-v2",
                    .dims = deepseek,
                    .num_heads = 128,
                    .num_layers = 60,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 1536,
                    .scale_factor = yarn_scale_factor(40.0, 0.707),
                    .source = "DeepSeek-V2 report (arXiv 2405.04434) and transformers' "
                              "DeepseekV2Config; YaRN factor 40, mscale_all_dim 0.707 as published "
                              "for the V2 family"});
  models.push_back({.name = "deepseek-v3",
                    .dims = deepseek,
                    .num_heads = 128,
                    .num_layers = 61,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 1536,
                    .scale_factor = yarn_scale_factor(40.0, 1.0),
                    .source = "config.json of deepseek-ai/DeepSeek-V3 (YaRN factor 40, "
                              "mscale_all_dim 1)"});
  models.push_back({.name = "deepseek-r1",
                    .dims = deepseek,
                    .num_heads = 128,
                    .num_layers = 61,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 1536,
                    .scale_factor = yarn_scale_factor(40.0, 1.0),
                    .source = "DeepSeek-R1 is DeepSeek-V3 with other weights: the figures of "
                              "deepseek-v3"});
  models.push_back({.name = "kimi-k2",
                    .dims = deepseek,
                    .num_heads = 64,
                    .num_layers = 61,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 1536,
                    .scale_factor = yarn_scale_factor(32.0, 1.0),
                    .source = "moonshotai/Kimi-K2-Instruct, 128K context = YaRN factor 32, "
                              "mscale_all_dim 1 (secondary sources; release 0905 and later have "
                              "factor 64, scale factor 2.0048)"});
  models.push_back({.name = "longcat-flash",
                    .dims = deepseek,
                    .num_heads = 64,
                    .num_layers = 56,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 1536,
                    .scale_factor = 1.0,
                    .source = "transformers 5.24 LongcatFlashConfig defaults "
                              "(meituan-longcat/LongCat-Flash-Chat); 28 decoder layers of two "
                              "attentions each; no rope scaling"});
  models.push_back({.name = "mistral-small-4",
                    .dims = {.nope = 64, .rope = 64, .v = 128},
                    .num_heads = 32,
                    .num_layers = 36,
                    .kv_lora_rank = 256,
                    .q_lora_rank = 1024,
                    .scale_factor = yarn_scale_factor(128.0, 1.0),
                    .source = "transformers 5.24 Mistral4Config defaults "
                              "(mistralai/Mistral-Small-4-119B-2603; YaRN factor 128, "
                              "mscale_all_dim 1, applied since transformers PR 47435)"});
  models.push_back({.name = "mistral-large-3",
                    .dims = deepseek,
                    .num_heads = 128,
                    .num_layers = 0,
                    .kv_lora_rank = 512,
                    .q_lora_rank = -1,
                    .scale_factor = 1.0,
                    .source = "scale: params.json quoted in vLLM PR 57563 (YaRN factor 36 with "
                              "apply_scale false: no mscale); dims, heads and kv rank from a "
                              "secondary source, layers and q rank not confirmed"});
  models.push_back({.name = "glm-5",
                    .dims = glm,
                    .num_heads = 64,
                    .num_layers = 78,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 2048,
                    .scale_factor = 1.0,
                    .source = "transformers 5.24 GlmMoeDsaConfig defaults (zai-org/GLM-5); no rope "
                              "scaling"});
  models.push_back({.name = "glm-4.7-flash",
                    .dims = glm,
                    .num_heads = 20,
                    .num_layers = 47,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 768,
                    .scale_factor = 1.0,
                    .source = "transformers 5.24 Glm4MoeLiteConfig defaults (GLM-4.7-Flash); no "
                              "rope scaling"});
  models.push_back({.name = "glm-5.3-flash",
                    .dims = {.nope = 256, .rope = 0, .v = 256},
                    .num_heads = 64,
                    .num_layers = 11,
                    .kv_lora_rank = 512,
                    .q_lora_rank = 1536,
                    .scale_factor = 1.0,
                    .source =
                        "transformers 5.24 Glm5NextTextConfig defaults "
                        "(zai-org/GLM-5.3-Flash): 11 of its 45 layers are MLA, without rope"});
  models.push_back({.name = "dots3-note",
                    .dims = {.nope = 192, .rope = 64, .v = 128},
                    .num_heads = 64,
                    .num_layers = 33,
                    .kv_lora_rank = 1024,
                    .q_lora_rank = 1024,
                    .scale_factor = 1.0,
                    .source = "transformers 5.24 Dots3NoteTextConfig defaults "
                              "(dots-studio/dots3-note-prev): its 33 sliding-window layers; the "
                              "other 13 of 46 are 128/64/128 with 128 heads"});
  return models;
}

}  // namespace

float ModelPreset::softmax_scale() const {
  return static_cast<float>(scale_factor / std::sqrt(static_cast<double>(dims.nope + dims.rope)));
}

const std::vector<ModelPreset>& list_models() {
  static const std::vector<ModelPreset> models = make_models();
  return models;
}

StatusOr<ModelPreset> find_model(std::string_view name) {
  std::string known;
  for (const ModelPreset& model : list_models()) {
    if (model.name == name) return model;
    if (!known.empty()) known += ", ";
    known += model.name;
  }
  return Status(StatusCode::kUnsupported,
                "model: got '" + std::string(name) + "', want one of: " + known);
}

StatusOr<int32_t> heads_per_rank(const ModelPreset& model, int32_t tensor_parallel_size) {
  if (tensor_parallel_size < 1 || model.num_heads % tensor_parallel_size != 0) {
    return Status(StatusCode::kShape,
                  "tensor_parallel_size: got " + std::to_string(tensor_parallel_size) +
                      ", want a divisor of the " + std::to_string(model.num_heads) + " heads of " +
                      std::string(model.name));
  }
  return model.num_heads / tensor_parallel_size;
}

}  // namespace flashprime
