// Shared code of the tests of searches: small teachers in folders, and held-out batches.
#pragma once

#include "lehr/search/local_distillation.h"
#include "lehr/search/model_space.h"
#include "lehr/search/scores.h"
#include "test/all_meshes.h"
#include "test/prune/support.h"

namespace lehr::search::testing {

using prune::testing::LayerShape;

/// The families, for as long as the program runs.
inline const descriptor::ModelFamilies& families() {
  static const descriptor::ModelFamilies all = prune::testing::families();
  return all;
}

/// Scores of every kind for each layer, in the order of the parts reversed: later parts are more important.
inline prune::Scores ascending_scores(const std::vector<descriptor::BlockConfig>& blocks) {
  prune::Scores scores{.facts = Node::make_table(), .values = {}, .folder = "scores"};
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    const auto set = [&](prune::Kind kind, const at::Tensor& values) { scores.values[{layer, kind}] = values; };
    if (const auto* attention = std::get_if<descriptor::AttentionSubblock>(&blocks[i].attention)) {
      set(prune::Kind::kv_heads, at::arange(attention->num_key_value_heads, at::kDouble));
    }
    if (const auto* ffn = std::get_if<descriptor::FFNSubblock>(&blocks[i].ffn)) {
      set(prune::Kind::ffn_channels, at::arange(ffn->intermediate_size, at::kDouble));
    }
    if (const auto* moe = std::get_if<descriptor::MoESubblock>(&blocks[i].ffn)) {
      set(prune::Kind::experts, at::arange(moe->num_local_experts, at::kDouble));
      set(prune::Kind::expert_channels,
          at::arange(moe->num_local_experts * moe->expert_intermediate_dim, at::kDouble)
              .view({moe->num_local_experts, moe->expert_intermediate_dim}));
      set(prune::Kind::shared_channels, at::arange(moe->shared_expert_intermediate_dim, at::kDouble));
    }
  }
  return scores;
}

/// Batches of `rows` sequences of 12 tokens each, the same for the same seed.
class Batches : public train::BatchStream {
 public:
  Batches(int64_t count, int64_t rows, int64_t seed, int64_t first = 0)
      : count_(count), rows_(rows), seed_(seed), done_(first) {}
  std::optional<train::Batch> next() override {
    if (done_ == count_) {
      return std::nullopt;
    }
    constexpr int64_t kTokens = 12;
    const at::Tensor all =
        (at::arange(rows_ * (kTokens + 1)) * (7 + 2 * seed_) + 11 * ++done_) % model::test::kVocabulary;
    const at::Tensor ids = all.view({rows_, kTokens + 1});
    at::Tensor labels = ids.narrow(1, 1, kTokens).clone();
    labels.select(1, 3).fill_(-100);
    return train::Batch{
        {"input_ids", ids.narrow(1, 0, kTokens).contiguous()},
        {"labels", labels},
        {"position_ids", at::arange(kTokens).expand({rows_, kTokens}).contiguous()}};
  }

 private:
  int64_t count_, rows_, seed_, done_;
};

/// Training data that begins at any step.
inline std::unique_ptr<train::BatchStream> batches_from(int64_t first_step) {
  return std::make_unique<Batches>(1000, 2, 3, first_step);
}

/// A teacher in a folder with everything that a search needs of it.
struct Teacher {
  Teacher(const std::filesystem::path& path, const SpaceConfig& config = {}, at::ScalarType dtype = at::kDouble)
      : folder(path),
        pieces(path, families(), at::kCPU, dtype),
        space(make_space(space_of_model(config, pieces), pieces.blocks(), ascending_scores(pieces.blocks()))),
        library(path, families(), pieces, space) {}

  HeldOut data(int64_t count = 2, int64_t seed = 0) const {
    return {.task = task, .open = [=] { return std::make_unique<Batches>(count, 2, seed); }};
  }

  std::filesystem::path folder;
  DecoderPieces pieces;
  SearchSpace space;
  Library library;
  train::CausalLMTask task;
};

}  // namespace lehr::search::testing
