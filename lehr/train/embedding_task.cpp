#include "lehr/train/embedding_task.h"

#include <limits>

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/nn/head.h"

namespace lehr::train {

void EmbeddingTask::use_mesh(mesh::DistributedContext& mesh) {
  ranks_ = &mesh.group({mesh::axis::dp_replicate, mesh::axis::dp_shard, mesh::axis::cp});
  context_ranks_ = mesh.size(mesh::axis::cp);
}

nn::ModelInputs EmbeddingTask::build_forward_inputs(const Batch& batch) const {
  nn::ModelInputs inputs;
  inputs.input_ids = batch.at("input_ids");
  if (const auto positions = batch.find("position_ids"); positions != batch.end()) {
    inputs.position_ids = positions->second;
  }
  inputs.attention_mask.key_padding = batch.at("attention_mask");
  if (const auto ends = batch.find("sequence_ends"); ends != batch.end()) {
    inputs.attention_mask.sequence_ends = ends->second;
  }
  inputs.pooling_mask = batch.at("pooling_mask");
  return inputs;
}

int64_t EmbeddingTask::count_valid(const Batch& batch) const {
  return batch.at("valid").sum().item<int64_t>() / options_.num_texts;
}

// The last tokens of a text are on one rank of context parallelism. Returns the sequences (B) that are on this one.
at::Tensor EmbeddingTask::own_sequences(const Batch& batch) const {
  const at::Tensor& valid = batch.at("valid");
  return context_ranks_ == 1 || valid.is_meta() ? at::ones_like(valid, at::kBool) : batch.at("pooling_mask").any(1);
}

// embeddings (N, E) of this rank's sequences, of P = B / num_texts examples.
EmbeddingTask::Choices EmbeddingTask::choices_of(const at::Tensor& embeddings, const Batch& batch) const {
  constexpr double kEps = 1e-12;  // keeps a zero vector zero
  const at::Tensor own = own_sequences(batch);
  const at::Tensor valid = batch.at("valid").logical_and(own);  // (B)
  const int64_t texts = options_.num_texts, width = embeddings.size(-1), examples = valid.size(0) / texts;
  at::Tensor unit = embeddings / embeddings.norm(2, -1, /*keepdim=*/true).clamp_min(kEps);
  if (embeddings.size(0) < valid.size(0)) {  // the others are zero here
    unit = at::zeros({valid.size(0), width}, unit.options()).index_put({own}, unit);
  }
  const at::Tensor anchors = unit.view({examples, texts, width}).select(1, 0);  // (P, E)
  // The last column distinguishes candidates from padding, so that one collective sends both.
  const at::Tensor marked = at::cat({unit, valid.to(unit.options()).unsqueeze(1)}, 1);  // (B, E + 1)
  at::Tensor candidates =
      marked.view({examples, texts, width + 1}).slice(1, 1).reshape({examples * (texts - 1), width + 1});
  int64_t first = 0;  // of this rank's candidates among all
  if (ranks_ != nullptr) {
    first = ranks_->rank() / context_ranks_ * candidates.size(0);
    // One rank of cp, the last axis of these, has a candidate, and the others have zeros.
    candidates = mesh::all_gather(candidates, *ranks_, 0)
                     .unflatten(0, {-1, context_ranks_, candidates.size(0)})
                     .sum(1)
                     .flatten(0, 1);  // (C, E + 1)
  }
  const at::Tensor padding = candidates.detach().select(1, width).eq(0);  // (C)
  const at::Tensor scores = at::matmul(anchors, candidates.narrow(1, 0, width).t()) / options_.temperature;
  const at::Tensor positives =
      first + (texts - 1) * at::arange(examples, valid.options().dtype(at::kLong));  // candidates go by example
  return {
      .scores = scores.masked_fill(padding, -std::numeric_limits<double>::infinity()),
      .positives = positives.masked_fill(valid.view({examples, texts}).select(1, 0).logical_not(), nn::kIgnoreIndex)};
}

at::Tensor EmbeddingTask::compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const {
  require(outputs.embeddings.defined(), "embedding: the model returned no 'embeddings'; it needs an embedding head");
  const auto [scores, positives] = choices_of(outputs.embeddings, batch);
  return at::cross_entropy_loss(scores, positives, {}, at::Reduction::Sum, nn::kIgnoreIndex);
}

std::map<std::string, at::Tensor> EmbeddingTask::compute_metrics(
    const nn::ModelOutputs& outputs, const Batch& batch) const {
  const at::NoGradGuard no_grad;
  const auto [scores, positives] = choices_of(outputs.embeddings, batch);
  return {{"accuracy", scores.argmax(-1).eq(positives).sum()}};
}

}  // namespace lehr::train
