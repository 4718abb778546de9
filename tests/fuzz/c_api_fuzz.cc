// SPDX-License-Identifier: Apache-2.0
// Sequences of C API calls with views into one piece of memory, whose capacities are stated truly:
// then no argument, however wrong, may lead outside of it.
#include "flashprime/c_api.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace flashprime::fuzz {
namespace {

constexpr int64_t kArenaBytes = 16384;
// Multiply-adds of the largest call that is run; larger ones are only validated.
constexpr double kMaxWork = 1 << 18;
constexpr int64_t kSpecial[] = {-1,
                                INT64_MIN,
                                INT64_MAX,
                                int64_t{1} << 31,
                                int64_t{1} << 32,
                                int64_t{1} << 62,
                                (int64_t{1} << 31) - 1,
                                65536};

class Machine {
 public:
  explicit Machine(ByteReader in) : in_(in), arena_(new unsigned char[kArenaBytes]()) {
    // Small lengths, so that some of it makes sense as cu_seqlens, and small floats.
    for (int64_t i = 0; i < 64; ++i) {
      const auto length = static_cast<int32_t>(i);
      std::memcpy(arena_.get() + 4 * i, &length, 4);
    }
    for (int64_t i = 256; i < kArenaBytes; ++i) arena_[i] = static_cast<unsigned char>(i * 7 % 64);
  }
  ~Machine() {
    for (flashprime_plan* plan : plans_) flashprime_plan_destroy(plan);
  }

  void run() {
    for (int steps = 0; !in_.empty() && steps < 200; ++steps) step();
  }

 private:
  void step() {
    switch (in_.below(14)) {
      case 0: set_problem(); break;
      case 1: set_field(); break;
      case 2: set_tensor(tensor(in_.byte())); break;
      case 3: prefill(); break;
      case 4: make_plan(); break;
      case 5: look_at_plan(); break;
      case 6: destroy_plan(); break;
      case 7: layer(); break;
      case 8: merge(); break;
      case 9: explain(); break;
      case 10: models(); break;
      case 11: fill_random(); break;
      case 12: well_formed_call(); break;
      default: poke(); break;
    }
  }

  // A code that the header names, with a message, and never a defect of the library.
  int checked(int code) {
    FUZZ_REQUIRE(code >= FLASHPRIME_OK && code < FLASHPRIME_E_INTERNAL);
    FUZZ_REQUIRE(std::string_view(flashprime_status_name(code)).substr(0, 1) == "k");
    if (code != FLASHPRIME_OK) FUZZ_REQUIRE(*flashprime_last_error_message() != '\0');
    return code;
  }

  // A call that, refused, has written nothing.
  template <typename Call>
  void refused_means_untouched(const Call& call) {
    const std::vector<unsigned char> before(arena_.get(), arena_.get() + kArenaBytes);
    if (checked(call()) == FLASHPRIME_OK) return;
    FUZZ_REQUIRE(std::memcmp(before.data(), arena_.get(), kArenaBytes) == 0);
  }

  int64_t number() {
    const uint8_t kind = in_.byte();
    if (kind < 240) return kind % 40;
    if (kind < 250) return kSpecial[in_.below(static_cast<int32_t>(std::size(kSpecial)))];
    return static_cast<int64_t>(in_.word());
  }
  int32_t small_number() { return static_cast<int32_t>(number()); }
  size_t struct_size(size_t whole) { return in_.byte() < 230 ? whole : in_.byte() * size_t{2}; }

  void set_problem() {
    problem_ = FLASHPRIME_PROBLEM_INIT;
    problem_.nope = 1 + in_.below(20);
    problem_.rope = in_.below(9);
    problem_.v = 1 + in_.below(20);
    problem_.num_heads = 1 + in_.below(3);
    problem_.dtype = in_.below(3);
    problem_.out_dtype = in_.flag() ? problem_.dtype : in_.below(5);
    problem_.mask = in_.below(3);
    problem_.return_lse = in_.below(2);
    problem_.lse_layout = in_.below(2);
    if (problem_.mask == FLASHPRIME_MASK_WINDOW) {
      problem_.window_left = number();
      problem_.window_right = number();
    }
  }

