// SPDX-License-Identifier: Apache-2.0
#include "cli/files/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string header_of(int major, const std::string& dict) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    bytes += static_cast<char>(dict.size() >> (8 * i) & 0xff);
  }
  return bytes + dict;
}

// What np.save writes, but for the alignment.
std::string dict_of(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }   \n";
}

class NpyTest : public ::testing::Test {
 protected:
  StatusOr<TensorEntry> parse(const std::string& bytes) {
    ops_.files["f.npy"] = bytes;
    StatusOr<std::shared_ptr<const InputFile>> file = InputFile::open("f.npy", ops_);
    if (!file.ok()) return file.status();
    return parse_npy(std::move(*file));
  }
  std::string refusal(const std::string& bytes) {
    const StatusOr<TensorEntry> entry = parse(bytes);
    if (entry.ok()) return "accepted";
    EXPECT_EQ(entry.status().code(), StatusCode::kFormat) << entry.status().message();
    EXPECT_THAT(entry.status().message(), StartsWith("f.npy: byte "));
    EXPECT_EQ(entry.status().message().find('\n'), std::string::npos);
    return entry.status().message();
  }
  std::string refused_dict(const std::string& dict, size_t data_bytes = 8) {
    return refusal(header_of(1, dict) + std::string(data_bytes, 'x'));
  }

  MemoryFileOps ops_;
};

TEST_F(NpyTest, ReadsAllThreeVersions) {
  for (int major : {1, 2, 3}) {
    const std::string header = header_of(major, dict_of("'<f4'", "(2, 3)"));
    const StatusOr<TensorEntry> entry = parse(header + std::string(24, 'x'));
    ASSERT_TRUE(entry.ok()) << entry.status().message();
    EXPECT_EQ(entry->dtype, FileDtype::kFp32);
    EXPECT_EQ(entry->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(entry->offset, static_cast<int64_t>(header.size()));
    EXPECT_EQ(entry->bytes, 24);
  }
}

TEST_F(NpyTest, ReadsWhatPythonMayWrite) {
  const auto accepts = [&](const std::string& dict, size_t data_bytes) {
    const StatusOr<TensorEntry> entry = parse(header_of(1, dict) + std::string(data_bytes, 'x'));
    EXPECT_TRUE(entry.ok()) << dict << entry.status().message();
  };
  accepts("{'descr':'<f2','fortran_order':False,'shape':(3,)}\n", 6);
  accepts("{\"shape\": (1, 2,), \"descr\": \"<u2\", \"fortran_order\": False}\n", 4);
  accepts("  {'descr': '|u1', 'fortran_order': False, 'shape': ()}\n", 1);
  accepts("{'descr': '<i8', 'fortran_order': True, 'shape': (2,), }\n", 16);
  accepts("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 7), }\n", 0);
}

TEST_F(NpyTest, RefusesEveryTruncationAndWhatTrails) {
  const std::string whole = header_of(1, dict_of("'<f4'", "(2,)")) + std::string(8, 'x');
  ASSERT_TRUE(parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal(whole.substr(0, size)), "accepted") << size;
  }
  EXPECT_THAT(refusal(whole + "x"), HasSubstr("data: got 9 bytes, want 8"));
}

TEST_F(NpyTest, RefusesOtherMagicAndVersions) {
  const std::string whole = header_of(1, dict_of("'<f4'", "(2,)")) + std::string(8, 'x');
  std::string bytes = whole;
  bytes[0] = 'x';
  EXPECT_THAT(refusal(bytes), HasSubstr("byte 0: not an npy file"));
  for (int major : {0, 4, 255}) {
    bytes = whole;
    bytes[6] = static_cast<char>(major);
    EXPECT_THAT(refusal(bytes), HasSubstr("byte 6: version: got " + std::to_string(major) + ".0"));
  }
  bytes = whole;
  bytes[7] = 1;
  EXPECT_THAT(refusal(bytes), HasSubstr("version: got 1.1"));
}

TEST_F(NpyTest, RefusesBadHeaderLengthsBeforeReadingWhatTheyPromise) {
  const auto with_length = [&](int major, uint32_t length) {
    std::string bytes = header_of(major, "");
    for (size_t i = 8; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(length >> (8 * (i - 8)) & 0xff);
    }
    return refusal(bytes + "{}\n");
  };
  EXPECT_THAT(with_length(1, 65535), HasSubstr("byte 8: header length: got 65535"));
  EXPECT_THAT(with_length(2, 0xffffffffu), HasSubstr("header length: got 4294967295"));
  EXPECT_THAT(with_length(3, 4), HasSubstr("header length: got 4"));
  EXPECT_THAT(with_length(1, 0), HasSubstr("want a dict"));
  EXPECT_LT(ops_.bytes_asked, 60) << "a refused length must not be read";
  // Long enough to be there, too long to be believed.
  std::string large = header_of(2, std::string(65537, ' '));
  EXPECT_THAT(refusal(large), HasSubstr("header length: got 65537, want at most 65536"));
}

