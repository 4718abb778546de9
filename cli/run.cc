// SPDX-License-Identifier: Apache-2.0
// flashprime run: attention of tensors in a file, into a file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/common_options.h"
#include "cli/files/atomic_file.h"
#include "cli/files/input_file.h"
#include "cli/files/prefill_inputs.h"
#include "cli/files/safetensors.h"
#include "cli/run_slices.h"
#include "cli/run_verify.h"
#include "cli/session.h"
#include "cli/text.h"
#include "flashprime/backend.h"

namespace flashprime::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct RunOptions {
  CommonOptions common;
  std::string input;
  std::string output;
  std::optional<Dtype> dtype;
  std::optional<double> softmax_scale;
  std::optional<Mask> mask;
  std::optional<Dtype> out_dtype;
  std::optional<double> output_scale;
  LseLayout lse_layout = LseLayout::kHeadsTokens;
  std::string kernel;
  int64_t verify = 0;
  int64_t max_memory = int64_t{16} << 30;
};

StatusOr<Mask> parse_window_option(std::string_view text) {
  const std::optional<Mask> window = parse_window(text);
  if (window) return *window;
  return Status(StatusCode::kFormat,
                fmt::format("got '{}', want LEFT,RIGHT: how many keys are seen on either "
                            "side, or inf",
                            printable(text)));
}

StatusOr<Dtype> parse_out_dtype(std::string_view text) {
  if (text == "e4m3") return Dtype::kE4m3;
  if (text == "fp64") return Dtype::kFp64;
  const StatusOr<Dtype> dtype = parse_dtype(text);
  if (dtype.ok()) return dtype;
  return Status(StatusCode::kFormat,
                fmt::format("got '{}', want bf16, fp16, fp32, fp64 or e4m3", printable(text)));
}

StatusOr<LseLayout> parse_lse_layout(std::string_view text) {
  if (text == "heads-tokens") return LseLayout::kHeadsTokens;
  if (text == "tokens-heads") return LseLayout::kTokensHeads;
  return Status(StatusCode::kFormat,
                fmt::format("got '{}', want heads-tokens or tokens-heads", printable(text)));
}

template <typename Parse, typename Target>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, const char* type, Parse parse,
                        Target* target, const std::string& description) {
  return app
      .add_option_function<std::string>(
          name,
          [=](const std::string& text) {
            const auto value = parse(text);
            if (!value.ok()) throw CLI::ValidationError(name, value.status().message());
            *target = *value;
          },
          description)
      ->type_name(type);
}

// The exit code of an error whose arguments come from the input file.
int exit_code_of_input(StatusCode code) {
  switch (code) {
    case StatusCode::kShape:
    case StatusCode::kDtype:
    case StatusCode::kStride:
    case StatusCode::kAlias:
    case StatusCode::kNull:
    case StatusCode::kAlignment:
    case StatusCode::kRange:
    case StatusCode::kCuSeqlens:
    case StatusCode::kNumeric: return kExitBadInput;
    default: return exit_code_of(code);
  }
}

FileDtype file_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return FileDtype::kBf16;
    case Dtype::kFp16: return FileDtype::kFp16;
    case Dtype::kFp32: return FileDtype::kFp32;
    case Dtype::kFp64: return FileDtype::kFp64;
    case Dtype::kE4m3: return FileDtype::kE4m3;
    case Dtype::kInt32: return FileDtype::kInt32;
  }
  return FileDtype::kFp32;
}

std::string mask_text(const Mask& mask) {
  if (mask.kind == MaskKind::kFull) return "full";
  if (mask.kind == MaskKind::kCausal) return "causal";
  const auto reach = [](int64_t keys) { return keys < 0 ? "inf" : std::to_string(keys); };
  return fmt::format("window {},{}", reach(mask.window_left), reach(mask.window_right));
}

const char* lse_layout_text(LseLayout layout) {
  return layout == LseLayout::kHeadsTokens ? "heads-tokens" : "tokens-heads";
}

// A tensor of the result and its memory.
struct Output {
  OutputTensor tensor;
  Buffer buffer;
};

