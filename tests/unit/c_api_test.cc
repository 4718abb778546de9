// SPDX-License-Identifier: Apache-2.0
#include "flashprime/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "c_api_structs.h"
#include "flashprime/models.h"
#include "flashprime/status.h"
#include "flashprime/version.h"
#include "unit/layer/layer_batch.h"

namespace flashprime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LayerBatch;
using ::testing::StartsWith;
using testing::Workspace;

flashprime_tensor to_c(const TensorView& view) {
  flashprime_tensor tensor = FLASHPRIME_TENSOR_NONE;
  tensor.data = const_cast<void*>(view.data);
  tensor.dtype = static_cast<int32_t>(view.dtype);
  tensor.rank = view.rank;
  for (int axis = 0; axis < 4; ++axis) {
    tensor.shape[axis] = view.shape[axis];
    tensor.stride[axis] = view.stride[axis];
  }
  return tensor;
}

// One batch as C structs, its outputs, and the same through the C++ API.
struct TwinCall {
  TwinCall() {
    problem.nope = 16;
    problem.rope = 8;
    problem.v = 16;
    problem.num_heads = 2;
    problem.out_dtype = FLASHPRIME_FP32;
    problem.return_lse = 1;
    const PrefillArgs cpp = batch.new_token_args();
    args.q = to_c(cpp.q);
    args.k = to_c(cpp.k);
    args.v = to_c(cpp.v);
    args.cu_seqlens_q = args.cu_seqlens_k = to_c(cpp.cu_seqlens_q);
    args.softmax_scale = cpp.softmax_scale;
    args.out = flashprime_tensor_3d(out.data(), FLASHPRIME_FP32, batch.tokens(), 2, 16);
    args.lse = flashprime_tensor_2d(lse.data(), FLASHPRIME_FP32, 2, batch.tokens());
  }
  PrefillArgs cpp_args() {
    PrefillArgs cpp = batch.new_token_args();
    cpp.out = MutableTensorView::contiguous(cpp_out.data(), Dtype::kFp32, {batch.tokens(), 2, 16});
    cpp.lse = MutableTensorView::contiguous(cpp_lse.data(), Dtype::kFp32, {2, batch.tokens()});
    return cpp;
  }
  void expect_same_bits() const {
    EXPECT_EQ(std::memcmp(out.data(), cpp_out.data(), out.size() * 4), 0);
    EXPECT_EQ(std::memcmp(lse.data(), cpp_lse.data(), lse.size() * 4), 0);
  }

  LayerBatch batch{{5, 3}, {40, 20}, {16, 8, 16}, 2};
  std::vector<float> out = std::vector<float>(8 * 2 * 16, -1.0f);
  std::vector<float> lse = std::vector<float>(8 * 2, -1.0f);
  std::vector<float> cpp_out = std::vector<float>(8 * 2 * 16, -2.0f);
  std::vector<float> cpp_lse = std::vector<float>(8 * 2, -2.0f);
  flashprime_problem problem = FLASHPRIME_PROBLEM_INIT;
  flashprime_prefill_args args = FLASHPRIME_PREFILL_ARGS_INIT;
};

TEST(CApi, PrefillHasTheBitsOfTheCppCall) {
  TwinCall call;
  ASSERT_EQ(flashprime_prefill(&call.problem, &call.args, nullptr, nullptr), FLASHPRIME_OK)
      << flashprime_last_error_message();
  ASSERT_TRUE(prefill(call.batch.problem, call.cpp_args()).ok());
  call.expect_same_bits();
  int64_t bytes = -1;
  EXPECT_EQ(flashprime_prefill_workspace_bytes(&call.problem, &call.args, nullptr, &bytes),
            FLASHPRIME_OK);
  EXPECT_EQ(bytes, *prefill_workspace_bytes(call.batch.problem, call.cpp_args()));
}

