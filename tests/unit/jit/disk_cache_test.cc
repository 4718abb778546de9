// SPDX-License-Identifier: Apache-2.0
#include "jit/disk_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include "fault_shim.h"
#include "jit_testing.h"

namespace flashprime {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

EntryQuery query_of(const CompiledKernel& kernel) {
  return {kernel.kernel_id, kernel.arch.to_string(), kernel.key, kernel.compiler_id};
}

class DiskCacheTest : public ::testing::Test {
 protected:
  DiskCache cache(bool writable = true) const {
    return DiskCache({.root = root_, .writable = writable});
  }
  std::string path_of(const CompiledKernel& kernel) const {
    return root_ + "/v1/" + kernel.arch.to_string() + '/' + kernel.kernel_id.substr(0, 2) + '/' +
           kernel.kernel_id + '.' + kernel.compiler_id + ".fpk";
  }
  size_t files_in(const std::string& folder) const {
    std::error_code ignored;
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(root_ + "/v1/" + folder, ignored), {}));
  }
  void set_age(const std::string& path, int64_t days) const {
    const timespec time = {std::time(nullptr) - days * 86400, 0};
    const timespec times[2] = {time, time};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  void TearDown() override { fault_plan() = {}; }

  TempDir dir_;
  std::string root_ = dir_ / "cache";
  const CompiledKernel kernel_ = sample_kernel();
};

TEST_F(DiskCacheTest, CreatesNothingBeforeTheFirstPublish) {
  EXPECT_TRUE(cache().check_root().ok());
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "absent");
  EXPECT_FALSE(fs::exists(root_));
}

TEST_F(DiskCacheTest, FindsWhatItPublished) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  const DiskCache::Found found = cache(false).find(query_of(kernel_));
  ASSERT_TRUE(found.kernel) << found.miss << found.detail;
  EXPECT_EQ(found.kernel->cubin, kernel_.cubin);
  EXPECT_TRUE(fs::exists(path_of(kernel_)));
  EXPECT_TRUE(fs::exists(root_ + "/CACHEDIR.TAG"));
  EXPECT_EQ(files_in("tmp"), 0u);
  // For nobody else's eyes or hands.
  EXPECT_EQ(fs::status(root_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(path_of(kernel_)).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(DiskCacheTest, FindsTheNewestOfAnyCompilerWhenNoneIsNamed) {
  CompiledKernel other = kernel_;
  other.compiler_id = "fedcba9876543210";
  ASSERT_TRUE(cache().publish(kernel_).ok());
  ASSERT_TRUE(cache().publish(other).ok());
  set_age(path_of(kernel_), 2);
  EntryQuery query = query_of(kernel_);
  query.compiler_id.clear();
  EXPECT_EQ(cache(false).find(query).kernel->compiler_id, other.compiler_id);
  set_age(path_of(other), 3);
  EXPECT_EQ(cache(false).find(query).kernel->compiler_id, kernel_.compiler_id);
}

TEST_F(DiskCacheTest, HealsTruncationAtEveryHalfKilobyte) {
  const std::string bytes = encode_entry(kernel_);
  for (size_t size = 0; size < bytes.size(); size += 512) {
    ASSERT_TRUE(cache().publish(kernel_).ok());
    fs::resize_file(path_of(kernel_), size);
    EXPECT_EQ(cache().find(query_of(kernel_)).miss, "damaged") << size;
    EXPECT_FALSE(fs::exists(path_of(kernel_)));
  }
  ASSERT_TRUE(cache().publish(kernel_).ok());
  EXPECT_TRUE(cache().find(query_of(kernel_)).kernel);
}

TEST_F(DiskCacheTest, KeepsSixteenBadEntriesAtMost) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(cache().publish(kernel_).ok());
    fs::resize_file(path_of(kernel_), 100);
    EXPECT_EQ(cache().find(query_of(kernel_)).miss, "damaged");
  }
  EXPECT_EQ(files_in("bad"), 16u);
}

