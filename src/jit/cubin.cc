// SPDX-License-Identifier: Apache-2.0
#include "jit/cubin.h"

#include <elf.h>

#include <cstring>
#include <optional>

#include "checks.h"

namespace flashprime {
namespace {

constexpr uint16_t kCudaMachine = 190;
constexpr uint8_t kRegisterCount = 0x2f;  // attribute of .nv.info
constexpr uint32_t kToolInfo = 2000;      // type of the note with ptxas's command line
constexpr std::string_view kArchOption = "-arch ";

// A file whose every access is checked.
class ElfReader {
 public:
  explicit ElfReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  std::optional<T> at(uint64_t offset) const {
    if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  // Also false for the bytes of sections that occupy none.
  bool contents(const Elf64_Shdr& section, std::string_view& contents) const {
    if (section.sh_type == SHT_NOBITS) return false;
    if (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset) {
      return false;
    }
    contents = bytes_.substr(section.sh_offset, section.sh_size);
    return true;
  }

 private:
  std::string_view bytes_;
};

template <typename T>
std::optional<T> read(std::string_view bytes, size_t offset) {
  return ElfReader(bytes).at<T>(offset);
}

// The text at an offset of a string table, without its end.
std::string_view string_at(std::string_view table, uint32_t offset) {
  if (offset >= table.size()) return {};
  const std::string_view rest = table.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

// The target in ptxas's command line, which NVRTC's cubins carry in a note.
std::string target_of_note(std::string_view note) {
  const auto header = read<Elf64_Nhdr>(note, 0);
  if (!header || header->n_type != kToolInfo) return {};
  const size_t option = note.find(kArchOption);
  if (option == std::string_view::npos) return {};
  const std::string_view target = note.substr(option + kArchOption.size());
  return std::string(target.substr(0, target.find_first_of(std::string_view(" \0", 2))));
}

// The register count of a symbol in .nv.info: records of format, attribute, size and payload.
int32_t registers_of(std::string_view info, uint32_t symbol) {
  for (size_t offset = 0; offset + 4 <= info.size();) {
    const auto format = static_cast<uint8_t>(info[offset]);
    const auto attribute = static_cast<uint8_t>(info[offset + 1]);
    const auto size = *read<uint16_t>(info, offset + 2);
    offset += 4;
    if (format != 4) continue;  // its value is in the size
    const auto of = read<uint32_t>(info, offset);
    const auto count = read<uint32_t>(info, offset + 4);
    if (attribute == kRegisterCount && size == 8 && of && count && *of == symbol) {
      return static_cast<int32_t>(*count & 0xffff);
    }
    offset += size;
  }
  return 0;
}

}  // namespace

StatusOr<CubinInfo> read_cubin(std::string_view bytes, std::string_view entry) {
  const auto malformed = [](const char* what) {
    return Status(StatusCode::kFormat, concat("cubin: ", what));
  };
  const ElfReader elf(bytes);
  const auto header = elf.at<Elf64_Ehdr>(0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
    return malformed("no ELF file");
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB) {
    return malformed("not 64 bits, little endian");
  }
  if (header->e_machine != kCudaMachine) return malformed("not for a CUDA machine");
  CubinInfo info;
  info.abi_version = header->e_ident[EI_ABIVERSION];
  // 7: CUDA 12 up to sm_90; 8: CUDA 12 from sm_100 on, and CUDA 13.
  info.known_abi = info.abi_version == 7 || info.abi_version == 8;
  if (!info.known_abi) return info;
  if (info.abi_version == 7) {
    constexpr uint32_t kExactBit = 0x800;
    info.sm = static_cast<int32_t>(header->e_flags & 0xff);
    info.target = Arch{info.sm, (header->e_flags & kExactBit) != 0 ? 'a' : ' '}.to_string();
  } else {
    info.sm = static_cast<int32_t>(header->e_flags >> 8 & 0xff);
  }

  if (header->e_shentsize != sizeof(Elf64_Shdr)) return malformed("unknown section headers");
  const auto section = [&](uint64_t index) -> std::optional<Elf64_Shdr> {
    if (index >= header->e_shnum || header->e_shoff > bytes.size()) return std::nullopt;
    return elf.at<Elf64_Shdr>(header->e_shoff + index * sizeof(Elf64_Shdr));
  };
  std::string_view names;
  const auto names_section = section(header->e_shstrndx);
  if (!names_section || !elf.contents(*names_section, names)) return malformed("no section names");

  std::string_view register_info;
  uint32_t entry_symbol = 0;
  for (uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto found = section(i);
    if (!found) return malformed("section headers outside the file");
    std::string_view content;
    if (found->sh_type == SHT_NULL || found->sh_type == SHT_NOBITS) continue;
    if (!elf.contents(*found, content)) return malformed("a section outside the file");
    const std::string_view name = string_at(names, found->sh_name);
    if (name == ".note.nv.tkinfo") info.target = target_of_note(content);
    if (name == ".nv.info") register_info = content;
    if (found->sh_type != SHT_SYMTAB) continue;
    std::string_view symbol_names;
    const auto strings = section(found->sh_link);
    if (!strings || !elf.contents(*strings, symbol_names)) return malformed("no symbol names");
    for (uint32_t s = 0; (s + 1) * sizeof(Elf64_Sym) <= content.size(); ++s) {
      const auto symbol = *read<Elf64_Sym>(content, s * sizeof(Elf64_Sym));
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF &&
          symbol.st_size > 0 && string_at(symbol_names, symbol.st_name) == entry) {
        info.has_entry = true;
        entry_symbol = s;
      }
    }
  }
  if (info.has_entry) info.registers = registers_of(register_info, entry_symbol);
  return info;
}

Status check_cubin(std::string_view bytes, const Arch& arch, std::string_view entry,
                   int32_t registers) {
  const StatusOr<CubinInfo> info = read_cubin(bytes, entry);
  if (!info.ok()) return info.status();
  if (!info->known_abi) return ok_status();
  FLASHPRIME_REQUIRE(info->sm == arch.sm, StatusCode::kFormat, "cubin: is for sm_", info->sm,
                     ", want ", arch.to_string());
  FLASHPRIME_REQUIRE(info->target.empty() || info->target == arch.to_string(), StatusCode::kFormat,
                     "cubin: is for ", info->target, ", want ", arch.to_string());
  FLASHPRIME_REQUIRE(info->has_entry, StatusCode::kFormat, "cubin: has no kernel ", entry);
  FLASHPRIME_REQUIRE(registers == 0 || info->registers == 0 || info->registers == registers,
                     StatusCode::kFormat, "cubin: its kernel has ", info->registers,
                     " registers, want ", registers);
  return ok_status();
}

}  // namespace flashprime