  void set_field() {
    switch (in_.below(20)) {
      case 0: problem_.struct_size = struct_size(sizeof problem_); break;
      case 1: problem_.nope = small_number(); break;
      case 2: problem_.rope = small_number(); break;
      case 3: problem_.v = small_number(); break;
      case 4: problem_.num_heads = small_number(); break;
      case 5: problem_.dtype = small_number(); break;
      case 6: problem_.out_dtype = small_number(); break;
      case 7: problem_.mask = small_number(); break;
      case 8: problem_.window_left = number(); break;
      case 9: problem_.window_right = number(); break;
      case 10: problem_.lse_layout = small_number(); break;
      case 11: problem_.self_attention = small_number(); break;
      case 12: problem_.num_splits = small_number(); break;
      case 13: args_.struct_size = struct_size(sizeof args_); break;
      case 14: args_.max_seqlen_q = number(); break;
      case 15: args_.max_seqlen_k = number(); break;
      case 16: {
        const auto bits = static_cast<uint32_t>(in_.word());
        std::memcpy(&args_.softmax_scale, &bits, 4);
        break;
      }
      case 17: args_.reserved = small_number(); break;
      case 18: {
        args_.workspace = in_.flag() ? arena_.get() : nullptr;
        args_.workspace_bytes = number();
        break;
      }
      default:
        options_.struct_size = struct_size(sizeof options_);
        options_.device = in_.below(4);
        options_.num_threads = in_.below(3);
        options_.kernel = in_.flag() ? "cpu_reference" : in_.flag() ? "none" : nullptr;
    }
  }

  flashprime_tensor& tensor(uint8_t which) {
    flashprime_tensor* all[] = {&args_.q,
                                &args_.q_nope,
                                &args_.q_pe,
                                &args_.k,
                                &args_.k_nope,
                                &args_.k_pe,
                                &args_.v,
                                &args_.cu_seqlens_q,
                                &args_.cu_seqlens_k,
                                &args_.out,
                                &args_.lse,
                                &args_.output_scale,
                                &merge_.prefix_out,
                                &merge_.prefix_lse,
                                &merge_.suffix_out,
                                &merge_.suffix_lse,
                                &merge_.out,
                                &merge_.lse,
                                &merge_.output_scale,
                                &context_.k,
                                &context_.k_nope,
                                &context_.k_pe,
                                &context_.v};
    return *all[which % std::size(all)];
  }

  // Any view, with the capacity that the arena leaves it.
  void set_tensor(flashprime_tensor& view) {
    view = FLASHPRIME_TENSOR_NONE;
    view.rank = in_.byte() < 250 ? in_.below(5) : small_number();
    view.dtype = in_.byte() < 250 ? in_.below(6) : small_number();
    const int64_t offset = in_.byte() * 64 + in_.below(8);
    view.data = in_.byte() < 250 ? arena_.get() + offset : nullptr;
    view.capacity_bytes = kArenaBytes - offset;
    for (int64_t& extent : view.shape) extent = number();
    for (int64_t& stride : view.stride) {
      stride = number();
      if (stride >= 0 && stride < 40 && in_.flag()) stride *= 16;
    }
    // A million reads of one length through stride 0 would be legal, and slow.
    if ((&view == &args_.cu_seqlens_q || &view == &args_.cu_seqlens_k) && view.shape[0] > 4096) {
      view.shape[0] = 4096;
    }
  }