TEST_F(DiskCacheTest, RefusesEntriesRenamedIntoAnothersPlace) {
  const CompiledKernel other = sample_kernel(1);
  ASSERT_TRUE(cache().publish(kernel_).ok());
  fs::create_directories(fs::path(path_of(other)).parent_path());
  fs::rename(path_of(kernel_), path_of(other));
  EXPECT_EQ(cache().find(query_of(other)).miss, "foreign");

  // The right name for a kernel of another architecture.
  CompiledKernel wrong = sample_kernel(2, "sm_100a");
  ASSERT_TRUE(cache().publish(wrong).ok());
  CompiledKernel place = wrong;
  place.arch = *parse_arch("sm_90a");
  fs::create_directories(fs::path(path_of(place)).parent_path());
  fs::rename(path_of(wrong), path_of(place));
  EXPECT_EQ(cache().find(query_of(place)).miss, "foreign");

  // The same identity with another key: a collision, or a forgery.
  ASSERT_TRUE(cache().publish(kernel_).ok());
  EntryQuery query = query_of(kernel_);
  query.key = prefill_key("sm_90a", true).text();
  EXPECT_EQ(cache().find(query).miss, "foreign");
}

TEST_F(DiskCacheTest, FollowsNoLinksAndOpensNothingButFiles) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  const std::string elsewhere = dir_ / "elsewhere";
  fs::rename(path_of(kernel_), elsewhere);
  fs::create_symlink(elsewhere, path_of(kernel_));
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "unreadable");
  fs::remove(path_of(kernel_));
  fs::create_hard_link(elsewhere, path_of(kernel_));
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "unreadable");
  fs::remove(path_of(kernel_));
  ASSERT_EQ(mkfifo(path_of(kernel_).c_str(), 0600), 0);
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "unreadable");

  fs::create_symlink(root_, dir_ / "link");
  const DiskCache linked({.root = dir_ / "link"});
  EXPECT_FALSE(linked.check_root().ok());
  EXPECT_FALSE(linked.publish(kernel_).ok());
}

TEST_F(DiskCacheTest, UsesNothingThatOthersCanWrite) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  ASSERT_EQ(chmod(path_of(kernel_).c_str(), 0622), 0);
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "permissions");
  ASSERT_EQ(chmod(path_of(kernel_).c_str(), 0600), 0);

  ASSERT_EQ(chmod(root_.c_str(), 0770), 0);
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "root");
  EXPECT_THAT(cache().check_root().message(), HasSubstr("FLASHPRIME_CACHE_SHARED"));
  EXPECT_TRUE(DiskCache({.root = root_, .shared_by_group = true}).check_root().ok());
  ASSERT_EQ(chmod(root_.c_str(), 0777), 0);
  EXPECT_FALSE(DiskCache({.root = root_, .shared_by_group = true}).check_root().ok());
  ASSERT_EQ(chmod(root_.c_str(), 0700), 0);

  // A folder above it that others can write, without the sticky bit.
  const std::string open = dir_ / "open";
  fs::create_directories(open + "/cache");
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  EXPECT_THAT(DiskCache({.root = open + "/cache"}).check_root().message(), HasSubstr(open));
  ASSERT_EQ(chmod(open.c_str(), 01777), 0);
  EXPECT_TRUE(DiskCache({.root = open + "/cache"}).check_root().ok());
}

TEST_F(DiskCacheTest, RefusesAnotherUsersFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  ASSERT_TRUE(cache().publish(kernel_).ok());
  ASSERT_EQ(chown(root_.c_str(), 12345, 12345), 0);
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "root");
  EXPECT_THAT(cache().check_root().message(), HasSubstr("12345"));
  ASSERT_EQ(chown(root_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(path_of(kernel_).c_str(), 12345, 12345), 0);
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "permissions");
}

