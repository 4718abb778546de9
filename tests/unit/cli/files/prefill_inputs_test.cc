// SPDX-License-Identifier: Apache-2.0
#include "cli/files/prefill_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

using ::testing::HasSubstr;

// Headers of 2 new tokens, 3 keys, 4 heads, dims 5/1/7, as if from a file.
class PrefillInputsTest : public ::testing::Test {
 protected:
  PrefillInputsTest() {
    ops_.files["f"] = std::string(4096, '\0');
    file_ = *InputFile::open("f", ops_);
  }

  void add(const std::string& name, std::vector<int64_t> shape,
           FileDtype dtype = FileDtype::kBf16) {
    TensorEntry entry;
    entry.name = name;
    entry.file = file_;
    entry.dtype = dtype;
    entry.shape = std::move(shape);
    entry.bytes = *tensor_bytes(dtype, entry.shape);
    catalog_.tensors.push_back(std::move(entry));
  }
  void add_joined(FileDtype dtype = FileDtype::kBf16) {
    add("q", {2, 4, 6}, dtype);
    add("k", {3, 4, 6}, dtype);
    add("v", {3, 4, 7}, dtype);
  }
  StatusOr<PrefillInputs> describe(std::optional<Dtype> dtype = std::nullopt) {
    return describe_prefill_inputs(catalog_, "f", dtype);
  }
  std::string refusal(std::optional<Dtype> dtype = std::nullopt) {
    const StatusOr<PrefillInputs> inputs = describe(dtype);
    if (inputs.ok()) return "accepted";
    EXPECT_EQ(inputs.status().code(), StatusCode::kFormat);
    EXPECT_THAT(inputs.status().message(), ::testing::StartsWith("f: "));
    return inputs.status().message();
  }

  MemoryFileOps ops_;
  std::shared_ptr<const InputFile> file_;
  TensorCatalog catalog_;
};

TEST_F(PrefillInputsTest, TakesJoinedTensorsAsOneSequence) {
  add_joined();
  StatusOr<PrefillInputs> inputs = describe();
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->problem.num_heads, 4);
  EXPECT_EQ(inputs->problem.dims.nope, 6);
  EXPECT_EQ(inputs->problem.dims.rope, 0);
  EXPECT_EQ(inputs->problem.dims.v, 7);
  EXPECT_EQ(inputs->problem.dtype, Dtype::kBf16);
  EXPECT_EQ(inputs->bytes, 2 * (2 * 4 * 6 + 3 * 4 * 6 + 3 * 4 * 7));
  EXPECT_FALSE(inputs->softmax_scale);
  EXPECT_FALSE(inputs->causal);
  ASSERT_TRUE(inputs->load().ok());
  EXPECT_EQ(inputs->args.q.stride[0], 24);
  EXPECT_EQ(inputs->args.q.capacity_bytes, 96);
  EXPECT_NE(inputs->args.v.data, nullptr);
  EXPECT_EQ(inputs->args.cu_seqlens_q.shape[0], 2);
  EXPECT_EQ(static_cast<const int32_t*>(inputs->args.cu_seqlens_q.data)[1], 2);
  EXPECT_EQ(static_cast<const int32_t*>(inputs->args.cu_seqlens_k.data)[1], 3);
}

TEST_F(PrefillInputsTest, TakesPartsOfQAndKIndependently) {
  add("q", {2, 4, 6});
  add("k_nope", {3, 4, 5});
  add("k_pe", {3, 1});
  add("v", {3, 4, 7});
  add("cu_seqlens_q", {3}, FileDtype::kInt32);
  add("cu_seqlens_k", {3}, FileDtype::kInt32);
  const StatusOr<PrefillInputs> inputs = describe();
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->problem.dims.nope, 5);
  EXPECT_EQ(inputs->problem.dims.rope, 1);
  EXPECT_TRUE(inputs->args.q.present());
  EXPECT_FALSE(inputs->args.k.present());
  EXPECT_EQ(inputs->args.k_pe.rank, 2);
  EXPECT_EQ(inputs->args.cu_seqlens_q.dtype, Dtype::kInt32);
}

