#include "lehr/nn/embedding.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/ops/cuda.h"
#include "lehr/ops/embedding/embedding.h"

namespace lehr::nn {

int64_t SplitVocabulary::size() const {
  require(
      order.size() == sizes.size(),
      "vocabulary: split_vocab_order names {} segments, split_vocab_size has {}",
      order.size(),
      sizes.size());
  require(!order.empty(), "vocabulary: split_vocab_order names no segment");
  int64_t total = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto found = sizes.find(order[i]);
    require(found != sizes.end(), "vocabulary: split_vocab_order names '{}', which split_vocab_size lacks", order[i]);
    const auto at = order.begin() + static_cast<long>(i);
    require(std::find(order.begin(), at, order[i]) == at, "vocabulary: split_vocab_order names '{}' twice", order[i]);
    require(
        found->second > 0,
        "vocabulary: split_vocab_size.{}: expected a positive number, found {}",
        order[i],
        found->second);
    total += found->second;
  }
  return total;
}

EmbeddingImpl::EmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim, Init init) {
  declare_parameter("weight", weight, {num_embeddings, embedding_dim}, init);
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  return ops::embedding(weight, ids);
}

SplitTokenEmbeddingsImpl::SplitTokenEmbeddingsImpl(SplitVocabulary vocabulary, int64_t hidden_size, Init init)
    : vocabulary_(std::move(vocabulary)) {
  vocabulary_.size();
  auto tables = register_module("token_embedding", std::make_shared<torch::nn::Module>());
  for (const auto& name : vocabulary_.order) {
    segments.push_back(tables->register_module(name, Embedding(vocabulary_.sizes.at(name), hidden_size, init)));
  }
}

at::Tensor SplitTokenEmbeddingsImpl::checked_ids(const at::Tensor& input_ids) {
  if (ops::cuda::on_gpu(input_ids)) {
    if (!unknown_ids_.defined() || unknown_ids_.device() != input_ids.device()) {
      unknown_ids_ = at::zeros({2}, input_ids.options().dtype(at::kLong));
    }
    const at::Tensor known = ops::known_ids(input_ids, vocabulary_.size(), unknown_ids_);
    if (!at::GradMode::is_enabled()) {  // the caller reads the results immediately
      require_known_ids(unknown_ids_.cpu());
    }
    return known;
  }
  if (input_ids.is_cpu() && input_ids.numel() > 0) {
    const auto [smallest, largest] = input_ids.aminmax();
    const int64_t size = vocabulary_.size();
    require(
        smallest.item<int64_t>() >= 0 && largest.item<int64_t>() < size,
        "input_ids: expected ids from 0 to {}, found {} to {}; was the text made with another tokenizer?",
        size - 1,
        smallest.item<int64_t>(),
        largest.item<int64_t>());
  }
  return input_ids;
}

void SplitTokenEmbeddingsImpl::require_known_ids(const at::Tensor& note) {
  const auto* found = note.const_data_ptr<int64_t>();
  if (found[0] == 0) {
    return;
  }
  const int64_t place = found[0] - 1, id = found[1];
  unknown_ids_.zero_();
  fail(
      "input_ids: expected ids from 0 to {}, found {} at place {} of a batch's ids in one row; was the text made with "
      "another tokenizer?",
      vocabulary_.size() - 1,
      id,
      place);
}

SplitTokenEmbeddingsImpl* token_embeddings(torch::nn::Module& root) {
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* embeddings = dynamic_cast<SplitTokenEmbeddingsImpl*>(module.get())) {
      return embeddings;
    }
  }
  return nullptr;
}

at::Tensor SplitTokenEmbeddingsImpl::forward(const at::Tensor& ids) {
  const at::Tensor input_ids = checked_ids(ids);
  if (segments.size() == 1) {
    return segments.front()(input_ids);
  }
  at::Tensor hidden_states;
  int64_t first = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t last = first + vocabulary_.sizes.at(vocabulary_.order[i]);
    const at::Tensor mine = (input_ids >= first).logical_and(input_ids < last);  // (B, T), true for ids of this segment
    const at::Tensor found = segments[i]((input_ids - first).masked_fill(mine.logical_not(), 0));
    const at::Tensor part = found * mine.unsqueeze(-1).to(found.scalar_type());
    hidden_states = i == 0 ? part : hidden_states + part;
    first = last;
  }
  return hidden_states;
}

}  // namespace lehr::nn