TEST_F(DiskCacheTest, SharesWithItsGroupOnlyWhenToldTo) {
  const DiskCache shared({.root = root_, .shared_by_group = true});
  const mode_t old_mask = umask(077);
  ASSERT_TRUE(shared.publish(kernel_).ok());
  EXPECT_EQ(shared.try_lock(kernel_.kernel_id).state(), KernelLock::State::kHeld);
  umask(old_mask);
  struct stat info = {};
  ASSERT_EQ(stat(path_of(kernel_).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
  ASSERT_EQ(stat((root_ + "/v1/locks").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 02770u);
  ASSERT_EQ(stat((root_ + "/v1/locks/" + kernel_.kernel_id + ".lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
}

TEST_F(DiskCacheTest, WritesNothingWhereItMayOnlyRead) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  fs::resize_file(path_of(kernel_), 100);
  set_age(path_of(kernel_), 5);
  EXPECT_EQ(cache(false).find(query_of(kernel_)).miss, "damaged");
  EXPECT_TRUE(fs::exists(path_of(kernel_)));
  EXPECT_EQ(cache(false).try_lock(kernel_.kernel_id).state(), KernelLock::State::kUnavailable);
  EXPECT_EQ(cache(false).prune(false, true).status().code(), StatusCode::kIo);
}

TEST_F(DiskCacheTest, LetsOneHolderHaveALock) {
  {
    const KernelLock held = cache().try_lock(kernel_.kernel_id);
    ASSERT_EQ(held.state(), KernelLock::State::kHeld);
    EXPECT_EQ(cache().try_lock(kernel_.kernel_id).state(), KernelLock::State::kBusy);
    EXPECT_EQ(cache().try_lock(sample_kernel(1).kernel_id).state(), KernelLock::State::kHeld);
  }
  EXPECT_EQ(cache().try_lock(kernel_.kernel_id).state(), KernelLock::State::kHeld);
}

TEST_F(DiskCacheTest, ADeadHolderHoldsNothing) {
  const int status = in_child([&] {
    const KernelLock held = cache().try_lock(kernel_.kernel_id);
    ASSERT_EQ(held.state(), KernelLock::State::kHeld);
    kill(getpid(), SIGKILL);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(cache().try_lock(kernel_.kernel_id).state(), KernelLock::State::kHeld);
}

TEST_F(DiskCacheTest, DoesWithoutLocksThatDoNotWork) {
  for (const int error : {ENOLCK, EROFS, EACCES, ESTALE, EIO}) {
    fault_plan() = {.countdown = 1, .sticky = true, .error = error, .only = "flock"};
    EXPECT_EQ(cache().try_lock(kernel_.kernel_id).state(), KernelLock::State::kUnavailable);
  }
  fault_plan() = {.countdown = 1, .error = EINTR, .only = "flock"};
  EXPECT_EQ(cache().try_lock(kernel_.kernel_id).state(), KernelLock::State::kHeld);
}

// Every system call of a publish and a find fails once, with every error, alone or for good.
TEST_F(DiskCacheTest, SurvivesTheFailureOfAnySystemCall) {
  int failures = 0;
  for (const int error : {EIO, ENOSPC, EACCES, ESTALE}) {
    for (const bool sticky : {false, true}) {
      for (int nth = 1;; ++nth) {
        fs::remove_all(root_);
        fault_plan() = {.countdown = nth, .sticky = sticky, .error = error};
        const Status published = cache().publish(kernel_);
        const bool hit = fault_plan().calls >= nth;
        fault_plan() = {};
        failures += published.ok() ? 0 : 1;
        const DiskCache::Found found = cache().find(query_of(kernel_));
        // What was reported as published is there whole; otherwise it is there or it is not.
        if (published.ok()) {
          ASSERT_TRUE(found.kernel) << nth << ' ' << found.detail;
        } else {
          ASSERT_EQ(published.code(), StatusCode::kIo);
          ASSERT_TRUE(found.kernel || found.miss == "absent") << nth << ' ' << found.detail;
          ASSERT_EQ(files_in("tmp"), 0u) << nth;
        }
        ASSERT_TRUE(cache().publish(kernel_).ok()) << nth;
        if (!hit) break;
      }
      for (int nth = 1;; ++nth) {
        fault_plan() = {.countdown = nth, .sticky = sticky, .error = error};
        const DiskCache::Found found = cache().find(query_of(kernel_));
        const bool hit = fault_plan().calls >= nth;
        fault_plan() = {};
        ASSERT_TRUE(found.kernel || found.miss != "damaged") << nth;
        ASSERT_TRUE(cache().find(query_of(kernel_)).kernel) << nth;
        if (!hit) break;
      }
    }
  }
  EXPECT_GT(failures, 40);
}

TEST_F(DiskCacheTest, CarriesOnAfterInterruptions) {
  for (int nth = 1;; ++nth) {
    fs::remove_all(root_);
    fault_plan() = {.countdown = nth, .error = EINTR};
    const Status published = cache().publish(kernel_);
    const bool hit = fault_plan().calls >= nth;
    fault_plan() = {};
    // fsync and renameat are not interruptible; a fault there is a failure like any other.
    ASSERT_TRUE(cache().find(query_of(kernel_)).kernel || !published.ok()) << nth;
    if (!hit) break;
  }
}

TEST_F(DiskCacheTest, ReportsAFullDiskAndLeavesNothingBehind) {
  fault_plan() = {.countdown = 1, .sticky = true, .error = ENOSPC, .only = "write"};
  const Status published = cache().publish(kernel_);
  fault_plan() = {};
  EXPECT_EQ(published.code(), StatusCode::kIo);
  EXPECT_THAT(published.message(), HasSubstr("No space left"));
  EXPECT_EQ(files_in("tmp"), 0u);
  EXPECT_EQ(cache().find(query_of(kernel_)).miss, "absent");
}

// The same of a file system that is full indeed, where this process may make one.
TEST_F(DiskCacheTest, CarriesOnWhereARealFileSystemIsFull) {
  constexpr int kMayNotMount = 77;
  const int status = in_child([&] {
    fs::create_directory(root_);
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", root_.c_str(), "tmpfs", 0, "size=32k,mode=0700") != 0) {
      _exit(kMayNotMount);
    }
    int published = 0;
    for (int i = 0; i < 20; ++i) {
      const CompiledKernel kernel = sample_kernel(i);
      const Status outcome = cache().publish(kernel);
      published += outcome.ok() ? 1 : 0;
      if (!outcome.ok()) {
        EXPECT_THAT(outcome.message(), HasSubstr("No space left"));
      }
      EXPECT_EQ(cache().find(query_of(kernel)).kernel.has_value(), outcome.ok()) << i;
    }
    EXPECT_GT(published, 0);
    EXPECT_LT(published, 20);
    EXPECT_EQ(files_in("tmp"), 0u);
  });
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kMayNotMount) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(DiskCacheTest, SurvivesDeathAtEverySystemCallOfAPublish) {
  int deaths = 0;
  for (int nth = 1;; ++nth) {
    fs::remove_all(root_);
    const int status = in_child([&] {
      const KernelLock lock = cache().try_lock(kernel_.kernel_id);
      fault_plan() = {.countdown = nth, .kill = true};
      EXPECT_TRUE(cache().publish(kernel_).ok());
    });
    const DiskCache::Found found = cache().find(query_of(kernel_));
    ASSERT_TRUE(found.kernel || found.miss == "absent") << nth << ' ' << found.miss;
    ASSERT_EQ(cache().try_lock(kernel_.kernel_id).state(), KernelLock::State::kHeld) << nth;
    ASSERT_TRUE(cache().publish(kernel_).ok()) << nth;
    ASSERT_TRUE(cache().find(query_of(kernel_)).kernel) << nth;
    if (!WIFSIGNALED(status)) break;
    ++deaths;
  }
  EXPECT_GE(deaths, 8);
}

TEST_F(DiskCacheTest, PrunesWhatIsOldThenTheLeastUsed) {
  std::vector<CompiledKernel> kernels;
  for (int i = 0; i < 6; ++i) {
    kernels.push_back(sample_kernel(i));
    ASSERT_TRUE(cache().publish(kernels.back()).ok());
    set_age(path_of(kernels.back()), i == 0 ? 100 : 10 - i);
  }
  const int64_t entry_bytes = static_cast<int64_t>(encode_entry(kernels[0]).size());
  const DiskCache small({.root = root_, .max_bytes = 3 * entry_bytes});
  EXPECT_EQ(small.prune(true, false)->removed, 3);
  EXPECT_EQ(cache().entries().size(), 6u);
  const StatusOr<PruneReport> report = small.prune(false, false);
  EXPECT_EQ(report->removed, 3);
  EXPECT_EQ(report->kept, 3);
  EXPECT_EQ(report->kept_bytes, 3 * entry_bytes);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(fs::exists(path_of(kernels[i])), i >= 3) << i;
}

TEST_F(DiskCacheTest, SparesYoungEntriesAndOthersFiles) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  const DiskCache tiny({.root = root_, .max_bytes = 1});
  EXPECT_EQ(tiny.prune(false, false)->kept, 1);
  // Named like an entry, but none: not ours to delete.
  const CompiledKernel other = sample_kernel(1);
  fs::create_directories(fs::path(path_of(other)).parent_path());
  write_bytes(path_of(other), "somebody's file");
  set_age(path_of(other), 1000);
  write_bytes(root_ + "/v1/notes.txt", "somebody's file");
  EXPECT_EQ(tiny.prune(false, true)->removed, 1);
  EXPECT_TRUE(fs::exists(path_of(other)));
  EXPECT_TRUE(fs::exists(root_ + "/v1/notes.txt"));
}

TEST_F(DiskCacheTest, RemovesLeftoversOfDeadProcessesAndOldVersions) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  write_bytes(root_ + "/v1/tmp/1.dead.tmp", "half an entry");
  fs::create_directories(root_ + "/v0/sm_90a/00");
  const std::string old = root_ + "/v0/sm_90a/00/" + fs::path(path_of(kernel_)).filename().string();
  fs::copy(path_of(kernel_), old);
  set_age(old, 40);
  EXPECT_EQ(cache().prune(false, false)->removed, 1);
  EXPECT_FALSE(fs::exists(old));
  set_age(root_ + "/v1/tmp/1.dead.tmp", 1);
  EXPECT_EQ(cache().prune(false, false)->removed, 1);
  EXPECT_TRUE(fs::exists(path_of(kernel_)));
}

TEST_F(DiskCacheTest, AHitOnAnOldEntryMakesItYoung) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  set_age(path_of(kernel_), 80);
  ASSERT_TRUE(cache().find(query_of(kernel_)).kernel);
  EXPECT_LT(cache().entries().front().age_seconds, 60);
}

TEST_F(DiskCacheTest, ReadersNeverSeeMoreOrLessThanAnEntryWhileOthersPruneAndPublish) {
  ASSERT_TRUE(cache().publish(kernel_).ok());
  std::atomic<bool> done = false;
  std::thread writer([&] {
    for (int i = 0; i < 200; ++i) {
      EXPECT_TRUE(cache().prune(false, true).ok());
      // A clear may take the temporary file of a publish away: that is a failure, no more.
      (void)cache().publish(kernel_).ok();
    }
    done = true;
  });
  int64_t hits = 0;
  while (!done) {
    const DiskCache::Found found = cache().find(query_of(kernel_));
    EXPECT_TRUE(found.kernel || found.miss == "absent") << found.miss << ' ' << found.detail;
    hits += found.kernel ? 1 : 0;
  }
  writer.join();
  EXPECT_GT(hits, 0);
}

TEST_F(DiskCacheTest, ListsEveryEntryAndWhatIsWrongWithIt) {
  ASSERT_TRUE(cache().publish(sample_kernel(1)).ok());
  ASSERT_TRUE(cache().publish(sample_kernel(2, "sm_100a")).ok());
  fs::resize_file(path_of(sample_kernel(1)), 300);
  int64_t bad = 0;
  for (const CacheEntry& entry : cache().entries()) {
    bad += entry.status.ok() ? 0 : 1;
    if (entry.status.ok()) {
      EXPECT_EQ(entry.kernel, "sm80_mla_prefill");
      EXPECT_EQ(entry.arch, "sm_100a");
    }
  }
  EXPECT_EQ(cache().entries().size(), 2u);
  EXPECT_EQ(bad, 1);
}

}  // namespace
}  // namespace flashprime
