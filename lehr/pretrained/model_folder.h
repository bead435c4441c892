// A folder that holds a model, or adapters that name their base model.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/descriptor/model_args.h"
#include "lehr/peft/stored_names.h"

namespace lehr::pretrained {

/// A folder that is opened but not loaded.
struct ModelFolder {
  std::filesystem::path path;
  std::filesystem::path base;  ///< The folder of the model's own weights: `path`, or the base of its adapters.
  std::unique_ptr<descriptor::ModelArgs> args;

  bool has_adapters() const { return base != path; }
  /// The folder that has tokenizer.json: `path`, else `base`.
  const std::filesystem::path& tokenizer_folder() const;
  /// Returns the tokens that end a generated text: those of config.json and of generation_config.json,
  /// of the base and of the adapters.
  std::vector<int64_t> stop_ids() const;

  /// Returns the tensors of adapters of the image encoder, if the base is a multimodal model. Loading leaves them out
  /// like the encoder.
  std::set<std::string> adapters_of_encoder() const;

  /// Opens `path`, a Hugging Face model folder or an adapter folder (Lehr's or Hugging Face PEFT's). The shape of
  /// adapters is that of their model_config.json, else the base's (as a classifier if they contain a head, as an
  /// embedding model if they are those of a backbone alone). `base`, if not empty, overrides the base that the adapters
  /// name. Throws a usage error if there is neither a model nor adapters, or if the base is not a local folder.
  static ModelFolder open(
      const std::filesystem::path& path,
      const descriptor::ModelFamilies& families,
      const std::filesystem::path& base = {});

  /// The model with its adapters, on meta.
  struct Built {
    std::shared_ptr<nn::Model> model;
    std::vector<peft::StoredName> adapter_names;  ///< The adapters' tensors.
  };
  Built build() const;
  /// Loads weights and adapters into `model`, which is `built.model`, or sharded, or some of its pipeline stages; reads
  /// only local shards. Calls `allocate`, which allocates the parameters, once it is known that the weights fit. Sets
  /// eval mode. Throws a usage error for weights that do not fit.
  void fill(nn::Model& model, const Built& built, const std::function<void()>& allocate) const;
  /// Builds the model on one device and fills it.
  std::shared_ptr<nn::Model> load(at::Device device, at::ScalarType dtype) const;
};

}  // namespace lehr::pretrained
