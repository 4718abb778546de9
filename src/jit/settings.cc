// SPDX-License-Identifier: Apache-2.0
#include "jit/settings.h"

#include <sys/auxv.h>

#include <charconv>
#include <cstdlib>

#include "checks.h"

namespace flashprime {
namespace {

// An unset and an empty variable are the same.
std::optional<std::string> variable(const char* name) {
  const char* value = secure_getenv(name);
  if (value == nullptr || value[0] == '\0') return std::nullopt;
  return value;
}

Status wrong(const char* name, const std::string& got, const char* want) {
  return Status(StatusCode::kFormat, concat(name, ": got '", got.substr(0, 200), "', want ", want));
}

Status require_absolute(const char* name, const std::string& path) {
  return path.starts_with('/') ? ok_status() : wrong(name, path, "an absolute path");
}

// An option's text, else the variable's.
Status path_setting(const char* name, const std::optional<std::string>& option, std::string& path) {
  const std::optional<std::string> value = option ? option : variable(name);
  if (!value || value->empty()) return ok_status();
  path = *value;
  return require_absolute(name, path);
}

template <typename Number>
Status number_setting(const char* name, const std::optional<Number>& option, Number min, Number max,
                      const char* want, Number& number) {
  if (option) {
    number = *option;
  } else if (const auto text = variable(name)) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || end != text->data() + text->size()) return wrong(name, *text, want);
  }
  if (!(number >= min && number <= max)) return wrong(name, concat(number), want);
  return ok_status();
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream text(list);
  for (std::string part; std::getline(text, part, ':');) parts.push_back(part);
  return parts;
}

std::vector<std::string> list_setting(const char* name,
                                      const std::optional<std::vector<std::string>>& option) {
  if (option) return *option;
  const auto value = variable(name);
  return value ? split(*value) : std::vector<std::string>();
}

// A root in the place that the system has for caches; never a temporary folder, where others write.
void default_root(CacheDirs& dirs) {
  const auto xdg = variable("XDG_CACHE_HOME");
  if (xdg && xdg->starts_with('/')) {
    dirs.writable = *xdg + "/flashprime";
    return;
  }
  const auto home = variable("HOME");
  if (home && home->starts_with('/') && *home != "/") {
    dirs.writable = *home + "/.cache/flashprime";
    return;
  }
  dirs.why_memory_only = "neither XDG_CACHE_HOME nor HOME names a folder";
}

Status resolve_dirs(const JitOptions& options, CacheDirs& dirs) {
  constexpr const char* kName = "FLASHPRIME_CACHE_DIR";
  for (const std::string& dir : options.read_only_dirs) {
    FLASHPRIME_RETURN_IF_ERROR(require_absolute("read_only_dirs", dir));
  }
  dirs.read_only = options.read_only_dirs;
  if (getauxval(AT_SECURE) != 0) {
    dirs.read_only.clear();
    dirs.why_memory_only = "the process runs with another user's rights";
    return ok_status();
  }
  const auto value = options.cache_dir ? options.cache_dir : variable(kName);
  if (!value || value->empty()) {
    default_root(dirs);
  } else if (*value == "off") {
    dirs.why_memory_only = "switched off";
  } else if (value->starts_with("ro:")) {
    dirs.read_only.push_back(value->substr(3));
    dirs.why_memory_only = "read-only";
    return require_absolute(kName, dirs.read_only.back());
  } else {
    dirs.writable = *value;
    return require_absolute(kName, *value);
  }
  return ok_status();
}

}  // namespace

StatusOr<JitSettings> resolve_settings(const JitOptions& options) {
  JitSettings settings;
  FLASHPRIME_RETURN_IF_ERROR(resolve_dirs(options, settings.dirs));
  if (options.shared_by_group) {
    settings.shared_by_group = *options.shared_by_group;
  } else if (const auto shared = variable("FLASHPRIME_CACHE_SHARED")) {
    if (*shared != "group") return wrong("FLASHPRIME_CACHE_SHARED", *shared, "group");
    settings.shared_by_group = true;
  }
  int64_t megabytes = settings.max_bytes >> 20;
  FLASHPRIME_RETURN_IF_ERROR(number_setting<int64_t>(
      "FLASHPRIME_CACHE_MAX_MB", options.max_megabytes, 1, 1'000'000, "1 to 1000000", megabytes));
  settings.max_bytes = megabytes << 20;
  FLASHPRIME_RETURN_IF_ERROR(number_setting<double>("FLASHPRIME_LOCK_WAIT_S",
                                                    options.lock_wait_seconds, 0.0, 86400.0,
                                                    "0 to 86400", settings.lock_wait_seconds));
  settings.bundles = list_setting("FLASHPRIME_BUNDLE", options.bundles);
  for (const std::string& bundle : settings.bundles) {
    FLASHPRIME_RETURN_IF_ERROR(require_absolute("FLASHPRIME_BUNDLE", bundle));
  }
  for (const std::string& text : list_setting("FLASHPRIME_BUNDLE_SHA256", options.bundle_sha256)) {
    Sha256 hash;
    if (!parse_hex(text, hash)) {
      return wrong("FLASHPRIME_BUNDLE_SHA256", text, "64 lower-case hexadecimal digits");
    }
    settings.bundle_hashes.push_back(hash);
  }
  FLASHPRIME_REQUIRE(
      settings.bundle_hashes.empty() || settings.bundle_hashes.size() == settings.bundles.size(),
      StatusCode::kFormat, "FLASHPRIME_BUNDLE_SHA256: got ", settings.bundle_hashes.size(),
      " hashes for ", settings.bundles.size(), " bundles, want one for each");
  if (options.freeze) {
    settings.freeze = *options.freeze;
  } else if (const auto freeze = variable("FLASHPRIME_FREEZE")) {
    if (*freeze != "allow" && *freeze != "warn" && *freeze != "error") {
      return wrong("FLASHPRIME_FREEZE", *freeze, "allow, warn or error");
    }
    settings.freeze = *freeze == "allow"  ? FreezePolicy::kAllow
                      : *freeze == "warn" ? FreezePolicy::kWarn
                                          : FreezePolicy::kError;
  }
  FLASHPRIME_RETURN_IF_ERROR(
      path_setting("FLASHPRIME_DUMP_DIR", options.dump_dir, settings.dump_dir));
  FLASHPRIME_RETURN_IF_ERROR(
      path_setting("FLASHPRIME_KERNEL_DIR", options.kernel_dir, settings.kernel_dir));
  FLASHPRIME_RETURN_IF_ERROR(
      path_setting("FLASHPRIME_NVRTC_PATH", options.nvrtc_path, settings.nvrtc.path));
  if (const auto log = options.log ? options.log : variable("FLASHPRIME_LOG"); log) {
    StatusOr<LogSetting> setting = parse_log_setting(*log);
    if (!setting.ok()) return setting.status();
    settings.log = *std::move(setting);
  }
  settings.nvrtc.folders = options.nvrtc_folders;
  settings.on_event = options.on_event;
  return settings;
}

}  // namespace flashprime
