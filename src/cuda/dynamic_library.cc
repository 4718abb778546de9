// SPDX-License-Identifier: Apache-2.0
#include "cuda/dynamic_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "jit/sha256.h"

namespace flashprime {
namespace {

struct BuildIdSearch {
  ElfW(Addr) base;
  std::string build_id;
};

int find_build_id(dl_phdr_info* info, size_t, void* data) {
  auto* search = static_cast<BuildIdSearch*>(data);
  if (info->dlpi_addr != search->base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const auto* note = reinterpret_cast<const unsigned char*>(info->dlpi_addr + header.p_vaddr);
    const unsigned char* end = note + header.p_memsz;
    while (note + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) fields;
      std::memcpy(&fields, note, sizeof fields);
      const unsigned char* name = note + sizeof fields;
      const unsigned char* description = name + (fields.n_namesz + 3u) / 4 * 4;
      if (description + fields.n_descsz > end) break;
      if (fields.n_type == NT_GNU_BUILD_ID && fields.n_namesz == 4 &&
          std::memcmp(name, "GNU", 4) == 0) {
        search->build_id = hex(description, fields.n_descsz);
        return 1;
      }
      note = description + (fields.n_descsz + 3u) / 4 * 4;
    }
  }
  return 1;
}

}  // namespace

StatusOr<DynamicLibrary> DynamicLibrary::open(const std::string& name, bool only_if_loaded) {
  if (name.empty() || (name.front() != '/' && name.find('/') != std::string::npos)) {
    // The loader would take it from the current directory.
    return Status(StatusCode::kIo, name + ": want an absolute path");
  }
  DynamicLibrary library;
  library.handle_ =
      dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | (only_if_loaded ? RTLD_NOLOAD : 0));
  if (library.handle_ == nullptr) {
    const char* reason = dlerror();
    return Status(StatusCode::kIo,
                  only_if_loaded || reason == nullptr ? name + ": not loaded" : reason);
  }
  const link_map* map = nullptr;
  library.path_ = name;
  if (dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0) library.path_ = map->l_name;
  char resolved[PATH_MAX];
  if (realpath(library.path_.c_str(), resolved) != nullptr) library.path_ = resolved;
  return library;
}

void* DynamicLibrary::symbol(const char* name) const {
  return dlsym(handle_, name);
}

std::string DynamicLibrary::build_id() const {
  const link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return {};
  BuildIdSearch search{map->l_addr, {}};
  dl_iterate_phdr(find_build_id, &search);
  return search.build_id;
}

}  // namespace flashprime
