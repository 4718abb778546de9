// SPDX-License-Identifier: Apache-2.0
#include "cli/common_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "cli/text.h"
#include "flashprime/models.h"

namespace flashprime::cli {
namespace {

// Without --heads a --dims problem gets this many: what one rank of DeepSeek-V3 has at tp 8.
constexpr int32_t kDefaultHeads = 16;
// Beyond any model; a larger one is a typing error, not a problem to explain.
constexpr int64_t kMaxDim = 65536;
constexpr int64_t kMaxHeads = 65536;

StatusOr<HeadDims> parse_dims(std::string_view text) {
  const Status malformed(StatusCode::kFormat,
                         fmt::format("--dims: got '{}', want NOPE,ROPE,V: three integers from 0 to "
                                     "{}",
                                     printable(text), kMaxDim));
  int64_t values[3] = {};
  for (int i = 0; i < 3; ++i) {
    const size_t comma = text.find(',');
    if ((comma == std::string_view::npos) != (i == 2)) return malformed;
    const StatusOr<int64_t> value = parse_integer(text.substr(0, comma), 0, kMaxDim);
    if (!value.ok()) return malformed;
    values[i] = *value;
    if (i < 2) text.remove_prefix(comma + 1);
  }
  return HeadDims{.nope = static_cast<int32_t>(values[0]),
                  .rope = static_cast<int32_t>(values[1]),
                  .v = static_cast<int32_t>(values[2])};
}

}  // namespace

void add_model_options(CLI::App& app, CommonOptions& options) {
  auto* model =
      app.add_option("--model", options.model, "Model preset; `flashprime models` lists them")
          ->type_name("NAME");
  auto* dims = app.add_option("--dims", options.dims, "Head dimensions instead of a model")
                   ->type_name("NOPE,ROPE,V");
  auto* heads =
      add_integer(app, "--heads", &options.heads, 1, kMaxHeads, "Query heads on this rank");
  auto* tp = add_integer(app, "--tp", &options.tp, 1, kMaxHeads,
                         "Tensor-parallel size: heads = heads of the model / tp");
  model->excludes(dims);
  heads->excludes(tp);
  tp->excludes(dims);
}

void add_dtype_option(CLI::App& app, CommonOptions& options) {
  app.add_option_function<std::string>(
         "--dtype",
         [&options](const std::string& text) {
           const StatusOr<Dtype> dtype = parse_dtype(text);
           if (!dtype.ok()) throw CLI::ValidationError("--dtype", dtype.status().message());
           options.dtype = *dtype;
         },
         "Element type of q, k and v (default bf16)")
      ->type_name("bf16|fp16|fp32");
}

void add_device_options(CLI::App& app, CommonOptions& options) {
  app.add_option_function<std::string>(
         "--device",
         [&options](const std::string& text) {
           const StatusOr<Device> device = parse_device(text);
           if (!device.ok()) throw CLI::ValidationError("--device", device.status().message());
           options.device = *device;
         },
         "Where it runs (default auto)")
      ->type_name("auto|cpu|cuda[:N]");
  add_integer(app, "--threads", &options.threads, 1, 1024,
              "CPU threads (default: FLASHPRIME_THREADS, else all); never changes a result");
}

void add_batch_option(CLI::App& app, CommonOptions& options) {
  app.add_option_function<std::string>(
         "--batch",
         [&options](const std::string& text) {
           StatusOr<std::vector<BatchRequest>> batch = parse_batch_spec(text);
           if (!batch.ok()) throw CLI::ValidationError("--batch", batch.status().message());
           options.batch = *std::move(batch);
           options.batch_text = text;
         },
         "Requests, as in 8q512s8k_q1k: [count]q<new>[k][s<all keys>[k]], joined by _")
      ->type_name("SPEC");
}

void add_seed_option(CLI::App& app, CommonOptions& options) {
  add_integer(app, "--seed", &options.seed, 0, std::numeric_limits<int64_t>::max(),
              "Seed of the random data (default 0)");
}

StatusOr<ModelShape> resolve_model(const CommonOptions& options) {
  ModelShape shape;
  if (options.model.empty() == options.dims.empty()) {
    return Status(StatusCode::kFormat, "want one of --model and --dims");
  }
  if (!options.dims.empty()) {
    const StatusOr<HeadDims> dims = parse_dims(options.dims);
    if (!dims.ok()) return dims.status();
    shape.name = dims_text(*dims);
    shape.dims = *dims;
    shape.heads = options.heads > 0 ? static_cast<int32_t>(options.heads) : kDefaultHeads;
    const int32_t width = shape.dims.nope + shape.dims.rope;
    shape.softmax_scale = width > 0 ? 1.0f / std::sqrt(static_cast<float>(width)) : 0.0f;
    return shape;
  }
  const StatusOr<ModelPreset> model = find_model(options.model);
  if (!model.ok()) return Status(StatusCode::kFormat, "--model: " + model.status().message());
  shape.name = std::string(model->name);
  shape.dims = model->dims;
  shape.num_layers = model->num_layers;
  shape.softmax_scale = model->softmax_scale();
  if (options.heads > 0) {
    shape.heads = static_cast<int32_t>(options.heads);
    return shape;
  }
  shape.tp = options.tp > 0 ? static_cast<int32_t>(options.tp) : 1;
  const StatusOr<int32_t> heads = heads_per_rank(*model, shape.tp);
  if (!heads.ok()) return Status(StatusCode::kFormat, "--tp: " + heads.status().message());
  shape.heads = *heads;
  return shape;
}

StatusOr<Dtype> parse_dtype(std::string_view text) {
  if (text == "bf16") return Dtype::kBf16;
  if (text == "fp16") return Dtype::kFp16;
  if (text == "fp32") return Dtype::kFp32;
  return Status(StatusCode::kFormat,
                fmt::format("got '{}', want bf16, fp16 or fp32", printable(text)));
}

std::string dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return "bf16";
    case Dtype::kFp16: return "fp16";
    case Dtype::kFp32: return "fp32";
    case Dtype::kFp64: return "fp64";
    case Dtype::kE4m3: return "e4m3";
    case Dtype::kInt32: return "int32";
  }
  return "unknown";
}

