// SPDX-License-Identifier: Apache-2.0
// Translation between the C structs and the C++ API; nothing is decided here.
#include "flashprime/c_api.h"

#include <deque>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "c_api_structs.h"
#include "checks.h"
#include "flashprime/backend.h"
#include "flashprime/context_plan.h"
#include "flashprime/merge.h"
#include "flashprime/models.h"
#include "flashprime/prefill.h"
#include "flashprime/prefill_layer.h"
#include "flashprime/random.h"
#include "flashprime/version.h"

struct flashprime_plan {
  flashprime::ContextPlan plan;
  std::vector<std::vector<flashprime_slice>> slices;  // of every chunk, as C sees them
};

namespace flashprime {
namespace {

using c_api::check_enum;
using c_api::guarded;
using c_api::guarded_value;
using c_api::read_struct;
using c_api::same;
using c_api::write_struct;

static_assert(same(FLASHPRIME_OK, StatusCode::kOk));
static_assert(same(FLASHPRIME_E_SHAPE, StatusCode::kShape));
static_assert(same(FLASHPRIME_E_UNSUPPORTED, StatusCode::kUnsupported));
static_assert(same(FLASHPRIME_E_DTYPE, StatusCode::kDtype));
static_assert(same(FLASHPRIME_E_STRIDE, StatusCode::kStride));
static_assert(same(FLASHPRIME_E_ALIAS, StatusCode::kAlias));
static_assert(same(FLASHPRIME_E_NULL, StatusCode::kNull));
static_assert(same(FLASHPRIME_E_ALIGNMENT, StatusCode::kAlignment));
static_assert(same(FLASHPRIME_E_RANGE, StatusCode::kRange));
static_assert(same(FLASHPRIME_E_CU_SEQLENS, StatusCode::kCuSeqlens));
static_assert(same(FLASHPRIME_E_NUMERIC, StatusCode::kNumeric));
static_assert(same(FLASHPRIME_E_DEVICE, StatusCode::kDevice));
static_assert(same(FLASHPRIME_E_STREAM, StatusCode::kStream));
static_assert(same(FLASHPRIME_E_NOT_WARM, StatusCode::kNotWarm));
static_assert(same(FLASHPRIME_E_FROZEN, StatusCode::kFrozen));
static_assert(same(FLASHPRIME_E_ARCH, StatusCode::kArch));
static_assert(same(FLASHPRIME_E_DRIVER, StatusCode::kDriver));
static_assert(same(FLASHPRIME_E_NO_COMPILER, StatusCode::kNoCompiler));
static_assert(same(FLASHPRIME_E_WORKSPACE, StatusCode::kWorkspace));
static_assert(same(FLASHPRIME_E_PLAN, StatusCode::kPlan));
static_assert(same(FLASHPRIME_E_OUT_OF_MEMORY, StatusCode::kOutOfMemory));
static_assert(same(FLASHPRIME_E_PRIOR_CUDA_ERROR, StatusCode::kPriorCudaError));
static_assert(same(FLASHPRIME_E_FORMAT, StatusCode::kFormat));
static_assert(same(FLASHPRIME_E_IO, StatusCode::kIo));
static_assert(same(FLASHPRIME_E_INTERNAL, StatusCode::kInternal));
static_assert(same(FLASHPRIME_BF16, Dtype::kBf16));
static_assert(same(FLASHPRIME_FP16, Dtype::kFp16));
static_assert(same(FLASHPRIME_FP32, Dtype::kFp32));
static_assert(same(FLASHPRIME_FP64, Dtype::kFp64));
static_assert(same(FLASHPRIME_E4M3, Dtype::kE4m3));
static_assert(same(FLASHPRIME_INT32, Dtype::kInt32));
static_assert(same(FLASHPRIME_MASK_FULL, MaskKind::kFull));
static_assert(same(FLASHPRIME_MASK_CAUSAL, MaskKind::kCausal));
static_assert(same(FLASHPRIME_MASK_WINDOW, MaskKind::kWindow));
static_assert(same(FLASHPRIME_HEADS_TOKENS, LseLayout::kHeadsTokens));
static_assert(same(FLASHPRIME_TOKENS_HEADS, LseLayout::kTokensHeads));
static_assert(same(FLASHPRIME_DEVICE_AUTO, DeviceKind::kAuto));
static_assert(same(FLASHPRIME_DEVICE_CPU, DeviceKind::kCpu));
static_assert(same(FLASHPRIME_DEVICE_CUDA, DeviceKind::kCuda));

// Sizes of the structs in version 1 of the ABI, which no later version may change: it may only add
// fields at the end, and then keeps these as the least sizes that it accepts.
static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8);
static_assert(sizeof(flashprime_tensor) == 88);
static_assert(sizeof(flashprime_slice) == 24);
static_assert(sizeof(flashprime_view_list) == 16);
constexpr size_t kOptionsV1 = 48;
constexpr size_t kProblemV1 = 72;
constexpr size_t kPrefillArgsV1 = 48 + 12 * 88;
constexpr size_t kMergeArgsV1 = 24 + 7 * 88;
constexpr size_t kPlanOptionsV1 = 40;
constexpr size_t kChunkV1 = 72;
constexpr size_t kWorkspaceRuleV1 = 48;
constexpr size_t kKeyValuesV1 = 8 + 5 * 88;
constexpr size_t kModelV1 = 64;
constexpr size_t kRandomSpecV1 = 32;
static_assert(sizeof(flashprime_options) == kOptionsV1);
static_assert(sizeof(flashprime_problem) == kProblemV1);
static_assert(sizeof(flashprime_prefill_args) == kPrefillArgsV1);
static_assert(sizeof(flashprime_merge_args) == kMergeArgsV1);
static_assert(sizeof(flashprime_plan_options) == kPlanOptionsV1);
static_assert(sizeof(flashprime_chunk) == kChunkV1);
static_assert(sizeof(flashprime_workspace_rule) == kWorkspaceRuleV1);
static_assert(sizeof(flashprime_key_values) == kKeyValuesV1);
static_assert(sizeof(flashprime_model) == kModelV1);
static_assert(sizeof(flashprime_random_spec) == kRandomSpecV1);
// A field that moves without changing the size of its struct.
static_assert(offsetof(flashprime_options, num_threads) == 40);
static_assert(offsetof(flashprime_problem, window_left) == 40);
static_assert(offsetof(flashprime_problem, num_splits) == 68);
static_assert(offsetof(flashprime_prefill_args, softmax_scale) == 40);
static_assert(offsetof(flashprime_prefill_args, k) == 48 + 3 * 88);
static_assert(offsetof(flashprime_prefill_args, output_scale) == 48 + 11 * 88);
static_assert(offsetof(flashprime_merge_args, prefix_out) == 24);
static_assert(offsetof(flashprime_merge_args, output_scale) == 24 + 6 * 88);
static_assert(offsetof(flashprime_plan_options, dcp_size) == 32);
static_assert(offsetof(flashprime_chunk, has_empty_slice) == 64);
static_assert(offsetof(flashprime_workspace_rule, dcp_size) == 40);
static_assert(offsetof(flashprime_key_values, cu_seqlens_k) == 8 + 4 * 88);
static_assert(offsetof(flashprime_model, scale_factor) == 56);
static_assert(offsetof(flashprime_random_spec, scale) == 28);

thread_local std::string last_error;

template <typename View>
View to_view(const flashprime_tensor& tensor) {
  View view;
  view.data = tensor.data;
  view.dtype = static_cast<Dtype>(tensor.dtype);
  view.rank = tensor.rank;
  for (int axis = 0; axis < View::kMaxRank; ++axis) {
    view.shape[axis] = tensor.shape[axis];
    view.stride[axis] = tensor.stride[axis];
  }
  view.capacity_bytes = tensor.capacity_bytes > 0 ? tensor.capacity_bytes : View::kUnknownCapacity;
  return view;
}

TensorView input(const flashprime_tensor& tensor) {
  return to_view<TensorView>(tensor);
}

MutableTensorView output(const flashprime_tensor& tensor) {
  return to_view<MutableTensorView>(tensor);
}

Status check_dtype(std::string_view name, const flashprime_tensor& tensor) {
  FLASHPRIME_REQUIRE(tensor.dtype >= 0 && tensor.dtype <= FLASHPRIME_INT32, StatusCode::kDtype,
                     name, ".dtype: got ", tensor.dtype, ", wanted 0 to ",
                     static_cast<int>(FLASHPRIME_INT32));
  return ok_status();
}

Status read_options(const flashprime_options* given, ExecutionOptions* result) {
  if (given == nullptr) return ok_status();
  flashprime_options options = FLASHPRIME_OPTIONS_INIT;
  FLASHPRIME_RETURN_IF_ERROR(read_struct("options", given, kOptionsV1, &options));
  FLASHPRIME_RETURN_IF_ERROR(check_enum("options.device", options.device, FLASHPRIME_DEVICE_CUDA));
  result->device = {static_cast<DeviceKind>(options.device), options.device_index};
  if (options.kernel != nullptr) result->kernel = options.kernel;
  result->num_threads = options.num_threads;
  result->checked = options.checked != 0;
  if (options.parallel_for != nullptr) {
    result->parallel_for = [loop = options.parallel_for, user = options.parallel_for_user](
                               int64_t n, const std::function<void(int64_t)>& body) {
      loop(
          user, n,
          [](void* context, int64_t i) {
            (*static_cast<const std::function<void(int64_t)>*>(context))(i);
          },
          const_cast<std::function<void(int64_t)>*>(&body));
    };
  }
  return ok_status();
}

Status read_problem(const flashprime_problem* given, PrefillProblem* result) {
  flashprime_problem problem = FLASHPRIME_PROBLEM_INIT;
  FLASHPRIME_RETURN_IF_ERROR(read_struct("problem", given, kProblemV1, &problem));
  FLASHPRIME_RETURN_IF_ERROR(check_enum("problem.dtype", problem.dtype, FLASHPRIME_INT32));
  FLASHPRIME_RETURN_IF_ERROR(check_enum("problem.out_dtype", problem.out_dtype, FLASHPRIME_INT32));
  FLASHPRIME_RETURN_IF_ERROR(check_enum("problem.mask", problem.mask, FLASHPRIME_MASK_WINDOW));
  FLASHPRIME_RETURN_IF_ERROR(
      check_enum("problem.lse_layout", problem.lse_layout, FLASHPRIME_TOKENS_HEADS));
  result->dims = {problem.nope, problem.rope, problem.v};
  result->num_heads = problem.num_heads;
  result->dtype = static_cast<Dtype>(problem.dtype);
  result->out_dtype = static_cast<Dtype>(problem.out_dtype);
  result->mask = {static_cast<MaskKind>(problem.mask), problem.window_left, problem.window_right};
  result->return_lse = problem.return_lse != 0;
  result->lse_layout = static_cast<LseLayout>(problem.lse_layout);
  result->self_attention = problem.self_attention != 0;
  result->batch_invariant = problem.batch_invariant != 0;
  result->num_splits = problem.num_splits;
  return ok_status();
}

Status read_prefill_args(const flashprime_prefill_args* given, PrefillArgs* result) {
  flashprime_prefill_args args = FLASHPRIME_PREFILL_ARGS_INIT;
  FLASHPRIME_RETURN_IF_ERROR(read_struct("args", given, kPrefillArgsV1, &args));
  const std::pair<const char*, const flashprime_tensor*> tensors[] = {
      {"q", &args.q},
      {"q_nope", &args.q_nope},
      {"q_pe", &args.q_pe},
      {"k", &args.k},
      {"k_nope", &args.k_nope},
      {"k_pe", &args.k_pe},
      {"v", &args.v},
      {"cu_seqlens_q", &args.cu_seqlens_q},
      {"cu_seqlens_k", &args.cu_seqlens_k},
      {"out", &args.out},
      {"lse", &args.lse},
      {"output_scale", &args.output_scale}};
  for (const auto& [name, tensor] : tensors) FLASHPRIME_RETURN_IF_ERROR(check_dtype(name, *tensor));
  result->q = input(args.q);
  result->q_nope = input(args.q_nope);
  result->q_pe = input(args.q_pe);
  result->k = input(args.k);
  result->k_nope = input(args.k_nope);
  result->k_pe = input(args.k_pe);
  result->v = input(args.v);
  result->cu_seqlens_q = input(args.cu_seqlens_q);
  result->cu_seqlens_k = input(args.cu_seqlens_k);
  result->max_seqlen_q = args.max_seqlen_q;
  result->max_seqlen_k = args.max_seqlen_k;
  result->softmax_scale = args.softmax_scale;
  result->out = output(args.out);
  result->lse = output(args.lse);
  result->output_scale = input(args.output_scale);
  result->workspace = args.workspace;
  result->workspace_bytes = args.workspace_bytes;
  return ok_status();
}

// What the three calls on a problem and its data are given.
struct PrefillCall {
  PrefillProblem problem;
  PrefillArgs args;
  ExecutionOptions options;

