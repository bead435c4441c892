// A look at a downloaded folder before anything of it is used: `lehr inspect --untrusted`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"

namespace lehr::pretrained {

/// Something that the user should know about one file.
struct Finding {
  bool danger = false;  ///< Code that other programs would run, a way out of the folder, or content made to do harm.
  std::string file;     ///< Relative to the folder.
  std::string what;
};

/// The findings in a folder, and the amount of what was read.
struct UntrustedReport {
  std::vector<Finding> findings;  ///< In the order of the paths.
  int64_t num_files = 0;
  int64_t num_bytes = 0;
  int64_t num_tensors = 0;
};

/// Reads names, beginnings of files, JSON, headers of safetensors, tokenizer and template, but no weights, and executes
/// nothing. Reports: pickles, Python, programs and archives; keys that make other programs fetch or run code; links out
/// of the folder, pipes and devices; damaged or absurd headers and configs; patterns and templates that take too much
/// work, and templates that reach for Python's objects. Throws a usage error if `folder` is not one.
UntrustedReport look_at_untrusted(const std::filesystem::path& folder, const descriptor::ModelFamilies& families);

}  // namespace lehr::pretrained