int gather(void* user, const flashprime_chunk* chunk, flashprime_stream,
           flashprime_key_values* key_values) {
  LayerBatch& batch = *static_cast<LayerBatch*>(user);
  ContextChunk cpp;
  cpp.index = static_cast<int32_t>(chunk->index);
  for (int64_t i = 0; i < chunk->request_end - chunk->request_begin; ++i) {
    const flashprime_slice& slice = chunk->slices[i];
    EXPECT_EQ(slice.request, chunk->request_begin + i);
    EXPECT_EQ(chunk->cu_seqlens_k[i + 1] - chunk->cu_seqlens_k[i], slice.length);
    cpp.slices.push_back({static_cast<int32_t>(slice.request), slice.start, slice.length});
  }
  const KeyValueViews views = *batch.gathering_source()(cpp, nullptr);
  key_values->k = to_c(views.k);
  key_values->v = to_c(views.v);
  return FLASHPRIME_OK;
}

TEST(CApi, PrefillLayerHasTheBitsOfTheCppCall) {
  TwinCall call;
  flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
  options.workspace_rows = 32;
  flashprime_plan* plan = nullptr;
  ASSERT_EQ(flashprime_plan_greedy(call.batch.context_lens.data(), 2, &options, &plan),
            FLASHPRIME_OK);
  int64_t bytes = 0;
  ASSERT_EQ(
      flashprime_prefill_layer_workspace_bytes(&call.problem, &call.args, plan, nullptr, &bytes),
      FLASHPRIME_OK);
  Workspace workspace(bytes);
  call.args.workspace = workspace.data();
  call.args.workspace_bytes = bytes;
  ASSERT_EQ(flashprime_prefill_layer(&call.problem, &call.args, plan, &gather, &call.batch, nullptr,
                                     nullptr),
            FLASHPRIME_OK)
      << flashprime_last_error_message();
  flashprime_plan_destroy(plan);

  ContextPlanOptions cpp_options;
  cpp_options.workspace_rows = 32;
  PrefillArgs args = call.cpp_args();
  args.workspace = workspace.data();
  args.workspace_bytes = bytes;
  ASSERT_TRUE(prefill_layer(call.batch.problem, args,
                            *plan_context_greedy(call.batch.context_lens, cpp_options),
                            call.batch.gathering_source())
                  .ok());
  call.expect_same_bits();
}

TEST(CApi, ALayerWithoutPlanIsPrefill) {
  TwinCall call;
  ASSERT_EQ(flashprime_prefill_layer(&call.problem, &call.args, nullptr, nullptr, nullptr, nullptr,
                                     nullptr),
            FLASHPRIME_OK)
      << flashprime_last_error_message();
  ASSERT_TRUE(prefill(call.batch.problem, call.cpp_args()).ok());
  call.expect_same_bits();
}

TEST(CApi, ReturnsCodesAndMessagesOfASourceUnchanged) {
  TwinCall call;
  flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
  options.workspace_rows = 64;
  flashprime_plan* plan = nullptr;
  ASSERT_EQ(flashprime_plan_greedy(call.batch.context_lens.data(), 2, &options, &plan),
            FLASHPRIME_OK);
  Workspace workspace(1 << 16);
  call.args.workspace = workspace.data();
  call.args.workspace_bytes = workspace.bytes();
  const auto run = [&](flashprime_context_source source, void* user) {
    return flashprime_prefill_layer(&call.problem, &call.args, plan, source, user, nullptr,
                                    nullptr);
  };
  EXPECT_EQ(
      run(
          [](void*, const flashprime_chunk*, flashprime_stream, flashprime_key_values*) -> int {
            flashprime_set_error_message("page 7 is gone");
            return FLASHPRIME_E_IO;
          },
          nullptr),
      FLASHPRIME_E_IO);
  EXPECT_STREQ(flashprime_last_error_message(), "page 7 is gone");
  EXPECT_EQ(run([](void*, const flashprime_chunk*, flashprime_stream,
                   flashprime_key_values*) -> int { return 4711; },
                nullptr),
            4711);
  EXPECT_THAT(flashprime_last_error_message(), HasSubstr("returned 4711 for context chunk 0"));
  const auto with_lengths = [](void* user, const flashprime_chunk* chunk, flashprime_stream stream,
                               flashprime_key_values* key_values) -> int {
    auto& twin = *static_cast<TwinCall*>(user);
    key_values->cu_seqlens_k = twin.args.cu_seqlens_k;
    return gather(&twin.batch, chunk, stream, key_values);
  };
  EXPECT_EQ(run(with_lengths, &call), FLASHPRIME_E_CU_SEQLENS);
  EXPECT_THAT(flashprime_last_error_message(),
              HasSubstr("cu_seqlens_k: got a tensor from the context source, wanted none"));
  EXPECT_EQ(run(nullptr, nullptr), FLASHPRIME_E_NULL);
  flashprime_view_list none = {nullptr, 0};
  EXPECT_EQ(run(&flashprime_context_from_views, &none), FLASHPRIME_E_NULL);
  flashprime_key_values views = FLASHPRIME_KEY_VALUES_INIT;
  flashprime_view_list too_few = {&views, 0};
  EXPECT_EQ(run(&flashprime_context_from_views, &too_few), FLASHPRIME_E_PLAN);
  flashprime_view_list absent = {&views, 1};
  EXPECT_EQ(run(&flashprime_context_from_views, &absent), FLASHPRIME_E_SHAPE);
  EXPECT_THAT(flashprime_last_error_message(), StartsWith("context chunk 0: "));
  flashprime_plan_destroy(plan);
}