  Status read(const flashprime_problem* c_problem, const flashprime_prefill_args* c_args,
              const flashprime_options* c_options) {
    FLASHPRIME_RETURN_IF_ERROR(read_problem(c_problem, &problem));
    FLASHPRIME_RETURN_IF_ERROR(read_prefill_args(c_args, &args));
    return read_options(c_options, &options);
  }
};

using Planner = StatusOr<ContextPlan> (*)(const std::vector<int64_t>&, const ContextPlanOptions&);

int make_plan(Planner planner, const int64_t* context_lens, size_t num_requests,
              const flashprime_plan_options* given, flashprime_plan** plan) {
  return guarded([&]() -> Status {
    FLASHPRIME_REQUIRE(plan != nullptr, StatusCode::kNull, "plan: got a null pointer");
    *plan = nullptr;
    FLASHPRIME_REQUIRE(context_lens != nullptr || num_requests == 0, StatusCode::kNull,
                       "context_lens: got a null pointer for ", num_requests, " requests");
    flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
    if (given != nullptr) {
      FLASHPRIME_RETURN_IF_ERROR(read_struct("options", given, kPlanOptionsV1, &options));
    }
    StatusOr<ContextPlan> made = planner(
        std::vector<int64_t>(context_lens, context_lens + num_requests),
        {options.workspace_rows, options.block_size, options.dcp_size, options.dcp_interleave});
    FLASHPRIME_RETURN_IF_ERROR(made.status());
    std::vector<std::vector<flashprime_slice>> slices;
    for (const ContextChunk& chunk : made->chunks) {
      std::vector<flashprime_slice>& list = slices.emplace_back();
      for (const ContextSlice& slice : chunk.slices) {
        list.push_back({slice.request, slice.start, slice.length});
      }
    }
    *plan = new flashprime_plan{*std::move(made), std::move(slices)};
    return ok_status();
  });
}

flashprime_chunk to_c(const ContextChunk& chunk, const std::vector<flashprime_slice>& slices) {
  return {sizeof(flashprime_chunk),
          chunk.index,
          chunk.request_begin,
          chunk.request_end,
          slices.data(),
          chunk.cu_seqlens_k.data(),
          chunk.num_tokens(),
          chunk.max_seqlen_k,
          chunk.has_empty_slice ? 1 : 0,
          0};
}

const ContextPlan& plan_or_empty(const flashprime_plan* plan) {
  static const ContextPlan empty;
  return plan == nullptr ? empty : plan->plan;
}

// A C callback as a ContextSource. The message of a failure is what the callback has set.
ContextSource to_source(const flashprime_plan* plan, flashprime_context_source source, void* user) {
  if (source == nullptr) return nullptr;
  return [=](const ContextChunk& chunk, StreamHandle stream) -> StatusOr<KeyValueViews> {
    const flashprime_chunk c_chunk = to_c(chunk, plan->slices[static_cast<size_t>(chunk.index)]);
    flashprime_key_values views = FLASHPRIME_KEY_VALUES_INIT;
    last_error.clear();
    if (const int code = source(user, &c_chunk, stream, &views); code != FLASHPRIME_OK) {
      return Status(static_cast<StatusCode>(code),
                    !last_error.empty() ? last_error
                                        : concat("source: returned ", code, " for context chunk ",
                                                 chunk.index, " and set no message"));
    }
    FLASHPRIME_RETURN_IF_ERROR(check_dtype("k", views.k));
    FLASHPRIME_RETURN_IF_ERROR(check_dtype("k_nope", views.k_nope));
    FLASHPRIME_RETURN_IF_ERROR(check_dtype("k_pe", views.k_pe));
    FLASHPRIME_RETURN_IF_ERROR(check_dtype("v", views.v));
    FLASHPRIME_RETURN_IF_ERROR(check_dtype("cu_seqlens_k", views.cu_seqlens_k));
    return KeyValueViews{input(views.k), input(views.k_nope), input(views.k_pe), input(views.v),
                         input(views.cu_seqlens_k)};
  };
}

std::string describe(const Explanation& explanation) {
  std::string text = explanation.supported
                         ? concat(explanation.kernel, ": ", explanation.detail, "\n")
                         : std::string("unsupported\n");
  for (const KernelVerdict& verdict : explanation.verdicts) {
    if (verdict.supported && verdict.kernel != explanation.kernel) {
      text += concat("  ", verdict.kernel, ": could run it too\n");
    }
    for (const std::string& reason : verdict.reasons) {
      text += concat("  ", verdict.kernel, ": ", reason, "\n");
    }
  }
  return text;
}

// Presets with NUL-terminated names. Never destroyed, so that they outlive every caller.
struct ModelTable {
  std::deque<std::string> texts;
  std::vector<flashprime_model> models;
};

const std::vector<flashprime_model>& c_models() {
  static const ModelTable* const table = [] {
    auto* made = new ModelTable;
    for (const ModelPreset& preset : list_models()) {
      const char* name = made->texts.emplace_back(preset.name).c_str();
      const char* source = made->texts.emplace_back(preset.source).c_str();
      made->models.push_back({sizeof(flashprime_model), name, source, preset.dims.nope,
                              preset.dims.rope, preset.dims.v, preset.num_heads, preset.num_layers,
                              preset.kv_lora_rank, preset.q_lora_rank, preset.softmax_scale(),
                              preset.scale_factor});
    }
    return made;
  }();
  return table->models;
}

}  // namespace

