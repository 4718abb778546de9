// SPDX-License-Identifier: Apache-2.0
// What the fuzz harnesses share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

// Ends the process where a promise is broken, in every kind of build.
#define FUZZ_REQUIRE(condition)                                                    \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace flashprime::fuzz {

// An error message that a person gets: present, of one line and short.
inline void require_message(const std::string& message) {
  FUZZ_REQUIRE(!message.empty());
  FUZZ_REQUIRE(message.size() < 4096);
  FUZZ_REQUIRE(message.find('\n') == std::string::npos);
}

// Numbers out of the fuzzer's bytes; zeros once these have run out.
class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return position_ >= size_; }
  uint8_t byte() { return empty() ? uint8_t{0} : data_[position_++]; }
  // In [0, n).
  int32_t below(int32_t n) { return byte() % n; }
  bool flag() { return (byte() & 1) != 0; }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  std::string_view rest() {
    const auto* text = reinterpret_cast<const char*>(data_ + position_);
    const size_t count = size_ - position_;
    position_ = size_;
    return {text, count};
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

}  // namespace flashprime::fuzz