TEST(CApi, MergesTwoStates) {
  std::vector<float> prefix = {1.0f}, suffix = {3.0f}, lse_p = {0.0f}, lse_s = {0.0f};
  std::vector<float> out = {0.0f}, lse = {0.0f};
  flashprime_merge_args args = FLASHPRIME_MERGE_ARGS_INIT;
  args.prefix_out = flashprime_tensor_3d(prefix.data(), FLASHPRIME_FP32, 1, 1, 1);
  args.suffix_out = flashprime_tensor_3d(suffix.data(), FLASHPRIME_FP32, 1, 1, 1);
  args.out = flashprime_tensor_3d(out.data(), FLASHPRIME_FP32, 1, 1, 1);
  args.prefix_lse = flashprime_tensor_2d(lse_p.data(), FLASHPRIME_FP32, 1, 1);
  args.suffix_lse = flashprime_tensor_2d(lse_s.data(), FLASHPRIME_FP32, 1, 1);
  args.lse = flashprime_tensor_2d(lse.data(), FLASHPRIME_FP32, 1, 1);
  ASSERT_EQ(flashprime_merge_states(&args, nullptr, nullptr), FLASHPRIME_OK)
      << flashprime_last_error_message();
  EXPECT_FLOAT_EQ(out[0], 2.0f);
  EXPECT_FLOAT_EQ(lse[0], 0.6931472f);
  args.tokens_with_prefix = 0;
  ASSERT_EQ(flashprime_merge_states(&args, nullptr, nullptr), FLASHPRIME_OK);
  EXPECT_EQ(out[0], 3.0f);
  args.out.dtype = 77;
  EXPECT_EQ(flashprime_merge_states(&args, nullptr, nullptr), FLASHPRIME_E_DTYPE);
  EXPECT_STREQ(flashprime_last_error_message(), "out.dtype: got 77, wanted 0 to 5");
}

TEST(CApi, ShowsPlansChunkByChunk) {
  const std::vector<int64_t> lens = {40, 0, 20};
  flashprime_plan_options options = FLASHPRIME_PLAN_OPTIONS_INIT;
  options.workspace_rows = 32;
  flashprime_plan* plan = nullptr;
  ASSERT_EQ(flashprime_plan_equal_slices(lens.data(), 3, &options, &plan), FLASHPRIME_OK);
  EXPECT_EQ(flashprime_plan_num_requests(plan), 3u);
  ASSERT_EQ(flashprime_plan_num_chunks(plan), 3u);
  flashprime_chunk chunk = FLASHPRIME_CHUNK_INIT;
  ASSERT_EQ(flashprime_plan_chunk(plan, 1, &chunk), FLASHPRIME_OK);
  EXPECT_EQ(chunk.index, 1);
  EXPECT_EQ(chunk.request_begin, 0);
  EXPECT_EQ(chunk.request_end, 3);
  EXPECT_EQ(chunk.slices[2].start, 16);
  EXPECT_EQ(chunk.slices[2].length, 4);
  EXPECT_EQ(chunk.cu_seqlens_k[3], 20);
  EXPECT_EQ(chunk.num_tokens, 20);
  EXPECT_EQ(chunk.max_seqlen_k, 16);
  EXPECT_EQ(chunk.has_empty_slice, 1);
  EXPECT_EQ(chunk.struct_size, sizeof(flashprime_chunk));
  EXPECT_EQ(flashprime_plan_chunk(plan, 3, &chunk), FLASHPRIME_E_RANGE);
  EXPECT_EQ(flashprime_plan_chunk(plan, 0, nullptr), FLASHPRIME_E_NULL);
  flashprime_plan_destroy(plan);
  flashprime_plan_destroy(nullptr);

  options.workspace_rows = 0;
  EXPECT_EQ(flashprime_plan_greedy(lens.data(), 3, &options, &plan), FLASHPRIME_E_SHAPE);
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(flashprime_plan_greedy(nullptr, 3, nullptr, &plan), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_plan_greedy(lens.data(), 3, nullptr, nullptr), FLASHPRIME_E_NULL);
  EXPECT_EQ(flashprime_plan_num_chunks(nullptr), 0u);

  flashprime_workspace_rule rule = FLASHPRIME_WORKSPACE_RULE_INIT;
  int64_t rows = 0;
  EXPECT_EQ(flashprime_context_workspace_rows(&rule, &rows), FLASHPRIME_E_SHAPE);
  rule.max_model_len = 1000;
  rule.max_num_seqs = 4;
  EXPECT_EQ(flashprime_context_workspace_rows(&rule, &rows), FLASHPRIME_OK);
  EXPECT_EQ(rows, 8000);
}

