// SPDX-License-Identifier: Apache-2.0
#include "jit/cache_entry.h"

#include <charconv>
#include <cstring>

#include "checks.h"
#include "jit/cubin.h"

namespace flashprime {
namespace {

// magic, format, header length, SHA-256 of the header, payload length, SHA-256 of the payload,
// header, zeros up to a multiple of 64, payload.
constexpr std::string_view kMagic = "FPKERNEL";
constexpr uint32_t kFormat = 1;
struct Prefix {
  char magic[8];
  uint32_t format;
  uint32_t header_bytes;
  Sha256 header_hash;
  uint64_t payload_bytes;
  Sha256 payload_hash;
};
static_assert(sizeof(Prefix) == 88);
constexpr size_t kMaxHeaderBytes = 1 << 16;
constexpr size_t kPayloadAlignment = 64;

constexpr std::string_view kHex = "0123456789abcdef";
bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of(kHex) == std::string_view::npos;
}

size_t payload_offset(size_t header_bytes) {
  return (sizeof(Prefix) + header_bytes + kPayloadAlignment - 1) / kPayloadAlignment *
         kPayloadAlignment;
}

// The header: "name value" lines. One list serves both directions. Text that spans lines (the key)
// is one line for each of its own.
template <typename Kernel, typename Visit>
void visit_numbers(Kernel& kernel, const Visit& visit) {
  visit("nvrtc_version", kernel.nvrtc_version);
  visit("registers", kernel.report.registers);
  visit("stack_bytes", kernel.report.stack_bytes);
  visit("spill_store_bytes", kernel.report.spill_store_bytes);
  visit("spill_load_bytes", kernel.report.spill_load_bytes);
  visit("static_shared_bytes", kernel.report.static_shared_bytes);
  visit("shared_bytes", kernel.shared_bytes);
  visit("compile_us", kernel.compile_us);
  visit("created", kernel.created);
}

template <typename Kernel, typename Visit>
void visit_texts(Kernel& kernel, const Visit& visit) {
  visit("kernel_id", kernel.kernel_id);
  visit("compiler_id", kernel.compiler_id);
  visit("compiler", kernel.compiler);
  visit("entry", kernel.entry);
}

// One line, whatever the text holds.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

std::string header_of(const CompiledKernel& kernel) {
  std::string header;
  const auto line = [&](std::string_view name, const std::string& value) {
    header += concat(name, ' ', one_line(value), '\n');
  };
  visit_texts(kernel, line);
  visit_numbers(kernel,
                [&](std::string_view name, int64_t value) { line(name, std::to_string(value)); });
  line("arch", kernel.arch.to_string());
  for (const std::string& option : kernel.options) line("option", option);
  for (const std::string& warning : kernel.report.warnings) line("warning", warning);
  std::istringstream key(kernel.key);
  for (std::string text; std::getline(key, text);) line("key", text);
  return header;
}

template <typename Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0;
}

Status parse_header(std::string_view header, CompiledKernel& kernel) {
  while (!header.empty()) {
    const size_t end = header.find('\n');
    const std::string_view line = header.substr(0, end);
    const size_t space = line.find(' ');
    FLASHPRIME_REQUIRE(end != std::string_view::npos && space != std::string_view::npos,
                       StatusCode::kFormat, "entry: a header line is malformed");
    header.remove_prefix(end + 1);
    const std::string_view name = line.substr(0, space);
    const std::string_view value = line.substr(space + 1);
    bool known = false;
    visit_texts(kernel, [&](std::string_view field, std::string& text) {
      if (field != name) return;
      known = true;
      text = value;
    });
    visit_numbers(kernel, [&](std::string_view field, auto& number) {
      if (field == name) known = parse_number(value, number);
    });
    if (name == "arch") {
      const StatusOr<Arch> arch = parse_arch(value);
      if (!arch.ok()) return arch.status();
      kernel.arch = *arch;
      known = true;
    } else if (name == "option") {
      kernel.options.emplace_back(value);
      known = true;
    } else if (name == "warning") {
      kernel.report.warnings.emplace_back(value);
      known = true;
    } else if (name == "key") {
      kernel.key += std::string(value) + '\n';
      known = true;
    }
    FLASHPRIME_REQUIRE(known, StatusCode::kFormat, "entry: header line '", name.substr(0, 40), "'");
  }
  FLASHPRIME_REQUIRE(is_hex(kernel.kernel_id, 64) && is_hex(kernel.compiler_id, 16),
                     StatusCode::kFormat, "entry: its identity is malformed");
  return ok_status();
}

}  // namespace

std::string kernel_id_of(const KernelKey& key, const KernelSource& source) {
  std::string all = concat("flashprime kernel id 1\n", key.text(), hex(source.hash()), '\n');
  for (const std::string& option : compile_options(key.arch)) all += option + '\n';
  return hex(sha256(all));
}

std::string encode_entry(const CompiledKernel& kernel) {
  const std::string header = header_of(kernel);
  Prefix prefix = {};
  std::memcpy(prefix.magic, kMagic.data(), kMagic.size());
  prefix.format = kFormat;
  prefix.header_bytes = static_cast<uint32_t>(header.size());
  prefix.header_hash = sha256(header);
  prefix.payload_bytes = kernel.cubin.size();
  prefix.payload_hash = sha256(kernel.cubin);
  std::string bytes(reinterpret_cast<const char*>(&prefix), sizeof prefix);
  bytes += header;
  bytes.resize(payload_offset(header.size()), '\0');
  return bytes + kernel.cubin;
}

StatusOr<CompiledKernel> decode_entry(std::string_view bytes) {
  const auto malformed = [](const char* what) {
    return Status(StatusCode::kFormat, concat("entry: ", what));
  };
  Prefix prefix;
  if (bytes.size() < sizeof prefix) return malformed("too short");
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  if (std::string_view(prefix.magic, sizeof prefix.magic) != kMagic) return malformed("no entry");
  if (prefix.format != kFormat) return malformed("of another format");
  if (prefix.header_bytes > kMaxHeaderBytes) return malformed("its header is too long");
  const size_t offset = payload_offset(prefix.header_bytes);
  if (offset > bytes.size() || prefix.payload_bytes != bytes.size() - offset) {
    return malformed("its length is wrong");
  }
  const std::string_view header = bytes.substr(sizeof prefix, prefix.header_bytes);
  if (sha256(header) != prefix.header_hash) return malformed("its header is damaged");
  const std::string_view padding =
      bytes.substr(sizeof prefix + header.size(), offset - sizeof prefix - header.size());
  if (padding.find_first_not_of('\0') != std::string_view::npos) {
    return malformed("its padding is damaged");
  }
  const std::string_view payload = bytes.substr(offset);
  if (sha256(payload) != prefix.payload_hash) return malformed("its cubin is damaged");
  CompiledKernel kernel;
  FLASHPRIME_RETURN_IF_ERROR(parse_header(header, kernel));
  // Missing, repeated or misplaced lines.
  if (header_of(kernel) != header) return malformed("its header is not in canonical form");
  FLASHPRIME_RETURN_IF_ERROR(
      check_cubin(payload, kernel.arch, kernel.entry, kernel.report.registers));
  kernel.cubin = payload;
  return kernel;
}

}  // namespace flashprime
