// SPDX-License-Identifier: Apache-2.0
#include "cli/files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/files/atomic_file.h"
#include "cli/text.h"

namespace flashprime::cli {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;

// Counts what the JSON parser has consumed, which its callbacks are not told.
struct CountingIterator {
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  int64_t* count = nullptr;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    ++at;
    ++*count;
    return *this;
  }
  CountingIterator operator++(int) {
    const CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
};

// Builds the catalogue as the JSON is parsed: no document in memory, nothing nested deeper than the
// format allows, and every name seen, where a document would keep the last of two.
class HeaderHandler final : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(std::shared_ptr<const InputFile> file,
                std::span<const std::string_view> known_names)
      : file_(std::move(file)), known_names_(known_names) {}

  int64_t* consumed() { return &consumed_; }
  const Status& status() const { return status_; }
  // The catalogue, once everything was parsed.
  StatusOr<TensorCatalog> finish(int64_t data_offset);

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(int64_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return unexpected(text); }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return unexpected(std::to_string(value));
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) return unexpected(std::to_string(value));
    if (place_ == Place::kShape) {
      if (tensor_.entry.shape.size() == kMaxFileRank) {
        return error(
            fmt::format("'{}': shape: want at most {} axes", tensor_.entry.name, kMaxFileRank));
      }
      tensor_.entry.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (tensor_.num_offsets == 2) return error("data_offsets: want two integers");
    tensor_.offsets[tensor_.num_offsets++] = static_cast<int64_t>(value);
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      metadata_.emplace(key_, value);
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") {
      return unexpected(fmt::format("'{}'", printable(value)));
    }
    for (const FileDtypeRow& row : file_dtypes()) {
      if (row.safetensors != value) continue;
      tensor_.entry.dtype = row.dtype;
      tensor_.has_dtype = true;
      return true;
    }
    std::vector<std::string_view> names;
    for (const FileDtypeRow& row : file_dtypes()) names.push_back(row.safetensors);
    return error(fmt::format("'{}': dtype: got '{}', want one of {}", tensor_.entry.name,
                             printable(value), fmt::join(names, ", ")));
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kTop: place_ = Place::kHeader; return true;
      case Place::kHeader:
        if (key_ == "__metadata__") {
          place_ = Place::kMetadata;
        } else {
          place_ = Place::kTensor;
          tensor_ = {};
          tensor_.entry.name = key_;
          tensor_.header_position = position();
        }
        return true;
      default: return unexpected("an object");
    }
  }

  bool key(std::string& name) override {
    std::set<std::string>& seen = place_ == Place::kHeader ? names_ : keys_;
    if (!seen.insert(name).second) {
      return error(fmt::format("the name '{}' appears twice", printable(name)));
    }
    key_ = name;
    if (place_ == Place::kHeader) {
      keys_.clear();
      const bool known =
          name == "__metadata__" ||
          std::find(known_names_.begin(), known_names_.end(), name) != known_names_.end();
      if (!known) {
        return error(fmt::format("unknown tensor '{}', want one of {}", printable(name),
                                 fmt::join(known_names_, ", ")));
      }
    }
    if (place_ == Place::kTensor && name != "dtype" && name != "shape" && name != "data_offsets") {
      return error(fmt::format("'{}': unknown key '{}', want dtype, shape and data_offsets",
                               tensor_.entry.name, printable(name)));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kHeader) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ == Place::kTensor) {
      if (!tensor_.has_dtype || !tensor_.has_shape || tensor_.num_offsets != 2) {
        return error(
            fmt::format("'{}': want dtype, shape and two data_offsets", tensor_.entry.name));
      }
      tensors_.push_back(std::move(tensor_));
    }
    place_ = Place::kHeader;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return unexpected("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kShape) tensor_.has_shape = true;
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t parsed, const std::string& token, const Json::exception&) override {
    consumed_ = static_cast<int64_t>(parsed);
    return error(fmt::format("not JSON in UTF-8 at '{}'", printable(token)));
  }

 private:
  enum class Place { kTop, kHeader, kMetadata, kTensor, kShape, kOffsets };

  struct ParsedTensor {
    TensorEntry entry;
    bool has_dtype = false;
    bool has_shape = false;
    int num_offsets = 0;
    int64_t offsets[2] = {};
    int64_t header_position = 0;
  };

  // The byte that was read last.
  int64_t position() const { return kLengthBytes + std::max<int64_t>(consumed_ - 1, 0); }

  bool error(std::string_view what) {
    status_ = file_->malformed(position(), what);
    return false;
  }

  // A value that the place does not take.
  bool unexpected(std::string_view got) {
    const char* want = place_ == Place::kTop        ? "an object of tensors"
                       : place_ == Place::kMetadata ? "strings only"
                       : place_ == Place::kShape || place_ == Place::kOffsets
                           ? "integers from 0 to 2^63 - 1"
                       : place_ == Place::kTensor && key_ == "dtype" ? "a string"
                       : place_ == Place::kTensor                    ? "an array of integers"
                                                                     : "an object";
    return error(
        fmt::format("{}'{}': got {}, want {}",
                    place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets
                        ? fmt::format("'{}': ", tensor_.entry.name)
                        : "",
                    printable(key_), printable(got), want));
  }

  std::shared_ptr<const InputFile> file_;
  std::span<const std::string_view> known_names_;
  int64_t consumed_ = 0;
  Status status_;
  Place place_ = Place::kTop;
  std::string key_;
  std::set<std::string> names_;  // of the header
  std::set<std::string> keys_;   // of the object within it
  ParsedTensor tensor_;
  std::vector<ParsedTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

