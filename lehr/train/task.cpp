#include "lehr/train/task.h"

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"
#include "lehr/nn/head.h"
#include "lehr/train/future_tokens.h"

namespace lehr::train {

Batch rows_of(const Batch& batch, int64_t first, int64_t count) {
  Batch part;
  for (const auto& [name, tensor] : batch) {
    part[name] = tensor.narrow(0, first, count);
  }
  return part;
}

Batch to_device(const Batch& batch, at::Device device) {
  Batch moved;
  for (const auto& [name, tensor] : batch) {
    moved[name] = to_device_pinned(tensor, device);
  }
  return moved;
}

namespace {
// Returns the sequence ends that Ranks::positions_of added; undefined if there are none.
at::Tensor sequence_ends_of(const Batch& batch) {
  const auto ends = batch.find("sequence_ends");
  return ends == batch.end() ? at::Tensor() : ends->second;
}

// Returns the positions that Ranks::positions_of added under context parallelism; undefined for 0, 1, 2, ...
at::Tensor position_ids_of(const Batch& batch) {
  const auto found = batch.find("position_ids");
  return found == batch.end() ? at::Tensor() : found->second;
}
}  // namespace

nn::ModelInputs CausalLMTask::build_forward_inputs(const Batch& batch) const {
  nn::ModelInputs inputs;
  inputs.input_ids = batch.at("input_ids");
  inputs.labels = batch.at("labels");
  inputs.position_ids = batch.at("position_ids");
  // Sequences of one document need only the causal mask, which is faster.
  if (const auto documents = batch.find("document_ids"); documents != batch.end()) {
    inputs.attention_mask.document_ids = documents->second;
    inputs.attention_mask.sequence_ends = sequence_ends_of(batch);
  }
  add_future_tokens(batch, inputs);
  return inputs;
}

int64_t CausalLMTask::count_valid(const Batch& batch) const {
  return batch.at("labels").ne(nn::kIgnoreIndex).sum().item<int64_t>();
}

at::Tensor CausalLMTask::compute_loss(const nn::ModelOutputs& outputs, const Batch& /*batch*/) const {
  require(outputs.nll().defined(), "causal_lm: the model returned no 'logps'; it needs a language-modelling head");
  const at::Tensor sum = outputs.nll().sum();
  if (!outputs.future_nll.defined()) {
    return sum;
  }
  const at::Tensor ahead = mtp_loss_coef_ * outputs.future_nll.sum();
  return sum + (ahead - ahead.detach());  // not finite if `ahead` is not
}

std::map<std::string, at::Tensor> CausalLMTask::compute_metrics(
    const nn::ModelOutputs& outputs, const Batch& /*batch*/) const {
  if (!outputs.future_nll.defined()) {
    return {};
  }
  return {{"mtp_loss", outputs.future_nll.sum()}};
}

nn::ModelInputs ClassificationTask::build_forward_inputs(const Batch& batch) const {
  nn::ModelInputs inputs;
  inputs.input_ids = batch.at("input_ids");
  inputs.position_ids = position_ids_of(batch);
  inputs.attention_mask.key_padding = batch.at("attention_mask");
  inputs.attention_mask.sequence_ends = sequence_ends_of(batch);
  inputs.pooling_mask = batch.at("pooling_mask");
  return inputs;
}

int64_t ClassificationTask::count_valid(const Batch& batch) const {
  return batch.at("labels").ne(nn::kIgnoreIndex).sum().item<int64_t>();
}

// Sequences that are only padding have no pooled token and no entry in scores. Under context parallelism the same holds
// on the ranks that do not have the last token of a sequence, so each label is counted on one rank.
at::Tensor ClassificationTask::pooled_labels(const Batch& batch) {
  const at::Tensor labels = batch.at("labels");
  if (labels.is_meta()) {
    return labels;  // no sequence is only padding
  }
  return labels.index({batch.at("pooling_mask").any(1)});
}

at::Tensor ClassificationTask::compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const {
  return at::cross_entropy_loss(outputs.scores, pooled_labels(batch), {}, at::Reduction::Sum, nn::kIgnoreIndex);
}

std::map<std::string, at::Tensor> ClassificationTask::compute_metrics(
    const nn::ModelOutputs& outputs, const Batch& batch) const {
  return {{"accuracy", outputs.scores.argmax(-1).eq(pooled_labels(batch)).sum()}};
}

nn::ModelInputs TokenClassificationTask::build_forward_inputs(const Batch& batch) const {
  nn::ModelInputs inputs;
  inputs.input_ids = batch.at("input_ids");
  inputs.position_ids = batch.at("position_ids");
  inputs.attention_mask.key_padding = batch.at("attention_mask");
  inputs.attention_mask.sequence_ends = sequence_ends_of(batch);
  return inputs;
}

int64_t TokenClassificationTask::count_valid(const Batch& batch) const {
  return batch.at("labels").ne(nn::kIgnoreIndex).sum().item<int64_t>();
}

at::Tensor TokenClassificationTask::compute_loss(const nn::ModelOutputs& outputs, const Batch& batch) const {
  return at::cross_entropy_loss(
      outputs.scores.flatten(0, 1), batch.at("labels").flatten(), {}, at::Reduction::Sum, nn::kIgnoreIndex);
}

// Ignored tokens never count as correct: kIgnoreIndex is not the index of a label.
std::map<std::string, at::Tensor> TokenClassificationTask::compute_metrics(
    const nn::ModelOutputs& outputs, const Batch& batch) const {
  return {{"accuracy", outputs.scores.argmax(-1).eq(batch.at("labels")).sum()}};
}

}  // namespace lehr::train
