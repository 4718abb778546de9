// SPDX-License-Identifier: Apache-2.0
#include "jit/cubin.h"

#include <gmock/gmock.h>

#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

// Cubins of a one-line kernel, as NVRTC 12.9 and 13.0 made them.
struct Golden {
  const char* name;
  int32_t abi;
  int32_t sm;
  const char* target;
  int32_t registers;
};
constexpr Golden kGolden[] = {
    {"nvrtc_12.9_sm_80", 7, 80, "sm_80", 8},       {"nvrtc_12.9_sm_90", 7, 90, "sm_90", 10},
    {"nvrtc_12.9_sm_90a", 7, 90, "sm_90a", 10},    {"nvrtc_12.9_sm_100a", 8, 100, "sm_100a", 10},
    {"nvrtc_13.0_sm_80", 8, 80, "sm_80", 8},       {"nvrtc_13.0_sm_90", 8, 90, "sm_90", 10},
    {"nvrtc_13.0_sm_90a", 8, 90, "sm_90a", 10},    {"nvrtc_13.0_sm_100a", 8, 100, "sm_100a", 10},
    {"nvrtc_13.0_sm_100f", 8, 100, "sm_100f", 10}, {"nvrtc_13.0_sm_120a", 8, 120, "sm_120a", 10},
};

TEST(Cubin, SaysWhatItIsForInBothAbiVersions) {
  for (const Golden& golden : kGolden) {
    const StatusOr<CubinInfo> info = read_cubin(golden_cubin(golden.name), kEntryName);
    ASSERT_TRUE(info.ok()) << golden.name << ": " << info.status().to_string();
    EXPECT_EQ(info->abi_version, golden.abi) << golden.name;
    EXPECT_EQ(info->sm, golden.sm) << golden.name;
    EXPECT_EQ(info->target, golden.target) << golden.name;
    EXPECT_TRUE(info->has_entry) << golden.name;
    EXPECT_EQ(info->registers, golden.registers) << golden.name;
  }
}

TEST(Cubin, PassesForItsOwnArchitectureOnly) {
  for (const Golden& golden : kGolden) {
    const std::string bytes = golden_cubin(golden.name);
    for (const Arch& arch : all_archs()) {
      const bool same = arch.to_string() == golden.target;
      EXPECT_EQ(check_cubin(bytes, arch, kEntryName, golden.registers).ok(), same)
          << golden.name << " as " << arch.to_string();
    }
    const Arch own = *parse_arch(golden.target);
    EXPECT_THAT(check_cubin(bytes, own, "another_kernel", golden.registers).message(),
                HasSubstr("another_kernel"));
    EXPECT_THAT(check_cubin(bytes, own, kEntryName, 33).message(), HasSubstr("33"));
  }
}

TEST(Cubin, RefusesEveryTruncation) {
  const std::string bytes = golden_cubin("nvrtc_13.0_sm_90a");
  const Arch arch = *parse_arch("sm_90a");
  // The program headers come last, and nothing here reads them.
  const size_t sections_end = bytes.size() - 6 * 56;
  for (size_t size = 0; size < sections_end; ++size) {
    EXPECT_FALSE(check_cubin(bytes.substr(0, size), arch, kEntryName, 10).ok()) << size;
  }
}

TEST(Cubin, SurvivesEveryFlippedBit) {
  const Arch arch = *parse_arch("sm_90a");
  for (const char* name : {"nvrtc_13.0_sm_90a", "nvrtc_12.9_sm_90a"}) {
    std::string bytes = golden_cubin(name);
    int64_t refused = 0;
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      refused += check_cubin(bytes, arch, kEntryName, 10).ok() ? 0 : 1;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
    // Most of the file is code, which only a checksum protects; the tables are not.
    EXPECT_GT(refused, 500) << name;
  }
}

TEST(Cubin, LetsAnUnknownAbiVersionPass) {
  std::string bytes = golden_cubin("nvrtc_13.0_sm_90a");
  bytes[8] = 9;
  EXPECT_TRUE(check_cubin(bytes, *parse_arch("sm_120a"), "other", 1).ok());
  EXPECT_FALSE(read_cubin(bytes, kEntryName)->known_abi);
  EXPECT_EQ(read_cubin("#!/bin/sh", kEntryName).status().code(), StatusCode::kFormat);
}

}  // namespace
}  // namespace flashprime
