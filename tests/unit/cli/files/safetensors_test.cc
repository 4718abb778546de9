// SPDX-License-Identifier: Apache-2.0
#include "cli/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kNames[] = {"a", "b", "c"};

std::string length_of(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return length_of(header.size()) + header + std::string(data_bytes, '\x5a');
}

class SafetensorsTest : public ::testing::Test {
 protected:
  StatusOr<TensorCatalog> parse(const std::string& bytes) {
    ops_.files["f"] = bytes;
    return open_tensors("f", kNames, ops_);
  }
  // The message of a file that must be refused as kFormat.
  std::string refusal(const std::string& bytes) {
    const StatusOr<TensorCatalog> catalog = parse(bytes);
    if (catalog.ok()) return "accepted";
    EXPECT_EQ(catalog.status().code(), StatusCode::kFormat) << catalog.status().message();
    EXPECT_THAT(catalog.status().message(), StartsWith("f: byte "));
    EXPECT_EQ(catalog.status().message().find('\n'), std::string::npos);
    return catalog.status().message();
  }
  std::string refused_header(const std::string& header, size_t data_bytes = 0) {
    return refusal(file_of(header, data_bytes));
  }

  MemoryFileOps ops_;
};

TEST_F(SafetensorsTest, ReadsTensorsMetadataAndPadding) {
  const StatusOr<TensorCatalog> catalog =
      parse(file_of(R"({"__metadata__":{"x":"y"},)"
                    R"("b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
                    R"("a":{"data_offsets":[0,4],"shape":[2],"dtype":"BF16"},)"
                    R"("c":{"dtype":"I64","shape":[0,5],"data_offsets":[28,28]}}   )",
                    28));
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  ASSERT_EQ(catalog->tensors.size(), 3u);
  EXPECT_EQ(catalog->metadata.at("x"), "y");
  const TensorEntry& b = *catalog->find("b");
  EXPECT_EQ(b.dtype, FileDtype::kFp32);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.bytes, 24);
  EXPECT_EQ(b.offset, static_cast<int64_t>(ops_.files["f"].size()) - 24);
  EXPECT_EQ(catalog->find("a")->bytes, 4);
  EXPECT_EQ(catalog->find("c")->bytes, 0);
  const StatusOr<Buffer> data = read_tensor(b);
  ASSERT_TRUE(data.ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(data->data()), 24), std::string(24, '\x5a'));
}

TEST_F(SafetensorsTest, ReadsAScalarAndAnEmptyHeader) {
  const StatusOr<TensorCatalog> scalar =
      parse(file_of(R"({"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8));
  ASSERT_TRUE(scalar.ok()) << scalar.status().message();
  EXPECT_TRUE(scalar->tensors[0].shape.empty());
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
}

TEST_F(SafetensorsTest, RefusesBadLengthsBeforeReadingWhatTheyPromise) {
  EXPECT_THAT(refusal(""), HasSubstr("byte 0: the file has 0 bytes"));
  EXPECT_THAT(refusal("1234567"), HasSubstr("byte 7: the file has 7 bytes"));
  EXPECT_THAT(refusal(length_of(2) + "{"), HasSubstr("the file has 9 bytes"));
  EXPECT_THAT(refusal(length_of(0) + "{}"), HasSubstr("header length: got 0"));
  EXPECT_THAT(refusal(length_of(1) + "{}"), HasSubstr("header length: got 1"));
  EXPECT_THAT(refusal(length_of(3) + "{}"), HasSubstr("header length: got 3"));
  EXPECT_THAT(refusal(length_of(100'000'001) + std::string(100'000'001, ' ')),
              HasSubstr("header length: got 100000001"));
  EXPECT_THAT(refusal(length_of(~uint64_t{0}) + "{}"),
              HasSubstr("header length: got 18446744073709551615"));
  EXPECT_THAT(refusal(length_of(uint64_t{1} << 63) + "{}"), HasSubstr("header length"));
  EXPECT_LT(ops_.bytes_asked, 100) << "a refused length must not be read";
}

