// The part of a search space that a particular model supports.
#pragma once

#include "lehr/search/decoder_pieces.h"
#include "lehr/search/space.h"

namespace lehr::search {

/// Returns `space` with the windows of the model's layers, and without the variants that its family does not have:
/// linear layers in place of sub-blocks, and fewer experts if its routers choose among groups of them. Throws a usage
/// error with the reason for sizes that are listed although no layer has such parts: KV heads of latent attention,
/// windows of attention without them, numbers of experts in groups.
SpaceConfig space_of_model(SpaceConfig space, const DecoderPieces& pieces);

}  // namespace lehr::search
