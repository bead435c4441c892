// The embedding task: a contrastive loss with in-batch negatives over data-parallel ranks.
#pragma once

#include "lehr/train/task.h"

namespace lehr::mesh {
class Group;
}

namespace lehr::train {

/// Trains embeddings of texts by contrast (InfoNCE, https://arxiv.org/abs/1807.03748; the multiple-negatives ranking
/// loss of sentence-transformers). For each anchor, the loss is the cross-entropy of choosing its positive among the
/// candidates, which are the positives and hard negatives of all examples of the micro-batch, on all data-parallel
/// ranks. Scores are cosine similarities divided by the temperature. Reports 'accuracy', the share of anchors whose
/// positive has the highest score.
///
/// Batches are those of data::PairsBatch: input_ids, attention_mask, pooling_mask (B, T), valid (B), and optionally
/// position_ids (B, T) and sequence_ends (ops::AttentionMask). A valid item is an example. A rank of context
/// parallelism has the embeddings of the texts whose last token it has, and the losses of the anchors among them.
class EmbeddingTask : public TrainTask {
 public:
  struct Options {
    int64_t num_texts = 2;  ///< Consecutive sequences of an example: anchor, positive and, if 3, a hard negative.
    double temperature = 0.05;
  };
  explicit EmbeddingTask(Options options) : options_(options) {}

  nn::ModelInputs build_forward_inputs(const Batch& batch) const override;
  int64_t count_valid(const Batch& batch) const override;
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  std::map<std::string, at::Tensor> compute_metrics(const nn::ModelOutputs& outputs, const Batch& batch) const override;
  void use_mesh(mesh::DistributedContext& mesh) override;
  bool couples_sequences() const override { return true; }

 private:
  struct Choices {
    at::Tensor scores;     // (P, C), of this rank's anchors and all candidates
    at::Tensor positives;  // (P) int64, the index of an anchor's positive; nn::kIgnoreIndex for padding and for anchors
                           // of other ranks of context parallelism
  };
  Choices choices_of(const at::Tensor& embeddings, const Batch& batch) const;
  at::Tensor own_sequences(const Batch& batch) const;

  Options options_;
  const mesh::Group* ranks_ = nullptr;  // those with different sequences or positions; null on one device
  int64_t context_ranks_ = 1;           // of them have the positions of the same sequences
};

}  // namespace lehr::train
