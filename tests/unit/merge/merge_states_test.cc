// SPDX-License-Identifier: Apache-2.0
#include "flashprime/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <memory>

#include "tests/unit/owned_tensor.h"

namespace flashprime {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kT = 5, kH = 3, kD = 4;

// A merge of T x H rows of D whose inputs are all different.
struct Merge {
  explicit Merge(Dtype dtype = Dtype::kFp32, Dtype out_dtype = Dtype::kFp32)
      : prefix_out(dtype, {kT, kH, kD}),
        suffix_out(dtype, {kT, kH, kD}),
        prefix_lse(Dtype::kFp32, {kH, kT}),
        suffix_lse(Dtype::kFp32, {kH, kT}),
        out(out_dtype, {kT, kH, kD}),
        lse(Dtype::kFp32, {kH, kT}),
        scale(Dtype::kFp32, {1}) {
    prefix_out.fill(
        [](auto t, auto h, auto c) { return 0.25 * double(t) - double(h) + double(c); });
    suffix_out.fill([](auto t, auto h, auto c) { return 2.0 * double(h) - double(t * c) * 0.5; });
    prefix_lse.fill([](auto h, auto t, auto) { return 0.5 * double(h) - double(t); });
    suffix_lse.fill([](auto h, auto t, auto) { return 1.5 - 0.75 * double(h + t); });
    scale.set(0, 0, 0, 0.5);
    args.prefix_out = prefix_out.input();
    args.prefix_lse = prefix_lse.input();
    args.suffix_out = suffix_out.input();
    args.suffix_lse = suffix_lse.input();
    args.out = out.view();
    args.lse = lse.view();
    if (out_dtype == Dtype::kE4m3) args.output_scale = scale.input();
  }

  Status run(const ExecutionOptions& options = {}) { return merge_states(args, options); }

