// SPDX-License-Identifier: Apache-2.0
// C ABI of the library (C99 or later): a twin of every operation of the C++ headers, which say
// what each one computes. This page says only what differs.
//
// Calls return FLASHPRIME_OK or one of FLASHPRIME_E_*; flashprime_last_error_message() then has the
// reason. No exception crosses this interface. Every call is thread-safe as its twin is.
//
// Structs that may grow start with struct_size. Begin from their _INIT value, which sets it and the
// defaults, and then set fields. A struct of an older version of this header is shorter: its
// missing fields have their defaults. A longer one, from a newer header, is FLASHPRIME_E_SHAPE.
// Structs that a call fills are written up to their struct_size.
//
// Enumerations are int32_t fields with the constants below; booleans are 0 or 1.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "flashprime/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Status codes.
enum {
  FLASHPRIME_OK = 0,
  FLASHPRIME_E_SHAPE = 1,
  FLASHPRIME_E_UNSUPPORTED = 2,
  FLASHPRIME_E_DTYPE = 3,
  FLASHPRIME_E_STRIDE = 4,
  FLASHPRIME_E_ALIAS = 5,
  FLASHPRIME_E_NULL = 6,
  FLASHPRIME_E_ALIGNMENT = 7,
  FLASHPRIME_E_RANGE = 8,
  FLASHPRIME_E_CU_SEQLENS = 9,
  FLASHPRIME_E_NUMERIC = 10,
  FLASHPRIME_E_DEVICE = 11,
  FLASHPRIME_E_STREAM = 12,
  FLASHPRIME_E_NOT_WARM = 13,
  FLASHPRIME_E_FROZEN = 14,
  FLASHPRIME_E_ARCH = 15,
  FLASHPRIME_E_DRIVER = 16,
  FLASHPRIME_E_NO_COMPILER = 17,
  FLASHPRIME_E_WORKSPACE = 18,
  FLASHPRIME_E_PLAN = 19,
  FLASHPRIME_E_OUT_OF_MEMORY = 20,
  FLASHPRIME_E_PRIOR_CUDA_ERROR = 21,
  FLASHPRIME_E_FORMAT = 22,
  FLASHPRIME_E_IO = 23,
  FLASHPRIME_E_INTERNAL = 24
};

// flashprime_tensor.dtype
enum {
  FLASHPRIME_BF16 = 0,
  FLASHPRIME_FP16 = 1,
  FLASHPRIME_FP32 = 2,
  FLASHPRIME_FP64 = 3,
  FLASHPRIME_E4M3 = 4,
  FLASHPRIME_INT32 = 5
};

// flashprime_problem.mask
enum { FLASHPRIME_MASK_FULL = 0, FLASHPRIME_MASK_CAUSAL = 1, FLASHPRIME_MASK_WINDOW = 2 };

// lse_layout
enum { FLASHPRIME_HEADS_TOKENS = 0, FLASHPRIME_TOKENS_HEADS = 1 };

// flashprime_options.device
enum { FLASHPRIME_DEVICE_AUTO = 0, FLASHPRIME_DEVICE_CPU = 1, FLASHPRIME_DEVICE_CUDA = 2 };

// The driver's stream handle (CUstream, cudaStream_t). Ignored on a CPU.
struct CUstream_st;
typedef struct CUstream_st* flashprime_stream;

// ---- Errors and version ----

// Why the latest failed call on this thread failed; "" if none has. Valid until the next failure
// on this thread. Calls that succeed leave it alone.
FLASHPRIME_API const char* flashprime_last_error_message(void);

// For callbacks that are about to return an error: the message that the caller will read.
FLASHPRIME_API void flashprime_set_error_message(const char* message);

// "kShape" for FLASHPRIME_E_SHAPE. Static storage, never null.
FLASHPRIME_API const char* flashprime_status_name(int status);

// Static storage.
FLASHPRIME_API const char* flashprime_version(void);
FLASHPRIME_API const char* flashprime_build_description(void);
FLASHPRIME_API const char* flashprime_numerics_id(void);

// ---- Tensors ----

// A view of up to four axes; shape and stride in elements. Rank 0, all zeros: absent. Inputs are
// never written through `data`. This struct is part of others and never grows.
typedef struct flashprime_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
  int64_t capacity_bytes;  // bytes usable from data on; 0 or negative: not stated
} flashprime_tensor;

