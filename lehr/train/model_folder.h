// A folder that holds a model: whole, or as adapters that name the model that they are for.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"

namespace lehr::train {

/// What a folder holds, opened but not loaded.
struct ModelFolder {
  std::filesystem::path path;
  std::filesystem::path base;  ///< Where the model's own weights are: `path`, or what its adapters name.
  std::unique_ptr<descriptor::ModelArgs> args;

  bool has_adapters() const { return base != path; }
  /// Where tokenizer.json is, if anywhere: `path`, else `base`.
  const std::filesystem::path& tokenizer_folder() const;

  /// Opens `path`, a Hugging Face model folder or an adapter folder (this program's or Hugging Face PEFT's). The shape
  /// of adapters is that of model_config.json beside them, else the base's (as a classifier if they hold a head).
  /// `base`, if not empty, overrules what the adapters name. Throws usage errors: nothing to be found, or a base that
  /// is no folder here.
  static ModelFolder open(
      const std::filesystem::path& path,
      const descriptor::ModelFamilies& families,
      const std::filesystem::path& base = {});

  /// Builds the model, fills it, adapters and all, and puts it in eval mode. Throws usage errors for weights that do
  /// not fit.
  std::shared_ptr<nn::Model> load(at::Device device, at::ScalarType dtype) const;
};

}  // namespace lehr::train