  OwnedTensor prefix_out, suffix_out, prefix_lse, suffix_lse, out, lse, scale;
  MergeArgs args;
};

TEST(MergeStates, WeighsBothSidesByTheirLse) {
  Merge merge;
  ASSERT_EQ(merge.run().to_string(), "kOk");
  for (int64_t t = 0; t < kT; ++t) {
    for (int64_t h = 0; h < kH; ++h) {
      const double wp = std::exp(merge.prefix_lse.get(h, t));
      const double ws = std::exp(merge.suffix_lse.get(h, t));
      EXPECT_NEAR(merge.lse.get(h, t), std::log(wp + ws), 1e-6);
      for (int64_t c = 0; c < kD; ++c) {
        const double want =
            (wp * merge.prefix_out.get(t, h, c) + ws * merge.suffix_out.get(t, h, c)) / (wp + ws);
        EXPECT_NEAR(merge.out.get(t, h, c), want, 2e-6);
      }
    }
  }
}

TEST(MergeStates, EqualLsesGiveTheMeanAndLseGrowsByLn2) {
  Merge merge;
  merge.prefix_lse.fill([](auto, auto, auto) { return 10.0; });
  merge.suffix_lse.fill([](auto, auto, auto) { return 10.0; });
  merge.prefix_out.fill([](auto, auto, auto) { return 3.0; });
  merge.suffix_out.fill([](auto, auto, auto) { return 5.0; });
  ASSERT_EQ(merge.run().to_string(), "kOk");
  EXPECT_EQ(merge.out.get(2, 1, 3), 4.0);
  EXPECT_EQ(merge.lse.get(1, 2), static_cast<double>(static_cast<float>(10.0 + std::log(2.0))));
}

TEST(MergeStates, BothSidesEmptyGiveZeroAndMinusInfinity) {
  for (double empty_p : {-kInf, kInf}) {
    for (double empty_s : {-kInf, kInf}) {
      Merge merge;
      merge.prefix_out.set(1, 2, 0, kNan);
      merge.suffix_out.set(1, 2, 0, kInf);
      merge.prefix_lse.set(2, 1, 0, empty_p);
      merge.suffix_lse.set(2, 1, 0, empty_s);
      ASSERT_EQ(merge.run().to_string(), "kOk");
      EXPECT_EQ(merge.lse.get(2, 1), -kInf);
      for (int64_t c = 0; c < kD; ++c) EXPECT_EQ(merge.out.get(1, 2, c), 0.0);
    }
  }
}

// Values whose bits a multiplication or an addition would not keep.
const float kFragile[kD] = {-0.0f, std::bit_cast<float>(1u), 1.0f / 3.0f,
                            std::numeric_limits<float>::max()};

TEST(MergeStates, OneEmptySideLeavesTheOtherBitForBit) {
  for (const bool prefix_is_empty : {true, false}) {
    for (double empty : {-kInf, kInf}) {
      Merge merge;
      OwnedTensor& live = prefix_is_empty ? merge.suffix_out : merge.prefix_out;
      OwnedTensor& dead = prefix_is_empty ? merge.prefix_out : merge.suffix_out;
      live.fill([](auto, auto, auto c) { return double(kFragile[c]); });
      dead.fill([](auto, auto, auto) { return kNan; });
      (prefix_is_empty ? merge.prefix_lse : merge.suffix_lse).fill([&](auto, auto, auto) {
        return empty;
      });
      ASSERT_EQ(merge.run().to_string(), "kOk");
      EXPECT_EQ(merge.out.bytes(), live.bytes());
      EXPECT_EQ(merge.lse.bytes(), (prefix_is_empty ? merge.suffix_lse : merge.prefix_lse).bytes());
    }
  }
}

TEST(MergeStates, ASideWhoseWeightUnderflowsIsNotRead) {
  Merge merge;
  merge.prefix_lse.fill([](auto, auto, auto) { return 300.0; });
  merge.suffix_lse.fill([](auto, auto, auto) { return -300.0; });
  merge.suffix_out.fill([](auto, auto, auto) { return kNan; });
  ASSERT_EQ(merge.run().to_string(), "kOk");
  EXPECT_EQ(merge.out.bytes(), merge.prefix_out.bytes());
  EXPECT_EQ(merge.lse.get(0, 0), 300.0);
}

TEST(MergeStates, NanLseReachesItsRowAndNoOther) {
  for (const bool in_prefix : {true, false}) {
    Merge clean, merge;
    (in_prefix ? merge.prefix_lse : merge.suffix_lse).set(1, 2, 0, kNan);
    ASSERT_EQ(clean.run().to_string(), "kOk");
    ASSERT_EQ(merge.run().to_string(), "kOk");
    for (int64_t t = 0; t < kT; ++t) {
      for (int64_t h = 0; h < kH; ++h) {
        const bool hit = t == 2 && h == 1;
        for (int64_t c = 0; c < kD; ++c) {
          if (hit) {
            EXPECT_TRUE(std::isnan(merge.out.get(t, h, c)));
          } else {
            EXPECT_EQ(merge.out.get(t, h, c), clean.out.get(t, h, c));
          }
        }
        EXPECT_EQ(std::isnan(merge.lse.get(h, t)), hit);
      }
    }
  }
}

TEST(MergeStates, NanLseWinsOverAnEmptyOtherSide) {
  Merge merge;
  merge.prefix_lse.set(0, 0, 0, kNan);
  merge.suffix_lse.set(0, 0, 0, -kInf);
  ASSERT_EQ(merge.run().to_string(), "kOk");
  EXPECT_TRUE(std::isnan(merge.lse.get(0, 0)));
  EXPECT_TRUE(std::isnan(merge.out.get(0, 0, 0)));
}

TEST(MergeStates, NanInAWeighedSideReachesItsElement) {
  Merge merge;
  merge.suffix_out.set(3, 0, 2, kNan);
  ASSERT_EQ(merge.run().to_string(), "kOk");
  EXPECT_TRUE(std::isnan(merge.out.get(3, 0, 2)));
  EXPECT_FALSE(std::isnan(merge.out.get(3, 0, 1)));
}

TEST(MergeStates, TokensWithoutPrefixCopyTheSuffixAndNeverReadThePrefix) {
  for (int64_t with_prefix : {int64_t{0}, int64_t{2}, kT}) {
    Merge merge, all;
    ASSERT_EQ(all.run().to_string(), "kOk");
    for (int64_t t = with_prefix; t < kT; ++t) {
      for (int64_t h = 0; h < kH; ++h) {
        merge.prefix_lse.set(h, t, 0, kNan);
        for (int64_t c = 0; c < kD; ++c) merge.prefix_out.set(t, h, c, kNan);
      }
    }
    merge.args.tokens_with_prefix = with_prefix;
    ASSERT_EQ(merge.run().to_string(), "kOk");
    for (int64_t t = 0; t < kT; ++t) {
      const bool copied = t >= with_prefix;
      for (int64_t h = 0; h < kH; ++h) {
        EXPECT_EQ(merge.lse.get(h, t), copied ? merge.suffix_lse.get(h, t) : all.lse.get(h, t));
        for (int64_t c = 0; c < kD; ++c) {
          EXPECT_EQ(merge.out.get(t, h, c),
                    copied ? merge.suffix_out.get(t, h, c) : all.out.get(t, h, c));
        }
      }
    }
  }
}

TEST(MergeStates, InPlaceGivesTheSameBits) {
  Merge apart, in_place;
  ASSERT_EQ(apart.run().to_string(), "kOk");
  in_place.args.out = in_place.prefix_out.view();
  in_place.args.lse = in_place.prefix_lse.view();
  ASSERT_EQ(in_place.run().to_string(), "kOk");
  EXPECT_EQ(in_place.prefix_out.bytes(), apart.out.bytes());
  EXPECT_EQ(in_place.prefix_lse.bytes(), apart.lse.bytes());
}

TEST(MergeStates, LseIsOptional) {
  Merge with, without;
  without.args.lse = {};
  ASSERT_EQ(with.run().to_string(), "kOk");
  ASSERT_EQ(without.run().to_string(), "kOk");
  EXPECT_EQ(without.out.bytes(), with.out.bytes());
}

TEST(MergeStates, StridesLayoutAndThreadsDoNotChangeBits) {
  Merge dense;
  ASSERT_EQ(dense.run().to_string(), "kOk");

  Merge other;
  OwnedTensor prefix_out(Dtype::kFp32, {kT, kH, kD}, {kD, kT * kD, 1});  // heads outermost
  OwnedTensor suffix_out(Dtype::kFp32, {kT, kH, kD}, {40, 9, 1});        // gaps, odd strides
  OwnedTensor out(Dtype::kFp32, {kT, kH, kD}, {100, 6, 1});
  OwnedTensor prefix_lse(Dtype::kFp32, {kT, kH}, {7, 2});
  OwnedTensor suffix_lse(Dtype::kFp32, {kT, kH}, {1, 11});
  OwnedTensor lse(Dtype::kFp32, {kT, kH}, {4, 20});
  prefix_out.fill([&](auto t, auto h, auto c) { return dense.prefix_out.get(t, h, c); });
  suffix_out.fill([&](auto t, auto h, auto c) { return dense.suffix_out.get(t, h, c); });
  prefix_lse.fill([&](auto t, auto h, auto) { return dense.prefix_lse.get(h, t); });
  suffix_lse.fill([&](auto t, auto h, auto) { return dense.suffix_lse.get(h, t); });
  other.args = {prefix_out.input(),
                prefix_lse.input(),
                suffix_out.input(),
                suffix_lse.input(),
                out.view(),
                lse.view(),
                {},
                LseLayout::kTokensHeads};
  ExecutionOptions options;
  options.parallel_for = [](int64_t n, const std::function<void(int64_t)>& body) {
    for (int64_t i = n; i-- > 0;) body(i);
  };
  ASSERT_EQ(other.run(options).to_string(), "kOk");
  for (int64_t t = 0; t < kT; ++t) {
    for (int64_t h = 0; h < kH; ++h) {
      EXPECT_EQ(lse.get(t, h), dense.lse.get(h, t));
      for (int64_t c = 0; c < kD; ++c) EXPECT_EQ(out.get(t, h, c), dense.out.get(t, h, c));
    }
  }
}

TEST(MergeStates, EveryPairOfDtypesRoundsTheFp32ResultOnce) {
  for (Dtype dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32}) {
    Merge exact(dtype, Dtype::kFp32);
    ASSERT_EQ(exact.run().to_string(), "kOk");
    for (Dtype out_dtype : {Dtype::kBf16, Dtype::kFp16, Dtype::kE4m3}) {
      Merge merge(dtype, out_dtype);
      ASSERT_EQ(merge.run().to_string(), "kOk");
      const float factor = out_dtype == Dtype::kE4m3 ? 1.0f / 0.5f : 1.0f;
      OwnedTensor want(out_dtype, {kT, kH, kD});
      want.fill([&](auto t, auto h, auto c) {
        return static_cast<double>(static_cast<float>(exact.out.get(t, h, c)) * factor);
      });
      EXPECT_EQ(merge.out.bytes(), want.bytes());
    }
  }
}