#define FLASHPRIME_TENSOR_NONE {NULL, 0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}, 0}

// Dense row-major views.
static inline flashprime_tensor flashprime_tensor_3d(void* data, int32_t dtype, int64_t extent0,
                                                     int64_t extent1, int64_t extent2) {
  flashprime_tensor view = FLASHPRIME_TENSOR_NONE;
  view.data = data;
  view.dtype = dtype;
  view.rank = 3;
  view.shape[0] = extent0;
  view.shape[1] = extent1;
  view.shape[2] = extent2;
  // Unsigned: a product that overflows wraps here and is refused (FLASHPRIME_E_RANGE) by the call.
  view.stride[0] = (int64_t)((uint64_t)extent1 * (uint64_t)extent2);
  view.stride[1] = extent2;
  view.stride[2] = 1;
  return view;
}

static inline flashprime_tensor flashprime_tensor_2d(void* data, int32_t dtype, int64_t extent0,
                                                     int64_t extent1) {
  flashprime_tensor view = FLASHPRIME_TENSOR_NONE;
  view.data = data;
  view.dtype = dtype;
  view.rank = 2;
  view.shape[0] = extent0;
  view.shape[1] = extent1;
  view.stride[0] = extent1;
  view.stride[1] = 1;
  return view;
}

static inline flashprime_tensor flashprime_tensor_1d(void* data, int32_t dtype, int64_t extent) {
  flashprime_tensor view = FLASHPRIME_TENSOR_NONE;
  view.data = data;
  view.dtype = dtype;
  view.rank = 1;
  view.shape[0] = extent;
  view.stride[0] = 1;
  return view;
}

// ---- How a call runs (execution.h). A null pointer to options means the defaults. ----

typedef void (*flashprime_loop_body)(void* body_context, int64_t i);

// Calls body(body_context, i) for every i in [0, n), in any order, on any threads, and returns when
// all are done.
typedef void (*flashprime_parallel_for)(void* user, int64_t n, flashprime_loop_body body,
                                        void* body_context);

typedef struct flashprime_options {
  size_t struct_size;
  int32_t device;
  int32_t device_index;
  const char* kernel;  // null or "": the selector chooses
  flashprime_parallel_for parallel_for;
  void* parallel_for_user;
  int32_t num_threads;
  int32_t checked;
} flashprime_options;

#define FLASHPRIME_OPTIONS_INIT \
  {sizeof(flashprime_options), FLASHPRIME_DEVICE_AUTO, 0, NULL, NULL, NULL, 0, 0}

// ---- Attention (prefill.h) ----

typedef struct flashprime_problem {
  size_t struct_size;
  int32_t nope;
  int32_t rope;
  int32_t v;
  int32_t num_heads;
  int32_t dtype;
  int32_t out_dtype;
  int32_t mask;
  int32_t return_lse;
  int64_t window_left;
  int64_t window_right;
  int32_t lse_layout;
  int32_t self_attention;
  int32_t batch_invariant;
  int32_t num_splits;
} flashprime_problem;

#define FLASHPRIME_PROBLEM_INIT \
  {sizeof(flashprime_problem),  \
   128,                         \
   64,                          \
   128,                         \
   1,                           \
   FLASHPRIME_BF16,             \
   FLASHPRIME_BF16,             \
   FLASHPRIME_MASK_CAUSAL,      \
   0,                           \
   -1,                          \
   -1,                          \
   FLASHPRIME_HEADS_TOKENS,     \
   0,                           \
   0,                           \
   0}

typedef struct flashprime_prefill_args {
  size_t struct_size;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  void* workspace;
  int64_t workspace_bytes;
  float softmax_scale;  // has no default: _INIT sets -1, which is refused
  int32_t reserved;     // 0
  flashprime_tensor q;
  flashprime_tensor q_nope;
  flashprime_tensor q_pe;
  flashprime_tensor k;
  flashprime_tensor k_nope;
  flashprime_tensor k_pe;
  flashprime_tensor v;
  flashprime_tensor cu_seqlens_q;
  flashprime_tensor cu_seqlens_k;
  flashprime_tensor out;
  flashprime_tensor lse;
  flashprime_tensor output_scale;
} flashprime_prefill_args;