// The path of a file to a file, in the order in which it happens.
class Run {
 public:
  Run(Session& session, const RunOptions& options) : session_(session), options_(options) {}

  int operator()() {
    if (int code = check_output_path(); code != kExitOk) return code;
    if (int code = read_input(); code != kExitOk) return code;
    if (int code = make_outputs(); code != kExitOk) return code;
    if (int code = compute(); code != kExitOk) return code;
    if (int code = verify(); code != kExitOk) return code;
    // Refused rows are not results: a file that failed would be taken for one that passed.
    if (verification_.failed_rows == 0) {
      if (int code = write_output(); code != kExitOk) return code;
    }
    report();
    return verification_.failed_rows == 0 ? kExitOk : kExitCheckFailed;
  }

 private:
  // Before hours of reading and computing, not after.
  int check_output_path() {
    bool is_input = same_file(options_.input, options_.output);
    for (const std::string_view name : prefill_tensor_names()) {
      is_input =
          is_input || same_file(fmt::format("{}/{}.npy", options_.input, name), options_.output);
    }
    if (is_input) {
      return session_.fail(kExitUsage, fmt::format("--output: {} is an input file",
                                                   printable_path(options_.output)));
    }
    // Makes the temporary file, and drops it again.
    const Status writable = AtomicFile::create(options_.output, FileOps::system()).status();
    return writable.ok() ? kExitOk : session_.fail(writable);
  }

  int read_input() {
    StatusOr<TensorCatalog> catalog =
        open_tensors(options_.input, prefill_tensor_names(), FileOps::system());
    if (!catalog.ok()) return session_.fail(catalog.status());
    StatusOr<PrefillInputs> inputs =
        describe_prefill_inputs(std::move(*catalog), options_.input, options_.dtype);
    if (!inputs.ok()) return session_.fail(inputs.status());
    inputs_ = std::move(*inputs);

    const std::optional<double> scale =
        options_.softmax_scale ? options_.softmax_scale : inputs_.softmax_scale;
    if (!scale) {
      return session_.fail(kExitUsage,
                           "softmax_scale is neither in the file's metadata nor given: "
                           "--softmax-scale X, which for most models is (nope + rope)^-0.5");
    }
    args().softmax_scale = static_cast<float>(*scale);
    if (options_.mask) {
      problem().mask = *options_.mask;
    } else if (inputs_.causal) {
      problem().mask.kind = *inputs_.causal ? MaskKind::kCausal : MaskKind::kFull;
    }
    problem().out_dtype = options_.out_dtype.value_or(problem().dtype);
    problem().return_lse = true;
    problem().lse_layout = options_.lse_layout;

    if (int code = check_memory(); code != kExitOk) return code;
    if (Status loaded = inputs_.load(); !loaded.ok()) return session_.fail(loaded);
    return kExitOk;
  }

  std::vector<int64_t> out_shape() const { return {tokens(), heads(), inputs_.problem.dims.v}; }
  std::vector<int64_t> lse_shape() const {
    return options_.lse_layout == LseLayout::kHeadsTokens ? std::vector<int64_t>{heads(), tokens()}
                                                          : std::vector<int64_t>{tokens(), heads()};
  }
  Dtype lse_dtype() const {
    return inputs_.problem.out_dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32;
  }

  // Everything that will be allocated, before any of it is.
  int check_memory() {
    const std::optional<int64_t> out = tensor_bytes(file_dtype(problem().out_dtype), out_shape());
    const std::optional<int64_t> lse = tensor_bytes(file_dtype(lse_dtype()), lse_shape());
    int64_t total = 0;
    const bool overflow = !out || !lse || __builtin_add_overflow(inputs_.bytes, *out, &total) ||
                          __builtin_add_overflow(total, *lse, &total);
    if (!overflow && total <= options_.max_memory) {
      memory_bytes_ = total;
      return kExitOk;
    }
    return session_.fail(
        {StatusCode::kOutOfMemory,
         fmt::format("{}: input and output take {} bytes, more than --max-memory {}",
                     printable_path(options_.input),
                     overflow ? "more than 2^63" : with_commas(total),
                     with_commas(options_.max_memory))});
  }

