// SPDX-License-Identifier: Apache-2.0
#include "jit/cache_entry.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "jit/bundle.h"
#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

TEST(CacheEntry, ReadsBackWhatItWrites) {
  const CompiledKernel kernel = sample_kernel();
  const StatusOr<CompiledKernel> read = decode_entry(encode_entry(kernel));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->kernel_id, kernel.kernel_id);
  EXPECT_EQ(read->compiler_id, kernel.compiler_id);
  EXPECT_EQ(read->key, kernel.key);
  EXPECT_EQ(read->arch, kernel.arch);
  EXPECT_EQ(read->options, kernel.options);
  EXPECT_EQ(read->report.warnings, kernel.report.warnings);
  EXPECT_EQ(read->compile_us, 1234);
  EXPECT_EQ(read->created, 5678);
  EXPECT_EQ(read->cubin, kernel.cubin);
  EXPECT_EQ(encode_entry(*read), encode_entry(kernel));
}

TEST(CacheEntry, NoticesEveryTruncation) {
  const std::string bytes = encode_entry(sample_kernel());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_FALSE(decode_entry(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(decode_entry(bytes + '\0').ok());
}

TEST(CacheEntry, NoticesEveryFlippedBit) {
  std::string bytes = encode_entry(sample_kernel());
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    const char flip = static_cast<char>(1 << byte % 8);
    bytes[byte] = static_cast<char>(bytes[byte] ^ flip);
    ASSERT_FALSE(decode_entry(bytes).ok()) << byte;
    bytes[byte] = static_cast<char>(bytes[byte] ^ flip);
  }
}

TEST(CacheEntry, RefusesACubinForAnotherArchitecture) {
  CompiledKernel kernel = sample_kernel();
  kernel.cubin = golden_cubin("nvrtc_13.0_sm_90");
  EXPECT_THAT(decode_entry(encode_entry(kernel)).status().message(), HasSubstr("sm_90a"));
}

TEST(Bundle, FindsItsKernelsAndNoOther) {
  const CompiledKernel a = sample_kernel(1);
  const CompiledKernel b = sample_kernel(2, "sm_100a");
  const StatusOr<Bundle> bundle = Bundle::parse(encode_bundle({a, b}), "test");
  ASSERT_TRUE(bundle.ok()) << bundle.status().to_string();
  for (const CompiledKernel& kernel : {a, b}) {
    const auto found = bundle->find(kernel.kernel_id, kernel.key);
    ASSERT_TRUE(found.ok() && *found) << found.status().to_string();
    EXPECT_EQ((*found)->cubin, kernel.cubin);
  }
  EXPECT_FALSE(*bundle->find(sample_kernel(3).kernel_id, a.key));
  EXPECT_EQ(bundle->find(a.kernel_id, b.key).status().code(), StatusCode::kFormat);
}

TEST(Bundle, IsTheSameBytesWhateverTheOrderAndTheTime) {
  CompiledKernel later = sample_kernel(1);
  later.created = 99;
  later.compile_us = 1;
  EXPECT_EQ(encode_bundle({sample_kernel(1), sample_kernel(2)}),
            encode_bundle({sample_kernel(2), later}));
}

TEST(Bundle, NoticesEveryTruncationAndMostDamageAtOnce) {
  const CompiledKernel kernel = sample_kernel();
  std::string bytes = encode_bundle({kernel});
  for (size_t size = 0; size < bytes.size(); size += 7) {
    EXPECT_FALSE(Bundle::parse(bytes.substr(0, size), "test").ok()) << size;
  }
  for (size_t byte = 0; byte < bytes.size(); ++byte) {
    bytes[byte] = static_cast<char>(bytes[byte] ^ 0x10);
    const StatusOr<Bundle> bundle = Bundle::parse(bytes, "test");
    if (bundle.ok()) {
      // Damage in an entry shows when that entry is wanted; zeros between entries mean nothing.
      const auto found = bundle->find(kernel.kernel_id, kernel.key);
      if (found.ok()) {
        ASSERT_TRUE(*found) << byte;
        ASSERT_EQ((*found)->cubin, kernel.cubin) << byte;
      }
    }
    bytes[byte] = static_cast<char>(bytes[byte] ^ 0x10);
  }
}

TEST(Bundle, IsRefusedUnlessItHasThePinnedHash) {
  const TempDir dir;
  const std::string bytes = encode_bundle({sample_kernel()});
  write_bytes(dir / "a.fpb", bytes);
  EXPECT_TRUE(Bundle::open(dir / "a.fpb", sha256(bytes)).ok());
  EXPECT_THAT(Bundle::open(dir / "a.fpb", sha256("other")).status().message(),
              HasSubstr(hex(sha256(bytes))));
  EXPECT_EQ(Bundle::open(dir / "none.fpb").status().code(), StatusCode::kIo);
  // Everybody's file is nobody's word, unless its hash is known.
  ASSERT_EQ(chmod((dir / "a.fpb").c_str(), 0666), 0);
  EXPECT_EQ(Bundle::open(dir / "a.fpb").status().code(), StatusCode::kIo);
  EXPECT_TRUE(Bundle::open(dir / "a.fpb", sha256(bytes)).ok());
}

}  // namespace
}  // namespace flashprime
