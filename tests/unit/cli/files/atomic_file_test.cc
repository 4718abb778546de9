// SPDX-License-Identifier: Apache-2.0
#include "cli/files/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "cli/files/safetensors.h"
#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

namespace fs = std::filesystem;
using Fault = FaultyFileOps::Fault;
using ::testing::HasSubstr;

// An empty folder that is gone after the test.
class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() {
    std::string name = (fs::temp_directory_path() / "atomic_file_XXXXXX").string();
    folder_ = mkdtemp(name.data());
    path_ = (folder_ / "out.safetensors").string();
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_old() { std::ofstream(path_, std::ios::binary) << "old"; }
  size_t count_files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  // The write that the tests break: 100,000 bytes of data, which is more than one call.
  Status write_new(FileOps& ops) const {
    return write_safetensors(
        path_, std::vector<OutputTensor>{{"out", FileDtype::kUint8, {100'000}, data_.data()}},
        {{"by", "test"}}, ops);
  }
  std::string whole_new() {
    const std::string other = (folder_ / "other").string();
    EXPECT_TRUE(write_safetensors(
                    other,
                    std::vector<OutputTensor>{{"out", FileDtype::kUint8, {100'000}, data_.data()}},
                    {{"by", "test"}}, FileOps::system())
                    .ok());
    const std::string bytes = read(other);
    fs::remove(other);
    return bytes;
  }

  fs::path folder_;
  std::string path_;
  std::string data_ = std::string(100'000, 'x');
};

TEST_F(AtomicFileTest, NothingIsAtThePathUntilCommit) {
  StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::create(path_, FileOps::system());
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  ASSERT_TRUE((*file)->write("abc", 3).ok());
  EXPECT_FALSE(fs::exists(path_));
  ASSERT_TRUE((*file)->commit().ok());
  EXPECT_EQ(read(path_), "abc");
  EXPECT_EQ(count_files(), 1u);
}

TEST_F(AtomicFileTest, LeavesNothingWhenItIsDropped) {
  {
    StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::create(path_, FileOps::system());
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->write("abc", 3).ok());
  }
  EXPECT_EQ(count_files(), 0u);
}

TEST_F(AtomicFileTest, RefusesWhatIsNoRegularFile) {
  const auto refused = [](const std::string& path) {
    const Status status = AtomicFile::create(path, FileOps::system()).status();
    EXPECT_EQ(status.code(), StatusCode::kIo) << path;
    EXPECT_THAT(status.message(), HasSubstr("cannot write")) << path;
    return status.message();
  };
  EXPECT_THAT(refused(folder_.string()), HasSubstr("is a directory"));
  EXPECT_THAT(refused(folder_.string() + "/"), HasSubstr("name of a file"));
  EXPECT_THAT(refused(""), HasSubstr("name of a file"));
  EXPECT_THAT(refused("/dev/null"), HasSubstr("not a regular file"));
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(refused(fifo), HasSubstr("not a regular file"));
  fs::create_symlink("/dev/null", folder_ / "link");
  EXPECT_THAT(refused((folder_ / "link").string()), HasSubstr("not a regular file"));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(refused((folder_ / "loop").string()), HasSubstr("symbolic links"));
  EXPECT_THAT(refused((folder_ / "no" / "such").string()), HasSubstr("No such file"));
  write_old();
  EXPECT_THAT(refused(path_ + "/x"), HasSubstr("Not a directory"));
  EXPECT_THAT(refused((folder_ / std::string(300, 'n')).string()), HasSubstr("too long"));
}

TEST_F(AtomicFileTest, PassesOverTheLeftoverOfAKilledProcess) {
  const std::string leftover =
      (folder_ / (".out.safetensors." + std::to_string(getpid()) + "-0.part")).string();
  std::ofstream(leftover) << "half";
  ASSERT_TRUE(write_new(FileOps::system()).ok());
  EXPECT_EQ(read(path_), whole_new());
  EXPECT_EQ(read(leftover), "half");
}

// For every call N of a write and every fault: an error says so and the old file is untouched, or
// the new file is whole. Never a stray file.
TEST_F(AtomicFileTest, KeepsOldOrNewFileWholeWhateverCallFails) {
  struct Case {
    Fault fault;
    int number;
    bool sticky;
    bool must_succeed;
  };
  const std::string whole = whole_new();
  for (const Case& c :
       {Case{Fault::kErrno, ENOSPC, false, false}, Case{Fault::kErrno, ENOSPC, true, false},
        Case{Fault::kErrno, EIO, false, false}, Case{Fault::kErrno, EIO, true, false},
        Case{Fault::kErrno, EACCES, true, false}, Case{Fault::kErrno, EMFILE, false, false},
        Case{Fault::kErrno, EDQUOT, false, false}, Case{Fault::kErrno, EINTR, false, true},
        Case{Fault::kShort, 0, false, true}, Case{Fault::kShort, 0, true, true},
        Case{Fault::kInterrupt, 0, false, false}}) {
    int failures = 0, strikes = 0;
    for (int nth = 1;; ++nth) {
      ASSERT_LT(nth, 100);
      SCOPED_TRACE(::testing::Message() << "fault " << static_cast<int>(c.fault) << " errno "
                                        << c.number << " sticky " << c.sticky << " call " << nth);
      write_old();
      FaultyFileOps ops(c.fault, c.number, nth, c.sticky);
      const Status status = write_new(ops);
      const std::string after = read(path_);
      if (status.ok()) {
        EXPECT_EQ(after, whole);
      } else {
        ++failures;
        EXPECT_EQ(status.code(), StatusCode::kIo);
        EXPECT_THAT(status.message(), HasSubstr(path_));
        // Only the sync of the folder comes after the rename.
        EXPECT_TRUE(after == "old" || after == whole);
      }
      EXPECT_EQ(count_files(), 1u);
      if (!ops.struck()) break;
      ++strikes;
      EXPECT_TRUE(status.ok() || !c.must_succeed) << status.message();
    }
    EXPECT_GE(strikes, 5);
    EXPECT_GE(failures, c.must_succeed ? 0 : 5);
  }
}

TEST_F(AtomicFileTest, KeepsOldOrNewFileWholeWhereverTheProcessIsKilled) {
  const std::string whole = whole_new();
  bool finished = false;
  for (int nth = 1; !finished; ++nth) {
    ASSERT_LT(nth, 100);
    SCOPED_TRACE(nth);
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    write_old();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyFileOps ops(Fault::kKill, 0, nth);
      _exit(write_new(ops).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    finished = WIFEXITED(status);
    EXPECT_TRUE(!finished || WEXITSTATUS(status) == 0);
    const std::string after = read(path_);
    EXPECT_TRUE(after == whole || (after == "old" && !finished));
    // The killed writer's temporary file does not stop the next one.
    ASSERT_TRUE(write_new(FileOps::system()).ok());
    EXPECT_EQ(read(path_), whole);
  }
}

}  // namespace
}  // namespace flashprime::cli
