#include "lehr/nn/head.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/ops/linear_cross_entropy.h"

namespace lehr::nn {

SplitLanguageModellingHeadImpl::SplitLanguageModellingHeadImpl(
    SplitVocabulary vocabulary, int64_t hidden_size, Init init) {
  vocabulary.size();
  auto heads = register_module("lm_head", std::make_shared<torch::nn::Module>());
  for (const auto& name : vocabulary.order) {
    segments.push_back(heads->register_module(name, Linear(hidden_size, vocabulary.sizes.at(name), init)));
  }
}

void SplitLanguageModellingHeadImpl::tie_to(SplitTokenEmbeddingsImpl& embeddings) {
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i]->read_weight_from(embeddings.segments[i]->own_parameter("weight"));
  }
}

at::Tensor SplitLanguageModellingHeadImpl::whole_weight() const {
  if (segments.size() == 1) {
    return segments.front()->weight;
  }
  std::vector<at::Tensor> weights;
  for (const auto& segment : segments) {
    weights.push_back(segment->weight);
  }
  return at::cat(weights);
}

at::Tensor SplitLanguageModellingHeadImpl::forward(const at::Tensor& hidden_states, const at::Tensor& labels) {
  require(
      labels.sizes() == hidden_states.sizes().slice(0, hidden_states.dim() - 1),
      "labels: expected shape {} as the hidden states have, found {}",
      fmt::join(hidden_states.sizes().slice(0, hidden_states.dim() - 1).vec(), "x"),
      fmt::join(labels.sizes().vec(), "x"));
  const at::Tensor rows = hidden_states.reshape({-1, hidden_states.size(-1)});  // (B*T, H)
  return ops::linear_cross_entropy(rows, whole_weight(), labels.reshape(-1), kIgnoreIndex).view(labels.sizes());
}

at::Tensor SplitLanguageModellingHeadImpl::logits(const at::Tensor& hidden_states) {
  return at::linear(hidden_states, whole_weight());
}

ClassificationHeadImpl::ClassificationHeadImpl(int64_t hidden_size, int64_t num_labels, double dropout, Init init)
    : dropout_(dropout) {
  require(dropout >= 0 && dropout < 1, "classifier_dropout: expected 0 <= p < 1, found {}", dropout);
  score = register_module("score", Linear(hidden_size, num_labels, init));
}

at::Tensor ClassificationHeadImpl::forward(const at::Tensor& hidden_states, const at::Tensor& pooling_mask) {
  at::Tensor pooled = hidden_states;
  if (pooling_mask.defined()) {
    require(
        pooling_mask.dim() == 2 && pooling_mask.sizes() == hidden_states.sizes().slice(0, 2),
        "pooling_mask: expected shape {}x{}, found {}",
        hidden_states.size(0),
        hidden_states.size(1),
        fmt::join(pooling_mask.sizes().vec(), "x"));
    pooled = hidden_states.index({pooling_mask.to(at::kBool)});  // (N, H)
  }
  if (is_training() && dropout_ > 0) {
    at::Tensor keep = at::empty(pooled.sizes(), at::kDouble);
    RandomStream(dropout_seed_, "classifier_dropout " + std::to_string(dropout_step_))
        .fill_uniform(0, keep.numel(), keep.data_ptr<double>());
    pooled = pooled * (keep.ge(dropout_).to(pooled.options()) / (1 - dropout_));
  }
  const at::Tensor scores = score(pooled);
  return scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat);
}

}  // namespace lehr::nn
