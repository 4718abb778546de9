// SPDX-License-Identifier: Apache-2.0
#include "cli/files/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/files/tensor_file.h"
#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

namespace fs = std::filesystem;
using Fault = FaultyFileOps::Fault;
using ::testing::HasSubstr;

constexpr std::string_view kNames[] = {"a", "b"};

class InputFileTest : public ::testing::Test {
 protected:
  InputFileTest() {
    std::string name = (fs::temp_directory_path() / "input_file_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~InputFileTest() override { fs::remove_all(folder_); }

  std::string make(const std::string& name, const std::string& bytes) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static Status open(const std::string& path) {
    return open_tensors(path, kNames, FileOps::system()).status();
  }

  fs::path folder_;
};

TEST_F(InputFileTest, RefusesWhatHasNoSize) {
  const auto is_no_file = [](const std::string& path, const char* kind) {
    const Status status = InputFile::open(path, FileOps::system()).status();
    EXPECT_EQ(status.code(), StatusCode::kFormat) << path;
    EXPECT_THAT(status.message(), HasSubstr(path + ": byte 0: is " + kind));
  };
  is_no_file(folder_.string(), "a directory");
  is_no_file("/dev/zero", "a device");
  is_no_file("/dev/urandom", "a device");
  const std::string fifo = (folder_ / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  is_no_file(fifo, "a FIFO");  // without waiting for a writer
}

TEST_F(InputFileTest, SaysWhatTheSystemRefused) {
  const auto refused = [](const std::string& path) {
    const Status status = open(path);
    EXPECT_EQ(status.code(), StatusCode::kIo) << path;
    EXPECT_THAT(status.message(), HasSubstr(printable_path(path)));
    return status.message();
  };
  EXPECT_THAT(refused((folder_ / "none").string()), HasSubstr("No such file"));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(refused((folder_ / "loop").string()), HasSubstr("symbolic links"));
  EXPECT_THAT(refused((folder_ / "\xff\n").string()), HasSubstr("/??: No such file"));
  EXPECT_THAT(refused(""), HasSubstr("No such file"));
  FaultyFileOps denied(Fault::kErrno, EACCES, 2);
  const Status status = open_tensors(make("secret", "x"), kNames, denied).status();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_THAT(status.message(), HasSubstr("secret: cannot open for reading: Permission denied"));
}

TEST_F(InputFileTest, RefusesAnEmptyFile) {
  const Status status = open(make("empty", ""));
  EXPECT_EQ(status.code(), StatusCode::kFormat);
  EXPECT_THAT(status.message(), HasSubstr("empty: byte 0: the file has 0 bytes"));
}

TEST_F(InputFileTest, AFileThatShrinksIsAnErrorAtTheByteWhereItEnds) {
  const std::string path = make("shrinking", std::string(100, 'x'));
  const StatusOr<std::shared_ptr<const InputFile>> file = InputFile::open(path, FileOps::system());
  ASSERT_TRUE(file.ok());
  fs::resize_file(path, 40);
  char bytes[100];
  const Status status = (*file)->read(10, bytes, 90);
  EXPECT_EQ(status.code(), StatusCode::kFormat);
  EXPECT_THAT(status.message(), HasSubstr("shrinking: byte 40: the file ends here, but had 100"));
}

TEST_F(InputFileTest, ReadsOnThroughInterruptedAndShortCallsAndStopsAtErrors) {
  const std::string path = make("data", "0123456789");
  const auto read_with = [&](Fault fault, int number, bool sticky, std::string* bytes) {
    FaultyFileOps ops(fault, number, 3, sticky);  // after open and fstat
    const StatusOr<std::shared_ptr<const InputFile>> file = InputFile::open(path, ops);
    EXPECT_TRUE(file.ok());
    bytes->resize(10);
    return (*file)->read(0, bytes->data(), 10);
  };
  std::string bytes;
  EXPECT_TRUE(read_with(Fault::kErrno, EINTR, false, &bytes).ok());
  EXPECT_EQ(bytes, "0123456789");
  EXPECT_TRUE(read_with(Fault::kShort, 0, true, &bytes).ok());
  EXPECT_EQ(bytes, "0123456789");
  const Status broken = read_with(Fault::kErrno, EIO, false, &bytes);
  EXPECT_EQ(broken.code(), StatusCode::kIo);
  EXPECT_THAT(broken.message(), HasSubstr("data: byte 0: cannot read: Input/output error"));
  FaultyFileOps interrupted(Fault::kInterrupt, 0, 2);
  const StatusOr<std::shared_ptr<const InputFile>> file = InputFile::open(path, interrupted);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT((*file)->read(0, bytes.data(), 10).message(), HasSubstr("interrupted"));
}

TEST_F(InputFileTest, AFolderOfNpyFilesNeedsKnownNamesOnly) {
  EXPECT_THAT(open(folder_.string()).message(), HasSubstr("no .npy file, want some of a, b"));
  const std::string npy = std::string("\x93NUMPY\x01\0", 8) + std::string("\x3a\0", 2) +
                          "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n" +
                          std::string(8, 'x');
  make("b.npy", npy);
  make("README", "ignored");
  make("a.npy", npy);
  const StatusOr<TensorCatalog> catalog = open_tensors(folder_.string(), kNames, FileOps::system());
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  ASSERT_EQ(catalog->tensors.size(), 2u);
  EXPECT_EQ(catalog->tensors[0].name, "a");
  EXPECT_EQ(catalog->tensors[1].name, "b");
  make("c.npy", npy);
  EXPECT_THAT(open(folder_.string()).message(),
              HasSubstr("c.npy: byte 0: unknown tensor 'c', want one of a, b"));
  fs::remove(folder_ / "c.npy");
  fs::create_directory(folder_ / "c");
  fs::remove(folder_ / "a.npy");
  fs::create_directory(folder_ / "a.npy");
  EXPECT_THAT(open(folder_.string()).message(), HasSubstr("a.npy: byte 0: is a directory"));
}

}  // namespace
}  // namespace flashprime::cli
