// Conversion between the block configs of a heterogeneous decoder and the keys of its config.json.
#pragma once

#include "lehr/model/decoder_config.h"

namespace lehr::model {

/// The keys whose values a block of a model of this shape sets. Keys that a no-op does not use are not set.
descriptor::ModelOverrides block_overrides(const DecoderConfig& shape, const descriptor::BlockConfig& block);

/// Reads the block configs of config.json into `shape`, which holds its other fields; leaves them empty if all layers
/// match the other fields. Sizes that only the blocks give (null in config.json) become the maximum over the blocks.
void read_blocks(const Node& config, DecoderConfig& shape);

/// Throws a usage error, prefixed with `where`, for blocks that do not fit the shape.
void check_blocks(const DecoderConfig& shape, const std::string& where);

/// Throws a usage error that names the key if the overrides change a value that the shape's blocks define.
void refuse_overrides_of_blocks(const descriptor::ModelOverrides& overrides);

}  // namespace lehr::model
