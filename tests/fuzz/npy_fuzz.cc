// SPDX-License-Identifier: Apache-2.0
// An npy file and its data.
#include "cli/files/npy.h"

#include "tests/fuzz/fuzz.h"
#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

void check(const std::string& bytes) {
  MemoryFileOps ops;
  ops.files["f"] = bytes;
  StatusOr<std::shared_ptr<const InputFile>> file = InputFile::open("f", ops);
  FUZZ_REQUIRE(file.ok());
  const StatusOr<TensorEntry> entry = parse_npy(std::move(*file));
  FUZZ_REQUIRE(ops.bytes_asked <= static_cast<int64_t>(bytes.size()));
  if (!entry.ok()) {
    FUZZ_REQUIRE(entry.status().code() == StatusCode::kFormat);
    FUZZ_REQUIRE(entry.status().message().starts_with("f: byte "));
    fuzz::require_message(entry.status().message());
    return;
  }
  FUZZ_REQUIRE(entry->offset + entry->bytes == static_cast<int64_t>(bytes.size()));
  FUZZ_REQUIRE(tensor_bytes(entry->dtype, entry->shape) == entry->bytes);
  const StatusOr<Buffer> data = read_tensor(*entry);
  FUZZ_REQUIRE(data.ok());
  FUZZ_REQUIRE(std::memcmp(data->data(), bytes.data() + entry->offset,
                           static_cast<size_t>(entry->bytes)) == 0);
}

}  // namespace
}  // namespace flashprime::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::cli::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