TEST(MergeStates, E4m3IsDividedByTheScaleAndSaturates) {
  Merge merge(Dtype::kFp32, Dtype::kE4m3);
  merge.scale.set(0, 0, 0, 50.0);
  merge.prefix_out.fill([](auto, auto, auto c) { return c == 0 ? 100.0 : c == 1 ? -1e6 : kNan; });
  merge.suffix_lse.fill([](auto, auto, auto) { return -kInf; });
  ASSERT_EQ(merge.run().to_string(), "kOk");
  EXPECT_EQ(merge.out.get(0, 0, 0), 2.0);
  EXPECT_EQ(merge.out.get(0, 0, 1), -448.0);
  EXPECT_TRUE(std::isnan(merge.out.get(0, 0, 2)));
}

TEST(MergeStates, NoTokensAreLegalWithoutAnyPointer) {
  const auto rows = TensorView::contiguous(nullptr, Dtype::kBf16, {0, kH, kD});
  const auto lse = TensorView::contiguous(nullptr, Dtype::kFp32, {kH, 0});
  MergeArgs args{rows,
                 lse,
                 rows,
                 lse,
                 MutableTensorView::contiguous(nullptr, Dtype::kBf16, {0, kH, kD}),
                 MutableTensorView::contiguous(nullptr, Dtype::kFp32, {kH, 0}),
                 {}};
  EXPECT_EQ(merge_states(args).to_string(), "kOk");
}