#define FLASHPRIME_PREFILL_ARGS_INIT \
  {sizeof(flashprime_prefill_args),  \
   -1,                               \
   -1,                               \
   NULL,                             \
   0,                                \
   -1.0f,                            \
   0,                                \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE,           \
   FLASHPRIME_TENSOR_NONE}

FLASHPRIME_API int flashprime_prefill(const flashprime_problem* problem,
                                      const flashprime_prefill_args* args,
                                      const flashprime_options* options, flashprime_stream stream);

FLASHPRIME_API int flashprime_prefill_workspace_bytes(const flashprime_problem* problem,
                                                      const flashprime_prefill_args* args,
                                                      const flashprime_options* options,
                                                      int64_t* bytes);

// What flashprime_prefill() would run, as text (backend.h): the kernel and how it runs, or
// "unsupported", then a line for each kernel and reason. Writes at most buffer_bytes bytes with the
// final NUL; *needed_bytes, if not null, is the whole text's size with it, and *supported, if not
// null, 0 or 1. An unsupported problem is no error.
FLASHPRIME_API int flashprime_explain(const flashprime_problem* problem,
                                      const flashprime_options* options, char* buffer,
                                      size_t buffer_bytes, size_t* needed_bytes,
                                      int32_t* supported);

// ---- Merging (merge.h) ----

typedef struct flashprime_merge_args {
  size_t struct_size;
  int64_t tokens_with_prefix;
  int32_t lse_layout;
  int32_t reserved;  // 0
  flashprime_tensor prefix_out;
  flashprime_tensor prefix_lse;
  flashprime_tensor suffix_out;
  flashprime_tensor suffix_lse;
  flashprime_tensor out;
  flashprime_tensor lse;
  flashprime_tensor output_scale;
} flashprime_merge_args;

#define FLASHPRIME_MERGE_ARGS_INIT                        \
  {sizeof(flashprime_merge_args), -1,                     \
   FLASHPRIME_HEADS_TOKENS,       0,                      \
   FLASHPRIME_TENSOR_NONE,        FLASHPRIME_TENSOR_NONE, \
   FLASHPRIME_TENSOR_NONE,        FLASHPRIME_TENSOR_NONE, \
   FLASHPRIME_TENSOR_NONE,        FLASHPRIME_TENSOR_NONE, \
   FLASHPRIME_TENSOR_NONE}

FLASHPRIME_API int flashprime_merge_states(const flashprime_merge_args* args,
                                           const flashprime_options* options,
                                           flashprime_stream stream);

// ---- Context plans (context_plan.h) ----

typedef struct flashprime_plan_options {
  size_t struct_size;
  int64_t workspace_rows;
  int64_t block_size;
  int64_t dcp_interleave;
  int32_t dcp_size;
  int32_t reserved;  // 0
} flashprime_plan_options;

#define FLASHPRIME_PLAN_OPTIONS_INIT {sizeof(flashprime_plan_options), 65536, 16, 1, 1, 0}

// Context tokens [start, start + length) of one request. Never grows.
typedef struct flashprime_slice {
  int64_t request;
  int64_t start;
  int64_t length;
} flashprime_slice;

// One chunk of a plan; the arrays belong to the plan.
typedef struct flashprime_chunk {
  size_t struct_size;
  int64_t index;
  int64_t request_begin;
  int64_t request_end;
  const flashprime_slice* slices;  // one per request of the range
  const int32_t* cu_seqlens_k;     // one more than slices
  int64_t num_tokens;
  int64_t max_seqlen_k;
  int32_t has_empty_slice;
  int32_t reserved;
} flashprime_chunk;

#define FLASHPRIME_CHUNK_INIT {sizeof(flashprime_chunk), 0, 0, 0, NULL, NULL, 0, 0, 0, 0}

// Immutable; usable from any number of threads until it is destroyed.
typedef struct flashprime_plan flashprime_plan;

// *plan is a new plan, to be destroyed by the caller, or null on an error.
FLASHPRIME_API int flashprime_plan_equal_slices(const int64_t* context_lens, size_t num_requests,
                                                const flashprime_plan_options* options,
                                                flashprime_plan** plan);
FLASHPRIME_API int flashprime_plan_greedy(const int64_t* context_lens, size_t num_requests,
                                          const flashprime_plan_options* options,
                                          flashprime_plan** plan);
