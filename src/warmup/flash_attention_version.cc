// SPDX-License-Identifier: Apache-2.0
// Which FlashAttention vLLM would run. Rules apply in a fixed order, each to the answer of the one
// before; every change leaves a note.
#include "checks.h"
#include "flashprime/flash_attention_rules.h"

namespace flashprime {
namespace {

// Why `version` cannot run on `capability`, or empty.
std::string why_unsupported(int32_t version, const FlashAttentionVersionQuery& query) {
  const auto [major, minor] = query.capability;
  switch (version) {
    case 2:
      return major >= 8 ? "" : "FA2 is only supported on devices with compute capability >= 8";
    case 3:
      if (!query.fa3_built) return "FA3 is not part of this installation";
      if (major == 9 || (major == 8 && minor != 6 && minor != 9)) return "";
      return "FA3 is only supported on devices with compute capability >= 8 excluding 8.6 and 8.9 "
             "and Blackwell archs (>=10)";
    case 4:
      if (!query.fa4_built) return "FA4 is not part of this installation";
      if (major >= 9 && major <= 11) return "";
      return "FA4 is only supported on devices with compute capability 9.x, 10.x, or 11.x";
    default: return concat("FA", version, " does not exist");
  }
}

bool is_supported(int32_t version, const FlashAttentionVersionQuery& query) {
  return why_unsupported(version, query).empty();
}

std::string size_text(std::optional<int32_t> size) {
  return size ? std::to_string(*size) : std::string("unknown");
}

// A version on its way through the rules.
class Answer {
 public:
  explicit Answer(int32_t version) : version_(version) {}

  int32_t version() const { return version_; }
  void change(int32_t version, std::string why) {
    result_.notes.push_back(concat("FA", version_, " -> FA", version, ": ", why));
    version_ = version;
  }
  FlashAttentionVersion finish(const FlashAttentionVersionQuery& query) {
    if (std::string why = why_unsupported(version_, query); why.empty()) {
      result_.version = version_;
    } else {
      result_.notes.push_back(std::move(why));
    }
    return std::move(result_);
  }

 private:
  int32_t version_;
  FlashAttentionVersion result_;
};

// The default of the platform, what configuration asks for, and no FA3 from 10.0 on.
Answer first_choice(const FlashAttentionVersionQuery& query) {
  const int32_t major = query.capability.major;
  Answer answer(major == 9 && is_supported(3, query)    ? 3
                : major == 10 && is_supported(4, query) ? 4
                                                        : 2);
  if (query.requested && *query.requested != answer.version()) {
    answer.change(*query.requested, "asked for by configuration");
  }
  if (answer.version() == 3 && major >= 10) {
    answer.change(is_supported(4, query) ? 4 : 2, "FA3 does not run on Blackwell");
  }
  return answer;
}

}  // namespace

FlashAttentionVersionQuery flash_attention_version_query(const HeadDims& dims,
                                                         ComputeCapability capability,
                                                         std::optional<int32_t> requested,
                                                         bool batch_invariant) {
  FlashAttentionVersionQuery query;
  query.capability = capability;
  query.head_size = dims.nope + dims.rope;
  query.head_size_v = dims.v;
  query.requested = requested;
  query.batch_invariant = batch_invariant;
  return query;
}

FlashAttentionVersion old_flash_attention_version(const FlashAttentionVersionQuery& query) {
  Answer answer = first_choice(query);
  // Tensor memory limits head sizes; 192 passes for DeepSeek's (192, 128), whatever v is.
  if (answer.version() == 4 && query.capability.major >= 10 && query.head_size &&
      *query.head_size > 128 && *query.head_size != 192) {
    answer.change(2, concat("FA4 on Blackwell does not support head_size=", *query.head_size));
  }
  return answer.finish(query);
}

FlashAttentionVersion flash_attention_version(const FlashAttentionVersionQuery& query) {
  const int32_t major = query.capability.major;
  const bool is_256 = query.head_size == 256 && query.head_size_v.value_or(256) == 256;
  const bool is_deepseek = query.head_size == 192 && query.head_size_v == 128;
  Answer answer = first_choice(query);
  if (answer.version() == 3 && major == 9 && query.head_size && *query.head_size > 256 &&
      is_supported(4, query)) {
    answer.change(4, concat("FA3 does not support head_size=", *query.head_size));
  }
  if (answer.version() == 4 && query.batch_invariant) {
    answer.change(2, "FA4's schedule depends on the shape of the batch");
  }
  if (answer.version() == 4 && is_256 && (major == 10 || major == 11)) {
    answer.change(2, "MLA prefill does not ask for FA4's kernel for head size 256");
  }
  if (answer.version() == 4 && major >= 10 && query.head_size && *query.head_size > 128 &&
      !is_256 && !is_deepseek) {
    answer.change(2, concat("FA4 on Blackwell does not support head_size=", *query.head_size,
                            " with head_size_v=", size_text(query.head_size_v)));
  }
  return answer.finish(query);
}

bool flash_attention_requires_v_padding(std::optional<int32_t> fa_version,
                                        ComputeCapability capability) {
  return !(fa_version == 4 || (fa_version == 3 && capability.major == 9));
}

bool flash_attention_supports_quant_output(std::optional<int32_t> fa_version,
                                           ComputeCapability capability, bool vllm_build) {
  return fa_version == 4 && vllm_build && (capability.major == 10 || capability.major == 11);
}

}  // namespace flashprime