TEST(CApi, ExplainsIntoABufferAndTellsItsSize) {
  flashprime_problem problem = FLASHPRIME_PROBLEM_INIT;
  flashprime_options options = FLASHPRIME_OPTIONS_INIT;
  options.kernel = "cpu_reference";
  int32_t supported = -1;
  size_t needed = 0;
  ASSERT_EQ(flashprime_explain(&problem, &options, nullptr, 0, &needed, &supported), FLASHPRIME_OK);
  EXPECT_EQ(supported, 1);
  std::string text(needed, '?');
  ASSERT_EQ(flashprime_explain(&problem, &options, text.data(), text.size(), nullptr, nullptr),
            FLASHPRIME_OK);
  EXPECT_EQ(text.find('\0'), needed - 1);
  EXPECT_THAT(text, AllOf(StartsWith("cpu_reference: "), HasSubstr("cpu_fast: kernel: got ")));
  char small[6] = {1, 1, 1, 1, 1, 1};
  ASSERT_EQ(flashprime_explain(&problem, &options, small, 5, &needed, nullptr), FLASHPRIME_OK);
  EXPECT_STREQ(small, "cpu_");
  EXPECT_EQ(small[5], 1);
  options.device = FLASHPRIME_DEVICE_CUDA;
  options.device_index = 99;
  text.assign(4096, '?');
  ASSERT_EQ(flashprime_explain(&problem, &options, text.data(), text.size(), nullptr, &supported),
            FLASHPRIME_OK);
  EXPECT_EQ(supported, 0);
  EXPECT_THAT(text, AllOf(StartsWith("unsupported\n  sm90_mla_prefill: "),
                          HasSubstr("\n  sm80_mla_prefill: "),
                          HasSubstr("cpu_fast: device: got cuda:99, wanted cpu")));
}

TEST(CApi, RunsTilesThroughTheCallersLoop) {
  TwinCall call;
  static int64_t bodies_run = 0;
  flashprime_options options = FLASHPRIME_OPTIONS_INIT;
  int user = 5;
  options.parallel_for_user = &user;
  options.parallel_for = [](void* given, int64_t n, flashprime_loop_body body, void* context) {
    EXPECT_EQ(*static_cast<int*>(given), 5);
    for (int64_t i = n - 1; i >= 0; --i, ++bodies_run) body(context, i);
  };
  ASSERT_EQ(flashprime_prefill(&call.problem, &call.args, &options, nullptr), FLASHPRIME_OK);
  EXPECT_GT(bodies_run, 0);
  ASSERT_TRUE(prefill(call.batch.problem, call.cpp_args()).ok());
  call.expect_same_bits();
}

