// SPDX-License-Identifier: Apache-2.0
// flashprime models: the presets that --model takes.
#include "flashprime/models.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/common_options.h"
#include "cli/session.h"
#include "cli/text.h"

namespace flashprime::cli {
namespace {

int run_models(Session& session) {
  if (session.json) {
    Json models = Json::array();
    for (const ModelPreset& model : list_models()) {
      Json row = {{"name", model.name},
                  {"qk_nope_head_dim", model.dims.nope},
                  {"qk_rope_head_dim", model.dims.rope},
                  {"v_head_dim", model.dims.v},
                  {"num_heads", model.num_heads},
                  {"num_layers", nullptr},
                  {"kv_lora_rank", model.kv_lora_rank},
                  {"q_lora_rank", nullptr},
                  {"scale_factor", model.scale_factor},
                  {"softmax_scale", model.softmax_scale()},
                  {"source", model.source}};
      if (model.num_layers > 0) row["num_layers"] = model.num_layers;
      if (model.q_lora_rank >= 0) row["q_lora_rank"] = model.q_lora_rank;
      models.push_back(std::move(row));
    }
    session.print_json({{"models", std::move(models)}});
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {{"model", "nope/rope/v", "heads", "layers",
                                                 "kv rank", "q rank", "scale factor", "scale",
                                                 "source"}};
  for (const ModelPreset& model : list_models()) {
    rows.push_back({std::string(model.name), dims_text(model.dims), std::to_string(model.num_heads),
                    model.num_layers > 0 ? std::to_string(model.num_layers) : "?",
                    std::to_string(model.kv_lora_rank),
                    model.q_lora_rank < 0    ? "?"
                    : model.q_lora_rank == 0 ? "-"
                                             : std::to_string(model.q_lora_rank),
                    fmt::format("{:.6g}", model.scale_factor),
                    fmt::format("{:.8g}", model.softmax_scale()), std::string(model.source)});
  }
  session.out += align_columns(rows);
  session.out += "layers counts attention layers of these dims; ? is not known, - is none\n";
  session.out += "repro: " + session.repro + '\n';
  return kExitOk;
}

}  // namespace

void add_models(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand("models", "Model presets and where their figures come from");
  app->add_flag("--json", session.json, "JSON on stdout");
  app->callback([&session] { session.selected = [&session] { return run_models(session); }; });
}

}  // namespace flashprime::cli
