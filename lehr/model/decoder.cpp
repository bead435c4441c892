#include "lehr/model/decoder.h"

#include <fmt/ranges.h>

#include "lehr/base/error.h"

namespace lehr::model {

namespace {
std::pair<int64_t, int64_t> microbatch_shape(const TensorDict& inputs, int64_t n_microbatches) {
  const auto found = inputs.find("input_ids");
  require(
      found != inputs.end() && found->second.dim() == 2,
      "pipeline inputs: expected 'input_ids' of shape (batch, sequence)");
  const int64_t batch = found->second.size(0);
  require(
      n_microbatches > 0 && batch % n_microbatches == 0,
      "pipeline inputs: a batch of {} sequences cannot be split into {} equal micro-batches",
      batch,
      n_microbatches);
  return {batch / n_microbatches, found->second.size(1)};
}

at::Tensor on_meta(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(dtype));
}

TensorDict hidden(const DecoderStageShape& shape, int64_t batch, int64_t tokens, int64_t layers_done) {
  const int64_t parts = shape.sequence_parts;
  require(
      tokens % parts == 0,
      "training.seq_len: {} tokens cannot be split evenly over parallelism.tensor_parallel_degree = {}",
      tokens,
      parts);
  TensorDict result;
  if (shape.cross_layer != nullptr) {
    result = shape.cross_layer->sent(layers_done, batch, tokens, parts, shape.dtype);
  }
  result["hidden_states"] = on_meta({batch, tokens / parts, shape.hidden_size}, shape.dtype);
  if (shape.snapshot_mode != HiddenStatesAggregationMode::no) {
    // One more entry for the embeddings.
    result["hidden_states_snapshot"] = on_meta({layers_done + 1, batch, shape.hidden_size}, shape.dtype);
  }
  return result;
}
}  // namespace

Snapshots::Snapshots(HiddenStatesAggregationMode mode, const nn::ModelInputs& inputs, const SequenceParts& parts)
    : whole_(mode, inputs.hidden_states_agg_mask),
      inputs_(inputs),
      parts_(parts),
      in_parts_(parts.count > 1 && mode != HiddenStatesAggregationMode::no) {}

void Snapshots::add(const at::Tensor& hidden_states) {
  if (!in_parts_) {
    whole_.add_hidden_states(hidden_states);
    return;
  }
  const at::Tensor& mask = inputs_.hidden_states_agg_mask;
  require(
      mask.dim() == 2 && mask.size(0) == hidden_states.size(0) && mask.size(1) == hidden_states.size(1) * parts_.count,
      "hidden_states_agg_mask: expected shape {}x{}, found {}",
      hidden_states.size(0),
      hidden_states.size(1) * parts_.count,
      fmt::join(mask.sizes(), "x"));
  const auto dtype = hidden_states.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (!own_mask_.defined()) {
    dtype_ = hidden_states.scalar_type();
    own_mask_ = parts_.own(mask.to(dtype)).unsqueeze(-1);
  }
  sums_.push_back((hidden_states.to(dtype) * own_mask_).sum(1));
}

at::Tensor Snapshots::pack() {
  const at::Tensor& earlier = inputs_.hidden_states_snapshot;
  if (!in_parts_ || sums_.empty()) {
    return whole_.pack_with_snapshot(earlier);
  }
  const at::Tensor sums = parts_.sum(at::stack(sums_));                                    // (l, B, H)
  const at::Tensor weight = inputs_.hidden_states_agg_mask.to(sums.scalar_type()).sum(1);  // (B)
  const at::Tensor rows = (sums / weight.masked_fill(weight.eq(0), 1).unsqueeze(-1)).to(dtype_);
  return earlier.defined() ? at::cat({earlier, rows}) : rows;
}

TensorDict infer_decoder_inputs(const DecoderStageShape& shape, const TensorDict& inputs, int64_t n_microbatches) {
  const auto [batch, tokens] = microbatch_shape(inputs, n_microbatches);
  if (shape.stage.is_current_stage_first()) {
    return {{"input_ids", on_meta({batch, tokens}, at::kLong)}};
  }
  return hidden(shape, batch, tokens, shape.layers_before);
}

TensorDict infer_decoder_outputs(const DecoderStageShape& shape, const TensorDict& inputs, int64_t n_microbatches) {
  const auto [batch, tokens] = microbatch_shape(inputs, n_microbatches);
  return hidden(shape, batch, tokens, shape.layers_before + shape.local_layers);
}

at::Tensor default_position_ids(int64_t tokens, int64_t offset, at::Device device) {
  return at::arange(offset, offset + tokens, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
}

}  // namespace lehr::model