int c_api::report(const Status& status) {
  if (status.ok()) return FLASHPRIME_OK;
  try {
    last_error = status.message();
  } catch (const std::bad_alloc&) {
    last_error.clear();  // the code still says what happened
  }
  return static_cast<int>(status.code());
}

}  // namespace flashprime

using namespace flashprime;  // NOLINT: the definitions below are C functions

const char* flashprime_last_error_message(void) {
  return last_error.c_str();
}

void flashprime_set_error_message(const char* message) {
  c_api::report(Status(StatusCode::kInternal, message == nullptr ? "" : message));
}

const char* flashprime_status_name(int status) {
  return status_code_name(static_cast<StatusCode>(status)).data();
}

const char* flashprime_version(void) {
  return version().data();
}

const char* flashprime_build_description(void) {
  return build_description().data();
}

const char* flashprime_numerics_id(void) {
  const char* id = "";
  guarded([&]() -> Status {
    static const std::string* const text = new std::string(numerics_id());
    id = text->c_str();
    return ok_status();
  });
  return id;
}

int flashprime_prefill(const flashprime_problem* problem, const flashprime_prefill_args* args,
                       const flashprime_options* options, flashprime_stream stream) {
  return guarded([&]() -> Status {
    PrefillCall call;
    FLASHPRIME_RETURN_IF_ERROR(call.read(problem, args, options));
    return prefill(call.problem, call.args, call.options, stream);
  });
}