  int make_outputs() {
    for (const auto& [name, dtype, shape] : {std::tuple{"out", problem().out_dtype, out_shape()},
                                             std::tuple{"lse", lse_dtype(), lse_shape()}}) {
      Output output;
      output.tensor = {name, file_dtype(dtype), shape, nullptr};
      StatusOr<Buffer> buffer = Buffer::allocate(*tensor_bytes(output.tensor.dtype, shape));
      if (!buffer.ok()) return session_.fail(buffer.status());
      output.buffer = std::move(*buffer);
      output.tensor.data = output.buffer.data();
      outputs_.push_back(std::move(output));
    }
    const auto view = [](const Output& output, Dtype dtype) {
      const std::vector<int64_t>& s = output.tensor.shape;
      MutableTensorView made =
          s.size() == 3
              ? MutableTensorView::contiguous(output.buffer.data(), dtype, {s[0], s[1], s[2]})
              : MutableTensorView::contiguous(output.buffer.data(), dtype, {s[0], s[1]});
      made.capacity_bytes = output.buffer.bytes();
      return made;
    };
    args().out = view(outputs_[0], problem().out_dtype);
    args().lse = view(outputs_[1], lse_dtype());
    if (options_.output_scale) {
      output_scale_ = static_cast<float>(*options_.output_scale);
      args().output_scale = TensorView::contiguous(&output_scale_, Dtype::kFp32, {1});
    }
    const StatusOr<Device> device = host_memory_device(options_.common.device);
    if (!device.ok()) return session_.fail(kExitUnsupported, device.status().message());
    execution_.device = *device;
    execution_.num_threads = static_cast<int32_t>(options_.common.threads);
    execution_.kernel = options_.kernel;
    // Validates the whole call, in the file's own terms; the parts of it are then valid too.
    const Status valid = prefill_workspace_bytes(problem(), args(), execution_).status();
    if (valid.ok()) return kExitOk;
    return session_.fail(exit_code_of_input(valid.code()),
                         printable_path(options_.input) + ": " + valid.to_string());
  }

  // prefill() has no progress hook, and needs none: no bit of a result depends on the batch or on
  // the other heads, so parts of the call can be calls of their own. A call that takes less than
  // about 0.2 s stays whole.
  int compute() {
    const int64_t sequences = args().cu_seqlens_q.shape[0] - 1;
    for (int64_t i = 0; i < sequences; ++i) {
      flop_ += sequence_flop(problem(), args(), i) * problem().num_heads;
    }
    const std::vector<CallSlice> slices = slice_call(problem(), args(), std::max(flop_ / 64, 2e10));
    const Clock::time_point start = Clock::now();
    double last_shown = 0.0;
    for (size_t i = 0; i < slices.size(); ++i) {
      if (interrupted()) return session_.fail(kExitInterrupted, "interrupted, nothing written");
      const SlicedCall call(problem(), args(), slices[i]);
      const Status status = prefill(call.problem(), call.args(), execution_);
      if (!status.ok()) return session_.fail(status);
      seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
      if (seconds_ - last_shown < 1.0 || i + 1 == slices.size()) continue;
      last_shown = seconds_;
      std::fprintf(stderr, "run  %zu of %zu parts  %s\n", i + 1, slices.size(),
                   duration_text(seconds_).c_str());
    }
    return kExitOk;
  }

  int verify() {
    if (options_.verify == 0) return kExitOk;
    const StatusOr<RowVerification> verified =
        verify_rows(problem(), args(), options_.verify, static_cast<uint64_t>(options_.common.seed),
                    [] { return interrupted(); });
    if (!verified.ok()) return session_.fail(verified.status());
    if (interrupted()) return session_.fail(kExitInterrupted, "interrupted, nothing written");
    verification_ = *verified;
    return kExitOk;
  }

  int write_output() {
    std::map<std::string, std::string> metadata = {
        {"softmax_scale", fmt::format("{}", args().softmax_scale)},
        {"mask", mask_text(problem().mask)},
        {"lse_layout", lse_layout_text(options_.lse_layout)},
        {"numerics_id", numerics_id()},
    };
    if (options_.output_scale) metadata["output_scale"] = fmt::format("{}", output_scale_);
    std::vector<OutputTensor> tensors;
    for (const Output& output : outputs_) tensors.push_back(output.tensor);
    const Status written = write_safetensors(options_.output, tensors, metadata, FileOps::system());
    return written.ok() ? kExitOk : session_.fail(written);
  }

