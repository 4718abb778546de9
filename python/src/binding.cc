// SPDX-License-Identifier: Apache-2.0
// The library for Python, as functions of apache-tvm-ffi: python/flashprime/_library.py loads them
// and says what each takes. Arguments come by position. Tensors come as DLPack views and are never
// copied; a null argument is an absent tensor. An error is thrown with the name of its StatusCode
// as its kind. Nothing is decided here, and nothing of tvm-ffi is used anywhere else.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/memory.h>
#include <tvm/ffi/string.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "flashprime/backend.h"
#include "flashprime/context_plan.h"
#include "flashprime/jit.h"
#include "flashprime/merge.h"
#include "flashprime/models.h"
#include "flashprime/prefill.h"
#include "flashprime/prefill_layer.h"
#include "flashprime/random.h"
#include "flashprime/version.h"

namespace flashprime {
namespace {

namespace ffi = tvm::ffi;
using Dict = ffi::Map<ffi::String, ffi::Any>;
using List = ffi::Array<ffi::Any>;

// ---- Errors ----

[[noreturn]] void fail(StatusCode code, std::string message) {
  throw ffi::Error("flashprime." + std::string(status_code_name(code)), std::move(message), "");
}

void check(const Status& status) {
  if (!status.ok()) fail(status.code(), status.message());
}

template <typename T>
T value_of(StatusOr<T> result) {
  check(result.status());
  return *std::move(result);
}

ffi::String text(std::string_view value) {
  return ffi::String(value.data(), value.size());
}

// ---- Tensors ----

std::string dtype_text(const DLDataType& dtype) {
  const char* name = "type";
  switch (dtype.code) {
    case kDLInt: name = "int"; break;
    case kDLUInt: name = "uint"; break;
    case kDLFloat: name = "float"; break;
    case kDLBfloat: name = "bfloat"; break;
    case kDLBool: name = "bool"; break;
    case kDLComplex: name = "complex"; break;
    case kDLFloat8_e5m2: return "float8_e5m2";
    case kDLFloat8_e4m3fnuz: return "float8_e4m3fnuz";
    default: break;
  }
  return name + std::to_string(dtype.bits);
}

Dtype dtype_of(std::string_view name, const DLDataType& dtype) {
  if (dtype.lanes == 1) {
    if (dtype.code == kDLBfloat && dtype.bits == 16) return Dtype::kBf16;
    if (dtype.code == kDLFloat && dtype.bits == 16) return Dtype::kFp16;
    if (dtype.code == kDLFloat && dtype.bits == 32) return Dtype::kFp32;
    if (dtype.code == kDLFloat && dtype.bits == 64) return Dtype::kFp64;
    if (dtype.code == kDLFloat8_e4m3fn) return Dtype::kE4m3;
    if (dtype.code == kDLInt && dtype.bits == 32) return Dtype::kInt32;
  }
  fail(StatusCode::kDtype, std::string(name) + ": got " + dtype_text(dtype) +
                               ", wanted bf16, fp16, fp32, fp64, e4m3 or int32");
}

DLDataType dl_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBf16: return {kDLBfloat, 16, 1};
    case Dtype::kFp16: return {kDLFloat, 16, 1};
    case Dtype::kFp32: return {kDLFloat, 32, 1};
    case Dtype::kFp64: return {kDLFloat, 64, 1};
    case Dtype::kE4m3: return {kDLFloat8_e4m3fn, 8, 1};
    case Dtype::kInt32: return {kDLInt, 32, 1};
  }
  fail(StatusCode::kDtype, "dtype: got " + std::to_string(static_cast<int>(dtype)));
}

std::string device_text(const DLDevice& device) {
  switch (device.device_type) {
    case kDLCPU: return "cpu";
    case kDLCUDA: return "cuda:" + std::to_string(device.device_id);
    case kDLROCM: return "rocm:" + std::to_string(device.device_id);
    default:
      return "DLPack device (" + std::to_string(static_cast<int>(device.device_type)) + ", " +
             std::to_string(device.device_id) + ")";
  }
}

// Where all tensors of a call are: where the first one is.
class Place {
 public:
  void add(std::string_view name, DLDevice device) {
    if (device.device_type == kDLCUDAHost) device = {kDLCPU, 0};  // pinned memory of the host
    if (device.device_type != kDLCPU && device.device_type != kDLCUDA) {
      fail(StatusCode::kDevice,
           std::string(name) + ": got " + device_text(device) + ", wanted cpu or cuda");
    }
    if (device.device_type == kDLCPU) device.device_id = 0;
    if (!device_) device_ = device;
    if (device_->device_type != device.device_type || device_->device_id != device.device_id) {
      fail(StatusCode::kDevice, std::string(name) + ": got " + device_text(device) + ", wanted " +
                                    device_text(*device_) + ", where the tensors before it are");
    }
  }
  // A call on a GPU always says so: without a driver its pointers must not be taken for the host's.
  Device device() const {
    if (!device_ || device_->device_type == kDLCPU) return {DeviceKind::kCpu, 0};
    return {DeviceKind::kCuda, device_->device_id};
  }

 private:
  std::optional<DLDevice> device_;
};

template <typename View>
View view_of(std::string_view name, const DLTensor& tensor) {
  View view;
  view.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  view.dtype = dtype_of(name, tensor.dtype);
  view.rank = tensor.ndim;
  if (tensor.ndim == 0) fail(StatusCode::kShape, std::string(name) + ": got a tensor of rank 0");
  int64_t dense = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (axis < View::kMaxRank) {
      view.shape[axis] = tensor.shape[axis];
      view.stride[axis] = tensor.strides != nullptr ? tensor.strides[axis] : dense;
    }
    dense *= tensor.shape[axis];
  }
  return view;
}