// A null plan is fine.
FLASHPRIME_API void flashprime_plan_destroy(flashprime_plan* plan);

// 0 for a null plan.
FLASHPRIME_API size_t flashprime_plan_num_requests(const flashprime_plan* plan);
FLASHPRIME_API size_t flashprime_plan_num_chunks(const flashprime_plan* plan);
FLASHPRIME_API int flashprime_plan_chunk(const flashprime_plan* plan, size_t index,
                                         flashprime_chunk* chunk);

typedef struct flashprime_workspace_rule {
  size_t struct_size;
  int64_t max_model_len;
  int64_t max_num_seqs;
  int64_t block_size;
  int64_t dcp_interleave;
  int32_t dcp_size;
  int32_t reserved;  // 0
} flashprime_workspace_rule;

#define FLASHPRIME_WORKSPACE_RULE_INIT {sizeof(flashprime_workspace_rule), 0, 0, 16, 1, 1, 0}

FLASHPRIME_API int flashprime_context_workspace_rows(const flashprime_workspace_rule* rule,
                                                     int64_t* rows);

// ---- A layer (prefill_layer.h) ----

typedef struct flashprime_key_values {
  size_t struct_size;
  flashprime_tensor k;
  flashprime_tensor k_nope;
  flashprime_tensor k_pe;
  flashprime_tensor v;
  flashprime_tensor cu_seqlens_k;
} flashprime_key_values;

#define FLASHPRIME_KEY_VALUES_INIT                                                \
  {sizeof(flashprime_key_values), FLASHPRIME_TENSOR_NONE, FLASHPRIME_TENSOR_NONE, \
   FLASHPRIME_TENSOR_NONE,        FLASHPRIME_TENSOR_NONE, FLASHPRIME_TENSOR_NONE}

// Fills in the keys and values of a chunk (which come with all tensors absent) and returns
// FLASHPRIME_OK, or any other code, which the layer call then returns unchanged. It may set a
// message first: flashprime_set_error_message().
typedef int (*flashprime_context_source)(void* user, const flashprime_chunk* chunk,
                                         flashprime_stream stream,
                                         flashprime_key_values* key_values);

// Ready views, one per chunk: the `user` of flashprime_context_from_views, which is a source.
typedef struct flashprime_view_list {
  const flashprime_key_values* views;
  size_t num_views;
} flashprime_view_list;

FLASHPRIME_API int flashprime_context_from_views(void* view_list, const flashprime_chunk* chunk,
                                                 flashprime_stream stream,
                                                 flashprime_key_values* key_values);

// A null plan is an empty one.
FLASHPRIME_API int flashprime_prefill_layer(const flashprime_problem* problem,
                                            const flashprime_prefill_args* args,
                                            const flashprime_plan* plan,
                                            flashprime_context_source source, void* source_user,
                                            const flashprime_options* options,
                                            flashprime_stream stream);

FLASHPRIME_API int flashprime_prefill_layer_workspace_bytes(const flashprime_problem* problem,
                                                            const flashprime_prefill_args* args,
                                                            const flashprime_plan* plan,
                                                            const flashprime_options* options,
                                                            int64_t* bytes);

// ---- Kernels for GPUs (jit.h) ----

// flashprime_cache_options.freeze
enum { FLASHPRIME_FREEZE_ALLOW = 0, FLASHPRIME_FREEZE_WARN = 1, FLASHPRIME_FREEZE_ERROR = 2 };

// flashprime_warmup_options.mode
enum {
  FLASHPRIME_WARMUP_MISSING = 0,
  FLASHPRIME_WARMUP_FORCE = 1,
  FLASHPRIME_WARMUP_LOAD_ONLY = 2,
  FLASHPRIME_WARMUP_DRY_RUN = 3
};

// Where a kernel came from.
enum {
  FLASHPRIME_ORIGIN_FAILED = 0,
  FLASHPRIME_ORIGIN_MEMORY = 1,
  FLASHPRIME_ORIGIN_BUNDLE = 2,
  FLASHPRIME_ORIGIN_DISK = 3,
  FLASHPRIME_ORIGIN_WAITED = 4,
  FLASHPRIME_ORIGIN_COMPILED = 5,
  FLASHPRIME_ORIGIN_SKIPPED = 6
};

