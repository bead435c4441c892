// A model as a picture: its layers side by side, bars for what each half takes, gaps where there is nothing.
#pragma once

#include <string>

#include "lehr/descriptor/block_table.h"

namespace lehr::descriptor {

/// An SVG document with four rows of bars, a column a layer: parameters of attention and of the feed-forward block
/// (the part that a token uses is full, idle experts are pale), the KV cache, and operations of a decoded token. Each
/// row has a scale of its own; pointing at a bar tells its numbers.
std::string draw_blocks(const ModelBlocks& model, const std::string& title);

}  // namespace lehr::descriptor