int32_t extent(std::string_view name, int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) {
    fail(StatusCode::kShape, std::string(name) + ": got an axis of " + std::to_string(value));
  }
  return static_cast<int32_t>(value);
}

// ---- Arguments ----

// Reads arguments one after another.
class Arguments {
 public:
  Arguments(const TVMFFIAny* values, int32_t count)
      : values_(reinterpret_cast<const ffi::AnyView*>(values)), count_(count) {}

  bool more() const { return next_ < count_; }
  ffi::AnyView any() {
    if (next_ == count_) {
      fail(StatusCode::kInternal, "binding: got " + std::to_string(count_) + " arguments");
    }
    return values_[next_++];
  }
  template <typename T>
  T get(std::string_view name) {
    return cast<T>(name, any());
  }
  int64_t integer(std::string_view name) { return get<int64_t>(name); }
  int32_t int32(std::string_view name) {
    const int64_t value = integer(name);
    if (value < std::numeric_limits<int32_t>::min() ||
        value > std::numeric_limits<int32_t>::max()) {
      fail(StatusCode::kShape,
           std::string(name) + ": got " + std::to_string(value) + ", wanted a number of 32 bits");
    }
    return static_cast<int32_t>(value);
  }
  std::string string(std::string_view name) { return std::string(get<ffi::String>(name)); }
  template <typename Enum>
  Enum enumerator(std::string_view name) {
    return static_cast<Enum>(integer(name));
  }
  template <typename T>
  std::optional<T> optional(std::string_view name) {
    const ffi::AnyView value = any();
    if (value.type_index() == ffi::TypeIndex::kTVMFFINone) return std::nullopt;
    return cast<T>(name, value);
  }
  std::optional<std::string> optional_string(std::string_view name) {
    const std::optional<ffi::String> value = optional<ffi::String>(name);
    return value ? std::optional<std::string>(*value) : std::nullopt;
  }
  std::vector<std::string> strings(std::string_view name) {
    return strings_of(get<ffi::Array<ffi::String>>(name));
  }
  std::optional<std::vector<std::string>> optional_strings(std::string_view name) {
    const auto value = optional<ffi::Array<ffi::String>>(name);
    if (!value) return std::nullopt;
    return strings_of(*value);
  }
  std::optional<ffi::Function> optional_function(std::string_view name) {
    return optional<ffi::Function>(name);
  }

  // An absent view for a null argument.
  template <typename View = TensorView>
  View tensor(std::string_view name, Place& place) {
    const ffi::AnyView value = any();
    if (value.type_index() == ffi::TypeIndex::kTVMFFINone) return {};
    const DLTensor* tensor = value.cast<DLTensor*>();
    place.add(name, tensor->device);
    return view_of<View>(name, *tensor);
  }
  // A tensor with one element, of any shape.
  TensorView scalar_tensor(std::string_view name, Place& place) {
    const ffi::AnyView value = any();
    if (value.type_index() == ffi::TypeIndex::kTVMFFINone) return {};
    const DLTensor* tensor = value.cast<DLTensor*>();
    place.add(name, tensor->device);
    if (tensor->ndim != 0) return view_of<TensorView>(name, *tensor);
    const char* data = static_cast<const char*>(tensor->data) + tensor->byte_offset;
    return TensorView::contiguous(data, dtype_of(name, tensor->dtype), {1});
  }

 private:
  // Python's TypeError, naming the argument.
  template <typename T>
  static T cast(std::string_view name, const ffi::AnyView& value) {
    if (std::optional<T> result = value.try_cast<T>()) return *std::move(result);
    const char* wanted = std::is_same_v<T, bool>            ? "True or False"
                         : std::is_integral_v<T>            ? "an integer"
                         : std::is_floating_point_v<T>      ? "a number"
                         : std::is_same_v<T, ffi::String>   ? "a str"
                         : std::is_same_v<T, ffi::Function> ? "a callable"
                                                            : "a list or object of the package";
    throw ffi::Error("TypeError",
                     std::string(name) + ": got " + value.GetTypeKey() + ", wanted " + wanted, "");
  }
  static std::vector<std::string> strings_of(const ffi::Array<ffi::String>& array) {
    std::vector<std::string> strings;
    for (const ffi::String& item : array) strings.emplace_back(item);
    return strings;
  }

  const ffi::AnyView* values_;
  int32_t count_;
  int32_t next_ = 0;
};

// The stream that the caller names, else the one that its framework works on.
StreamHandle stream_of(const std::optional<int64_t>& given, const Device& device) {
  if (device.kind != DeviceKind::kCuda) return nullptr;
  if (given) return reinterpret_cast<StreamHandle>(*given);
  return static_cast<StreamHandle>(TVMFFIEnvGetStream(kDLCUDA, device.index));
}

// ---- The cache of calls on a GPU ----

std::mutex default_cache_mutex;
std::vector<std::string> nvrtc_folders;
std::atomic<bool> default_cache_ready = false;