  // Dense tensors that fit the problem, so that calls run; fields are changed by later steps.
  void well_formed_call() {
    const int64_t tokens = in_.below(12), keys = in_.below(20);
    const bool q_parts = in_.flag(), k_parts = in_.flag();
    const int32_t heads = std::clamp(problem_.num_heads, 1, 3);
    const int32_t nope = std::clamp(problem_.nope, 1, 20), rope = std::clamp(problem_.rope, 0, 8);
    const int32_t v = std::clamp(problem_.v, 1, 20);
    int64_t at = 512;
    const auto place = [&](int32_t dtype, int64_t rows, int64_t middle, int64_t last) {
      const int64_t bytes = dtype == FLASHPRIME_FP64                                ? 8
                            : dtype == FLASHPRIME_FP32 || dtype == FLASHPRIME_INT32 ? 4
                            : dtype == FLASHPRIME_E4M3                              ? 1
                                                                                    : 2;
      flashprime_tensor view = flashprime_tensor_3d(arena_.get() + at, dtype, rows, middle, last);
      view.capacity_bytes = rows * middle * last * bytes;
      at += (view.capacity_bytes + 15) / 16 * 16;
      if (at > kArenaBytes) view = FLASHPRIME_TENSOR_NONE;
      return view;
    };
    args_ = FLASHPRIME_PREFILL_ARGS_INIT;
    args_.softmax_scale = 0.25f;
    const int32_t dtype = problem_.dtype;
    if (q_parts) {
      args_.q_nope = place(dtype, tokens, heads, nope);
      if (rope > 0) args_.q_pe = place(dtype, tokens, heads, rope);
    } else {
      args_.q = place(dtype, tokens, heads, nope + rope);
    }
    if (k_parts) {
      args_.k_nope = place(dtype, keys, heads, nope);
      if (rope > 0) args_.k_pe = place(dtype, keys, 1, rope);
    } else {
      args_.k = place(dtype, keys, heads, nope + rope);
    }
    args_.v = place(dtype, keys, heads, v);
    args_.out = place(problem_.out_dtype, tokens, heads, v);
    if (problem_.return_lse != 0) {
      const int32_t lse_dtype =
          problem_.out_dtype == FLASHPRIME_FP64 ? FLASHPRIME_FP64 : FLASHPRIME_FP32;
      const bool heads_first = problem_.lse_layout == FLASHPRIME_HEADS_TOKENS;
      flashprime_tensor lse = place(lse_dtype, 1, heads, tokens);
      args_.lse = flashprime_tensor_2d(lse.data, lse_dtype, heads_first ? heads : tokens,
                                       heads_first ? tokens : heads);
      args_.lse.capacity_bytes = lse.capacity_bytes;
    }
    if (problem_.out_dtype == FLASHPRIME_E4M3) {
      args_.output_scale = flashprime_tensor_1d(arena_.get() + 16384 - 4, FLASHPRIME_FP32, 1);
      args_.output_scale.capacity_bytes = 4;
    }
    // Two sequences, cut somewhere.
    const int32_t lengths[6] = {
        0, in_.below(static_cast<int32_t>(tokens) + 1), static_cast<int32_t>(tokens),
        0, in_.below(static_cast<int32_t>(keys) + 1),   static_cast<int32_t>(keys)};
    std::memcpy(arena_.get(), lengths, sizeof lengths);
    args_.cu_seqlens_q = flashprime_tensor_1d(arena_.get(), FLASHPRIME_INT32, 3);
    args_.cu_seqlens_q.capacity_bytes = 12;
    args_.cu_seqlens_k = flashprime_tensor_1d(arena_.get() + 12, FLASHPRIME_INT32, 3);
    args_.cu_seqlens_k.capacity_bytes = 12;
  }

  static double extent(const flashprime_tensor& view, int axis) {
    return static_cast<double>(std::max<int64_t>(view.shape[axis], 1));
  }

  bool small_enough() const {
    const double keys = std::max(extent(args_.k, 0), extent(args_.k_nope, 0));
    return extent(args_.out, 0) * extent(args_.out, 1) * extent(args_.out, 2) <= 4096 &&
           extent(args_.out, 0) * extent(args_.out, 1) * keys *
                   (static_cast<double>(problem_.nope) + problem_.rope + problem_.v) <=
               kMaxWork;
  }

  const flashprime_options* options() { return in_.flag() ? &options_ : nullptr; }

  void prefill() {
    int64_t bytes = -1;
    const flashprime_options* how = options();
    refused_means_untouched(
        [&] { return flashprime_prefill_workspace_bytes(&problem_, &args_, how, &bytes); });
    if (in_.byte() == 255) {
      FUZZ_REQUIRE(checked(flashprime_prefill(nullptr, &args_, how, nullptr)) != FLASHPRIME_OK);
      FUZZ_REQUIRE(checked(flashprime_prefill(&problem_, nullptr, how, nullptr)) != FLASHPRIME_OK);
    }
    if (!small_enough()) return;
    refused_means_untouched([&] { return flashprime_prefill(&problem_, &args_, how, nullptr); });
  }

  void merge() {
    merge_.struct_size = struct_size(sizeof merge_);
    merge_.tokens_with_prefix = number();
    merge_.lse_layout = in_.below(3);
    if (extent(merge_.out, 0) * extent(merge_.out, 1) * extent(merge_.out, 2) > 4096) return;
    const flashprime_options* how = options();
    refused_means_untouched([&] { return flashprime_merge_states(&merge_, how, nullptr); });
  }