// Called on any thread.
typedef void (*flashprime_event_callback)(void* user, const char* kind, const char* message);

// What is null or negative is taken from the environment, as JitOptions says.
typedef struct flashprime_cache_options {
  size_t struct_size;
  const char* cache_dir;
  const char* bundles;        // separated by ':'
  const char* bundle_sha256;  // likewise
  const char* nvrtc_path;
  const char* kernel_dir;
  const char* dump_dir;
  const char* log;
  int64_t max_megabytes;
  double lock_wait_seconds;
  int32_t freeze;
  int32_t shared_by_group;
  flashprime_event_callback on_event;
  void* on_event_user;
} flashprime_cache_options;

#define FLASHPRIME_CACHE_OPTIONS_INIT \
  {sizeof(flashprime_cache_options),  \
   NULL,                              \
   NULL,                              \
   NULL,                              \
   NULL,                              \
   NULL,                              \
   NULL,                              \
   NULL,                              \
   -1,                                \
   -1.0,                              \
   -1,                                \
   -1,                                \
   NULL,                              \
   NULL}

// Usable from any number of threads until it is closed. Handles may share what they hold.
typedef struct flashprime_cache flashprime_cache;

FLASHPRIME_API int flashprime_cache_open(const flashprime_cache_options* options,
                                         flashprime_cache** cache);
// The one that calls on a GPU take their kernels from.
FLASHPRIME_API int flashprime_cache_default(flashprime_cache** cache);
// FLASHPRIME_E_INTERNAL once it is in use.
FLASHPRIME_API int flashprime_cache_set_default(const flashprime_cache* cache);
FLASHPRIME_API int flashprime_cache_set_freeze(const flashprime_cache* cache, int32_t freeze);
// Null is fine. What was made from the cache stays.
FLASHPRIME_API void flashprime_cache_close(flashprime_cache* cache);

// "sm_90a" for a device of this machine; at most buffer_bytes bytes with the final NUL, 16 suffice.
FLASHPRIME_API int flashprime_device_architecture(int32_t ordinal, char* buffer,
                                                  size_t buffer_bytes);

typedef struct flashprime_kernel_plan_options {
  size_t struct_size;
  int32_t nope;
  int32_t rope;
  int32_t v;
  int32_t dtype;
  const char* archs;  // "sm_90a,sm_120a"
  int32_t e4m3_output;
  int32_t all;
} flashprime_kernel_plan_options;

#define FLASHPRIME_KERNEL_PLAN_OPTIONS_INIT \
  {sizeof(flashprime_kernel_plan_options), 128, 64, 128, FLASHPRIME_BF16, NULL, 0, 0}

// Immutable; usable from any number of threads until it is destroyed.
typedef struct flashprime_kernel_plan flashprime_kernel_plan;

// Texts belong to what they came from.
typedef struct flashprime_planned_kernel {
  size_t struct_size;
  const char* kernel;
  const char* arch;
  const char* key;
  const char* kernel_id;
} flashprime_planned_kernel;

#define FLASHPRIME_PLANNED_KERNEL_INIT {sizeof(flashprime_planned_kernel), NULL, NULL, NULL, NULL}

typedef struct flashprime_skipped_kernel {
  size_t struct_size;
  const char* what;
  const char* arch;
  const char* reason;
} flashprime_skipped_kernel;

#define FLASHPRIME_SKIPPED_KERNEL_INIT {sizeof(flashprime_skipped_kernel), NULL, NULL, NULL}

FLASHPRIME_API int flashprime_kernel_plan_create(const flashprime_cache* cache,
                                                 const flashprime_kernel_plan_options* options,
                                                 flashprime_kernel_plan** plan);
// A null plan is fine.
FLASHPRIME_API void flashprime_kernel_plan_destroy(flashprime_kernel_plan* plan);
// 0 for a null plan.
FLASHPRIME_API size_t flashprime_kernel_plan_num_kernels(const flashprime_kernel_plan* plan);
FLASHPRIME_API size_t flashprime_kernel_plan_num_skipped(const flashprime_kernel_plan* plan);
FLASHPRIME_API int flashprime_kernel_plan_kernel(const flashprime_kernel_plan* plan, size_t index,
                                                 flashprime_planned_kernel* kernel);
