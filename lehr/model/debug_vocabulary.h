// The vocabulary of the flavors "debugmodel".
#pragma once

#include "lehr/model/decoder_config.h"

namespace lehr::model {

/// Gives a published shape a small vocabulary, without special tokens.
inline void set_debug_vocabulary(DecoderConfig& config) {
  config.vocab_size = 2048;
  config.bos_token_id = {};
  config.eos_token_id = {};
  config.pad_token_id = {};
}

}  // namespace lehr::model
