#include "lehr/model/decoder.h"

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
  TensorDict result{{"hidden_states", on_meta({batch, tokens / parts, shape.hidden_size}, shape.dtype)}};
  if (shape.snapshot_mode != HiddenStatesAggregationMode::no) {
    // One more entry for the embeddings.
    result["hidden_states_snapshot"] = on_meta({layers_done + 1, batch, shape.hidden_size}, shape.dtype);
  }
  return result;
}
}  // namespace

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

at::Tensor scaled_embeddings(const at::Tensor& embeddings, double factor) {
  if (factor == 1) {
    return embeddings;
  }
  const auto dtype = embeddings.scalar_type();
  const auto narrow = static_cast<float>(factor);
  float rounded = narrow;
  if (dtype == at::kBFloat16) {
    rounded = c10::BFloat16(narrow);
  } else if (dtype == at::kHalf) {
    rounded = c10::Half(narrow);
  }
  return embeddings * (dtype == at::kDouble ? factor : double{rounded});
}

at::Tensor default_position_ids(int64_t tokens, int64_t offset, at::Device device) {
  return at::arange(offset, offset + tokens, at::TensorOptions().dtype(at::kLong).device(device)).unsqueeze(0);
}

}  // namespace lehr::model