FLASHPRIME_API int flashprime_kernel_plan_skipped(const flashprime_kernel_plan* plan, size_t index,
                                                  flashprime_skipped_kernel* kernel);

typedef struct flashprime_warmup_progress {
  size_t struct_size;
  int64_t done;
  int64_t total;
  const flashprime_planned_kernel* last;  // that has just finished; null: time has passed
  double last_compile_ms;
  int32_t last_origin;
  int32_t reserved;
} flashprime_warmup_progress;

// Called on the calling thread, after each kernel and ten times a second. Anything but 0 cancels
// what is left.
typedef int (*flashprime_progress_callback)(void* user, const flashprime_warmup_progress* progress);

typedef struct flashprime_warmup_options {
  size_t struct_size;
  int32_t mode;
  int32_t threads;
  int32_t rank;
  int32_t world;
  int32_t device;
  int32_t reserved;  // 0
  double deadline_seconds;
  flashprime_progress_callback on_progress;
  void* on_progress_user;
} flashprime_warmup_options;

#define FLASHPRIME_WARMUP_OPTIONS_INIT \
  {sizeof(flashprime_warmup_options), FLASHPRIME_WARMUP_MISSING, 0, 0, 1, 0, 0, 0.0, NULL, NULL}

typedef struct flashprime_warmup_report {
  size_t struct_size;
  int64_t failed;  // how many kernels, by origin
  int64_t memory;
  int64_t bundle;
  int64_t disk;
  int64_t waited;
  int64_t compiled;
  int64_t skipped;
  int64_t publish_failures;
  int64_t cubin_bytes;
  int64_t peak_rss_bytes;
  double wall_ms;
  double cpu_ms;
  int32_t complete;  // all kernels are there
  int32_t reserved;
} flashprime_warmup_report;

#define FLASHPRIME_WARMUP_REPORT_INIT \
  {sizeof(flashprime_warmup_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0}

// Fills in the report, if not null, and then returns the error of the kernels that failed; the
// message has all of them. Kernels that were only skipped are no error: see `complete`.
FLASHPRIME_API int flashprime_warmup(const flashprime_cache* cache,
                                     const flashprime_kernel_plan* plan,
                                     const flashprime_warmup_options* options,
                                     flashprime_warmup_report* report);

// Warms up likewise, then writes all kernels to a bundle; without all of them it writes none.
FLASHPRIME_API int flashprime_pack_bundle(const flashprime_cache* cache,
                                          const flashprime_kernel_plan* plan, const char* path,
                                          const flashprime_warmup_options* options,
                                          flashprime_warmup_report* report);

// How many kernels of the plan the bundle lacks.
FLASHPRIME_API int flashprime_missing_from_bundle(const char* path,
                                                  const flashprime_kernel_plan* plan,
                                                  int64_t* missing);

// ---- Models (models.h) ----

typedef struct flashprime_model {
  size_t struct_size;
  const char* name;    // static storage
  const char* source;  // static storage
  int32_t nope;
  int32_t rope;
  int32_t v;
  int32_t num_heads;
  int32_t num_layers;
  int32_t kv_lora_rank;
  int32_t q_lora_rank;
  float softmax_scale;
  double scale_factor;
} flashprime_model;

#define FLASHPRIME_MODEL_INIT {sizeof(flashprime_model), NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0.0f, 0.0}

FLASHPRIME_API size_t flashprime_num_models(void);
FLASHPRIME_API int flashprime_model_at(size_t index, flashprime_model* model);
FLASHPRIME_API int flashprime_find_model(const char* name, flashprime_model* model);
FLASHPRIME_API int flashprime_heads_per_rank(const flashprime_model* model,
                                             int32_t tensor_parallel_size, int32_t* num_heads);

// ---- Test data (random.h) ----

typedef struct flashprime_random_spec {
  size_t struct_size;
  uint64_t seed;
  uint64_t first_row;
  uint32_t tensor_id;
  float scale;
} flashprime_random_spec;

#define FLASHPRIME_RANDOM_SPEC_INIT {sizeof(flashprime_random_spec), 0, 0, 0, 1.0f}

FLASHPRIME_API int flashprime_fill_random(const flashprime_tensor* view,
                                          const flashprime_random_spec* spec);

#ifdef __cplusplus
}
#endif
