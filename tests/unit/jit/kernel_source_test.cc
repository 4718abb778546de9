// SPDX-License-Identifier: Apache-2.0
#include "jit/kernel_source.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;

TEST(KernelSource, EmbedsEveryFileOfKernelsToTheByte) {
  std::map<std::string, std::string> on_disk;
  const std::filesystem::path root = FLASHPRIME_SOURCE_DIR;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "kernels")) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".h" || extension == ".cuh") {
      on_disk[std::filesystem::relative(entry.path(), root).string()] =
          read_bytes(entry.path().string());
    }
  }
  on_disk["flashprime/types.h"] = read_bytes((root / "include/flashprime/types.h").string());
  std::map<std::string, std::string> embedded;
  for (const KernelHeader& header : embedded_headers()) {
    embedded[std::string(header.name)] = header.content;
  }
  EXPECT_EQ(embedded, on_disk);
}

TEST(KernelSource, IsAStubThatSaysWhatTheHostAssumes) {
  const KernelKey key = prefill_key("sm_90a");
  const StatusOr<KernelSource> source = make_kernel_source(key, "");
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  EXPECT_THAT(source->unit, HasSubstr("#include \"kernels/sm80_mla_prefill.cuh\""));
  EXPECT_THAT(source->unit, HasSubstr("constexpr PrefillTraits kTraits{.dims = {.nope = 128"));
  EXPECT_THAT(source->unit, HasSubstr("static_assert(Kernel::kThreads == 128)"));
  EXPECT_THAT(source->unit, HasSubstr("static_assert(Kernel::kSharedBytes == 110592)"));
  EXPECT_THAT(source->unit, HasSubstr("__launch_bounds__(128, 2) flashprime_kernel"));
  EXPECT_THAT(source->unit,
              HasSubstr("sizeof(PrefillParams) == " + std::to_string(sizeof(PrefillParams))));
}

TEST(KernelSource, CarriesOnlyTheHeadersThatItIncludes) {
  const auto names = [](const KernelKey& key) {
    std::string text;
    const KernelSource source = *make_kernel_source(key, "");
    for (const SourceHeader& header : source.headers) {
      text += header.name + '\n';
    }
    return text;
  };
  EXPECT_THAT(names(prefill_key("sm_90a")), HasSubstr("kernels/ptx/mma_sync.cuh"));
  EXPECT_THAT(names(prefill_key("sm_90a")), HasSubstr("flashprime/types.h"));
  const KernelKey merge{MergeStatesKernel{}, *parse_arch("sm_90a")};
  EXPECT_THAT(names(merge), ::testing::Not(HasSubstr("mma_sync")));
}

TEST(KernelSource, HashCoversUnitNamesAndContents) {
  const KernelSource source{"unit", {{"a", "1"}, {"b", "2"}}};
  // Golden: a change here makes every cache and bundle out there useless.
  EXPECT_EQ(hex(source.hash()), "a40054600f35db2b4d2735a2c36d49fd8cd022a7e709d51f2214015062e52fef");
  for (const KernelSource& other :
       {KernelSource{"unit2", source.headers}, KernelSource{"unit", {{"a", "1"}, {"b", "3"}}},
        KernelSource{"unit", {{"a", "1"}, {"c", "2"}}}, KernelSource{"unit", {{"a", "1"}}}}) {
    EXPECT_NE(other.hash(), source.hash());
  }
}

TEST(KernelSource, IdentityIsGoldenAndCoversKeySourceAndArchitecture) {
  const KernelSource source{"unit", {{"a", "1"}}};
  const KernelKey key{Sm80MlaPrefillKernel{}, *parse_arch("sm_90a")};
  const std::string id = kernel_id_of(key, source);
  EXPECT_EQ(id, "3e3060b8f3dd67099c4e2c7fca6f8600155dc76889677b1c551edb8cccae7cc2");
  KernelKey other = key;
  other.arch = *parse_arch("sm_90");
  EXPECT_NE(kernel_id_of(other, source), id);
  std::get<Sm80MlaPrefillKernel>(other.kernel).traits.return_lse = true;
  EXPECT_NE(kernel_id_of(other, source), id);
  EXPECT_NE(kernel_id_of(key, {"unit", {{"a", "2"}}}), id);
}

TEST(KernelSource, ReadsAnotherKernelFolderWhenAsked) {
  const TempDir dir;
  std::filesystem::copy(FLASHPRIME_SOURCE_DIR "/kernels", dir / "kernels",
                        std::filesystem::copy_options::recursive);
  const KernelKey key = prefill_key("sm_90a");
  const Sha256 embedded = make_kernel_source(key, "")->hash();
  EXPECT_EQ(make_kernel_source(key, dir / "kernels")->hash(), embedded);
  const std::string edited = dir / "kernels/sm80_mla_prefill.cuh";
  write_bytes(edited, read_bytes(edited) + "// edited\n");
  EXPECT_NE(make_kernel_source(key, dir / "kernels")->hash(), embedded);
  std::filesystem::remove(edited);
  const Status missing = make_kernel_source(key, dir / "kernels").status();
  EXPECT_EQ(missing.code(), StatusCode::kIo);
  EXPECT_THAT(missing.message(), HasSubstr(edited));
}

TEST(Sha256, HashesAsTheStandardSays) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  EXPECT_TRUE(parse_hex(hex(sha256("abc")), hash));
  EXPECT_EQ(hash, sha256("abc"));
  EXPECT_FALSE(parse_hex(std::string(64, 'G'), hash));
  EXPECT_FALSE(parse_hex("ba78", hash));
}

}  // namespace
}  // namespace flashprime