  void make_plan() {
    std::vector<int64_t> lengths(static_cast<size_t>(in_.below(6)));
    for (int64_t& length : lengths) length = in_.byte() < 240 ? in_.byte() * 4 : number();
    flashprime_plan_options how = FLASHPRIME_PLAN_OPTIONS_INIT;
    how.struct_size = struct_size(sizeof how);
    how.workspace_rows = in_.byte() < 240 ? in_.byte() * 16 : number();
    how.block_size = in_.byte() < 240 ? 1 + in_.below(32) : number();
    how.dcp_interleave = in_.byte() < 240 ? 1 : number();
    how.dcp_size = in_.byte() < 240 ? 1 + in_.below(4) : small_number();
    // Up to 2^24 slices are legal, and slow.
    double total = 0.0;
    for (int64_t length : lengths) total += static_cast<double>(std::max<int64_t>(length, 0));
    if (total / static_cast<double>(std::max<int64_t>(how.workspace_rows, 1)) > 4096) return;
    flashprime_plan* plan = nullptr;
    const flashprime_plan_options* maybe = in_.byte() < 240 ? &how : nullptr;
    const int code =
        in_.flag() ? flashprime_plan_greedy(lengths.data(), lengths.size(), maybe, &plan)
                   : flashprime_plan_equal_slices(lengths.data(), lengths.size(), maybe, &plan);
    FUZZ_REQUIRE((checked(code) == FLASHPRIME_OK) == (plan != nullptr));
    if (plan) plans_.push_back(plan);
    if (plan) FUZZ_REQUIRE(flashprime_plan_num_requests(plan) == lengths.size());
  }

  flashprime_plan* some_plan() {
    if (plans_.empty()) return nullptr;
    return plans_[in_.byte() % plans_.size()];
  }

  void look_at_plan() {
    flashprime_plan* plan = some_plan();
    const size_t count = flashprime_plan_num_chunks(plan);
    for (size_t i = 0; i <= std::min<size_t>(count, 8); ++i) {
      flashprime_chunk chunk = FLASHPRIME_CHUNK_INIT;
      chunk.struct_size = struct_size(sizeof chunk);
      const int code = checked(flashprime_plan_chunk(plan, i, &chunk));
      if (code != FLASHPRIME_OK || chunk.struct_size != sizeof chunk) continue;
      FUZZ_REQUIRE(i < count && chunk.index == static_cast<int64_t>(i));
      int64_t rows = 0;
      const int64_t requests = chunk.request_end - chunk.request_begin;
      for (int64_t r = 0; r < requests; ++r) rows += chunk.slices[r].length;
      FUZZ_REQUIRE(rows == chunk.num_tokens);
      FUZZ_REQUIRE(chunk.cu_seqlens_k[requests] == rows);
    }
  }

