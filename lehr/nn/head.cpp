#include "lehr/nn/head.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/parallel.h"
#include "lehr/base/random.h"
#include "lehr/meter/on_meta.h"
#include "lehr/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "lehr/ops/logit_softcap.h"

namespace lehr::nn {

at::Tensor mask_ignored_labels(const at::Tensor& values, const at::Tensor& labels) {
  return values.masked_fill(labels.eq(kIgnoreIndex), 0);
}

SplitLanguageModellingHeadImpl::SplitLanguageModellingHeadImpl(
    SplitVocabulary vocabulary, int64_t hidden_size, Init init, std::optional<double> softcap)
    : softcap_(softcap) {
  vocabulary.size();
  ops::check_softcap("language-model head", softcap);
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

namespace {
void check_labels(const at::Tensor& hidden_states, const at::Tensor& labels) {
  require(
      labels.sizes() == hidden_states.sizes().slice(0, hidden_states.dim() - 1),
      "labels: expected shape {} as the hidden states have, found {}",
      fmt::join(hidden_states.sizes().slice(0, hidden_states.dim() - 1).vec(), "x"),
      fmt::join(labels.sizes().vec(), "x"));
}

// (B*T, H)
at::Tensor rows_of(const at::Tensor& hidden_states) {
  return hidden_states.reshape({-1, hidden_states.size(-1)});
}
}  // namespace

at::Tensor SplitLanguageModellingHeadImpl::forward(const at::Tensor& hidden_states, const at::Tensor& labels) {
  if (!labels.defined()) {
    return logits(hidden_states);
  }
  check_labels(hidden_states, labels);
  return losses_of(hidden_states, whole_weight(), labels);
}

at::Tensor SplitLanguageModellingHeadImpl::losses_of(
    const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels) const {
  const at::Tensor rows = rows_of(hidden_states);
  const at::Tensor flat = labels.reshape(-1);
  const at::Tensor losses = sharded_ ? sharded_->loss(rows, weight, flat)
                                     : ops::linear_cross_entropy(rows, weight, flat, kIgnoreIndex, softcap_);
  return losses.view(labels.sizes());
}

at::Tensor SplitLanguageModellingHeadImpl::forward(
    const at::Tensor& hidden_states,
    const at::Tensor& labels,
    const DistillationTargets& targets,
    ops::LinearKl& values) {
  check_labels(hidden_states, labels);
  const bool depths = labels.dim() == 3;
  const at::Tensor next = depths ? labels.select(2, 0) : labels;
  const at::Tensor rows = rows_of(depths ? hidden_states.select(2, 0) : hidden_states), flat = next.reshape(-1);
  const at::Tensor weight = whole_weight();
  const ops::TeacherHead teacher{
      .hidden = rows_of(whole_sequence(targets.hidden_states)),
      .weight = targets.head_weight,
      .softcap = targets.softcap};
  ops::LinearKlOptions options = targets.loss;
  options.softcap = softcap_;
  values = sharded_ ? sharded_->compare(rows, weight, teacher, flat, options)
                    : ops::linear_kl(rows, weight, teacher, flat, options);
  for (at::Tensor* tensor : {&values.loss, &values.kl, &values.nll, &values.agrees}) {
    *tensor = tensor->view(next.sizes());
  }
  if (!depths) {
    return values.loss;
  }
  const int64_t later = labels.size(2) - 1;
  const at::Tensor nll = losses_of(hidden_states.narrow(2, 1, later), weight, labels.narrow(2, 1, later));
  return at::cat({values.loss.unsqueeze(2), nll}, 2);
}

at::Tensor SplitLanguageModellingHeadImpl::logits(const at::Tensor& hidden_states) {
  const at::Tensor weight = whole_weight();
  return ops::softcap(sharded_ ? sharded_->logits(hidden_states, weight) : at::linear(hidden_states, weight), softcap_);
}

ClassificationHeadImpl::ClassificationHeadImpl(
    int64_t hidden_size, int64_t num_labels, double dropout, Init init, bool bias)
    : dropout_(dropout) {
  require(dropout >= 0 && dropout < 1, "classifier_dropout: expected 0 <= p < 1, found {}", dropout);
  score = register_module("score", Linear(hidden_size, num_labels, init, bias));
}

void ClassificationHeadImpl::set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row) {
  dropout_seed_ = seed;
  dropout_step_ = step;
  dropout_first_row_ = first_row;
}

at::Tensor ClassificationHeadImpl::dropout_mask(const at::Tensor& hidden_states, const at::Tensor& pooling_mask) {
  if (runs_on_meta(hidden_states)) {
    const auto options = hidden_states.options().dtype(at::kBool);
    return pooling_mask.defined() ? at::empty({hidden_states.size(0), hidden_states.size(-1)}, options)
                                  : at::empty(hidden_states.sizes(), options);
  }
  const int64_t width = hidden_states.size(-1);
  const int64_t tokens = hidden_states.dim() > 2 ? hidden_states.size(1) : 1;  // per sequence
  const at::Tensor all = at::arange(hidden_states.numel() / width);
  const at::Tensor pooled =
      pooling_mask.defined() ? pooling_mask.to(at::kBool).flatten().nonzero().flatten().cpu() : all;
  const RandomStream random(dropout_seed_, "classifier_dropout " + std::to_string(dropout_step_));
  const int64_t chunk = tokens / static_cast<int64_t>(sequence_chunks_.size());
  const at::Tensor kept = at::empty({pooled.size(0), width}, at::kBool);
  const int64_t* const place = pooled.const_data_ptr<int64_t>();
  bool* const out = kept.mutable_data_ptr<bool>();
  parallel_for(0, pooled.size(0), 8, [&](int64_t begin, int64_t end) {
    std::vector<double> draws(static_cast<size_t>(width));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = place[i] % tokens;  // among those of this rank, and then in the sequence
      const int64_t position = sequence_chunks_[static_cast<size_t>(token / chunk)] * chunk + token % chunk;
      random.fill_uniform(
          dropout_row(dropout_first_row_ + place[i] / tokens) + static_cast<uint64_t>(position * width),
          width,
          draws.data());
      std::transform(draws.begin(), draws.end(), out + i * width, [&](double draw) { return draw >= dropout_; });
    }
  });
  return pooling_mask.defined() ? kept : kept.view(hidden_states.sizes());
}