TEST(CApi, ListsAndFindsModels) {
  ASSERT_EQ(flashprime_num_models(), list_models().size());
  for (size_t i = 0; i < flashprime_num_models(); ++i) {
    const ModelPreset& preset = list_models()[i];
    flashprime_model at = FLASHPRIME_MODEL_INIT;
    flashprime_model found = FLASHPRIME_MODEL_INIT;
    ASSERT_EQ(flashprime_model_at(i, &at), FLASHPRIME_OK);
    EXPECT_EQ(preset.name, at.name);
    EXPECT_EQ(preset.source, at.source);
    ASSERT_EQ(flashprime_find_model(at.name, &found), FLASHPRIME_OK);
    EXPECT_EQ(found.name, at.name);
    EXPECT_EQ(found.nope, preset.dims.nope);
    EXPECT_EQ(found.rope, preset.dims.rope);
    EXPECT_EQ(found.v, preset.dims.v);
    EXPECT_EQ(found.num_heads, preset.num_heads);
    EXPECT_EQ(found.num_layers, preset.num_layers);
    EXPECT_EQ(found.kv_lora_rank, preset.kv_lora_rank);
    EXPECT_EQ(found.q_lora_rank, preset.q_lora_rank);
    EXPECT_EQ(found.scale_factor, preset.scale_factor);
    EXPECT_EQ(found.softmax_scale, preset.softmax_scale());
    int32_t heads = 0;
    EXPECT_EQ(flashprime_heads_per_rank(&found, 2, &heads), FLASHPRIME_OK);
    EXPECT_EQ(heads, preset.num_heads / 2);
    EXPECT_EQ(flashprime_heads_per_rank(&found, 0, &heads), FLASHPRIME_E_SHAPE);
  }
  flashprime_model model = FLASHPRIME_MODEL_INIT;
  EXPECT_EQ(flashprime_model_at(flashprime_num_models(), &model), FLASHPRIME_E_RANGE);
  EXPECT_EQ(flashprime_find_model("no-such-model", &model), FLASHPRIME_E_UNSUPPORTED);
  EXPECT_THAT(flashprime_last_error_message(), HasSubstr("no-such-model"));
  EXPECT_EQ(flashprime_find_model(nullptr, &model), FLASHPRIME_E_NULL);
}

TEST(CApi, FillsTheSameRandomNumbers) {
  std::vector<float> c(60, -1.0f), cpp(60, -2.0f);
  const flashprime_tensor view = flashprime_tensor_2d(c.data(), FLASHPRIME_FP32, 3, 20);
  flashprime_random_spec spec = FLASHPRIME_RANDOM_SPEC_INIT;
  spec.seed = 99;
  spec.tensor_id = 3;
  spec.first_row = 7;
  spec.scale = 0.5f;
  ASSERT_EQ(flashprime_fill_random(&view, &spec), FLASHPRIME_OK);
  ASSERT_TRUE(fill_random(MutableTensorView::contiguous(cpp.data(), Dtype::kFp32, {3, 20}),
                          {99, 3, 7, 0.5f})
                  .ok());
  EXPECT_EQ(c, cpp);
  EXPECT_EQ(flashprime_fill_random(nullptr, &spec), FLASHPRIME_E_NULL);
}

TEST(CApi, NamesItsVersionAndStatuses) {
  EXPECT_EQ(version(), flashprime_version());
  EXPECT_EQ(build_description(), flashprime_build_description());
  EXPECT_THAT(flashprime_numerics_id(), HasSubstr("/"));
  for (int code = FLASHPRIME_OK; code <= FLASHPRIME_E_INTERNAL; ++code) {
    EXPECT_EQ(status_code_name(static_cast<StatusCode>(code)), flashprime_status_name(code));
  }
  EXPECT_STREQ(flashprime_status_name(FLASHPRIME_E_CU_SEQLENS), "kCuSeqlens");
  EXPECT_STREQ(flashprime_status_name(-3), "unknown StatusCode");
}

TEST(CApiErrors, KeepTheMessageOfTheLatestFailureOfTheThread) {
  TwinCall call;
  ASSERT_EQ(flashprime_prefill(nullptr, &call.args, nullptr, nullptr), FLASHPRIME_E_NULL);
  EXPECT_STREQ(flashprime_last_error_message(), "problem: got a null pointer");
  ASSERT_EQ(flashprime_prefill(&call.problem, &call.args, nullptr, nullptr), FLASHPRIME_OK);
  EXPECT_STREQ(flashprime_last_error_message(), "problem: got a null pointer");
  std::thread([] { EXPECT_STREQ(flashprime_last_error_message(), ""); }).join();
}