int flashprime_prefill_workspace_bytes(const flashprime_problem* problem,
                                       const flashprime_prefill_args* args,
                                       const flashprime_options* options, int64_t* bytes) {
  return guarded_value("bytes", bytes, [&]() -> StatusOr<int64_t> {
    PrefillCall call;
    FLASHPRIME_RETURN_IF_ERROR(call.read(problem, args, options));
    return prefill_workspace_bytes(call.problem, call.args, call.options);
  });
}

int flashprime_explain(const flashprime_problem* c_problem, const flashprime_options* c_options,
                       char* buffer, size_t buffer_bytes, size_t* needed_bytes,
                       int32_t* supported) {
  return guarded([&]() -> Status {
    FLASHPRIME_REQUIRE(buffer != nullptr || buffer_bytes == 0, StatusCode::kNull,
                       "buffer: got a null pointer for ", buffer_bytes, " bytes");
    PrefillProblem problem;
    ExecutionOptions options;
    FLASHPRIME_RETURN_IF_ERROR(read_problem(c_problem, &problem));
    FLASHPRIME_RETURN_IF_ERROR(read_options(c_options, &options));
    const Explanation explanation = explain(problem, options);
    const std::string text = describe(explanation);
    if (buffer_bytes > 0) {
      const size_t length = std::min(text.size(), buffer_bytes - 1);
      std::memcpy(buffer, text.data(), length);
      buffer[length] = '\0';
    }
    if (needed_bytes != nullptr) *needed_bytes = text.size() + 1;
    if (supported != nullptr) *supported = explanation.supported ? 1 : 0;
    return ok_status();
  });
}