  std::string verdict() const {
    if (options_.verify == 0) return "NOT VERIFIED";
    if (verification_.rows == 0) return "NOTHING TO VERIFY";
    return verification_.failed_rows == 0 ? "PASS" : "FAIL";
  }

  void report() {
    const Explanation explanation = explain(problem(), execution_);
    const std::string dims = dims_text(problem().dims);
    const int64_t sequences = args().cu_seqlens_q.shape[0] - 1;
    const int64_t keys = args().v.shape[0];
    const bool written = verification_.failed_rows == 0;
    if (session_.json) {
      session_.print_json({{"input", options_.input},
                           {"output", written ? Json(options_.output) : Json(nullptr)},
                           {"kernel", explanation.kernel},
                           {"kernel_detail", explanation.detail},
                           {"numerics_id", numerics_id()},
                           {"dims", dims},
                           {"heads", heads()},
                           {"dtype", dtype_name(problem().dtype)},
                           {"out_dtype", dtype_name(problem().out_dtype)},
                           {"mask", mask_text(problem().mask)},
                           {"softmax_scale", args().softmax_scale},
                           {"lse_layout", lse_layout_text(options_.lse_layout)},
                           {"sequences", sequences},
                           {"new_tokens", tokens()},
                           {"keys", keys},
                           {"attention_flop", flop_},
                           {"seconds", seconds_},
                           {"tensor_bytes", memory_bytes_},
                           {"verify",
                            {{"rows", verification_.rows},
                             {"failed_rows", verification_.failed_rows},
                             {"worst_out_over_bound", verification_.worst_out},
                             {"worst_lse_over_bound", verification_.worst_lse},
                             {"first_failure", verification_.first_failure}}},
                           {"result", verdict()}});
      return;
    }
    std::vector<std::vector<std::string>> rows = {
        {"input",
         fmt::format("{}  sequences {}, new tokens {}, keys {}", printable_path(options_.input),
                     with_commas(sequences), with_commas(tokens()), with_commas(keys))},
        {"problem",
         fmt::format("{}  {} heads  {}  {}  scale {}", dims, heads(), dtype_name(problem().dtype),
                     mask_text(problem().mask), args().softmax_scale)},
        {"kernel", explanation.kernel + "  " + explanation.detail},
        {"attention", fmt::format("{}FLOP over visible pairs in {}", with_prefix(flop_),
                                  duration_text(seconds_))},
        {"memory", with_prefix(static_cast<double>(memory_bytes_)) + "B of tensors"},
    };
    if (verification_.rows > 0) {
      rows.push_back(
          {"verified", fmt::format("{} rows against fp64: worst out {:.3g}, worst lse {:.3g} of "
                                   "their bounds",
                                   with_commas(verification_.rows), verification_.worst_out,
                                   verification_.worst_lse)});
    }
    if (!written) {
      rows.push_back(
          {"failed", fmt::format("{} rows; first: {}", with_commas(verification_.failed_rows),
                                 verification_.first_failure)});
    }
    rows.push_back(
        {"output", written
                       ? fmt::format("{}  out {} {}, lse {} {}", printable_path(options_.output),
                                     shape_text(out_shape()), dtype_name(problem().out_dtype),
                                     shape_text(lse_shape()), dtype_name(lse_dtype()))
                       : "not written"});
    rows.push_back({"result", verdict()});
    session_.out += align_columns(rows) + "repro: " + session_.repro + '\n';
  }

  PrefillProblem& problem() { return inputs_.problem; }
  PrefillArgs& args() { return inputs_.args; }
  int64_t tokens() const {
    return inputs_.args.q.present() ? inputs_.args.q.shape[0] : inputs_.args.q_nope.shape[0];
  }
  int32_t heads() const { return inputs_.problem.num_heads; }

