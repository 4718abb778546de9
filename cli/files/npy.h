// SPDX-License-Identifier: Apache-2.0
// The npy format: magic, version, a Python dict as text, raw elements.
#pragma once

#include <memory>

#include "cli/files/tensor_file.h"

namespace flashprime::cli {

// A dict of the largest rank takes less than 300 bytes; nothing longer is read into memory.
constexpr int64_t kMaxNpyHeaderBytes = 65536;

// Reads and checks the header, and that the file holds exactly the data which it promises; the
// entry has no name yet. Versions 1.0, 2.0 and 3.0; plain little-endian numbers in C order.
// Anything else is kFormat.
StatusOr<TensorEntry> parse_npy(std::shared_ptr<const InputFile> file);

}  // namespace flashprime::cli
