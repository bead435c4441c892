// A model, layer by layer, with what each part of it takes: as a table for people.
#pragma once

#include <string>
#include <vector>

#include "lehr/descriptor/block_account.h"

namespace lehr::descriptor {

class ModelArgs;

/// What tables and pictures of a model show.
struct ModelBlocks {
  DecoderForm form;
  std::vector<BlockConfig> blocks;
  Workload work;
  ModelAccount account;
};

/// Throws a usage error for a family that does not say what its sub-blocks share (ModelArgs::decoder_form).
ModelBlocks blocks_of(const ModelArgs& args, const Workload& work);

/// "8 KV heads", or "none".
std::string attention_text(const BlockConfig& block);
/// "3072", "8 of 128 x 768" (experts) or "none".
std::string ffn_text(const BlockConfig& block);

/// A row for the embeddings, for each run of layers that are alike (with what each of them takes), for the head, and
/// for the sum: shape, parameters of either half, weights, cache, FLOPs of prefill and decode.
std::string format_blocks(const ModelBlocks& model);

}  // namespace lehr::descriptor