int flashprime_merge_states(const flashprime_merge_args* given, const flashprime_options* c_options,
                            flashprime_stream stream) {
  return guarded([&]() -> Status {
    flashprime_merge_args args = FLASHPRIME_MERGE_ARGS_INIT;
    FLASHPRIME_RETURN_IF_ERROR(read_struct("args", given, kMergeArgsV1, &args));
    const std::pair<const char*, const flashprime_tensor*> tensors[] = {
        {"prefix_out", &args.prefix_out},
        {"prefix_lse", &args.prefix_lse},
        {"suffix_out", &args.suffix_out},
        {"suffix_lse", &args.suffix_lse},
        {"out", &args.out},
        {"lse", &args.lse},
        {"output_scale", &args.output_scale}};
    for (const auto& [name, tensor] : tensors) {
      FLASHPRIME_RETURN_IF_ERROR(check_dtype(name, *tensor));
    }
    FLASHPRIME_RETURN_IF_ERROR(check_enum("lse_layout", args.lse_layout, FLASHPRIME_TOKENS_HEADS));
    MergeArgs merge;
    merge.prefix_out = input(args.prefix_out);
    merge.prefix_lse = input(args.prefix_lse);
    merge.suffix_out = input(args.suffix_out);
    merge.suffix_lse = input(args.suffix_lse);
    merge.out = output(args.out);
    merge.lse = output(args.lse);
    merge.output_scale = input(args.output_scale);
    merge.lse_layout = static_cast<LseLayout>(args.lse_layout);
    merge.tokens_with_prefix = args.tokens_with_prefix;
    ExecutionOptions options;
    FLASHPRIME_RETURN_IF_ERROR(read_options(c_options, &options));
    return merge_states(merge, options, stream);
  });
}