  void destroy_plan() {
    if (plans_.empty()) return flashprime_plan_destroy(nullptr);
    const size_t index = in_.byte() % plans_.size();
    flashprime_plan_destroy(plans_[index]);
    plans_.erase(plans_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  // Gives every chunk the views of context_, cut to its length where the first byte says so.
  static int source(void* user, const flashprime_chunk* chunk, flashprime_stream,
                    flashprime_key_values* key_values) {
    auto* machine = static_cast<Machine*>(user);
    const uint8_t mood = machine->in_.byte();
    if (mood > 250) return mood - 240;  // codes of all kinds, some unknown
    const flashprime_key_values& context = machine->context_;
    key_values->k = context.k;
    key_values->k_nope = context.k_nope;
    key_values->k_pe = context.k_pe;
    key_values->v = context.v;
    if (mood > 245) key_values->cu_seqlens_k = machine->args_.cu_seqlens_k;
    if (mood > 32) {
      for (flashprime_tensor* view :
           {&key_values->k, &key_values->k_nope, &key_values->k_pe, &key_values->v}) {
        if (view->rank != 0) view->shape[0] = chunk->num_tokens;
      }
    }
    return FLASHPRIME_OK;
  }

  void layer() {
    if (in_.flag()) {  // the new tokens' own keys, which at least fit the problem
      context_.k = args_.k;
      context_.k_nope = args_.k_nope;
      context_.k_pe = args_.k_pe;
      context_.v = args_.v;
    }
    flashprime_plan* plan = some_plan();
    const flashprime_options* how = options();
    int64_t bytes = -1;
    checked(flashprime_prefill_layer_workspace_bytes(&problem_, &args_, plan, how, &bytes));
    if (!small_enough() || flashprime_plan_num_chunks(plan) > 64) return;
    std::vector<unsigned char> workspace;
    if (bytes > 0 && bytes < 1 << 20) {
      workspace.resize(static_cast<size_t>(bytes) + 256);
      const auto address = reinterpret_cast<uintptr_t>(workspace.data());
      args_.workspace = workspace.data() + (256 - address % 256) % 256;
      args_.workspace_bytes = bytes;
    }
    const int code = flashprime_prefill_layer(&problem_, &args_, plan, source, this, how, nullptr);
    // The source's own codes come back unchanged, and may be any.
    if (code >= 0 && code < FLASHPRIME_E_INTERNAL) checked(code);
    args_.workspace = nullptr;
    args_.workspace_bytes = 0;
  }

  void explain() {
    char buffer[64];
    size_t needed = 0;
    int32_t supported = -1;
    const size_t size = in_.byte() % sizeof buffer;
    const flashprime_options* how = options();
    const int code = checked(flashprime_explain(&problem_, how, buffer, size, &needed, &supported));
    if (code != FLASHPRIME_OK) return;
    FUZZ_REQUIRE(needed > 1 && (supported == 0 || supported == 1));
    if (size > 0) FUZZ_REQUIRE(std::memchr(buffer, '\0', size) != nullptr);
  }

  void models() {
    flashprime_model model = FLASHPRIME_MODEL_INIT;
    model.struct_size = struct_size(sizeof model);
    const size_t index = in_.byte();
    const int code = checked(flashprime_model_at(index, &model));
    if (model.struct_size == sizeof model) {
      FUZZ_REQUIRE((code == FLASHPRIME_OK) == (index < flashprime_num_models()));
    }
    int32_t heads = -1;
    model.num_heads = small_number();
    checked(flashprime_heads_per_rank(&model, small_number(), &heads));
    char name[9] = {};
    for (int i = 0; i < 8; ++i) name[i] = static_cast<char>(in_.byte());
    checked(flashprime_find_model(in_.flag() ? name : nullptr, &model));
    flashprime_workspace_rule rule = FLASHPRIME_WORKSPACE_RULE_INIT;
    rule.struct_size = struct_size(sizeof rule);
    rule.max_model_len = number();
    rule.max_num_seqs = number();
    rule.block_size = number();
    rule.dcp_interleave = number();
    rule.dcp_size = small_number();
    int64_t rows = -1;
    if (checked(flashprime_context_workspace_rows(&rule, &rows)) == FLASHPRIME_OK) {
      FUZZ_REQUIRE(rows > 0);
    }
  }

  void fill_random() {
    flashprime_tensor& view = tensor(in_.byte());
    flashprime_random_spec spec = FLASHPRIME_RANDOM_SPEC_INIT;
    spec.struct_size = struct_size(sizeof spec);
    spec.seed = in_.word();
    spec.first_row = in_.word();
    double elements = 1.0;
    for (int axis = 0; axis < 4; ++axis) elements *= extent(view, axis);
    if (elements > 4096) return;
    refused_means_untouched([&] { return flashprime_fill_random(&view, &spec); });
  }

  // Other data: lengths that decrease, NaN, a bad output scale.
  void poke() {
    const int64_t at = in_.byte() * 64 + in_.below(64);
    arena_[std::min(at, kArenaBytes - 1)] = in_.byte();
  }

  ByteReader in_;
  std::unique_ptr<unsigned char[]> arena_;
  flashprime_problem problem_ = FLASHPRIME_PROBLEM_INIT;
  flashprime_prefill_args args_ = FLASHPRIME_PREFILL_ARGS_INIT;
  flashprime_options options_ = FLASHPRIME_OPTIONS_INIT;
  flashprime_merge_args merge_ = FLASHPRIME_MERGE_ARGS_INIT;
  flashprime_key_values context_ = FLASHPRIME_KEY_VALUES_INIT;
  std::vector<flashprime_plan*> plans_;
};

}  // namespace
}  // namespace flashprime::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::fuzz::Machine(flashprime::fuzz::ByteReader(data, size)).run();
  return 0;
}