TEST_F(NpyTest, RefusesWhatIsNotTheDict) {
  EXPECT_THAT(refused_dict("[]\n"), HasSubstr("byte 10: want a dict"));
  EXPECT_THAT(refused_dict("{}\n"), HasSubstr("lacks 'descr'"));
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'shape': (2,)}\n"),
              HasSubstr("lacks 'fortran_order'"));
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'fortran_order': False}\n"),
              HasSubstr("lacks 'shape'"));
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'descr': '<f4'}\n"),
              HasSubstr("repeated key 'descr'"));
  EXPECT_THAT(refused_dict("{'x': 1}\n"), HasSubstr("unknown key 'x'"));
  EXPECT_THAT(refused_dict("{descr: 1}\n"), HasSubstr("want a key in quotes"));
  EXPECT_THAT(refused_dict("{'descr' '<f4'}\n"), HasSubstr("want ':'"));
  EXPECT_THAT(refused_dict("{'descr': '<f4' 'shape': (2,)}\n"), HasSubstr("want ',' or '}'"));
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}\n"),
              HasSubstr("want True or False"));
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"),
              HasSubstr("one newline"));
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}; x\n"),
              HasSubstr("one newline"));
  EXPECT_THAT(refused_dict(std::string(60'000, '{')), HasSubstr("byte 11: want a key"));
  EXPECT_THAT(refused_dict("{'descr': " + std::string(60'000, '(')), HasSubstr("descr: want"));
}

TEST_F(NpyTest, RefusesDtypesThatAreNotPlainLittleEndianNumbers) {
  for (const char* descr : {"'|O'", "'>f4'", "'<U5'", "'|S3'", "'f2'", "'f16'", "'<f16'", "'<c8'",
                            "'|V2'", "'<V2'", "'<M8[ns]'", "'bfloat16'", "'='", "''"}) {
    EXPECT_THAT(refused_dict(dict_of(descr, "(2,)")), HasSubstr("descr: got")) << descr;
  }
  EXPECT_THAT(refused_dict(dict_of("'>f4'", "(2,)")), HasSubstr("newbyteorder"));
  EXPECT_THAT(refused_dict(dict_of("'|V2'", "(2,)")), HasSubstr("view('uint16')"));
  EXPECT_THAT(refused_dict(dict_of("[('x', '<f4')]", "(2,)")), HasSubstr("structured dtypes"));
  EXPECT_THAT(refused_dict(dict_of("'<f4", "(2,)")), HasSubstr("descr: got"));
}

TEST_F(NpyTest, RefusesFortranOrderOfMoreThanOneAxis) {
  EXPECT_THAT(refused_dict("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }\n"),
              HasSubstr("fortran_order is True, want C order"));
}

TEST_F(NpyTest, RefusesShapesThatAreNotSizes) {
  const auto shape = [&](const std::string& text) { return refused_dict(dict_of("'<f4'", text)); };
  EXPECT_THAT(shape("2"), HasSubstr("want a tuple"));
  EXPECT_THAT(shape("[2]"), HasSubstr("want a tuple"));
  EXPECT_THAT(shape("(2)"), HasSubstr("want ',' in a tuple of one"));
  EXPECT_THAT(shape("(-2,)"), HasSubstr("shape: got '-'"));
  EXPECT_THAT(shape("(2.0,)"), HasSubstr("want ','"));
  EXPECT_THAT(shape("(0x2,)"), HasSubstr("want ','"));
  EXPECT_THAT(shape("(2L,)"), HasSubstr("want ','"));
  EXPECT_THAT(shape("(,)"), HasSubstr("shape: got ','"));
  EXPECT_THAT(shape("(True,)"), HasSubstr("shape: got 'T'"));
  EXPECT_THAT(shape("(9223372036854775808,)"), HasSubstr("shape: got '9223372036854775808'"));
  EXPECT_THAT(shape("(4611686018427387904, 4)"), HasSubstr("overflows 63 bits"));
  EXPECT_THAT(shape("(1, 1, 1, 1, 1, 1, 1, 1, 2)"), HasSubstr("at most 8 axes"));
  std::string many = "(";
  for (int i = 0; i < 10'000; ++i) many += "1,";
  EXPECT_THAT(shape(many + ")"), HasSubstr("at most 8 axes"));
  EXPECT_THAT(shape("(3,)"), HasSubstr("data: got 8 bytes, want 12"));
  EXPECT_THAT(shape("()"), HasSubstr("data: got 8 bytes, want 4"));
}

}  // namespace
}  // namespace flashprime::cli
