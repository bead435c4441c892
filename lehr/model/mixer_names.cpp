#include "lehr/model/mixer_names.h"

#include <array>
#include <map>
#include <string_view>

#include "lehr/model/fused_projection.h"

namespace lehr::model {

namespace {
constexpr std::string_view kInProj = ".mamba.in_proj.weight";
constexpr std::string_view kConv = ".mamba.conv1d.";
constexpr std::string_view kMixer = ".mixer.", kNorm = ".norm.";  // in checkpoints
// The members of a layer, and their names in checkpoints.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kMembers{
    {{".mamba.", kMixer},
     {".self_attn.", kMixer},
     {".mlp.", kMixer},
     {".attention_norm.", kNorm},
     {".ffn_norm.", kNorm}}};

// Replaces `from` at the beginning of a name.
bool replace_prefix(std::string& name, std::string_view from, std::string_view to) {
  if (!name.starts_with(from)) {
    return false;
  }
  name.replace(0, from.size(), to);
  return true;
}

std::string published_name(std::string name) {
  const bool bare = !name.starts_with("model.") && !name.starts_with("lm_head.") && !name.starts_with("score.");
  replace_prefix(name, "model.", "");
  if (!replace_prefix(name, "embed_tokens.", "embeddings.")) {
    replace_prefix(name, "norm.", "norm_f.");
  }
  for (const auto& [own, stored] : kMembers) {
    if (const size_t at = name.find(own); at != std::string::npos) {
      name.replace(at, own.size(), stored);
      break;
    }
  }
  return bare || name.starts_with("lm_head.") || name.starts_with("score.") ? name : kBackbonePrefix + name;
}

// The numbers of rows of z, x, B, C and dt that a group of heads has in in_proj.
std::vector<int64_t> rows_of_group(const Mamba2Config& sizes) {
  const int64_t heads = sizes.mamba_num_heads / sizes.n_groups, width = heads * sizes.mamba_head_dim;
  return {width, width, sizes.ssm_state_size, sizes.ssm_state_size, heads};
}
}  // namespace

state::StateMap with_mixer_names(const state::StateMap& map, const Mamba2Config& sizes) {
  std::vector<state::StateMap> maps;
  for (const std::string& name : map.input_names()) {
    const size_t conv = name.find(kConv);
    if (name.ends_with(kInProj)) {
      maps.push_back(fused_projection({{published_name(name), rows_of_group(sizes)}}, name, sizes.n_groups));
    } else if (conv == std::string::npos) {
      maps.push_back(state::rename(published_name(name), name));
    } else if (const std::string own = name.substr(conv + kConv.size()); own == "x" || own == "x_bias") {
      const std::string module = name.substr(0, conv + kConv.size()), ending = own.substr(1);
      const int64_t keys = sizes.n_groups * sizes.ssm_state_size;
      maps.push_back(state::split(
          published_name(module) + (ending.empty() ? "weight" : "bias"),
          {module + "x" + ending, module + "b" + ending, module + "c" + ending},
          0,
          {sizes.inner_size(), keys, keys}));
    }
  }
  return state::sequential({state::parallel(maps), map});
}

namespace {
// "backbone.layers.7" of a stored tensor; empty for tensors of no layer.
std::string layer_of(const std::string& stored) {
  const std::string layers = std::string(kBackbonePrefix) + "layers.";
  return stored.starts_with(layers) ? stored.substr(0, stored.find('.', layers.size())) : "";
}

// The names of a layer's mixer and norm as modules.
struct Members {
  std::string_view mixer, norm;
};

Members members_with(std::string_view tensor_of_mixer) {
  for (const char* name :
       {"up_proj.weight",
        "down_proj.weight",
        "gate.",
        "experts.",
        "shared_experts.",
        "fc1_latent_proj.",
        "fc2_latent_proj."}) {
    if (tensor_of_mixer.starts_with(name)) {
      return {".mlp.", ".ffn_norm."};
    }
  }
  for (const char* name : {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"}) {
    if (tensor_of_mixer == name) {
      return {".self_attn.", ".attention_norm."};
    }
  }
  return {".mamba.", ".attention_norm."};
}
}  // namespace

std::vector<std::pair<std::string, std::string>> mixer_module_names(const std::vector<std::string>& stored) {
  std::map<std::string, Members> of_layer;
  for (const std::string& name : stored) {
    const std::string layer = layer_of(name);
    if (!layer.empty() && name.substr(layer.size()).starts_with(kMixer)) {
      of_layer[layer] = members_with(name.substr(layer.size() + kMixer.size()));
    }
  }
  std::vector<std::pair<std::string, std::string>> names;
  for (const std::string& name : stored) {
    const std::string layer = layer_of(name);
    std::string own = name.substr(layer.size());
    if (const auto found = of_layer.find(layer); found != of_layer.end()) {
      if (!replace_prefix(own, kMixer, found->second.mixer)) {
        replace_prefix(own, kNorm, found->second.norm);
      }
    }
    own = layer + own;
    replace_prefix(own, kBackbonePrefix, "model.");
    if (!replace_prefix(own, "model.embeddings.", "model.embed_tokens.")) {
      replace_prefix(own, "model.norm_f.", "model.norm.");
    }
    if (const size_t conv = own.find(kConv); conv != std::string::npos) {
      const size_t ending = conv + kConv.size();
      own.replace(ending, std::string::npos, own.substr(ending) == "weight" ? "x" : "x_bias");
    }
    names.emplace_back(own, name);
  }
  return names;
}

}  // namespace lehr::model
