// The tokens and labels further ahead, which modules for multi-token prediction read and predict.
#pragma once

#include <string>

#include "lehr/nn/model.h"
#include "lehr/pipeline/stage.h"

namespace lehr::train {

/// Returns a batch (train::Batch) of whole sequences with two more tensors (B, T) for each depth k = 1, ..., `depths`:
/// "input_ids+k", the tokens k positions later, and "labels+k", the labels of these. A label is ignored where the batch
/// ignores it, and where the token k positions later is in another document or after the sequence. Must be called
/// before positions are sharded. With 0 depths the batch is unchanged.
pipeline::TensorDict with_future_tokens(pipeline::TensorDict batch, int64_t depths);

/// Whether the name is that of a tensor "labels" or "labels+k".
bool is_labels(const std::string& name);

/// Sets ModelInputs::future_ids and future_labels to the tensors of with_future_tokens, if the batch has them.
void add_future_tokens(const pipeline::TensorDict& batch, nn::ModelInputs& inputs);

}  // namespace lehr::train
