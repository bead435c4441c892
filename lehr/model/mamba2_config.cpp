#include "lehr/model/mamba2_config.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/descriptor/block_account.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/nn/linear_attention.h"
#include "lehr/nn/mamba2.h"

namespace lehr::model {

namespace {
// Returns the letter of an entry of layers_block_type; 0 for another kind. The names are those of transformers 5, or
// older ones.
char letter_of(const std::string& name) {
  if (name == "linear_attention" || name == "mamba") {
    return static_cast<char>(Mixer::mamba);
  }
  if (name == "full_attention" || name == "attention") {
    return static_cast<char>(Mixer::attention);
  }
  return name == "mlp" ? static_cast<char>(Mixer::feed_forward) : name == "moe" ? static_cast<char>(Mixer::experts) : 0;
}

std::string read_pattern(const Node& config, int64_t num_hidden_layers) {
  const Node* types = config.find("layers_block_type");
  const bool has_types = types != nullptr && !types->is_null();
  const char* key = has_types ? "layers_block_type" : "hybrid_override_pattern";
  std::string pattern = has_types ? "" : config.at(key).as_string();
  const auto refuse = [&](size_t layer, const std::string& found) {
    fail(
        "{}: {}[{}]: expected M (mamba), * (attention), - (mlp) or E (moe), found {}",
        config.origin(),
        key,
        layer,
        found);
  };
  for (size_t layer = 0; has_types && layer < types->size(); ++layer) {
    const std::string name = types->at(layer).as_string();
    if (letter_of(name) == 0) {
      refuse(layer, name);
    }
    pattern += letter_of(name);
  }
  for (size_t layer = 0; layer < pattern.size(); ++layer) {
    if (std::string_view("M*-E").find(pattern[layer]) == std::string_view::npos) {
      refuse(layer, pattern.substr(layer, 1));
    }
  }
  require(
      static_cast<int64_t>(pattern.size()) == num_hidden_layers && num_hidden_layers > 0,
      "{}: {}: expected one mixer per layer ({}, num_hidden_layers), found {}",
      config.origin(),
      key,
      num_hidden_layers,
      pattern.size());
  return pattern;
}
}  // namespace

Mamba2Config Mamba2Config::from_hf(const Node& config, int64_t num_hidden_layers) {
  // Other names of the same sizes, which transformers prefers to these.
  for (const char* key :
       {"mamba_n_groups", "mamba_d_conv", "mamba_dt_min", "mamba_dt_max", "mamba_dt_init_floor", "mamba_conv_bias"}) {
    require(
        config.find(key) == nullptr,
        "{}: {}: this name is not supported; use n_groups, conv_kernel, time_step_min, time_step_max, time_step_floor "
        "or use_conv_bias",
        config.origin(),
        key);
  }
  Mamba2Config mamba;
  mamba.mamba_num_heads = int_or(config, "mamba_num_heads", mamba.mamba_num_heads);
  mamba.mamba_head_dim = int_or(config, "mamba_head_dim", mamba.mamba_head_dim);
  mamba.n_groups = int_or(config, "n_groups", mamba.n_groups);
  mamba.ssm_state_size = int_or(config, "ssm_state_size", mamba.ssm_state_size);
  mamba.conv_kernel = int_or(config, "conv_kernel", mamba.conv_kernel);
  mamba.use_conv_bias = bool_or(config, "use_conv_bias", mamba.use_conv_bias);
  mamba.time_step_min = double_or(config, "time_step_min", mamba.time_step_min);
  mamba.time_step_max = double_or(config, "time_step_max", mamba.time_step_max);
  mamba.time_step_floor = double_or(config, "time_step_floor", mamba.time_step_floor);
  mamba.pattern = read_pattern(config, num_hidden_layers);
  return mamba;
}

void Mamba2Config::shift(int64_t count) {
  const auto by = static_cast<size_t>(count) % pattern.size();
  std::rotate(pattern.begin(), pattern.end() - static_cast<long>(by), pattern.end());
}

nn::Mamba2Parameters Mamba2Config::parameters(const LayerSizes& sizes) const {
  return {
      .hidden_size = sizes.hidden_size,
      .num_heads = mamba_num_heads,
      .head_dim = mamba_head_dim,
      .num_groups = n_groups,
      .state_size = ssm_state_size,
      .conv_kernel = conv_kernel,
      .conv_bias = use_conv_bias,
      .min_time_step = time_step_min,
      .max_initial_step = time_step_max,
      .initial_step_floor = time_step_floor,
      .norm_eps = sizes.rms_norm_eps,
      .init = nn::Init::normal(sizes.initializer_range)};
}

descriptor::Mamba2Form Mamba2Config::form() const {
  return {
      .num_heads = mamba_num_heads,
      .head_dim = mamba_head_dim,
      .num_groups = n_groups,
      .state_size = ssm_state_size,
      .conv_kernel = conv_kernel,
      .conv_bias = use_conv_bias};
}

void Mamba2Config::to_hf(Node& config, int64_t num_hidden_layers) const {
  config.set("mamba_num_heads", Node(mamba_num_heads));
  config.set("mamba_head_dim", Node(mamba_head_dim));
  config.set("n_groups", Node(n_groups));
  config.set("ssm_state_size", Node(ssm_state_size));
  config.set("conv_kernel", Node(conv_kernel));
  config.set("use_conv_bias", Node(use_conv_bias));
  config.set("time_step_min", Node(time_step_min));
  config.set("time_step_max", Node(time_step_max));
  config.set("time_step_floor", Node(time_step_floor));
  std::string mixers;
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    mixers += static_cast<char>(mixer(layer));
  }
  config.set("hybrid_override_pattern", Node(mixers));
}

void Mamba2Config::check(const std::string& where) const {
  require_size(where, "mamba_num_heads", mamba_num_heads);
  require_size(where, "mamba_head_dim", mamba_head_dim);
  require_size(where, "n_groups", n_groups);
  require_size(where, "ssm_state_size", ssm_state_size);
  require_size(where, "conv_kernel", conv_kernel, ops::kMostTaps);
  require(
      mamba_num_heads % n_groups == 0,
      "{}mamba_num_heads: expected a multiple of n_groups ({}), found {}",
      where,
      n_groups,
      mamba_num_heads);
  require(time_step_min >= 0, "{}time_step_min: expected 0 or a positive number, found {}", where, time_step_min);
  const double lowest = std::max(time_step_min, time_step_floor);
  require(
      lowest > 0 && time_step_max >= lowest,
      "{}time_step_max: expected at least time_step_min and time_step_floor ({}), and a positive one of them, found {}",
      where,
      lowest,
      time_step_max);
}

}  // namespace lehr::model