// Opens it with the folders of Python's NVRTC packages, unless the process has one already.
void ensure_default_cache() {
  if (default_cache_ready.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(default_cache_mutex);
  if (default_cache_ready.load(std::memory_order_relaxed)) return;
  JitOptions options;
  options.nvrtc_folders = nvrtc_folders;
  const Status set = set_default_kernel_cache(value_of(KernelCache::open(options)));
  if (!set.ok() && set.code() != StatusCode::kInternal) check(set);  // kInternal: it has one
  default_cache_ready.store(true, std::memory_order_release);
}

// ---- Attention ----

// Head dims as the tensors have them. Where q and k are both joined, `rope` says how much of a row
// is rope; it names the kernel and never changes a result.
HeadDims dims_of(const PrefillArgs& args, int32_t rope) {
  HeadDims dims;
  const auto parts = [&](std::string_view name, const TensorView& nope, const TensorView& pe) {
    if (nope.rank != 3) return;
    const int32_t rope_extent =
        pe.present() && pe.rank <= 3 ? extent(name, pe.shape[pe.rank - 1]) : 0;
    if (rope >= 0 && rope != rope_extent) {
      fail(StatusCode::kShape, "rope: got " + std::to_string(rope) + ", wanted " +
                                   std::to_string(rope_extent) + ", the last axis of " +
                                   std::string(name));
    }
    dims.nope = extent(name, nope.shape[2]);
    dims.rope = rope_extent;
  };
  if (args.q_nope.present()) {
    parts("q_pe", args.q_nope, args.q_pe);
  } else if (args.k_nope.present()) {
    parts("k_pe", args.k_nope, args.k_pe);
  } else if (args.q.rank == 3) {
    const int32_t row = extent("q", args.q.shape[2]);
    dims.rope = rope >= 0 ? rope : (row > 64 ? 64 : 0);
    dims.nope = row - dims.rope;
    if (dims.nope < 1) {
      fail(StatusCode::kShape, "rope: got " + std::to_string(dims.rope) + ", wanted less than " +
                                   std::to_string(row) + ", the last axis of q");
    }
  }
  if (args.v.rank == 3) dims.v = extent("v", args.v.shape[2]);
  return dims;
}

// What prefill() and prefill_layer() are given.
struct Call {
  PrefillProblem problem;
  PrefillArgs args;
  ExecutionOptions options;
  StreamHandle stream = nullptr;

  explicit Call(Arguments& in) {
    Place place;
    args.q = in.tensor("q", place);
    args.q_nope = in.tensor("q_nope", place);
    args.q_pe = in.tensor("q_pe", place);
    args.k = in.tensor("k", place);
    args.k_nope = in.tensor("k_nope", place);
    args.k_pe = in.tensor("k_pe", place);
    args.v = in.tensor("v", place);
    args.cu_seqlens_q = in.tensor("cu_seqlens_q", place);
    args.cu_seqlens_k = in.tensor("cu_seqlens_k", place);
    args.out = in.tensor<MutableTensorView>("out", place);
    args.lse = in.tensor<MutableTensorView>("lse", place);
    args.output_scale = in.scalar_tensor("output_scale", place);
    read_workspace(in, place);
    args.softmax_scale = static_cast<float>(in.get<double>("softmax_scale"));
    const int32_t rope = in.int32("rope");
    problem.mask.kind = in.enumerator<MaskKind>("mask");
    problem.mask.window_left = in.integer("window");
    problem.mask.window_right = in.integer("window");
    problem.lse_layout = in.enumerator<LseLayout>("lse_layout");
    args.max_seqlen_q = in.integer("max_seqlen_q");
    args.max_seqlen_k = in.integer("max_seqlen_k");
    problem.batch_invariant = in.get<bool>("batch_invariant");
    problem.num_splits = in.int32("num_splits");
    options.kernel = in.string("kernel");
    options.num_threads = in.int32("num_threads");
    options.checked = in.get<bool>("checked");
    finish(place, rope);
    stream = stream_of(in.optional<int64_t>("stream"), options.device);
  }
  Call() = default;

  // What the tensors say.
  void finish(const Place& place, int32_t rope) {
    const TensorView& q = args.q.present() ? args.q : args.q_nope;
    problem.dims = dims_of(args, rope);
    problem.dtype = q.dtype;
    if (q.rank == 3) problem.num_heads = extent("q", q.shape[1]);
    problem.out_dtype = args.out.dtype;
    problem.return_lse = args.lse.present();
    options.device = place.device();
    if (options.device.kind == DeviceKind::kCuda) ensure_default_cache();
  }

 private:
  void read_workspace(Arguments& in, Place& place) {
    const ffi::AnyView value = in.any();
    if (value.type_index() == ffi::TypeIndex::kTVMFFINone) return;
    const DLTensor* tensor = value.cast<DLTensor*>();
    place.add("workspace", tensor->device);
    if (tensor->ndim != 1 || tensor->dtype.code != kDLUInt || tensor->dtype.bits != 8) {
      fail(StatusCode::kWorkspace, "workspace: got rank " + std::to_string(tensor->ndim) + " of " +
                                       dtype_text(tensor->dtype) +
                                       ", wanted a dense tensor of uint8");
    }
    const auto address = reinterpret_cast<uintptr_t>(tensor->data) + tensor->byte_offset;
    const uintptr_t aligned = (address + 255) / 256 * 256;
    args.workspace = reinterpret_cast<void*>(aligned);
    args.workspace_bytes = tensor->shape[0] - static_cast<int64_t>(aligned - address);
  }
};

// Runs a call that has a workspace or needs none, and returns 0. Otherwise nothing has happened and
// the result is the bytes that it needs.
ffi::Any prefill_call(Arguments& in) {
  const Call call(in);
  const Status status = prefill(call.problem, call.args, call.options, call.stream);
  if (status.code() == StatusCode::kWorkspace && call.args.workspace == nullptr) {
    return value_of(prefill_workspace_bytes(call.problem, call.args, call.options));
  }
  check(status);
  return int64_t{0};
}

// As jax-tvm-ffi calls it: attributes, then inputs, then outputs. q and k come in as many parts as
// the first two say; the LSE is the second output, if there is one. Keys are not split: XLA would
// have to know the workspace when it compiles.
ffi::Any jax_prefill_call(Arguments& in) {
  const int64_t q_parts = in.integer("q_parts");
  const int64_t k_parts = in.integer("k_parts");
  Call call;
  call.args.softmax_scale = static_cast<float>(in.get<double>("softmax_scale"));
  const int32_t rope = in.int32("rope");
  call.problem.mask.kind = in.enumerator<MaskKind>("mask");
  call.problem.mask.window_left = in.integer("window");
  call.problem.mask.window_right = in.integer("window");
  call.problem.batch_invariant = true;
  Place place;
  PrefillArgs& args = call.args;
  (q_parts == 1 ? args.q : args.q_nope) = in.tensor(q_parts == 1 ? "q" : "q_nope", place);
  if (q_parts == 2) args.q_pe = in.tensor("q_pe", place);
  (k_parts == 1 ? args.k : args.k_nope) = in.tensor(k_parts == 1 ? "k" : "k_nope", place);
  if (k_parts == 2) args.k_pe = in.tensor("k_pe", place);
  args.v = in.tensor("v", place);
  args.cu_seqlens_q = in.tensor("cu_seqlens_q", place);
  args.cu_seqlens_k = in.tensor("cu_seqlens_k", place);
  args.out = in.tensor<MutableTensorView>("out", place);
  if (in.more()) args.lse = in.tensor<MutableTensorView>("lse", place);
  call.finish(place, rope);
  call.stream = stream_of(std::nullopt, call.options.device);
  check(prefill(call.problem, call.args, call.options, call.stream));
  return nullptr;
}

ffi::Any merge_states_call(Arguments& in) {
  Place place;
  MergeArgs args;
  args.prefix_out = in.tensor("prefix_out", place);
  args.prefix_lse = in.tensor("prefix_lse", place);
  args.suffix_out = in.tensor("suffix_out", place);
  args.suffix_lse = in.tensor("suffix_lse", place);
  args.out = in.tensor<MutableTensorView>("out", place);
  args.lse = in.tensor<MutableTensorView>("lse", place);
  args.output_scale = in.scalar_tensor("output_scale", place);
  args.lse_layout = in.enumerator<LseLayout>("lse_layout");
  args.tokens_with_prefix = in.integer("tokens_with_prefix");
  ExecutionOptions options;
  options.num_threads = in.int32("num_threads");
  options.device = place.device();
  if (options.device.kind == DeviceKind::kCuda) ensure_default_cache();
  check(merge_states(args, options, stream_of(in.optional<int64_t>("stream"), options.device)));
  return nullptr;
}

// ---- Context plans ----

class PlanObject : public ffi::Object {
 public:
  explicit PlanObject(ContextPlan given) : plan(std::move(given)) {}
  ContextPlan plan;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("flashprime.ContextPlan", PlanObject, ffi::Object);
};

class PlanRef : public ffi::ObjectRef {
 public:
  explicit PlanRef(ContextPlan plan)
      : ffi::ObjectRef(ffi::make_object<PlanObject>(std::move(plan))) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(PlanRef, ffi::ObjectRef, PlanObject);
};

ffi::Any plan_context_call(Arguments& in) {
  const bool greedy = in.get<bool>("planner");
  std::vector<int64_t> lens;
  for (const int64_t len : in.get<ffi::Array<int64_t>>("context_lens")) lens.push_back(len);
  ContextPlanOptions options;
  options.workspace_rows = in.integer("workspace_rows");
  options.block_size = in.integer("block_size");
  options.dcp_size = in.int32("dcp_size");
  options.dcp_interleave = in.integer("dcp_interleave");
  ContextPlan plan = value_of(greedy ? plan_context_greedy(lens, options)
                                     : plan_context_equal_slices(lens, options));
  List chunks;
  for (const ContextChunk& chunk : plan.chunks) {
    ffi::Array<int64_t> slices;  // request, start, length, request, ...
    for (const ContextSlice& slice : chunk.slices) {
      slices.push_back(slice.request);
      slices.push_back(slice.start);
      slices.push_back(slice.length);
    }
    ffi::Array<int64_t> cu;
    for (const int32_t entry : chunk.cu_seqlens_k) cu.push_back(entry);
    chunks.push_back(List{chunk.request_begin, chunk.request_end, slices, cu, chunk.max_seqlen_k,
                          chunk.has_empty_slice});
  }
  return List{PlanRef(std::move(plan)), chunks};
}

ffi::Any context_workspace_rows_call(Arguments& in) {
  ContextWorkspaceOptions options;
  options.max_model_len = in.integer("max_model_len");
  options.max_num_seqs = in.integer("max_num_seqs");
  options.block_size = in.integer("block_size");
  options.dcp_size = in.int32("dcp_size");
  options.dcp_interleave = in.integer("dcp_interleave");
  return value_of(context_workspace_rows(options));
}

// A source that calls Python, which gives five tensors or null, or null for an error that it keeps.
class PythonSource {
 public:
  PythonSource(ffi::Function function, Device device)
      : function_(std::move(function)), device_(device) {}

  StatusOr<KeyValueViews> operator()(const ContextChunk& chunk, StreamHandle) {
    try {
      held_ = function_(static_cast<int64_t>(chunk.index));
      if (held_ == nullptr) return Status(StatusCode::kInternal, "source: raised an exception");
      const List tensors = held_.cast<List>();
      Place place;
      place.add("q", device_.kind == DeviceKind::kCuda ? DLDevice{kDLCUDA, device_.index}
                                                       : DLDevice{kDLCPU, 0});
      const auto view = [&](int64_t i, std::string_view name) -> TensorView {
        const ffi::Any& item = tensors[i];
        if (item == nullptr) return {};
        const DLTensor* tensor = item.cast<DLTensor*>();
        place.add(name, tensor->device);
        return view_of<TensorView>(name, *tensor);
      };
      return KeyValueViews{view(0, "k"), view(1, "k_nope"), view(2, "k_pe"), view(3, "v"),
                           view(4, "cu_seqlens_k")};
    } catch (const ffi::Error& error) {
      failure_ = error;
      return Status(StatusCode::kInternal, error.message());
    }
  }

  // An error of the binding itself, which is more than a Status can carry.
  void rethrow() const {
    if (failure_) throw *failure_;
  }

 private:
  ffi::Function function_;
  Device device_;
  ffi::Any held_;  // the tensors of the latest chunk
  std::optional<ffi::Error> failure_;
};

// As prefill_call(). A null source asks for the workspace only.
ffi::Any prefill_layer_call(Arguments& in) {
  const Call call(in);
  const PlanRef plan = in.get<PlanRef>("plan");
  const std::optional<ffi::Function> function = in.optional_function("source");
  if (!function) {
    return value_of(
        prefill_layer_workspace_bytes(call.problem, call.args, plan->plan, call.options));
  }
  PythonSource source(*function, call.options.device);
  const Status status = prefill_layer(
      call.problem, call.args, plan->plan,
      [&](const ContextChunk& chunk, StreamHandle stream) { return source(chunk, stream); },
      call.options, call.stream);
  source.rethrow();
  check(status);
  return int64_t{0};
}

// ---- Selection ----

Device parse_device(const std::string& name) {
  if (name == "auto") return {};
  if (name == "cpu") return {DeviceKind::kCpu, 0};
  if (name == "cuda") return {DeviceKind::kCuda, 0};
  if (name.starts_with("cuda:") && name.size() > 5 && name.size() <= 8 &&
      name.find_first_not_of("0123456789", 5) == std::string::npos) {
    return {DeviceKind::kCuda, std::stoi(name.substr(5))};
  }
  fail(StatusCode::kDevice, "device: got \"" + name + "\", wanted auto, cpu or cuda:N");
}

PrefillProblem read_problem(Arguments& in) {
  PrefillProblem problem;
  problem.dims = {in.int32("nope"), in.int32("rope"), in.int32("v")};
  problem.num_heads = in.int32("num_heads");
  problem.dtype = in.enumerator<Dtype>("dtype");
  problem.out_dtype = in.enumerator<Dtype>("out_dtype");
  problem.mask.kind = in.enumerator<MaskKind>("mask");
  problem.mask.window_left = in.integer("window");
  problem.mask.window_right = in.integer("window");
  problem.return_lse = in.get<bool>("return_lse");
  problem.batch_invariant = in.get<bool>("batch_invariant");
  problem.num_splits = in.int32("num_splits");
  return problem;
}

List list_of(const std::vector<std::string>& strings) {
  List list;
  for (const std::string& item : strings) list.push_back(text(item));
  return list;
}

ffi::Any explain_call(Arguments& in) {
  const PrefillProblem problem = read_problem(in);
  ExecutionOptions options;
  options.device = parse_device(in.string("device"));
  options.kernel = in.string("kernel");
  const Explanation explanation = explain(problem, options);
  List verdicts;
  for (const KernelVerdict& verdict : explanation.verdicts) {
    verdicts.push_back(List{text(verdict.kernel), verdict.supported, list_of(verdict.reasons)});
  }
  return List{explanation.supported, text(explanation.kernel), text(explanation.detail), verdicts};
}

ffi::Any list_kernels_call(Arguments&) {
  List rows;
  for (const KernelInfo& row : list_kernels()) {
    rows.push_back(Dict{{"name", text(row.name)},
                        {"device", text(row.device == DeviceKind::kCuda ? "cuda" : "cpu")},
                        {"summary", text(row.summary)},
                        {"head_dims", text(row.head_dims)},
                        {"dtypes", text(row.dtypes)},
                        {"out_dtypes", text(row.out_dtypes)},
                        {"masks", text(row.masks)},
                        {"tested_on", text(row.tested_on)}});
  }
  return rows;
}

ffi::Any list_models_call(Arguments&) {
  List rows;
  for (const ModelPreset& model : list_models()) {
    rows.push_back(Dict{{"name", text(model.name)},
                        {"nope", model.dims.nope},
                        {"rope", model.dims.rope},
                        {"v", model.dims.v},
                        {"num_heads", model.num_heads},
                        {"num_layers", model.num_layers},
                        {"kv_lora_rank", model.kv_lora_rank},
                        {"q_lora_rank", model.q_lora_rank},
                        {"softmax_scale", double{model.softmax_scale()}},
                        {"source", text(model.source)}});
  }
  return rows;
}

ffi::Any library_info_call(Arguments&) {
  const CpuInfo cpu = cpu_info();
  return Dict{{"version", text(version())},
              {"build", text(build_description())},
              {"numerics_id", text(numerics_id())},
              {"isa_target", text(cpu.isa_target)},
              {"cpu", text(cpu.brand)},
              {"num_threads", cpu.num_threads}};
}

// ---- Kernels for GPUs ----

class CacheObject : public ffi::Object {
 public:
  explicit CacheObject(KernelCache given) : cache(std::move(given)) {}
  KernelCache cache;
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("flashprime.KernelCache", CacheObject, ffi::Object);
};

class CacheRef : public ffi::ObjectRef {
 public:
  explicit CacheRef(KernelCache cache)
      : ffi::ObjectRef(ffi::make_object<CacheObject>(std::move(cache))) {}
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NOTNULLABLE(CacheRef, ffi::ObjectRef, CacheObject);
};

// Python's handlers of events. The default cache outlives the interpreter, they must not.
struct EventHandler {
  std::mutex mutex;
  std::optional<ffi::Function> function;
};
std::mutex event_handlers_mutex;
std::vector<std::weak_ptr<EventHandler>> event_handlers;

std::function<void(const JitEvent&)> event_callback(ffi::Function function) {
  auto handler = std::make_shared<EventHandler>();
  handler->function = std::move(function);
  {
    const std::lock_guard lock(event_handlers_mutex);
    event_handlers.push_back(handler);
  }
  return [handler](const JitEvent& event) {
    std::optional<ffi::Function> call;
    {
      const std::lock_guard lock(handler->mutex);
      call = handler->function;
    }
    try {
      if (call) (*call)(text(event.kind), text(event.message));
    } catch (const ffi::Error&) {  // a handler's own failure is not the library's
    }
  };
}

ffi::Any forget_event_handlers_call(Arguments&) {
  const std::lock_guard lock(event_handlers_mutex);
  for (const std::weak_ptr<EventHandler>& weak : event_handlers) {
    if (const std::shared_ptr<EventHandler> handler = weak.lock()) {
      std::optional<ffi::Function> dropped;
      const std::lock_guard handler_lock(handler->mutex);
      handler->function.swap(dropped);
    }
  }
  event_handlers.clear();
  return nullptr;
}

ffi::Any set_nvrtc_folders_call(Arguments& in) {
  const std::lock_guard lock(default_cache_mutex);
  nvrtc_folders = in.strings("nvrtc_folders");
  return nullptr;
}

ffi::Any cache_open_call(Arguments& in) {
  JitOptions options;
  options.cache_dir = in.optional_string("cache_dir");
  options.shared_by_group = in.optional<bool>("shared_by_group");
  options.max_megabytes = in.optional<int64_t>("max_megabytes");
  options.read_only_dirs = in.strings("read_only_dirs");
  options.bundles = in.optional_strings("bundles");
  options.bundle_sha256 = in.optional_strings("bundle_sha256");
  if (const auto freeze = in.optional<int64_t>("freeze"))
    options.freeze = static_cast<FreezePolicy>(*freeze);
  options.lock_wait_seconds = in.optional<double>("lock_wait_seconds");
  options.dump_dir = in.optional_string("dump_dir");
  options.nvrtc_path = in.optional_string("nvrtc_path");
  options.kernel_dir = in.optional_string("kernel_dir");
  options.log = in.optional_string("log");
  if (auto handler = in.optional_function("on_event"))
    options.on_event = event_callback(*std::move(handler));
  {
    const std::lock_guard lock(default_cache_mutex);
    options.nvrtc_folders = nvrtc_folders;
  }
  return CacheRef(value_of(KernelCache::open(options)));
}

ffi::Any cache_default_call(Arguments&) {
  ensure_default_cache();
  return CacheRef(value_of(default_kernel_cache()));
}

ffi::Any cache_set_default_call(Arguments& in) {
  const CacheRef cache = in.get<CacheRef>("cache");
  const std::lock_guard lock(default_cache_mutex);
  check(set_default_kernel_cache(cache->cache));
  default_cache_ready.store(true, std::memory_order_release);
  return nullptr;
}

ffi::Any cache_set_freeze_call(Arguments& in) {
  const CacheRef cache = in.get<CacheRef>("cache");
  cache->cache.set_freeze(in.enumerator<FreezePolicy>("policy"));
  return nullptr;
}

ffi::Any cache_info_call(Arguments& in) {
  const JitInfo info = in.get<CacheRef>("cache")->cache.info();
  Dict counters;
  for (const auto& [name, count] : info.counters) counters.Set(text(name), count);
  return Dict{{"cache", text(info.cache)},
              {"cache_writable", info.cache_writable},
              {"read_only_dirs", list_of(info.read_only_dirs)},
              {"bundles", list_of(info.bundles)},
              {"compiler", text(info.compiler)},
              {"compiler_found", info.compiler_found},
              {"freeze", static_cast<int64_t>(info.freeze)},
              {"log", text(info.log)},
              {"counters", counters}};
}

List entries_of(const std::vector<CacheEntry>& entries) {
  List rows;
  for (const CacheEntry& entry : entries) {
    rows.push_back(Dict{{"path", text(entry.path)},
                        {"kernel", text(entry.kernel)},
                        {"arch", text(entry.arch)},
                        {"key", text(entry.key)},
                        {"kernel_id", text(entry.kernel_id)},
                        {"compiler", text(entry.compiler)},
                        {"bytes", entry.bytes},
                        {"age_seconds", entry.age_seconds},
                        {"problem", text(entry.status.ok() ? "" : entry.status.to_string())}});
  }
  return rows;
}

ffi::Any cache_entries_call(Arguments& in) {
  return entries_of(value_of(in.get<CacheRef>("cache")->cache.entries()));
}

Dict pruned(const PruneReport& report) {
  return Dict{{"removed", report.removed},
              {"removed_bytes", report.removed_bytes},
              {"kept", report.kept},
              {"kept_bytes", report.kept_bytes}};
}

ffi::Any cache_prune_call(Arguments& in) {
  const CacheRef cache = in.get<CacheRef>("cache");
  return pruned(value_of(cache->cache.prune(in.get<bool>("dry_run"))));
}

ffi::Any cache_clear_call(Arguments& in) {
  return pruned(value_of(in.get<CacheRef>("cache")->cache.clear()));
}

// A plan travels as its texts: [[kernel, arch, key, kernel_id], ...], [[what, arch, reason], ...].
List kernel_of(const PlannedKernel& kernel) {
  return List{text(kernel.kernel), text(kernel.arch), text(kernel.key), text(kernel.kernel_id)};
}

List plan_of(const KernelPlan& plan) {
  List kernels, skipped;
  for (const PlannedKernel& kernel : plan.kernels) kernels.push_back(kernel_of(kernel));
  for (const SkippedKernel& kernel : plan.skipped) {
    skipped.push_back(List{text(kernel.what), text(kernel.arch), text(kernel.reason)});
  }
  return List{kernels, skipped, text(plan.to_text())};
}

KernelPlan read_plan(Arguments& in) {
  KernelPlan plan;
  for (const ffi::Any& item : in.get<List>("plan")) {
    const auto fields = item.cast<ffi::Array<ffi::String>>();
    plan.kernels.push_back({fields[0], fields[1], fields[2], fields[3]});
  }
  return plan;
}

ffi::Any cache_plan_call(Arguments& in) {
  const CacheRef cache = in.get<CacheRef>("cache");
  PlanOptions options;
  options.dims = {in.int32("nope"), in.int32("rope"), in.int32("v")};
  options.dtype = in.enumerator<Dtype>("dtype");
  options.archs = in.strings("archs");
  options.e4m3_output = in.get<bool>("e4m3_output");
  options.all = in.get<bool>("all");
  return plan_of(value_of(cache->cache.plan(options)));
}

ffi::Any kernels_of_call(Arguments& in) {
  const PrefillProblem problem = read_problem(in);
  return plan_of(value_of(kernels_of(problem, in.string("arch"))));
}

ffi::Any parse_plan_call(Arguments& in) {
  const std::string plan_text = in.string("text");
  return plan_of(value_of(parse_plan(plan_text)));
}

List report_of(const KernelReport& report) {
  return List{kernel_of(report.kernel),
              text(kernel_origin_name(report.origin)),
              text(report.status.ok() ? "" : report.status.to_string()),
              report.queue_ms,
              report.lock_ms,
              report.compile_ms,
              report.publish_ms,
              report.load_ms,
              report.cubin_bytes,
              report.registers,
              report.stack_bytes,
              report.spill_store_bytes,
              report.spill_load_bytes,
              report.shared_bytes,
              list_of(report.warnings),
              text(report.compiler),
              text(report.min_driver)};
}

// Reads what cache_warmup and cache_pack have in common and runs either. The progress callback gets
// (done, total, report or null) and cancels what is left by a true result.
ffi::Any warm_up(Arguments& in, bool pack) {
  const CacheRef cache = in.get<CacheRef>("cache");
  const KernelPlan plan = read_plan(in);
  WarmupOptions options;
  options.mode = in.enumerator<WarmupMode>("mode");
  options.threads = in.int32("threads");
  options.deadline_seconds = in.get<double>("deadline");
  options.rank = in.int32("rank");
  options.world = in.int32("world");
  options.device = in.int32("device");
  const std::optional<ffi::Function> progress = in.optional_function("progress");
  const std::string path = pack ? in.string("path") : "";
  auto cancelled = std::make_shared<std::atomic<bool>>(false);
  if (progress) {
    options.on_progress = [progress, cancelled](const WarmupProgress& state) {
      try {
        const ffi::Any last =
            state.last != nullptr ? ffi::Any(report_of(*state.last)) : ffi::Any(nullptr);
        if ((*progress)(state.done, state.total, last).cast<bool>()) *cancelled = true;
      } catch (const ffi::Error&) {
        *cancelled = true;
      }
    };
    options.cancelled = [cancelled] { return cancelled->load(); };
  }
  const WarmupReport report =
      value_of(pack ? cache->cache.pack(plan, path, options) : cache->cache.warmup(plan, options));
  List kernels;
  for (const KernelReport& kernel : report.kernels) kernels.push_back(report_of(kernel));
  return List{kernels,
              text(report.status.ok() ? "" : status_code_name(report.status.code())),
              text(report.status.message()),
              report.wall_ms,
              report.cpu_ms,
              report.peak_rss_bytes,
              report.publish_failures,
              text(report.cache)};
}

ffi::Any cache_warmup_call(Arguments& in) {
  return warm_up(in, false);
}

ffi::Any cache_pack_call(Arguments& in) {
  return warm_up(in, true);
}

ffi::Any cache_unpack_call(Arguments& in) {
  const CacheRef cache = in.get<CacheRef>("cache");
  return value_of(cache->cache.unpack(in.string("bundle")));
}

ffi::Any cache_dump_call(Arguments& in) {
  const CacheRef cache = in.get<CacheRef>("cache");
  const KernelPlan plan = read_plan(in);
  if (plan.kernels.size() != 1) fail(StatusCode::kInternal, "dump: wanted one kernel");
  const KernelArtifacts made = value_of(cache->cache.dump(plan.kernels[0]));
  return Dict{{"source", text(made.source)},
              {"headers", list_of(made.headers)},
              {"options", list_of(made.options)},
              {"ptx", text(made.ptx)},
              {"cubin", ffi::Bytes(made.cubin.data(), made.cubin.size())},
              {"log", text(made.log)},
              {"compiler", text(made.compiler)}};
}

ffi::Any list_bundle_call(Arguments& in) {
  return entries_of(value_of(list_bundle(in.string("path"))));
}

ffi::Any missing_from_bundle_call(Arguments& in) {
  const std::string path = in.string("path");
  List missing;
  for (const PlannedKernel& kernel : value_of(missing_from_bundle(path, read_plan(in)))) {
    missing.push_back(kernel_of(kernel));
  }
  return missing;
}

ffi::Any device_architecture_call(Arguments& in) {
  return text(value_of(device_architecture(in.int32("device"))));
}

ffi::Any known_architectures_call(Arguments&) {
  return list_of(known_architectures());
}

ffi::Any architectures_for_capability_call(Arguments& in) {
  const int32_t major = in.int32("major");
  return list_of(architectures_for_capability(major, in.int32("minor")));
}

// ---- Memory of NumPy ----

// A view of memory that the caller keeps alive: NumPy's own DLPack has neither bf16 nor e4m3, and
// refuses memory that is read-only.
class HostView : public ffi::TensorObj {
 public:
  HostView(void* pointer, DLDataType type, const ffi::Array<int64_t>& extents,
           const ffi::Array<int64_t>& steps)
      : extents_(extents.begin(), extents.end()), steps_(steps.begin(), steps.end()) {
    data = pointer;
    device = {kDLCPU, 0};
    ndim = static_cast<int32_t>(extents_.size());
    dtype = type;
    shape = extents_.data();
    strides = steps_.data();
    byte_offset = 0;
  }

 private:
  std::vector<int64_t> extents_, steps_;
};

ffi::Any host_view_call(Arguments& in) {
  void* pointer = reinterpret_cast<void*>(in.integer("pointer"));
  const int64_t type = in.integer("dtype");  // of Dtype; -1: uint8, a workspace
  const DLDataType dtype =
      type < 0 ? DLDataType{kDLUInt, 8, 1} : dl_dtype(static_cast<Dtype>(type));
  const auto extents = in.get<ffi::Array<int64_t>>("shape");
  const auto steps = in.get<ffi::Array<int64_t>>("strides");
  return ffi::Tensor(ffi::make_object<HostView>(pointer, dtype, extents, steps));
}

ffi::Any fill_random_call(Arguments& in) {
  Place place;
  const MutableTensorView view = in.tensor<MutableTensorView>("tensor", place);
  if (place.device().kind != DeviceKind::kCpu) {
    fail(StatusCode::kDevice, "tensor: got memory of a GPU, wanted the host's");
  }
  RandomSpec spec;
  spec.seed = static_cast<uint64_t>(in.integer("seed"));
  spec.tensor_id = static_cast<uint32_t>(in.integer("tensor_id"));
  spec.first_row = static_cast<uint64_t>(in.integer("first_row"));
  spec.scale = static_cast<float>(in.get<double>("scale"));
  check(fill_random(view, spec));
  return nullptr;
}

}  // namespace
}  // namespace flashprime

