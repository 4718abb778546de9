// SPDX-License-Identifier: Apache-2.0
// Libraries found at run time. They stay open: code of theirs may run until the process ends.
#pragma once

#include <string>

#include "flashprime/status.h"

namespace flashprime {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  // An absolute path, or a bare file name that the system's loader knows. kIo with the loader's
  // reason. `only_if_loaded` finds what the process has already.
  static StatusOr<DynamicLibrary> open(const std::string& name, bool only_if_loaded = false);

  // nullptr if there is none.
  void* symbol(const char* name) const;
  template <typename Function>
  bool load(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

  const std::string& path() const { return path_; }  // as the loader resolved it
  std::string folder() const { return path_.substr(0, path_.rfind('/')); }
  // GNU build id in hexadecimal, empty if the library has none.
  std::string build_id() const;

 private:
  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace flashprime
