// Token embeddings of a vocabulary that may be split into named segments.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lehr/nn/linear.h"

namespace lehr::nn {

/// A vocabulary of named segments, concatenated in `order`: the first segment holds ids 0..size-1, and so on. Segments
/// are separate parameters, so that added tokens can be trained while the original ones are frozen.
struct SplitVocabulary {
  std::map<std::string, int64_t> sizes;
  std::vector<std::string> order;

  /// Total number of ids. Throws a usage error if `order` and `sizes` name different segments, or a size is below 1.
  int64_t size() const;
};

/// One embedding table; `weight` is (num_embeddings, embedding_dim).
class EmbeddingImpl : public Module {
 public:
  EmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim, Init init = Init::normal(0.02));

  /// Maps ids of any shape to (..., embedding_dim). Ids must be in range.
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;
};
LEHR_MODULE(Embedding);

/// Looks up token ids in the segments of a split vocabulary.
class SplitTokenEmbeddingsImpl : public Module {
 public:
  SplitTokenEmbeddingsImpl(SplitVocabulary vocabulary, int64_t hidden_size, Init init = Init::normal(0.02));

  /// Maps ids (B, T) to (B, T, hidden_size). Throws a usage error for an id outside the vocabulary. On a GPU it throws
  /// only without grad mode; with it, the id is recorded in unknown_ids().
  at::Tensor forward(const at::Tensor& input_ids);

  /// Returns the ids that forward looks up: `input_ids`, on a GPU with 0 in place of those outside the vocabulary.
  /// Throws the error of forward.
  at::Tensor checked_ids(const at::Tensor& input_ids);

  /// The record of ops::known_ids on a GPU since the last call with an error; undefined before the first forward there.
  const at::Tensor& unknown_ids() const { return unknown_ids_; }
  /// Throws a usage error that names the id in `note`, a host copy of unknown_ids(), if it contains one.
  void require_known_ids(const at::Tensor& note);

  const SplitVocabulary& vocabulary() const { return vocabulary_; }
  /// The segments' tables, in order.
  std::vector<Embedding> segments;

 private:
  SplitVocabulary vocabulary_;
  at::Tensor unknown_ids_;
};
LEHR_MODULE(SplitTokenEmbeddings);

/// The embeddings under `root`; null in a stage without them.
SplitTokenEmbeddingsImpl* token_embeddings(torch::nn::Module& root);

}  // namespace lehr::nn