TEST_F(SafetensorsTest, RefusesEveryTruncation) {
  const std::string whole = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_TRUE(parse(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(refusal(whole.substr(0, size)), "accepted") << size;
  }
  EXPECT_THAT(refusal(whole + "x"), HasSubstr("got 9 bytes of data, of which the header names 8"));
}

TEST_F(SafetensorsTest, RefusesWhatIsNoObjectOfTensors) {
  EXPECT_THAT(refused_header("[]"), HasSubstr("byte 8: header: want it to begin with '{'"));
  EXPECT_THAT(refused_header(" {}"), HasSubstr("begin with '{'"));
  EXPECT_THAT(refused_header("{} {}"), HasSubstr("not JSON"));
  EXPECT_THAT(refused_header("{}x"), HasSubstr("not JSON"));
  EXPECT_THAT(refused_header("{\"a\":"), HasSubstr("not JSON"));
  EXPECT_THAT(refused_header("{'a':1}"), HasSubstr("byte 9: not JSON"));
  EXPECT_THAT(refused_header(R"({"a":1})"), HasSubstr("'a': got 1, want an object"));
  EXPECT_THAT(refused_header(R"({"a":null})"), HasSubstr("got null"));
  EXPECT_THAT(refused_header(R"({"a":[]})"), HasSubstr("got an array"));
  EXPECT_THAT(refused_header("{/* */}"), HasSubstr("not JSON"));
  EXPECT_THAT(refused_header(std::string("{\"a\0\":1}", 8)), HasSubstr("not JSON"));
  EXPECT_THAT(refused_header("{\"a\xff\":{}}"), HasSubstr("not JSON in UTF-8"));
  EXPECT_THAT(refused_header("{\"\xc0\xaf\":{}}"), HasSubstr("not JSON in UTF-8"));
  EXPECT_THAT(refused_header("{\"\\ud800\":{}}"), HasSubstr("not JSON in UTF-8"));
}

TEST_F(SafetensorsTest, RefusesDeepNestingWithoutFollowingIt) {
  EXPECT_THAT(refused_header("{\"a\":" + std::string(1'000'000, '[')), HasSubstr("got an array"));
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  EXPECT_THAT(refused_header(objects), HasSubstr("unknown key 'a'"));
  EXPECT_THAT(refused_header("{\"a\":{\"shape\":" + std::string(1'000'000, '[')),
              HasSubstr("byte 23: 'a': 'shape': got an array"));
}

TEST_F(SafetensorsTest, RefusesNamesThatAreTwiceThereOrUnknown) {
  const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(refused_header("{" + a + "," + a + "}", 1), HasSubstr("'a' appears twice"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{},"__metadata__":{}})"),
              HasSubstr("'__metadata__' appears twice"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":"1","k":"2"}})"),
              HasSubstr("'k' appears twice"));
  EXPECT_THAT(refused_header(R"({"a":{"dtype":"U8","dtype":"U8"}})"),
              HasSubstr("'dtype' appears twice"));
  EXPECT_THAT(refused_header(R"({"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                             R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
              HasSubstr("'a' appears twice"));
  EXPECT_THAT(refused_header(R"({"z":{}})"), HasSubstr("unknown tensor 'z', want one of a, b, c"));
  EXPECT_THAT(refused_header("{\"\x07\":{}}"), HasSubstr("not JSON"));
  EXPECT_THAT(refused_header("{\"\\u0007\\n\":{}}"), HasSubstr("unknown tensor '?"
                                                               "?'"));
}

TEST_F(SafetensorsTest, RefusesAMillionTensorsAtTheFirstThatItDoesNotKnow) {
  std::string header = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    header += "\"t" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  }
  header.back() = '}';
  EXPECT_THAT(refused_header(header), HasSubstr("byte 12: unknown tensor 't0'"));
}

TEST_F(SafetensorsTest, RefusesMalformedTensors) {
  const auto tensor = [&](const std::string& body, size_t data_bytes = 4) {
    return refused_header("{\"a\":{" + body + "}}", data_bytes);
  };
  EXPECT_THAT(tensor(R"("shape":[1],"data_offsets":[0,4])"), HasSubstr("'a': want dtype"));
  EXPECT_THAT(tensor(R"("dtype":"F32","data_offsets":[0,4])"), HasSubstr("'a': want dtype"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1])"), HasSubstr("'a': want dtype"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4])"), HasSubstr("'a': want"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"),
              HasSubstr("want two integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"),
              HasSubstr("unknown key 'x'"));
  EXPECT_THAT(tensor(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"),
              HasSubstr("dtype: got 'F31', want one of BOOL"));
  EXPECT_THAT(tensor(R"("dtype":7,"shape":[1],"data_offsets":[0,4])"),
              HasSubstr("'dtype': got 7, want a string"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"),
              HasSubstr("'shape': got 1, want an array of integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"),
              HasSubstr("got '1', want integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"),
              HasSubstr("got 1.0, want integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])"),
              HasSubstr("got 1e0, want integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"),
              HasSubstr("got -1, want integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[true],"data_offsets":[0,4])"),
              HasSubstr("got a boolean"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"),
              HasSubstr("got 9223372036854775808, want integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4])"),
              HasSubstr("want integers"));
  EXPECT_THAT(tensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"),
              HasSubstr("at most 8 axes"));
}

TEST_F(SafetensorsTest, RefusesOffsetsThatDoNotTileTheData) {
  const auto tensor = [&](const std::string& shape, const std::string& offsets) {
    return refused_header(
        R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}", 8);
  };
  EXPECT_THAT(tensor("[2]", "[8,0]"), HasSubstr("got [8, 0], want them in order"));
  EXPECT_THAT(tensor("[3]", "[0,12]"), HasSubstr("at most 8, the bytes of data"));
  EXPECT_THAT(tensor("[2]", "[9223372036854775800,9223372036854775807]"), HasSubstr("at most 8"));
  EXPECT_THAT(tensor("[1]", "[0,8]"), HasSubstr("got 8 bytes, want 4 for shape [1] of F32"));
  EXPECT_THAT(tensor("[4611686018427387904,4]", "[0,8]"), HasSubstr("want more than 2^63"));
  EXPECT_THAT(tensor("[1]", "[4,8]"), HasSubstr("leaves a gap"));
  EXPECT_THAT(tensor("[1]", "[0,4]"),
              HasSubstr("got 8 bytes of data, of which the header names 4"));

  const auto two = [&](const std::string& first, const std::string& second) {
    return refused_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + first +
                              R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + second + "}}",
                          12);
  };
  EXPECT_THAT(two("[0,4]", "[2,6]"), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,4]", "[0,4]"), HasSubstr("overlaps"));
  EXPECT_THAT(two("[0,4]", "[8,12]"), HasSubstr("leaves a gap"));
}

TEST_F(SafetensorsTest, RefusesMetadataThatAreNotStrings) {
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":1}})"),
              HasSubstr("'k': got 1, want strings only"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":null}})"), HasSubstr("strings only"));
  EXPECT_THAT(refused_header(R"({"__metadata__":{"k":{}}})"), HasSubstr("strings only"));
  EXPECT_THAT(refused_header(R"({"__metadata__":[]})"), HasSubstr("got an array"));
  EXPECT_THAT(refused_header(R"({"__metadata__":"x"})"), HasSubstr("want an object"));
}

}  // namespace
}  // namespace flashprime::cli
