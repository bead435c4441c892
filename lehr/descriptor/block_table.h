// A table of a model's layers with the costs of each sub-block.
#pragma once

#include <string>
#include <vector>

#include "lehr/descriptor/block_account.h"

namespace lehr::descriptor {

class ModelArgs;

/// The data of a model's tables and pictures.
struct ModelBlocks {
  DecoderForm form;
  std::vector<BlockConfig> blocks;
  Workload work;
  ModelAccount account;
};

/// Throws a usage error for a family without a decoder form (ModelArgs::decoder_form).
ModelBlocks blocks_of(const ModelArgs& args, const Workload& work);

/// "8 KV heads", "4 KV heads, window 512", "latent of 512 + 64", "gated DeltaNet, 32 heads", "linear" or "none".
std::string attention_text(const ModelBlocks& model, size_t layer);
/// "3072", "8 of 128 x 768" (experts) or "none".
std::string ffn_text(const BlockConfig& block);

/// Formats one row for the embeddings, for each run of equal layers (with the costs per layer), for the head, and for
/// the sum. Columns: shape, parameters of each sub-block, weights, cache, FLOPs of prefill and decode.
std::string format_blocks(const ModelBlocks& model);

}  // namespace lehr::descriptor
