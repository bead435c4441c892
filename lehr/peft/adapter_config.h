// The settings of an adapter: adapter_config.json in the layout of Hugging Face's PEFT.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/file_pattern.h"
#include "lehr/peft/method.h"

namespace lehr::peft {

/// Name of the file in an adapter's folder.
inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

/// The settings in a folder's adapter_config.json.
struct AdapterInfo {
  std::filesystem::path folder;
  std::string base_model;  ///< base_model_name_or_path; a relative path is not resolved.
  Lora lora;               ///< The defaults for all layers.
  /// Other alphas, by a regular expression over modules; the first match applies.
  std::vector<std::pair<FilePattern, double>> alpha_pattern = {};
  std::vector<std::pair<FilePattern, int64_t>> rank_pattern = {};
};

/// Reads adapter_config.json. Throws a usage error that names the file and the field for other kinds of adapters, and
/// for unsupported variants of LoRA (DoRA, biases, ...).
AdapterInfo read_adapter_config(const std::filesystem::path& folder);

/// Returns the settings of one module: the defaults, or those of a pattern that matches its name. Throws a usage error
/// for a pattern that takes too many steps.
Lora settings_for(const AdapterInfo& info, const std::string& module);

}  // namespace lehr::peft