TEST(MergeStates, RefusesADeviceThatIsNotThere) {
  Merge merge;
  const auto out = merge.out.bytes();
  const Status status = merge.run({.device = {DeviceKind::kCuda, 99}});
  EXPECT_THAT(status.code(), AnyOf(StatusCode::kDriver, StatusCode::kDevice));
  EXPECT_EQ(merge.out.bytes(), out);
}

// Bad input: one defect, the code and the words that the message has to hold.
struct Defect {
  const char* name;
  StatusCode code;
  const char* argument;
  const char* got;
  const char* wanted;
  std::function<void(Merge&)> make;
};

const Defect kDefects[] = {
    {"RankOfOut", StatusCode::kShape, "out", "rank 2", "rank 3",
     [](Merge& m) { m.args.out.rank = 2; }},
    {"AbsentPrefix", StatusCode::kShape, "prefix_out", "[]", "[T, H, D]",
     [](Merge& m) { m.args.prefix_out = {}; }},
    {"ZeroHeads", StatusCode::kShape, "prefix_out", "[5, 0, 4]", "1 or more",
     [](Merge& m) { m.args.prefix_out.shape[1] = 0; }},
    {"SuffixRows", StatusCode::kShape, "suffix_out", "[4, 3, 4]", "[5, 3, 4]",
     [](Merge& m) { m.args.suffix_out.shape[0] = 4; }},
    {"LseLayout", StatusCode::kShape, "prefix_lse", "[3, 5]", "[5, 3] = [T, H]",
     [](Merge& m) { m.args.lse_layout = LseLayout::kTokensHeads; }},
    {"LseRows", StatusCode::kShape, "lse", "[3, 4]", "[3, 5] = [H, T]",
     [](Merge& m) { m.args.lse.shape[1] = 4; }},
    {"TokensWithPrefix", StatusCode::kShape, "tokens_with_prefix", "6", "at most 5",
     [](Merge& m) { m.args.tokens_with_prefix = 6; }},
    {"PrefixDtype", StatusCode::kDtype, "prefix_out", "e4m3", "bf16, fp16 or fp32",
     [](Merge& m) { m.args.prefix_out.dtype = Dtype::kE4m3; }},
    {"SuffixDtype", StatusCode::kDtype, "suffix_out", "bf16", "fp32",
     [](Merge& m) { m.args.suffix_out.dtype = Dtype::kBf16; }},
    {"OutDtype", StatusCode::kDtype, "out", "fp64", "bf16, fp16, fp32 or e4m3",
     [](Merge& m) { m.args.out.dtype = Dtype::kFp64; }},
    {"LseDtype", StatusCode::kDtype, "suffix_lse", "fp64", "fp32",
     [](Merge& m) { m.args.suffix_lse.dtype = Dtype::kFp64; }},
    {"ScaleWithoutE4m3", StatusCode::kDtype, "output_scale", "present", "absent",
     [](Merge& m) { m.args.output_scale = m.scale.input(); }},
    {"E4m3WithoutScale", StatusCode::kDtype, "output_scale", "absent", "fp32 [1]",
     [](Merge& m) { m.args.out.dtype = Dtype::kE4m3; }},
    {"LastStride", StatusCode::kStride, "suffix_out", "stride 2", "wanted 1",
     [](Merge& m) { m.args.suffix_out.stride[2] = 2; }},
    {"NegativeStride", StatusCode::kStride, "prefix_lse", "stride -1", "0 or more",
     [](Merge& m) { m.args.prefix_lse.stride[1] = -1; }},
    {"BroadcastOut", StatusCode::kStride, "out", "stride 0", "1 or more",
     [](Merge& m) { m.args.out.stride[0] = 0; }},
    {"OverlappingOut", StatusCode::kStride, "out", "strides [12, 3, 1]", "a place for each",
     [](Merge& m) { m.args.out.stride[1] = 3; }},
    {"OutOverSuffix", StatusCode::kAlias, "out", "overlaps suffix_out", "memory of its own",
     [](Merge& m) { m.args.out = m.suffix_out.view(); }},
    {"OutNearPrefix", StatusCode::kAlias, "out", "overlaps prefix_out", "memory of its own",
     [](Merge& m) {
       m.args.out = m.prefix_out.view();
       m.args.out.shape[0] = m.args.suffix_out.shape[0] = m.args.prefix_out.shape[0] = 4;
       for (TensorView* lse : {&m.args.prefix_lse, &m.args.suffix_lse}) lse->shape[1] = 4;
       m.args.lse = {};
       m.args.out.data = static_cast<float*>(m.args.out.data) + 12;
     }},
    {"LseOverSuffixLse", StatusCode::kAlias, "lse", "overlaps suffix_lse", "memory of its own",
     [](Merge& m) { m.args.lse = m.suffix_lse.view(); }},
    {"LseOverPrefixOut", StatusCode::kAlias, "lse", "overlaps prefix_out", "memory of its own",
     [](Merge& m) { m.args.lse.data = m.prefix_out.view().data; }},
    {"LseOverOut", StatusCode::kAlias, "lse", "overlaps out", "memory of its own",
     [](Merge& m) { m.args.lse.data = m.out.view().data; }},
    {"NullSuffix", StatusCode::kNull, "suffix_out", "null", "[5, 3, 4]",
     [](Merge& m) { m.args.suffix_out.data = nullptr; }},
    {"Misaligned", StatusCode::kAlignment, "suffix_lse", "not a multiple", "4 bytes",
     [](Merge& m) {
       m.args.suffix_lse.data = static_cast<const char*>(m.args.suffix_lse.data) + 2;
     }},
    {"Capacity", StatusCode::kRange, "out", "239", "240",
     [](Merge& m) { m.args.out.capacity_bytes = 239; }},
    {"StrideOverflow", StatusCode::kRange, "prefix_out", "strides", "overflows",
     [](Merge& m) { m.args.prefix_out.stride[0] = int64_t{1} << 61; }},
    {"ZeroScale", StatusCode::kNumeric, "output_scale", "got 0", "above 0",
     [](Merge& m) {
       m.args.out.dtype = Dtype::kE4m3;
       m.args.output_scale = m.scale.input();
       m.scale.set(0, 0, 0, 0.0);
     }},
};

class MergeStatesRefuses : public testing::TestWithParam<Defect> {};

TEST_P(MergeStatesRefuses, NamingArgumentGotAndWantedAndWritingNothing) {
  const Defect& defect = GetParam();
  Merge merge;
  const auto out = merge.out.bytes(), lse = merge.lse.bytes();
  const auto prefix = merge.prefix_out.bytes(), suffix = merge.suffix_out.bytes();
  defect.make(merge);
  const Status status = merge.run();
  EXPECT_EQ(status.code(), defect.code) << status.to_string();
  EXPECT_THAT(status.message(), testing::StartsWith(defect.argument));
  EXPECT_THAT(status.message(), AllOf(HasSubstr(defect.got), HasSubstr(defect.wanted)));
  EXPECT_EQ(merge.out.bytes(), out);
  EXPECT_EQ(merge.lse.bytes(), lse);
  EXPECT_EQ(merge.prefix_out.bytes(), prefix);
  EXPECT_EQ(merge.suffix_out.bytes(), suffix);
}

INSTANTIATE_TEST_SUITE_P(Defects, MergeStatesRefuses, testing::ValuesIn(kDefects),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace flashprime
