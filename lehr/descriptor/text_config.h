// Multimodal models, of which Lehr reads the text model: their config.json, and the names of their tensors.
#pragma once

#include <string>
#include <vector>

#include "lehr/config/node.h"

namespace lehr::descriptor {

/// Returns the config.json of the text model: of a model of texts and images that Lehr knows (Qwen3.5, Gemma 3 and 4)
/// its text_config, with those keys of the whole that hold for both, the defaults of transformers' class and that class
/// as architectures; any other `config` as it is.
Node text_config_of(const Node& config);

/// The beginnings of names of the tensors that are not the text model's, those of an encoder of images; none for the
/// config.json of any other model.
std::vector<std::string> image_encoder_prefixes(const Node& config);

/// The beginning of the text model's name in the checkpoint of the whole, such as that of
/// language_model.lm_head.weight.
inline constexpr const char* kTextModelPrefix = "language_model.";

/// The beginnings, in checkpoints of the whole, of names of tensors that begin with `own` in those of a text model.
std::vector<std::string> text_model_prefixes(const std::string& own);

}  // namespace lehr::descriptor