int flashprime_plan_equal_slices(const int64_t* context_lens, size_t num_requests,
                                 const flashprime_plan_options* options, flashprime_plan** plan) {
  return make_plan(&plan_context_equal_slices, context_lens, num_requests, options, plan);
}

int flashprime_plan_greedy(const int64_t* context_lens, size_t num_requests,
                           const flashprime_plan_options* options, flashprime_plan** plan) {
  return make_plan(&plan_context_greedy, context_lens, num_requests, options, plan);
}

void flashprime_plan_destroy(flashprime_plan* plan) {
  delete plan;
}

size_t flashprime_plan_num_requests(const flashprime_plan* plan) {
  return plan_or_empty(plan).context_lens.size();
}

size_t flashprime_plan_num_chunks(const flashprime_plan* plan) {
  return plan_or_empty(plan).chunks.size();
}

int flashprime_plan_chunk(const flashprime_plan* plan, size_t index, flashprime_chunk* chunk) {
  return guarded([&]() -> Status {
    const size_t num_chunks = flashprime_plan_num_chunks(plan);
    FLASHPRIME_REQUIRE(index < num_chunks, StatusCode::kRange, "index: got ", index,
                       ", wanted less than ", num_chunks, ", the chunks of the plan");
    return write_struct("chunk", to_c(plan->plan.chunks[index], plan->slices[index]), kChunkV1,
                        chunk);
  });
}

int flashprime_context_workspace_rows(const flashprime_workspace_rule* given, int64_t* rows) {
  return guarded_value("rows", rows, [&]() -> StatusOr<int64_t> {
    flashprime_workspace_rule rule = FLASHPRIME_WORKSPACE_RULE_INIT;
    FLASHPRIME_RETURN_IF_ERROR(read_struct("rule", given, kWorkspaceRuleV1, &rule));
    return context_workspace_rows({rule.max_model_len, rule.max_num_seqs, rule.block_size,
                                   rule.dcp_size, rule.dcp_interleave});
  });
}