TEST_F(PrefillInputsTest, SaysWhichTensorsItWants) {
  EXPECT_THAT(refusal(), HasSubstr("missing tensor 'q', want either 'q' or 'q_nope' and 'q_pe'"));
  add("q_pe", {2, 4, 1});
  EXPECT_THAT(refusal(), HasSubstr("missing tensor 'q_nope'"));
  add("q_nope", {2, 4, 5});
  EXPECT_THAT(refusal(), HasSubstr("missing tensor 'k'"));
  add("k", {3, 4, 6});
  EXPECT_THAT(refusal(), HasSubstr("missing tensor 'v'"));
  add("v", {3, 4, 7});
  EXPECT_EQ(refusal(), "accepted");
  add("cu_seqlens_k", {2}, FileDtype::kInt32);
  EXPECT_THAT(refusal(), HasSubstr("missing tensor 'cu_seqlens_q'"));
  catalog_.tensors.pop_back();
  add("k_pe", {3, 1});
  EXPECT_THAT(refusal(), HasSubstr("has 'k' and a part of it"));
}

TEST_F(PrefillInputsTest, RefusesRanksAndTypesThatATensorCannotHave) {
  add_joined();
  catalog_.tensors[0].shape = {2, 24};
  EXPECT_THAT(refusal(), HasSubstr("'q': got shape [2, 24], want 3 axes"));
  catalog_.tensors[0].shape = {2, 4, 6};
  catalog_.tensors[2].dtype = FileDtype::kFp16;
  EXPECT_THAT(refusal(), HasSubstr("'v': got F16, which is not the type of the tensors before it"));
  for (const FileDtype dtype : {FileDtype::kFp64, FileDtype::kInt32, FileDtype::kE4m3}) {
    catalog_.tensors[2].dtype = dtype;
    EXPECT_THAT(refusal(), HasSubstr("want BF16, F16 or F32"));
  }
  catalog_.tensors[2].dtype = FileDtype::kBf16;
  add("cu_seqlens_q", {2}, FileDtype::kInt64);
  add("cu_seqlens_k", {2}, FileDtype::kInt32);
  EXPECT_THAT(refusal(), HasSubstr("'cu_seqlens_q': got I64, want I32"));
  catalog_.tensors[3].dtype = FileDtype::kInt32;
  catalog_.tensors[4].shape = {2, 1};
  EXPECT_THAT(refusal(), HasSubstr("'cu_seqlens_k': got shape [2, 1], want 1 axes"));
}

TEST_F(PrefillInputsTest, Uint16IsBf16OnlyWhereTheUserSaysSo) {
  add_joined(FileDtype::kUint16);
  EXPECT_THAT(refusal(), HasSubstr("bf16 bits in uint16 need --dtype bf16"));
  EXPECT_THAT(refusal(Dtype::kFp16), HasSubstr("want BF16, F16 or F32"));
  const StatusOr<PrefillInputs> inputs = describe(Dtype::kBf16);
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->problem.dtype, Dtype::kBf16);
}

TEST_F(PrefillInputsTest, ADtypeThatTheFileContradictsIsAnError) {
  add_joined(FileDtype::kFp16);
  EXPECT_THAT(refusal(Dtype::kBf16), HasSubstr("'q': got F16, but --dtype says another"));
  EXPECT_EQ(refusal(Dtype::kFp16), "accepted");
}

TEST_F(PrefillInputsTest, ReadsScaleAndMaskFromMetadata) {
  add_joined();
  catalog_.metadata = {{"softmax_scale", "1.25e-1"}, {"causal", "False"}, {"format", "pt"}};
  const StatusOr<PrefillInputs> inputs = describe();
  ASSERT_TRUE(inputs.ok()) << inputs.status().message();
  EXPECT_EQ(inputs->softmax_scale, 0.125);
  EXPECT_EQ(inputs->causal, false);
  for (const char* scale : {"", "nan", "inf", "-1", "1e999", "0x1p-3", "0,125", "1 ", "one"}) {
    catalog_.metadata["softmax_scale"] = scale;
    EXPECT_THAT(refusal(), HasSubstr("softmax_scale: got")) << scale;
  }
  catalog_.metadata["softmax_scale"] = "1";
  catalog_.metadata["causal"] = "maybe";
  EXPECT_THAT(refusal(), HasSubstr("causal: got 'maybe', want true or false"));
}

TEST_F(PrefillInputsTest, RefusesSizesThatNoCallCanHold) {
  add("q", {2, 4, int64_t{1} << 31});
  add("k", {3, 4, 6});
  add("v", {3, 4, 7});
  EXPECT_THAT(refusal(), HasSubstr("head dimension of q or k: got 2147483648"));
  catalog_.tensors[0].shape = {0, int64_t{1} << 31, 6};
  EXPECT_THAT(refusal(), HasSubstr("heads: got 2147483648"));
}

}  // namespace
}  // namespace flashprime::cli