// One exported function: `name` for Python is name_call above.
#define FLASHPRIME_PYTHON(name)                                                             \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args,          \
                                                     int32_t num_args, TVMFFIAny* result) { \
    TVM_FFI_SAFE_CALL_BEGIN();                                                              \
    flashprime::Arguments in(args, num_args);                                               \
    *reinterpret_cast<tvm::ffi::Any*>(result) = flashprime::name##_call(in);                \
    TVM_FFI_SAFE_CALL_END();                                                                \
  }

FLASHPRIME_PYTHON(prefill)
FLASHPRIME_PYTHON(prefill_layer)
FLASHPRIME_PYTHON(jax_prefill)
FLASHPRIME_PYTHON(merge_states)
FLASHPRIME_PYTHON(plan_context)
FLASHPRIME_PYTHON(context_workspace_rows)
FLASHPRIME_PYTHON(explain)
FLASHPRIME_PYTHON(list_kernels)
FLASHPRIME_PYTHON(list_models)
FLASHPRIME_PYTHON(library_info)
FLASHPRIME_PYTHON(set_nvrtc_folders)
FLASHPRIME_PYTHON(forget_event_handlers)
FLASHPRIME_PYTHON(cache_open)
FLASHPRIME_PYTHON(cache_default)
FLASHPRIME_PYTHON(cache_set_default)
FLASHPRIME_PYTHON(cache_set_freeze)
FLASHPRIME_PYTHON(cache_info)
FLASHPRIME_PYTHON(cache_entries)
FLASHPRIME_PYTHON(cache_prune)
FLASHPRIME_PYTHON(cache_clear)
FLASHPRIME_PYTHON(cache_plan)
FLASHPRIME_PYTHON(cache_warmup)
FLASHPRIME_PYTHON(cache_pack)
FLASHPRIME_PYTHON(cache_unpack)
FLASHPRIME_PYTHON(cache_dump)
FLASHPRIME_PYTHON(kernels_of)
FLASHPRIME_PYTHON(parse_plan)
FLASHPRIME_PYTHON(list_bundle)
FLASHPRIME_PYTHON(missing_from_bundle)
FLASHPRIME_PYTHON(device_architecture)
FLASHPRIME_PYTHON(known_architectures)
FLASHPRIME_PYTHON(architectures_for_capability)
FLASHPRIME_PYTHON(host_view)
FLASHPRIME_PYTHON(fill_random)
