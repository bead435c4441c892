// Token embeddings over a vocabulary that may be split into named segments.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/nn/linear.h"

namespace lehr::nn {

/// A vocabulary made of named segments, laid out in `order`: the first segment holds ids 0..size-1, and so on. Segments
/// are separate parameters, so that added tokens can be trained while the original ones are frozen.
struct SplitVocabulary {
  std::map<std::string, int64_t> sizes;
  std::vector<std::string> order;

  /// Total number of ids. Throws a usage error if `order` and `sizes` do not name the same segments.
  int64_t size() const;
};

/// One table of embeddings; `weight` is (num_embeddings, embedding_dim).
class EmbeddingImpl : public Module {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim, Init init = Init::normal(0.02));

  /// Maps ids of any shape to (..., embedding_dim). Ids must be in range.
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;
};
LEHR_MODULE(Embedding);

/// Looks token ids up in the segments of a split vocabulary.
class SplitTokenEmbeddingsImpl : public Module {
 public:
  SplitTokenEmbeddingsImpl(SplitVocabulary vocabulary, int64_t hidden_size, Init init = Init::normal(0.02));

  /// Maps ids (B, T) to (B, T, hidden_size). Throws a usage error for an id outside the vocabulary (checked on CPU).
  at::Tensor forward(const at::Tensor& input_ids);

  /// What forward throws for ids outside the vocabulary.
  void check_ids(const at::Tensor& input_ids) const;

  const SplitVocabulary& vocabulary() const { return vocabulary_; }
  /// The segments' tables, in order.
  std::vector<Embedding> segments;

 private:
  SplitVocabulary vocabulary_;
};
LEHR_MODULE(SplitTokenEmbeddings);

}  // namespace lehr::nn
