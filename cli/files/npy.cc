// SPDX-License-Identifier: Apache-2.0
#include "cli/files/npy.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text.h"

namespace flashprime::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The part of Python's literals that np.save writes:
// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class DictParser {
 public:
  DictParser(const InputFile& file, int64_t offset, std::string_view text)
      : file_(file), offset_(offset), text_(text) {}

  // Fills dtype and shape.
  Status parse(TensorEntry* entry) {
    bool has_descr = false, has_order = false, has_shape = false;
    if (!take('{')) return error("want a dict: '{'");
    while (!take('}')) {
      const size_t key_position = position_;
      std::string_view key;
      if (!take_string(&key)) return error("want a key in quotes, or '}'");
      bool* seen = key == "descr"           ? &has_descr
                   : key == "fortran_order" ? &has_order
                   : key == "shape"         ? &has_shape
                                            : nullptr;
      if (!seen || *seen) {
        position_ = key_position;
        return error(fmt::format("{} key '{}', want descr, fortran_order and shape once each",
                                 seen ? "repeated" : "unknown", printable(key)));
      }
      *seen = true;
      if (!take(':')) return error("want ':' after a key");
      const Status value = seen == &has_descr   ? parse_descr(entry)
                           : seen == &has_order ? parse_order()
                                                : parse_shape(entry);
      if (!value.ok()) return value;
      if (!take(',')) {
        if (take('}')) break;
        return error("want ',' or '}' after a value");
      }
    }
    if (!has_descr || !has_order || !has_shape) {
      return error(fmt::format("the dict lacks '{}'", !has_descr   ? "descr"
                                                      : !has_order ? "fortran_order"
                                                                   : "shape"));
    }
    if (fortran_order_ && entry->shape.size() > 1) {
      return error("fortran_order is True, want C order: np.save(name, np.ascontiguousarray(x))");
    }
    skip_spaces();
    if (text_.substr(position_) != "\n") {
      return error("want spaces and one newline after the dict");
    }
    return ok_status();
  }

 private:
  Status error(std::string_view what) const {
    return file_.malformed(offset_ + static_cast<int64_t>(position_), what);
  }

  void skip_spaces() {
    while (position_ < text_.size() && text_[position_] == ' ') ++position_;
  }

  bool take(char c) {
    skip_spaces();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  bool take_word(std::string_view word) {
    skip_spaces();
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }

  // A string in either quote; none of ours needs an escape.
  bool take_string(std::string_view* string) {
    skip_spaces();
    if (position_ >= text_.size() || (text_[position_] != '\'' && text_[position_] != '"')) {
      return false;
    }
    const size_t end = text_.find(text_[position_], position_ + 1);
    if (end == std::string_view::npos) return false;
    *string = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return true;
  }

  Status parse_descr(TensorEntry* entry) {
    skip_spaces();
    const size_t start = position_;
    std::string_view descr;
    if (!take_string(&descr)) {
      return error("descr: want a plain dtype in quotes; structured dtypes are not read");
    }
    for (const FileDtypeRow& row : file_dtypes()) {
      if (!row.npy.empty() && row.npy == descr) {
        entry->dtype = row.dtype;
        return ok_status();
      }
    }
    position_ = start;
    const bool big_endian = !descr.empty() && descr[0] == '>';
    return error(
        fmt::format("descr: got '{}', want a little-endian number such as '<f2', '<f4', '<i4'{}",
                    printable(descr),
                    big_endian ? ": convert with x.astype(x.dtype.newbyteorder('<'))"
                               : ", or '<u2' for bf16 bits (x.view('uint16'))"));
  }

  Status parse_order() {
    fortran_order_ = take_word("True");
    if (!fortran_order_ && !take_word("False")) {
      return error("fortran_order: want True or False");
    }
    return ok_status();
  }

  Status parse_shape(TensorEntry* entry) {
    if (!take('(')) return error("shape: want a tuple: '('");
    while (!take(')')) {
      if (entry->shape.size() == kMaxFileRank) {
        return error(fmt::format("shape: want at most {} axes", kMaxFileRank));
      }
      skip_spaces();
      const std::string_view rest = text_.substr(position_);
      const auto digits =
          static_cast<size_t>(std::find_if_not(rest.begin(), rest.end(), is_digit) - rest.begin());
      const StatusOr<int64_t> extent = parse_integer(rest.substr(0, digits), 0, INT64_MAX);
      if (!extent.ok()) {
        return error(fmt::format("shape: got '{}', want an integer from 0 to 2^63 - 1",
                                 printable(rest.substr(0, std::max<size_t>(digits, 1)))));
      }
      position_ += digits;
      entry->shape.push_back(*extent);
      if (!take(',')) {
        if (entry->shape.size() == 1) return error("shape: want ',' in a tuple of one");
        if (take(')')) break;
        return error("shape: want ',' or ')'");
      }
    }
    return ok_status();
  }

  const InputFile& file_;
  int64_t offset_;
  std::string_view text_;
  size_t position_ = 0;
  bool fortran_order_ = false;
};

}  // namespace

StatusOr<TensorEntry> parse_npy(std::shared_ptr<const InputFile> file) {
  const int64_t size = file->size();
  unsigned char prefix[12] = {};
  if (size < 10) return file->malformed(size, "the file ends within the npy header");
  if (Status read = file->read(0, prefix, 10); !read.ok()) return read;
  if (std::string_view(reinterpret_cast<const char*>(prefix), kMagic.size()) != kMagic) {
    return file->malformed(0, "not an npy file: want it to begin with \\x93NUMPY");
  }
  const int major = prefix[6], minor = prefix[7];
  if (major < 1 || major > 3 || minor != 0) {
    return file->malformed(6,
                           fmt::format("version: got {}.{}, want 1.0, 2.0 or 3.0", major, minor));
  }
  int64_t header_bytes = prefix[8] | prefix[9] << 8;
  int64_t header_offset = 10;
  if (major > 1) {
    header_offset = 12;
    if (size < 12) return file->malformed(size, "the file ends within the npy header");
    if (Status read = file->read(10, prefix + 10, 2); !read.ok()) return read;
    header_bytes |= int64_t{prefix[10]} << 16 | int64_t{prefix[11]} << 24;
  }
  // Before the header is read: its length is a stranger's number.
  if (header_bytes > kMaxNpyHeaderBytes || header_bytes > size - header_offset) {
    return file->malformed(
        8, fmt::format("header length: got {}, want at most {}, and {} are left in the file",
                       header_bytes, kMaxNpyHeaderBytes, size - header_offset));
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  if (Status read = file->read(header_offset, header.data(), header_bytes); !read.ok()) return read;

  TensorEntry entry;
  if (Status parsed = DictParser(*file, header_offset, header).parse(&entry); !parsed.ok()) {
    return parsed;
  }
  entry.offset = header_offset + header_bytes;
  const std::optional<int64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
  if (!bytes) {
    return file->malformed(
        header_offset, fmt::format("shape: {} of '{}' overflows 63 bits", shape_text(entry.shape),
                                   describe(entry.dtype).npy));
  }
  if (*bytes != size - entry.offset) {
    return file->malformed(
        std::min(size, entry.offset + std::min(*bytes, size - entry.offset)),
        fmt::format("data: got {} bytes, want {} for shape {} of '{}'", size - entry.offset, *bytes,
                    shape_text(entry.shape), describe(entry.dtype).npy));
  }
  entry.bytes = *bytes;
  entry.file = std::move(file);
  return entry;
}

}  // namespace flashprime::cli
