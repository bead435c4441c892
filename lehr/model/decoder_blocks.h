// Block configs of decoder-only models: between the layers of a heterogeneous model and the keys of its config.json.
#pragma once

#include "lehr/model/decoder_config.h"

namespace lehr::model {

/// The keys that a block has other values of than its model. What a no-op has no use for is not given.
descriptor::ModelOverrides block_overrides(const descriptor::BlockConfig& block);

/// Reads the block configs of config.json, whose other fields `shape` has, into `shape`: none if all layers are as the
/// others fields say. Sizes that only the blocks say (null in config.json) become the largest of them.
void read_blocks(const Node& config, DecoderConfig& shape);

/// Throws a usage error, behind `where`, for blocks that do not fit the shape.
void check_blocks(const DecoderConfig& shape, const std::string& where);

/// Throws a usage error that names the key if the overrides change what the shape's blocks say.
void refuse_overrides_of_blocks(const descriptor::ModelOverrides& overrides);

}  // namespace lehr::model
