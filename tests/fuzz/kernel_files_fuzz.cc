// SPDX-License-Identifier: Apache-2.0
// Files that a kernel cache or a bundle may hold: entries, bundles, cubins, keys. Sealed inputs get
// right checksums first, or the fuzzer would never come past them.
#include <cstring>

#include "jit/bundle.h"
#include "jit/cubin.h"
#include "tests/fuzz/fuzz.h"

namespace flashprime {
namespace {

void seal_entry(std::string& bytes) {
  constexpr size_t kPrefix = 88;
  uint32_t header_bytes = 0;
  if (bytes.size() < kPrefix) return;
  std::memcpy(&header_bytes, bytes.data() + 12, sizeof header_bytes);
  const size_t offset = (kPrefix + size_t{header_bytes} + 63) / 64 * 64;
  if (offset > bytes.size()) return;
  const uint64_t payload_bytes = bytes.size() - offset;
  const std::string_view all = bytes;
  const Sha256 header = sha256(all.substr(kPrefix, header_bytes));
  const Sha256 payload = sha256(all.substr(offset));
  std::memcpy(bytes.data() + 16, header.data(), header.size());
  std::memcpy(bytes.data() + 48, &payload_bytes, sizeof payload_bytes);
  std::memcpy(bytes.data() + 56, payload.data(), payload.size());
}

void seal_bundle(std::string& bytes) {
  uint32_t count = 0;
  if (bytes.size() < 48) return;
  std::memcpy(&count, bytes.data() + 12, sizeof count);
  const uint64_t index = 16 + uint64_t{count} * 80;
  if (index > bytes.size() - 32) return;
  const Sha256 hash = sha256(std::string_view(bytes).substr(0, index));
  std::memcpy(bytes.data() + bytes.size() - 32, hash.data(), hash.size());
}

void check_entry(const std::string& bytes) {
  const StatusOr<CompiledKernel> kernel = decode_entry(bytes);
  if (!kernel.ok()) {
    FUZZ_REQUIRE(kernel.status().code() == StatusCode::kFormat);
    return;
  }
  FUZZ_REQUIRE(kernel->kernel_id.size() == 64 && kernel->compiler_id.size() == 16);
  // What was understood can be written, and means the same.
  const StatusOr<CompiledKernel> again = decode_entry(encode_entry(*kernel));
  FUZZ_REQUIRE(again.ok() && again->cubin == kernel->cubin && again->key == kernel->key);
}

void check_bundle(std::string bytes) {
  const StatusOr<Bundle> bundle = Bundle::parse(std::move(bytes), "f");
  if (!bundle.ok()) {
    FUZZ_REQUIRE(bundle.status().code() == StatusCode::kFormat);
    return;
  }
  for (const Bundle::Item& item : bundle->items()) {
    FUZZ_REQUIRE(!item.kernel.ok() || item.kernel->kernel_id == item.kernel_id);
  }
}

void check(std::string_view input) {
  if (input.empty()) return;
  const int what = static_cast<uint8_t>(input.front()) % 6;
  std::string bytes(input.substr(1));
  if (what == 1) seal_entry(bytes);
  if (what == 3) seal_bundle(bytes);
  switch (what) {
    case 0:
    case 1: check_entry(bytes); break;
    case 2:
    case 3: check_bundle(std::move(bytes)); break;
    case 4: {
      const StatusOr<CubinInfo> info = read_cubin(bytes, kEntryName);
      FUZZ_REQUIRE(info.ok() || info.status().code() == StatusCode::kFormat);
      break;
    }
    default: {
      const StatusOr<KernelKey> key = parse_kernel_key(bytes);
      FUZZ_REQUIRE(key.ok() ? key->text() == bytes : key.status().code() == StatusCode::kFormat);
    }
  }
}

}  // namespace
}  // namespace flashprime

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
