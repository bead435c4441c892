// Shared code of the tests of pruning: parents and children in folders, and their logits in float64.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lehr/pretrained/model_folder.h"
#include "lehr/prune/choose.h"
#include "lehr/prune/prune.h"
#include "test/train/written_model.h"

namespace lehr::prune::testing {

namespace fs = std::filesystem;
using model::test::LayerShape;
using train::testing::error_of;
using train::testing::families;
using train::testing::Folder;
using train::testing::write_model;

/// Float64 sums in another order, of values of about 1.
inline constexpr double kTolerance = 1e-12;

using Weights = std::map<std::string, at::Tensor>;

/// The parameters of a model, for changes in place.
inline Weights weights_of(const nn::Module& model) {
  Weights weights;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    weights[name] = parameter->value().detach();
  }
  return weights;
}

/// The logits of a folder's model in float64, after `change` of its weights.
inline at::Tensor logits_of(const fs::path& folder, const std::function<void(Weights&)>& change = {}) {
  const at::NoGradGuard no_grad;
  const auto model = pretrained::ModelFolder::open(folder, families()).load(at::kCPU, at::kDouble);
  if (change) {
    Weights weights = weights_of(*model);
    change(weights);
  }
  const at::Tensor ids = (at::arange(40) * 7 % model::test::kVocabulary).view({2, 20});
  return model->logits(model->forward({.input_ids = ids}).hidden_states);
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

inline std::vector<descriptor::BlockConfig> blocks_of(const fs::path& folder) {
  return families().from_hf_folder(folder)->block_configs();
}

/// Chooses for the model in `parent` and writes the child.
inline Pruning prune_to(
    const fs::path& parent, const fs::path& child, const PruneOptions& options, const Scores* scores = nullptr) {
  const Pruning pruning = choose(options, blocks_of(parent), scores);
  write_pruned({.model = parent, .output = child}, pruning, families());
  return pruning;
}

/// Scores of one kind for each layer.
inline Scores scores_of(Kind kind, const std::vector<at::Tensor>& layers) {
  Scores scores{.facts = Node::make_table(), .values = {}, .folder = "scores"};
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].defined()) {
      scores.values[{static_cast<int64_t>(i), kind}] = layers[i];
    }
  }
  return scores;
}

/// The indices 0..count-1 that are not in `kept`.
inline std::vector<int64_t> all_but(const std::vector<int64_t>& kept, int64_t count) {
  std::vector<int64_t> gone;
  for (int64_t i = 0; i < count; ++i) {
    if (std::find(kept.begin(), kept.end(), i) == kept.end()) {
      gone.push_back(i);
    }
  }
  return gone;
}

/// The name of a parameter of a layer.
inline std::string layer(int64_t index, const std::string& name) {
  return fmt::format("model.layers.{}.{}", index, name);
}

/// A test with a folder for its models, whose weights are large enough that every part has a visible effect.
class ModelsInFolders : public ::testing::Test {
 protected:
  fs::path at(const std::string& name) const { return folder_.path() / name; }

  /// Writes a model of these layers; the matrices of layers are eight times as large as those of a new run.
  void write(const std::string& name, const std::string& model_type, const std::vector<LayerShape>& layers) const {
    write_model(at(name), model_type, layers, 7);
    change(name, [](const std::string& weight, at::Tensor& value) {
      if (weight.find("proj") != std::string::npos || weight.find("mlp.gate.") != std::string::npos) {
        value.mul_(8);
      }
    });
  }

  /// Changes the tensors of a folder's model.safetensors.
  void change(const std::string& name, const std::function<void(const std::string&, at::Tensor&)>& by) const {
    state::NamedTensors tensors;
    {
      const state::WeightReader reader(at(name));
      for (const std::string& weight : reader.names()) {
        tensors.emplace_back(weight, reader.tensor(weight).clone());
        by(weight, tensors.back().second);
      }
    }
    state::save_safetensors(at(name) / "model.safetensors", tensors);
  }

  /// Expects that the child equals the parent with weights changed by `change`, and differs from the unchanged parent.
  void expect_same_as(const std::function<void(Weights&)>& change) const {
    const at::Tensor child = logits_of(at("child"));
    EXPECT_LT(largest_difference(child, logits_of(at("parent"), change)), kTolerance);
    EXPECT_GT(largest_difference(child, logits_of(at("parent"))), 1e-6) << "what was taken away has to matter";
  }

 private:
  Folder folder_;
};

}  // namespace lehr::prune::testing
