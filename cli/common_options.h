// SPDX-License-Identifier: Apache-2.0
// Options that several verbs share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/batch_spec.h"
#include "flashprime/execution.h"
#include "flashprime/status.h"
#include "flashprime/types.h"

namespace CLI {
class App;
}

namespace flashprime::cli {

struct CommonOptions {
  std::string model;
  std::string dims;  // "NOPE,ROPE,V"
  int64_t heads = 0;
  int64_t tp = 0;
  Dtype dtype = Dtype::kBf16;
  Device device;
  std::vector<BatchRequest> batch;
  std::string batch_text;
  bool batch_invariant = false;
  int64_t seed = 0;
  int64_t threads = 0;
};

void add_model_options(CLI::App& app, CommonOptions& options);
void add_dtype_option(CLI::App& app, CommonOptions& options);
void add_device_options(CLI::App& app, CommonOptions& options);  // --device, --threads
void add_batch_option(CLI::App& app, CommonOptions& options);
void add_seed_option(CLI::App& app, CommonOptions& options);

// What --model, --dims, --heads and --tp say together.
struct ModelShape {
  std::string name;  // of the preset, or the dims
  HeadDims dims;
  int32_t heads = 0;
  int32_t tp = 1;
  int32_t num_layers = 0;  // 0: not known
  float softmax_scale = 0.0f;
};
StatusOr<ModelShape> resolve_model(const CommonOptions& options);

StatusOr<Dtype> parse_dtype(std::string_view text);
std::string dtype_name(Dtype dtype);
// A window mask from its reaches, "LEFT,RIGHT" in keys, "inf" for no bound; nothing if malformed.
std::optional<Mask> parse_window(std::string_view text);
StatusOr<Mask> parse_mask(std::string_view text);  // "full", "causal", "window:512,0"
StatusOr<Device> parse_device(std::string_view text);
std::string device_name(const Device& device);
// The device of a verb that keeps its tensors in host memory: the CPU for auto, kUnsupported for a
// GPU.
StatusOr<Device> host_memory_device(const Device& device);
std::string dims_text(const HeadDims& dims);  // "128/64/128"

}  // namespace flashprime::cli
