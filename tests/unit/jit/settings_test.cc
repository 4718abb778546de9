// SPDX-License-Identifier: Apache-2.0
#include "jit/settings.h"

#include <gmock/gmock.h>

#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The environment of a test, put back afterwards.
class Environment {
 public:
  void set(const char* name, const char* value) {
    const char* old = std::getenv(name);
    saved_.emplace_back(name, old == nullptr ? std::optional<std::string>() : old);
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() {
    for (auto i = saved_.rbegin(); i != saved_.rend(); ++i) {
      i->second ? setenv(i->first, i->second->c_str(), 1) : unsetenv(i->first);
    }
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

TEST(JitSettings, PutsTheCacheWhereTheSystemKeepsCachesAndNowhereElse) {
  Environment env;
  env.set("FLASHPRIME_CACHE_DIR", nullptr);
  env.set("XDG_CACHE_HOME", "/xdg");
  env.set("HOME", "/home/me");
  EXPECT_EQ(resolve_settings({})->dirs.writable, "/xdg/flashprime");
  env.set("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(resolve_settings({})->dirs.writable, "/home/me/.cache/flashprime");
  env.set("XDG_CACHE_HOME", nullptr);
  for (const char* home : {"/", "relative", "", static_cast<const char*>(nullptr)}) {
    env.set("HOME", home);
    const StatusOr<JitSettings> settings = resolve_settings({});
    ASSERT_TRUE(settings.ok());
    EXPECT_EQ(settings->dirs.writable, "");
    EXPECT_THAT(settings->dirs.why_memory_only, HasSubstr("HOME"));
  }
}

TEST(JitSettings, TakesOffAndReadOnlyFolders) {
  Environment env;
  env.set("FLASHPRIME_CACHE_DIR", "off");
  EXPECT_EQ(resolve_settings({})->dirs.writable, "");
  EXPECT_EQ(resolve_settings({})->dirs.why_memory_only, "switched off");
  env.set("FLASHPRIME_CACHE_DIR", "ro:/shared/kernels");
  EXPECT_EQ(resolve_settings({})->dirs.writable, "");
  EXPECT_THAT(resolve_settings({})->dirs.read_only, ElementsAre("/shared/kernels"));
  env.set("FLASHPRIME_CACHE_DIR", "/from/environment");
  EXPECT_EQ(resolve_settings({.cache_dir = "/from/option"})->dirs.writable, "/from/option");
}

TEST(JitSettings, RefusesValuesThatMeanNothing) {
  const std::pair<const char*, const char*> wrong[] = {
      {"FLASHPRIME_CACHE_DIR", "relative"},     {"FLASHPRIME_CACHE_DIR", "ro:relative"},
      {"FLASHPRIME_CACHE_SHARED", "world"},     {"FLASHPRIME_CACHE_MAX_MB", "0"},
      {"FLASHPRIME_CACHE_MAX_MB", "12MB"},      {"FLASHPRIME_LOCK_WAIT_S", "-1"},
      {"FLASHPRIME_LOCK_WAIT_S", "nan"},        {"FLASHPRIME_FREEZE", "yes"},
      {"FLASHPRIME_BUNDLE", "relative.fpb"},    {"FLASHPRIME_BUNDLE_SHA256", "abc"},
      {"FLASHPRIME_NVRTC_PATH", "libnvrtc.so"}, {"FLASHPRIME_DUMP_DIR", "dump"},
      {"FLASHPRIME_KERNEL_DIR", "../kernels"},  {"FLASHPRIME_LOG", "loud"},
      {"FLASHPRIME_LOG", "info:relative"},      {"FLASHPRIME_LOG", ":/file"},
  };
  for (const auto& [name, value] : wrong) {
    Environment env;
    env.set(name, value);
    const Status status = resolve_settings({}).status();
    EXPECT_EQ(status.code(), StatusCode::kFormat) << name << '=' << value;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

TEST(JitSettings, ReadsEveryVariable) {
  Environment env;
  const std::string hash(64, 'a');
  env.set("FLASHPRIME_CACHE_SHARED", "group");
  env.set("FLASHPRIME_CACHE_MAX_MB", "7");
  env.set("FLASHPRIME_LOCK_WAIT_S", "2.5");
  env.set("FLASHPRIME_FREEZE", "error");
  env.set("FLASHPRIME_BUNDLE", "/a.fpb:/b.fpb");
  env.set("FLASHPRIME_BUNDLE_SHA256", (hash + ':' + hash).c_str());
  env.set("FLASHPRIME_NVRTC_PATH", "/nvrtc.so");
  env.set("FLASHPRIME_DUMP_DIR", "/dump");
  env.set("FLASHPRIME_KERNEL_DIR", "/kernels");
  env.set("FLASHPRIME_LOG", "debug:/log/file:1");
  const StatusOr<JitSettings> settings = resolve_settings({});
  ASSERT_TRUE(settings.ok()) << settings.status().to_string();
  EXPECT_TRUE(settings->shared_by_group);
  EXPECT_EQ(settings->max_bytes, 7 << 20);
  EXPECT_EQ(settings->lock_wait_seconds, 2.5);
  EXPECT_EQ(settings->freeze, FreezePolicy::kError);
  EXPECT_THAT(settings->bundles, ElementsAre("/a.fpb", "/b.fpb"));
  EXPECT_EQ(settings->bundle_hashes.size(), 2u);
  EXPECT_EQ(settings->nvrtc.path, "/nvrtc.so");
  EXPECT_EQ(settings->dump_dir, "/dump");
  EXPECT_EQ(settings->kernel_dir, "/kernels");
  EXPECT_EQ(settings->log.to_string(), "debug to /log/file:1");
  EXPECT_EQ(resolve_settings({.log = "error"})->log.to_string(), "error to stderr");
  env.set("FLASHPRIME_BUNDLE_SHA256", hash.c_str());
  EXPECT_THAT(resolve_settings({}).status().message(), HasSubstr("1 hashes for 2 bundles"));
}

}  // namespace
}  // namespace flashprime
