#include "lehr/pretrained/declared_shape.h"

#include "lehr/base/error.h"
#include "lehr/config/node.h"

namespace lehr::pretrained {

namespace {
// The sizes of a config.json, such as "hidden_size 64, num_hidden_layers 2".
std::string sizes_of(const descriptor::ModelArgs& args) {
  const Node config = args.to_hf_config("float32");
  std::string sizes;
  for (const auto& [key, value] : config.entries()) {
    const bool is_size = key.ends_with("_size") || key.starts_with("num_") || key == "head_dim" ||
                         key == "decoder_sparse_step" || key == "max_position_embeddings";
    if (is_size && value.is_int()) {
      sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", key, value.as_int());
    } else if (key == "tie_word_embeddings" && value.is_bool()) {
      sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", key, value.as_bool());
    } else if (key == "block_configs" || key == "mlp_only_layers") {
      sizes += fmt::format("{}{} of {} layers", sizes.empty() ? "" : ", ", key, value.size());
    }
  }
  return sizes;
}
}  // namespace

CheckpointDifference check_declared_shape(
    const std::filesystem::path& config,
    const descriptor::ModelArgs& args,
    const nn::Module& model,
    const state::StateMap& map,
    const state::WeightReader& reader,
    const LoadRules& rules) {
  try {
    return check_checkpoint(map, parameter_specs(model), reader, rules);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) {
      throw;
    }
    fail("{}; {} declares {}", error.what(), config.string(), sizes_of(args));
  }
}

}  // namespace lehr::pretrained
