// The text files of a downloaded folder: keys that name code, templates, and whether Lehr could use the model.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"

namespace lehr::pretrained {

/// Returns a description of each key in a JSON file that makes other programs run or fetch code. Throws a usage error
/// if the file is not JSON, or nested too deeply.
std::vector<std::string> code_in_json(const std::filesystem::path& file);

/// Returns a description of each thing that a chat template reads beyond its variables, such as Python's objects.
std::vector<std::string> risks_of_template(const std::filesystem::path& file);
std::vector<std::string> risks_of_template_text(const std::string& text);

/// A reason why Lehr refuses a part of the folder.
struct ModelProblem {
  bool danger = false;  ///< Made to do harm, and not only unknown to Lehr.
  std::string file;
  std::string what;
};

/// Reads config.json, adapter_config.json, tokenizer and chat template as Lehr would, without weights, and tries texts
/// that are hard for patterns and templates.
std::vector<ModelProblem> problems_as_model(
    const std::filesystem::path& folder, const descriptor::ModelFamilies& families);

}  // namespace lehr::pretrained
