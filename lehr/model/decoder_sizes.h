// Check that the sizes of a decoder are plausible.
#pragma once

#include <string>

#include "lehr/model/decoder_config.h"

namespace lehr::model {

/// Throws a usage error that names the fields, prefixed with `where`, if a size is not positive or too large, also
/// together with the others.
void check_sizes(const DecoderConfig& shape, const std::string& where);

}  // namespace lehr::model