  Session& session_;
  const RunOptions& options_;
  PrefillInputs inputs_;
  std::vector<Output> outputs_;  // out, lse
  float output_scale_ = 1.0f;
  ExecutionOptions execution_;
  int64_t memory_bytes_ = 0;
  double flop_ = 0.0;
  double seconds_ = 0.0;
  RowVerification verification_;
};

}  // namespace

void add_run(CLI::App& root, Session& session) {
  CLI::App* app = root.add_subcommand("run", "Attention of tensors in a file, into a file");
  auto options = std::make_shared<RunOptions>();
  RunOptions* o = options.get();
  app->add_flag("--json", session.json, "JSON on stdout");
  app->add_option("--input", o->input,
                  "A safetensors file, or a folder with NAME.npy for each "
                  "tensor: q [T,H,d] or q_nope and q_pe; k [Tk,H,d] or "
                  "k_nope and k_pe [Tk,rope]; v [Tk,H,v]; cu_seqlens_q and "
                  "cu_seqlens_k (absent: one sequence)")
      ->type_name("FILE|DIR")
      ->required();
  app->add_option("--output", o->output,
                  "A safetensors file for out and lse; appears whole or not "
                  "at all")
      ->type_name("FILE")
      ->required();
  app->add_option_function<std::string>(
         "--softmax-scale",
         [o](const std::string& text) {
           const StatusOr<double> scale = parse_decimal(text, 0.0, 3e38);
           if (!scale.ok()) {
             throw CLI::ValidationError("--softmax-scale", scale.status().message());
           }
           o->softmax_scale = *scale;
         },
         "Multiplies q.k (default: softmax_scale in the file's metadata)")
      ->type_name("X");
  auto* causal = app->add_flag_callback(
      "--causal", [o] { o->mask = Mask{MaskKind::kCausal, -1, -1}; },
      "Bottom-right aligned causal mask (default, unless the metadata say causal = false)");
  auto* full = app->add_flag_callback(
      "--full", [o] { o->mask = Mask{MaskKind::kFull, -1, -1}; }, "Every key");
  auto* window = add_parsed(*app, "--window", "LEFT,RIGHT", parse_window_option, &o->mask,
                            "Keys at most so far to the left and right; inf is unbounded");
  causal->excludes(full)->excludes(window);
  full->excludes(window);
  add_parsed(*app, "--dtype", "bf16|fp16|fp32", parse_dtype, &o->dtype,
             "What q, k and v must be; bf16 reads uint16 as bf16, which npy lacks");
  auto* out_dtype = add_parsed(*app, "--out-dtype", "bf16|fp16|fp32|fp64|e4m3", parse_out_dtype,
                               &o->out_dtype, "Of out (default: as the input)");
  app->add_option_function<std::string>(
         "--output-scale",
         [o](const std::string& text) {
           const StatusOr<double> scale = parse_decimal(text, 1e-30, 3e38);
           if (!scale.ok()) throw CLI::ValidationError("--output-scale", scale.status().message());
           o->output_scale = *scale;
         },
         "With --out-dtype e4m3: what is stored is out / X")
      ->type_name("X")
      ->needs(out_dtype);
  add_parsed(*app, "--lse-layout", "heads-tokens|tokens-heads", parse_lse_layout, &o->lse_layout,
             "Of lse (default heads-tokens)");
  add_integer(*app, "--verify", &o->verify, 0, 1'000'000'000,
              "Check so many rows against fp64; if one fails, nothing is written and the exit code "
              "is 1 (default 0)");
  add_integer(*app, "--seed", &o->common.seed, 0, INT64_MAX,
              "Draws the rows that --verify checks (default 0)");
  add_bytes(*app, "--max-memory", &o->max_memory, "Most memory for tensors (default 16G)");
  app->add_option("--kernel", o->kernel, "Kernel that must run it (default: the selector's choice)")
      ->type_name("NAME");
  add_device_options(*app, o->common);
  app->callback([&session, options] {
    session.selected = [&session, options]() -> int {
      if ((options->out_dtype == Dtype::kE4m3) != options->output_scale.has_value()) {
        return session.fail(kExitUsage,
                            "--out-dtype e4m3 and --output-scale X are only useful together");
      }
      return Run(session, *options)();
    };
  });
}

}  // namespace flashprime::cli