std::optional<Mask> parse_window(std::string_view text) {
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos) return std::nullopt;
  int64_t reaches[2] = {-1, -1};
  for (int side = 0; side < 2; ++side) {
    const std::string_view part = side == 0 ? text.substr(0, comma) : text.substr(comma + 1);
    if (part == "inf") continue;
    const StatusOr<int64_t> reach = parse_integer(part, 0, int64_t{1} << 40);
    if (!reach.ok()) return std::nullopt;
    reaches[side] = *reach;
  }
  return Mask{MaskKind::kWindow, reaches[0], reaches[1]};
}

StatusOr<Mask> parse_mask(std::string_view text) {
  if (text == "full") return Mask{MaskKind::kFull, -1, -1};
  if (text == "causal") return Mask{MaskKind::kCausal, -1, -1};
  constexpr std::string_view kWindow = "window:";
  if (text.starts_with(kWindow)) {
    if (const auto window = parse_window(text.substr(kWindow.size()))) return *window;
  }
  return Status(StatusCode::kFormat,
                "--mask: got '" + printable(text) +
                    "', want full, causal or window:LEFT,RIGHT (a reach may be inf)");
}

StatusOr<Device> parse_device(std::string_view text) {
  if (text == "auto") return Device{DeviceKind::kAuto, 0};
  if (text == "cpu") return Device{DeviceKind::kCpu, 0};
  if (text == "cuda") return Device{DeviceKind::kCuda, 0};
  if (text.substr(0, 5) == "cuda:") {
    const StatusOr<int64_t> index = parse_integer(text.substr(5), 0, 1023);
    if (index.ok()) return Device{DeviceKind::kCuda, static_cast<int32_t>(*index)};
  }
  return Status(StatusCode::kFormat,
                fmt::format("got '{}', want auto, cpu, cuda or cuda:N", printable(text)));
}

StatusOr<Device> host_memory_device(const Device& device) {
  if (device.kind != DeviceKind::kCuda) return Device{DeviceKind::kCpu, 0};
  return Status(StatusCode::kUnsupported, "unsupported: --device " + device_name(device) +
                                              ": this verb keeps its tensors in host memory; say "
                                              "--device cpu");
}

std::string device_name(const Device& device) {
  switch (device.kind) {
    case DeviceKind::kAuto: return "auto";
    case DeviceKind::kCpu: return "cpu";
    case DeviceKind::kCuda: return fmt::format("cuda:{}", device.index);
  }
  return "unknown";
}

std::string dims_text(const HeadDims& dims) {
  return fmt::format("{}/{}/{}", dims.nope, dims.rope, dims.v);
}

}  // namespace flashprime::cli
