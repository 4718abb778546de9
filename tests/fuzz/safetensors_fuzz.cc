// SPDX-License-Identifier: Apache-2.0
// A safetensors file on its way to prefill(): header, names, data, validation of the call.
#include "cli/files/prefill_inputs.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/cli/files/fake_file_ops.h"

namespace flashprime::cli {
namespace {

void check(const std::string& bytes) {
  MemoryFileOps ops;
  ops.files["f"] = bytes;
  StatusOr<TensorCatalog> catalog = open_tensors("f", prefill_tensor_names(), ops);
  FUZZ_REQUIRE(ops.bytes_asked <= static_cast<int64_t>(bytes.size()));
  if (!catalog.ok()) {
    FUZZ_REQUIRE(catalog.status().code() == StatusCode::kFormat);
    FUZZ_REQUIRE(catalog.status().message().starts_with("f: byte "));
    fuzz::require_message(catalog.status().message());
    return;
  }
  int64_t data_bytes = 0;
  int64_t first = static_cast<int64_t>(bytes.size());
  for (const TensorEntry& entry : catalog->tensors) {
    data_bytes += entry.bytes;
    first = std::min(first, entry.offset);
    FUZZ_REQUIRE(entry.offset >= 0);
    FUZZ_REQUIRE(entry.offset + entry.bytes <= static_cast<int64_t>(bytes.size()));
    FUZZ_REQUIRE(tensor_bytes(entry.dtype, entry.shape) == entry.bytes);
  }
  FUZZ_REQUIRE(first + data_bytes == static_cast<int64_t>(bytes.size()));

  StatusOr<PrefillInputs> inputs = describe_prefill_inputs(std::move(*catalog), "f", std::nullopt);
  if (!inputs.ok()) {
    FUZZ_REQUIRE(inputs.status().code() == StatusCode::kFormat);
    fuzz::require_message(inputs.status().message());
    return;
  }
  FUZZ_REQUIRE(inputs->bytes <= data_bytes);
  if (Status loaded = inputs->load(); !loaded.ok()) {
    fuzz::require_message(loaded.message());
    return;
  }
  // Whatever the shapes are, the call is refused or knows its workspace.
  inputs->args.softmax_scale = 1.0f;
  const Status valid = prefill_workspace_bytes(inputs->problem, inputs->args).status();
  FUZZ_REQUIRE(valid.code() != StatusCode::kInternal);
}

}  // namespace
}  // namespace flashprime::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashprime::cli::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
