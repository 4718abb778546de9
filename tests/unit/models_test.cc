// SPDX-License-Identifier: Apache-2.0
#include "flashprime/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace flashprime {
namespace {

struct Expected {
  std::string_view name;
  HeadDims dims;
  int32_t heads;
  int32_t layers;
  int32_t kv_rank;
  int32_t q_rank;
  double scale;
};

// Written out from the sources that each preset names, with scales computed apart from the library.
constexpr Expected kExpected[] = {
    {"deepseek-v2-lite", {128, 64, 128}, 16, 27, 512, 0, 0.1147213867929261},
    {"deepseek-v2", {128, 64, 128}, 128, 60, 512, 1536, 0.1147213867929261},
    {"deepseek-v3", {128, 64, 128}, 128, 61, 512, 1536, 0.1352337788608801},
    {"deepseek-r1", {128, 64, 128}, 128, 61, 512, 1536, 0.1352337788608801},
    {"kimi-k2", {128, 64, 128}, 64, 61, 512, 1536, 0.1308607999629500},
    {"longcat-flash", {128, 64, 128}, 64, 56, 512, 1536, 0.0721687836487032},
    {"mistral-small-4", {64, 64, 128}, 32, 36, 256, 1024, 0.1949694947330297},
    {"mistral-large-3", {128, 64, 128}, 128, 0, 512, -1, 0.0721687836487032},
    {"glm-5", {192, 64, 256}, 64, 78, 512, 2048, 0.0625},
    {"glm-4.7-flash", {192, 64, 256}, 20, 47, 512, 768, 0.0625},
    {"glm-5.3-flash", {256, 0, 256}, 64, 11, 512, 1536, 0.0625},
    {"dots3-note", {192, 64, 128}, 64, 33, 1024, 1024, 0.0625},
};

TEST(Models, HaveTheFiguresOfTheirSources) {
  ASSERT_EQ(list_models().size(), std::size(kExpected));
  for (size_t i = 0; i < std::size(kExpected); ++i) {
    const ModelPreset& model = list_models()[i];
    const Expected& expected = kExpected[i];
    SCOPED_TRACE(model.name);
    EXPECT_EQ(model.name, expected.name);
    EXPECT_EQ(model.dims.nope, expected.dims.nope);
    EXPECT_EQ(model.dims.rope, expected.dims.rope);
    EXPECT_EQ(model.dims.v, expected.dims.v);
    EXPECT_EQ(model.num_heads, expected.heads);
    EXPECT_EQ(model.num_layers, expected.layers);
    EXPECT_EQ(model.kv_lora_rank, expected.kv_rank);
    EXPECT_EQ(model.q_lora_rank, expected.q_rank);
    EXPECT_EQ(model.softmax_scale(), static_cast<float>(expected.scale));
    EXPECT_FALSE(model.source.empty());
  }
}

TEST(Models, AreFoundByName) {
  const StatusOr<ModelPreset> model = find_model("kimi-k2");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->num_heads, 64);
}

TEST(Models, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  for (std::string_view name : {"deepseek-v4", "", "DeepSeek-V3"}) {
    const StatusOr<ModelPreset> model = find_model(name);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), StatusCode::kUnsupported);
    EXPECT_THAT(model.status().message(), testing::HasSubstr("deepseek-v3, deepseek-r1"));
  }
}

TEST(Models, HeadsPerRankWantsADivisorOfTheHeads) {
  const ModelPreset model = *find_model("glm-4.7-flash");
  EXPECT_EQ(*heads_per_rank(model, 1), 20);
  EXPECT_EQ(*heads_per_rank(model, 4), 5);
  for (int32_t tp : {0, -1, 3, 8, 40}) {
    const StatusOr<int32_t> heads = heads_per_rank(model, tp);
    ASSERT_FALSE(heads.ok()) << tp;
    EXPECT_EQ(heads.status().code(), StatusCode::kShape);
    EXPECT_THAT(heads.status().message(), testing::HasSubstr("20 heads"));
  }
}

}  // namespace
}  // namespace flashprime
