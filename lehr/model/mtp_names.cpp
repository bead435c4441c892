#include "lehr/model/mtp_names.h"

#include "lehr/base/error.h"
#include "lehr/model/config_values.h"

namespace lehr::model {

namespace {
constexpr int64_t kMostModules = 64;

// The stored name of `part`, such as "enorm.weight" or "layer.mlp.gate.weight", of module `number`.
std::string stored_name(const std::string& part, int64_t number, MtpNames names, int64_t num_hidden_layers) {
  const bool follows = names == MtpNames::following_layers;
  const std::string of_layer =
      follows ? fmt::format("model.layers.{}.", num_hidden_layers + number) : fmt::format("mtp.layers.{}.", number);
  const std::string own = follows ? of_layer : "mtp.";
  const std::pair<const char*, const char*> renamed[] = {
      {"enorm.", follows ? "enorm." : "pre_fc_norm_embedding."},
      {"hnorm.", follows ? "hnorm." : "pre_fc_norm_hidden."},
      {"eh_proj.", follows ? "eh_proj." : "fc."},
      {"norm.", follows ? "shared_head.norm." : "norm."}};
  for (const auto& [ours, theirs] : renamed) {
    if (part.starts_with(ours)) {
      return own + theirs + part.substr(std::string_view(ours).size());
    }
  }
  constexpr std::string_view kLayer = "layer.";
  invariant(part.starts_with(kLayer), "mtp.{}.{}: a parameter without a name in checkpoints", number, part);
  return of_layer + part.substr(kLayer.size());
}
}  // namespace

state::StateMap with_mtp_names(const state::StateMap& map, MtpNames names, int64_t num_hidden_layers) {
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const std::string& name : map.input_names()) {
    if (!name.starts_with(kMtpPrefix)) {
      continue;
    }
    const size_t begin = std::string_view(kMtpPrefix).size(), dot = name.find('.', begin);
    const int64_t number = std::stoll(name.substr(begin, dot - begin));
    renamed.emplace_back(stored_name(name.substr(dot + 1), number, names, num_hidden_layers), name);
  }
  return renamed.empty() ? map : state::sequential({state::rename(renamed), map});
}

state::StateMap mtp_copies(MtpNames names, const DecoderConfig& config) {
  if (names != MtpNames::following_layers || config.mtp_modules() == 0) {
    return {};
  }
  std::vector<std::string> tables{"model.embed_tokens.weight"}, heads{"lm_head.weight"};
  for (int64_t module = 0; module < config.mtp_modules(); ++module) {
    const std::string layer = fmt::format("model.layers.{}.", config.num_hidden_layers + module);
    tables.push_back(layer + "embed_tokens.weight");
    (config.tie_word_embeddings ? tables : heads).push_back(layer + "shared_head.head.weight");
  }
  const state::StateMap of_tables = state::tie(tables.front(), tables).inverse();
  return config.tie_word_embeddings ? of_tables
                                    : state::parallel({of_tables, state::tie(heads.front(), heads).inverse()});
}

int64_t read_mtp_modules(MtpNames names, const Node& config) {
  const int64_t modules = int_or(config, descriptor::kMtpModulesKey, 1);
  const int64_t most = names == MtpNames::own_module ? 1 : kMostModules;
  require(
      modules >= 0 && modules <= most,
      "{}: num_nextn_predict_layers: expected 0 to {}, the modules for multi-token prediction that checkpoints of this "
      "model type have names for, found {}",
      config.origin(),
      most,
      modules);
  return modules;
}

void check_mtp(const DecoderConfig& config, const std::string& where) {
  require(
      config.mtp_modules() == 0 || config.block_configs.empty(),
      "{}block_configs: modules for multi-token prediction have the layer of a model whose layers are all alike, but "
      "there is a block config for each of {} layers; set training.mtp_loss_coef to 0",
      where,
      config.block_configs.size());
}

}  // namespace lehr::model