int flashprime_context_from_views(void* view_list, const flashprime_chunk* chunk,
                                  flashprime_stream /*stream*/, flashprime_key_values* key_values) {
  return guarded([&]() -> Status {
    const auto* list = static_cast<const flashprime_view_list*>(view_list);
    FLASHPRIME_REQUIRE(list != nullptr && list->views != nullptr, StatusCode::kNull,
                       "view_list: got a null pointer");
    const auto index = static_cast<size_t>(chunk->index);
    FLASHPRIME_REQUIRE(index < list->num_views, StatusCode::kPlan, "view_list.num_views: got ",
                       list->num_views, ", wanted one per chunk of the plan, which has a chunk ",
                       index);
    // The caller's structs may be shorter than ours; all of one array have one size.
    size_t size = 0;
    std::memcpy(&size, list->views, sizeof(size));
    const auto* bytes = reinterpret_cast<const char*>(list->views);
    const void* view = bytes + index * size;
    return read_struct("view", static_cast<const flashprime_key_values*>(view), kKeyValuesV1,
                       key_values);
  });
}

int flashprime_prefill_layer(const flashprime_problem* problem, const flashprime_prefill_args* args,
                             const flashprime_plan* plan, flashprime_context_source source,
                             void* source_user, const flashprime_options* options,
                             flashprime_stream stream) {
  return guarded([&]() -> Status {
    PrefillCall call;
    FLASHPRIME_RETURN_IF_ERROR(call.read(problem, args, options));
    return prefill_layer(call.problem, call.args, plan_or_empty(plan),
                         to_source(plan, source, source_user), call.options, stream);
  });
}

int flashprime_prefill_layer_workspace_bytes(const flashprime_problem* problem,
                                             const flashprime_prefill_args* args,
                                             const flashprime_plan* plan,
                                             const flashprime_options* options, int64_t* bytes) {
  return guarded_value("bytes", bytes, [&]() -> StatusOr<int64_t> {
    PrefillCall call;
    FLASHPRIME_RETURN_IF_ERROR(call.read(problem, args, options));
    return prefill_layer_workspace_bytes(call.problem, call.args, plan_or_empty(plan),
                                         call.options);
  });
}

size_t flashprime_num_models(void) {
  size_t count = 0;
  guarded([&]() -> Status {
    count = list_models().size();
    return ok_status();
  });
  return count;
}

int flashprime_model_at(size_t index, flashprime_model* model) {
  return guarded([&]() -> Status {
    FLASHPRIME_REQUIRE(index < list_models().size(), StatusCode::kRange, "index: got ", index,
                       ", wanted less than ", list_models().size(), ", the known models");
    return write_struct("model", c_models()[index], kModelV1, model);
  });
}

int flashprime_find_model(const char* name, flashprime_model* model) {
  return guarded([&]() -> Status {
    FLASHPRIME_REQUIRE(name != nullptr, StatusCode::kNull, "name: got a null pointer");
    const StatusOr<ModelPreset> preset = find_model(name);
    FLASHPRIME_RETURN_IF_ERROR(preset.status());
    for (const flashprime_model& known : c_models()) {
      if (preset->name == known.name) return write_struct("model", known, kModelV1, model);
    }
    return Status(StatusCode::kInternal, concat("name: ", name, " is not in the list of models"));
  });
}

int flashprime_heads_per_rank(const flashprime_model* given, int32_t tensor_parallel_size,
                              int32_t* num_heads) {
  return guarded_value("num_heads", num_heads, [&]() -> StatusOr<int32_t> {
    flashprime_model model = FLASHPRIME_MODEL_INIT;
    FLASHPRIME_RETURN_IF_ERROR(read_struct("model", given, kModelV1, &model));
    ModelPreset preset;
    preset.name = model.name == nullptr ? "" : model.name;
    preset.num_heads = model.num_heads;
    return heads_per_rank(preset, tensor_parallel_size);
  });
}

int flashprime_fill_random(const flashprime_tensor* view, const flashprime_random_spec* given) {
  return guarded([&]() -> Status {
    FLASHPRIME_REQUIRE(view != nullptr, StatusCode::kNull, "view: got a null pointer");
    FLASHPRIME_RETURN_IF_ERROR(check_dtype("view", *view));
    flashprime_random_spec spec = FLASHPRIME_RANDOM_SPEC_INIT;
    FLASHPRIME_RETURN_IF_ERROR(read_struct("spec", given, kRandomSpecV1, &spec));
    return fill_random(output(*view), {spec.seed, spec.tensor_id, spec.first_row, spec.scale});
  });
}
