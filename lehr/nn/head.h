// Model heads: language model, classification and embedding.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lehr/nn/distillation.h"
#include "lehr/nn/dropout.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/linear.h"

namespace lehr::nn {

/// Labels with this value are ignored in the loss.
constexpr int64_t kIgnoreIndex = -100;

/// Returns values (B, T), with 0 where the label is kIgnoreIndex.
at::Tensor mask_ignored_labels(const at::Tensor& values, const at::Tensor& labels);

/// Projects hidden states to a (split) vocabulary and scores labels without storing all logits.
class SplitLanguageModellingHeadImpl : public Module {
 public:
  /// With a softcap, logits x become softcap tanh(x / softcap), in all results.
  SplitLanguageModellingHeadImpl(
      SplitVocabulary vocabulary,
      int64_t hidden_size,
      Init init = Init::normal(0.02),
      std::optional<double> softcap = {});

  /// Reads its weights from `embeddings` from now on: tied weights. Its own parameters are dropped.
  void tie_to(SplitTokenEmbeddingsImpl& embeddings);

  /// Returns the negative log-likelihood of each label (B, T), float32 (float64 for float64), 0 where the label is
  /// -100. hidden_states (B, T, H), labels (B, T) int64, already shifted: labels[t] is the token after position t. If
  /// `labels` is undefined, returns logits(): a call through the holder, which unshards the weights.
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& labels);

  /// Compares the head with a teacher's: returns ops::LinearKl::loss (B, T), and sets `values` to the others. Labels
  /// are as above. With hidden states (B, T, 1 + D, H) and labels (B, T, 1 + D) only depth 0 is compared and in
  /// `values`; the result (B, T, 1 + D) has the negative log-likelihoods of the other depths, for which a teacher has
  /// no distribution.
  at::Tensor forward(
      const at::Tensor& hidden_states,
      const at::Tensor& labels,
      const DistillationTargets& targets,
      ops::LinearKl& values);

  /// The functions of a head that holds only some rows of its weight, because the vocabulary is sharded.
  struct Sharded {
    /// Scores labels, instead of ops::linear_cross_entropy, with the head's softcap.
    std::function<at::Tensor(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels)> loss;
    /// Compares with a teacher, instead of ops::linear_kl; teacher.weight has the same rows.
    std::function<ops::LinearKl(
        const at::Tensor& hidden,
        const at::Tensor& weight,
        const ops::TeacherHead& teacher,
        const at::Tensor& labels,
        const ops::LinearKlOptions& options)>
        compare;
    /// The logits of the whole vocabulary, before the softcap.
    std::function<at::Tensor(const at::Tensor& hidden, const at::Tensor& weight)> logits;
    /// All positions (B, T, ...) from those of this rank.
    std::function<at::Tensor(const at::Tensor& part)> whole_sequence;
  };
  void set_sharded(Sharded sharded) { sharded_ = std::move(sharded); }

  /// Returns all positions (B, T, ...) of a tensor that has this rank's positions, like the hidden states that the head
  /// reads. Returns the tensor itself unless the head is sharded.
  at::Tensor whole_sequence(const at::Tensor& part) const { return sharded_ ? sharded_->whole_sequence(part) : part; }

  /// Returns all logits, (B, T, V), in the dtype of the hidden states.
  at::Tensor logits(const at::Tensor& hidden_states);

  /// The segments' weights, in order, each Linear without bias.
  std::vector<Linear> segments;

  /// All segments as one matrix (V, H), which is a copy if there are several.
  at::Tensor whole_weight() const;
  std::optional<double> softcap() const { return softcap_; }

 private:
  std::optional<double> softcap_;
  std::optional<Sharded> sharded_;

  // The negative log-likelihoods of labels of any shape, from hidden states of that shape and H.
  at::Tensor losses_of(const at::Tensor& hidden_states, const at::Tensor& weight, const at::Tensor& labels) const;
};
LEHR_MODULE(SplitLanguageModellingHead);

/// Scores sequences (or tokens): score(dropout(hidden)) at the pooled positions, in float32 (float64 for float64).
class ClassificationHeadImpl : public Module, public DropoutModule {
 public:
  /// `bias` adds one to each label's score, as the heads of token classifiers in transformers do.
  ClassificationHeadImpl(
      int64_t hidden_size, int64_t num_labels, double dropout, Init init = Init::normal(0.02), bool bias = false);

  /// hidden_states (B, T, H), pooling_mask (B, T): the tokens at which it is not zero are pooled in order, (N,
  /// num_labels); without a mask every token is scored, (B, T, num_labels).
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& pooling_mask = {});

  /// Selects the random numbers of the next dropout mask. It depends on the seed, the step, and each token's position
  /// in the step's batch, in which this call's sequences begin at `first_row`; not on the micro-batch size. Later calls
  /// use the following steps.
  void set_dropout_stream(uint64_t seed, uint64_t step, int64_t first_row = 0) override;

  /// Makes the dropout masks those of whole sequences from now on, if the hidden states hold the chunks with these
  /// numbers of each sequence, of equal length and in this order. Default: {0}, whole sequences.
  void set_sequence_chunks(std::vector<int64_t> chunks) { sequence_chunks_ = std::move(chunks); }

  Linear score{nullptr};

 private:
  double dropout_;
  uint64_t dropout_seed_ = 0;
  uint64_t dropout_step_ = 0;
  int64_t dropout_first_row_ = 0;
  std::vector<int64_t> sequence_chunks_{0};

  at::Tensor dropout_mask(const at::Tensor& hidden_states, const at::Tensor& pooling_mask);
};
LEHR_MODULE(ClassificationHead);

/// Embeddings of sequences (or tokens): the hidden states at the pooled positions, optionally projected and normalized
/// to length 1, in float32 (float64 for float64).
class EmbeddingHeadImpl : public Module {
 public:
  EmbeddingHeadImpl(
      int64_t hidden_size,
      std::optional<int64_t> embedding_dim = {},
      bool normalize = false,
      Init init = Init::normal(0.02));

  /// hidden_states (B, T, H), pooling_mask (B, T): the tokens at which it is not zero are pooled in order, (N, E);
  /// without a mask every token has an embedding, (B, T, E).
  at::Tensor forward(const at::Tensor& hidden_states, const at::Tensor& pooling_mask = {});

  Linear projection{nullptr};  // null without projection

 private:
  bool normalize_;
};
LEHR_MODULE(EmbeddingHead);

}  // namespace lehr::nn