StatusOr<TensorCatalog> HeaderHandler::finish(int64_t data_offset) {
  const int64_t data_bytes = file_->size() - data_offset;
  for (ParsedTensor& tensor : tensors_) {
    TensorEntry& entry = tensor.entry;
    const auto [begin, end] = tensor.offsets;
    if (begin > end || end > data_bytes) {
      return file_->malformed(
          tensor.header_position,
          fmt::format("'{}': data_offsets: got [{}, {}], want them in order and at most {}, the "
                      "bytes of data in the file",
                      entry.name, begin, end, data_bytes));
    }
    const std::optional<int64_t> bytes = tensor_bytes(entry.dtype, entry.shape);
    if (!bytes || *bytes != end - begin) {
      return file_->malformed(
          tensor.header_position,
          fmt::format("'{}': data_offsets: got {} bytes, want {} for shape {} of {}", entry.name,
                      end - begin, bytes ? std::to_string(*bytes) : "more than 2^63",
                      shape_text(entry.shape), describe(entry.dtype).safetensors));
    }
    entry.offset = data_offset + begin;
    entry.bytes = *bytes;
    entry.file = file_;
  }
  // In order of place, every byte of the data belongs to exactly one tensor.
  std::sort(tensors_.begin(), tensors_.end(), [](const ParsedTensor& a, const ParsedTensor& b) {
    return std::pair(a.offsets[0], a.offsets[1]) < std::pair(b.offsets[0], b.offsets[1]);
  });
  int64_t covered = 0;
  for (const ParsedTensor& tensor : tensors_) {
    if (tensor.offsets[0] != covered) {
      return file_->malformed(
          tensor.header_position,
          fmt::format("'{}': data_offsets: got [{}, {}], which {} the tensor before it, ending at "
                      "{}",
                      tensor.entry.name, tensor.offsets[0], tensor.offsets[1],
                      tensor.offsets[0] < covered ? "overlaps" : "leaves a gap after", covered));
    }
    covered = tensor.offsets[1];
  }
  if (covered != data_bytes) {
    return file_->malformed(
        data_offset + covered,
        fmt::format("got {} bytes of data, of which the header names {}", data_bytes, covered));
  }
  TensorCatalog catalog;
  for (ParsedTensor& tensor : tensors_) catalog.tensors.push_back(std::move(tensor.entry));
  std::sort(catalog.tensors.begin(), catalog.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  catalog.metadata = std::move(metadata_);
  return catalog;
}

uint64_t load_u64(const unsigned char* bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace

StatusOr<TensorCatalog> parse_safetensors(std::shared_ptr<const InputFile> file,
                                          std::span<const std::string_view> known_names) {
  if (file->size() < kLengthBytes + 2) {
    return file->malformed(file->size(),
                           fmt::format("the file has {} bytes, want at least {}: 8 of length and "
                                       "a header",
                                       file->size(), kLengthBytes + 2));
  }
  unsigned char length[kLengthBytes] = {};
  if (Status read = file->read(0, length, kLengthBytes); !read.ok()) return read;
  const uint64_t header_length = load_u64(length);
  const int64_t left = file->size() - kLengthBytes;
  // Before anything of that size is allocated or parsed: the length is a stranger's number.
  if (header_length < 2 || header_length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes) ||
      header_length > static_cast<uint64_t>(left)) {
    return file->malformed(
        0, fmt::format("header length: got {}, want from 2 to {}, and {} are left in the file",
                       header_length, kMaxSafetensorsHeaderBytes, left));
  }
  std::string header(static_cast<size_t>(header_length), '\0');
  if (Status read = file->read(kLengthBytes, header.data(), static_cast<int64_t>(header_length));
      !read.ok()) {
    return read;
  }
  if (header[0] != '{') return file->malformed(kLengthBytes, "header: want it to begin with '{'");

  HeaderHandler handler(file, known_names);
  const char* begin = header.data();
  const char* end = begin + header.size();
  const bool parsed = Json::sax_parse(CountingIterator{begin, handler.consumed()},
                                      CountingIterator{end, handler.consumed()}, &handler);
  if (!handler.status().ok()) return handler.status();
  if (!parsed) return file->malformed(kLengthBytes, "header: not JSON");
  return handler.finish(kLengthBytes + static_cast<int64_t>(header_length));
}

Status write_safetensors(const std::string& path, std::span<const OutputTensor> tensors,
                         const std::map<std::string, std::string>& metadata, FileOps& ops) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<int64_t> sizes;
  int64_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    const std::optional<int64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    const int64_t begin = offset;
    if (!bytes || __builtin_add_overflow(offset, *bytes, &offset)) {
      return {StatusCode::kRange,
              fmt::format("'{}': {} overflows 63 bits", tensor.name, shape_text(tensor.shape))};
    }
    sizes.push_back(*bytes);
    header[tensor.name] = {{"dtype", describe(tensor.dtype).safetensors},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, offset}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data, as the format asks
  const uint64_t length = text.size();

  StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::create(path, ops);
  if (!file.ok()) return file.status();
  if (Status written = (*file)->write(&length, kLengthBytes); !written.ok()) return written;
  if (Status written = (*file)->write(text.data(), static_cast<int64_t>(text.size()));
      !written.ok()) {
    return written;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (Status written = (*file)->write(tensors[i].data, sizes[i]); !written.ok()) return written;
  }
  return (*file)->commit();
}

}  // namespace flashprime::cli