TEST(CApiErrors, RefuseStructsOfUnknownSizeAndWrongEnumerations) {
  const auto refuse = [](int code, const char* message, const auto& edit) {
    SCOPED_TRACE(message);
    TwinCall call;
    edit(call);
    const std::vector<float> before = call.out;
    EXPECT_EQ(flashprime_prefill(&call.problem, &call.args, nullptr, nullptr), code);
    EXPECT_THAT(flashprime_last_error_message(), HasSubstr(message));
    EXPECT_EQ(call.out, before);
  };
  refuse(FLASHPRIME_E_SHAPE, "problem.struct_size: got 0, wanted 72",
         [](auto& c) { c.problem.struct_size = 0; });
  refuse(FLASHPRIME_E_SHAPE, "problem.struct_size: got 80, wanted 72 to 72",
         [](auto& c) { c.problem.struct_size += 8; });
  refuse(FLASHPRIME_E_SHAPE, "args.struct_size: got 1103, wanted 1104",
         [](auto& c) { c.args.struct_size -= 1; });
  // 258 would be fp32 if it were cut to a byte.
  refuse(FLASHPRIME_E_UNSUPPORTED, "problem.out_dtype: got 258",
         [](auto& c) { c.problem.out_dtype = 258; });
  refuse(FLASHPRIME_E_UNSUPPORTED, "problem.mask: got -1", [](auto& c) { c.problem.mask = -1; });
  refuse(FLASHPRIME_E_UNSUPPORTED, "problem.lse_layout: got 2",
         [](auto& c) { c.problem.lse_layout = 2; });
  refuse(FLASHPRIME_E_DTYPE, "q.dtype: got 256", [](auto& c) { c.args.q.dtype = 256; });
  refuse(FLASHPRIME_E_DTYPE, "out: got bf16", [](auto& c) { c.args.out.dtype = FLASHPRIME_BF16; });
  refuse(FLASHPRIME_E_RANGE, "out: got a capacity of 1023 bytes, wanted at least 1024",
         [](auto& c) { c.args.out.capacity_bytes = 1023; });
  refuse(FLASHPRIME_E_NUMERIC, "softmax_scale", [](auto& c) {
    flashprime_prefill_args fresh = FLASHPRIME_PREFILL_ARGS_INIT;
    c.args.softmax_scale = fresh.softmax_scale;
  });
  TwinCall call;
  flashprime_options options = FLASHPRIME_OPTIONS_INIT;
  options.device = 9;
  EXPECT_EQ(flashprime_prefill(&call.problem, &call.args, &options, nullptr),
            FLASHPRIME_E_UNSUPPORTED);
  EXPECT_EQ(flashprime_prefill_workspace_bytes(&call.problem, &call.args, nullptr, nullptr),
            FLASHPRIME_E_NULL);
}

// A struct as it was in a first version, and after it has grown.
struct OldStruct {
  size_t struct_size;
  int64_t kept;
};
struct NewStruct {
  size_t struct_size;
  int64_t kept;
  int64_t added;
};

TEST(CApiStructs, OfAnOlderVersionAreReadWithDefaultsAndWrittenWithinTheirSize) {
  OldStruct memory[2] = {{sizeof(OldStruct), 7}, {0x5555, 0x5555}};
  const auto* given = reinterpret_cast<NewStruct*>(&memory[0]);
  NewStruct result{sizeof(NewStruct), -1, 42};
  ASSERT_TRUE(c_api::read_struct("thing", given, sizeof(OldStruct), &result).ok());
  EXPECT_EQ(result.kept, 7);
  EXPECT_EQ(result.added, 42);
  EXPECT_EQ(result.struct_size, sizeof(NewStruct));

  ASSERT_TRUE(c_api::write_struct("thing", NewStruct{sizeof(NewStruct), 8, 9}, sizeof(OldStruct),
                                  reinterpret_cast<NewStruct*>(&memory[0]))
                  .ok());
  EXPECT_EQ(memory[0].kept, 8);
  EXPECT_EQ(memory[0].struct_size, sizeof(OldStruct));
  EXPECT_EQ(memory[1].struct_size, 0x5555u);
}

}  // namespace
}  // namespace flashprime
