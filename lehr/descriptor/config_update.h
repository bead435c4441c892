// config.json and generation_config.json of a model that was made from another one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"

namespace lehr::descriptor {

/// The key with the number of modules for multi-token prediction whose weights a folder has. Families that may have
/// such modules write it always, 0 too.
inline constexpr const char* kMtpModulesKey = "num_nextn_predict_layers";

/// The same number in published folders of Qwen3.5, which other programs read.
inline constexpr const char* kMtpLayersKey = "mtp_num_hidden_layers";

/// Returns true if `config`, a config.json, has a model_type that the family reads.
bool is_of_family(const Node& config, const ModelFamily& family);

/// Returns torch's name of the weights' dtype in a config.json (`torch_dtype`, or `dtype` since transformers 5);
/// `otherwise` if it has none.
std::string dtype_of(const Node& config, const std::string& otherwise);

/// Returns `config`, a config.json, without what does not hold for a folder that Lehr writes: quantization_config,
/// auto_map (names of Python files), and a model_type whose class is in such a file, in place of which it has that of
/// the same models in transformers (deepseek_v3 for kimi_k2).
Node plain_config(Node config);

/// Returns the config.json of `args`, whose weights have the dtype `dtype`, as an update of `source`, the config.json
/// of the model that it was made from. Keys that the family does not read stay, such as the names of labels, and so
/// does the form of those that it reads (rope_parameters, or rope_theta and rope_scaling). Keys whose meaning has
/// changed are replaced, and plain_config is applied. If `source` describes a model of another family, returns what
/// `args` writes.
Node updated_config(const Node& source, const ModelFamily& family, const ModelArgs& args, const std::string& dtype);

/// Returns eos_token_id of a config.json or generation_config.json: a number, a list, or none.
std::vector<int64_t> eos_token_ids(const Node& config);

/// Returns `source`, a generation_config.json, with these stop tokens added to its own, and with the padding token.
Node updated_generation_config(Node source, const std::vector<int64_t>& eos, std::optional<int64_t> pad);

}  // namespace lehr::descriptor
