// A picture of a model's layers: bars for the cost of each sub-block, and gaps for no-ops.
#pragma once

#include <string>

#include "lehr/descriptor/block_table.h"

namespace lehr::descriptor {

/// Returns an SVG document with four rows of bars and one column per layer: parameters of attention and of the
/// feed-forward block (active parameters in full colour, inactive experts pale), the KV cache, and FLOPs per decoded
/// token. Each row has its own scale; hovering over a bar shows its numbers.
std::string draw_blocks(const ModelBlocks& model, const std::string& title);

}  // namespace lehr::descriptor