namespace {
// Maps (B, T, H) to (N, H), the tokens at which the mask is not zero; returns its input without a mask.
at::Tensor pool(const at::Tensor& hidden_states, const at::Tensor& pooling_mask) {
  if (!pooling_mask.defined()) {
    return hidden_states;
  }
  require(
      pooling_mask.dim() == 2 && pooling_mask.sizes() == hidden_states.sizes().slice(0, 2),
      "pooling_mask: expected shape {}x{}, found {}",
      hidden_states.size(0),
      hidden_states.size(1),
      fmt::join(pooling_mask.sizes().vec(), "x"));
  if (runs_on_meta(hidden_states)) {  // one token per sequence
    return hidden_states.select(1, 0).clone();
  }
  return hidden_states.index({pooling_mask.to(at::kBool)});
}

at::Tensor at_least_float(const at::Tensor& values) {
  return values.scalar_type() == at::kDouble ? values : values.to(at::kFloat);
}
}  // namespace

at::Tensor ClassificationHeadImpl::forward(const at::Tensor& hidden_states, const at::Tensor& pooling_mask) {
  at::Tensor pooled = pool(hidden_states, pooling_mask);
  if (is_training() && dropout_ > 0) {
    pooled = pooled * (dropout_mask(hidden_states, pooling_mask).to(pooled.options()) / (1 - dropout_));
    ++dropout_step_;
  }
  return at_least_float(score(pooled));
}

EmbeddingHeadImpl::EmbeddingHeadImpl(
    int64_t hidden_size, std::optional<int64_t> embedding_dim, bool normalize, Init init)
    : normalize_(normalize) {
  if (embedding_dim) {
    require(*embedding_dim > 0, "embedding_dim: expected a positive number, found {}", *embedding_dim);
    projection = register_module("projection", Linear(hidden_size, *embedding_dim, init));
  }
}

at::Tensor EmbeddingHeadImpl::forward(const at::Tensor& hidden_states, const at::Tensor& pooling_mask) {
  const at::Tensor pooled = pool(hidden_states, pooling_mask);
  const at::Tensor embeddings = at_least_float(projection ? projection(pooled) : pooled);
  if (!normalize_) {
    return embeddings;
  }
  constexpr double kEps = 1e-12;  // keeps a zero vector zero
  return embeddings / embeddings.norm(2, -1, /*keepdim=*/true).clamp_min(kEps);
}

}  // namespace lehr::nn
