// The config.json of models of texts and images, of which Lehr has the text model.
#pragma once

#include "lehr/config/node.h"

namespace lehr::descriptor {

/// Returns the config.json of the text model: of a model of texts and images that Lehr knows (Qwen3.5, Gemma 3) its
/// text_config, with those keys of the whole that hold for both and the defaults of transformers' class; any other
/// `config` as it is.
Node text_config_of(const Node& config);

}  // namespace lehr::descriptor
