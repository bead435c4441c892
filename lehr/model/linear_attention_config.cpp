#include "lehr/model/linear_attention_config.h"

#include "lehr/base/error.h"
#include "lehr/descriptor/block_account.h"
#include "lehr/model/config_values.h"
#include "lehr/model/decoder_limits.h"
#include "lehr/model/layer_pattern.h"
#include "lehr/nn/gated_delta_net.h"

namespace lehr::model {

namespace {
constexpr const char* kLinear = "linear_attention";
constexpr const char* kFullAttention = "full_attention";

std::vector<bool> read_layers(const Node& config, int64_t num_hidden_layers) {
  if (const auto linear = read_layer_types(config, num_hidden_layers, kLinear, "linear_attention or full_attention")) {
    return *linear;
  }
  const int64_t interval = int_or(config, "full_attention_interval", 4);
  require_size(config.origin() + ": ", "full_attention_interval", interval, kMostLayers);
  return all_but_every(interval);
}
}  // namespace

int64_t LinearAttentionConfig::flops_per_token() const {
  return 18 * linear_num_value_heads * linear_key_head_dim * linear_value_head_dim;
}

nn::GatedDeltaNetParameters LinearAttentionConfig::parameters(const LayerSizes& sizes) const {
  return {
      .hidden_size = sizes.hidden_size,
      .num_key_heads = linear_num_key_heads,
      .num_value_heads = linear_num_value_heads,
      .key_head_dim = linear_key_head_dim,
      .value_head_dim = linear_value_head_dim,
      .conv_kernel = linear_conv_kernel_dim,
      .norm_eps = sizes.rms_norm_eps,
      .init = nn::Init::normal(sizes.initializer_range)};
}

descriptor::GatedDeltaNetForm LinearAttentionConfig::form() const {
  return {
      .num_key_heads = linear_num_key_heads,
      .num_value_heads = linear_num_value_heads,
      .key_head_dim = linear_key_head_dim,
      .value_head_dim = linear_value_head_dim,
      .conv_kernel = linear_conv_kernel_dim};
}

LinearAttentionConfig LinearAttentionConfig::from_hf(const Node& config, int64_t num_hidden_layers) {
  LinearAttentionConfig linear;
  linear.linear_conv_kernel_dim = int_or(config, "linear_conv_kernel_dim", linear.linear_conv_kernel_dim);
  linear.linear_key_head_dim = int_or(config, "linear_key_head_dim", linear.linear_key_head_dim);
  linear.linear_value_head_dim = int_or(config, "linear_value_head_dim", linear.linear_value_head_dim);
  linear.linear_num_key_heads = int_or(config, "linear_num_key_heads", linear.linear_num_key_heads);
  linear.linear_num_value_heads = int_or(config, "linear_num_value_heads", linear.linear_num_value_heads);
  linear.layers = read_layers(config, num_hidden_layers);
  return linear;
}

void LinearAttentionConfig::to_hf(Node& config, int64_t num_hidden_layers) const {
  config.set("linear_conv_kernel_dim", Node(linear_conv_kernel_dim));
  config.set("linear_key_head_dim", Node(linear_key_head_dim));
  config.set("linear_value_head_dim", Node(linear_value_head_dim));
  config.set("linear_num_key_heads", Node(linear_num_key_heads));
  config.set("linear_num_value_heads", Node(linear_num_value_heads));
  Node types = Node::make_list();
  for (int64_t layer = 0; layer < num_hidden_layers; ++layer) {
    types.push_back(Node(is_linear(layer) ? kLinear : kFullAttention));
  }
  config.set("layer_types", types);
}

void LinearAttentionConfig::check(const std::string& where) const {
  require_size(where, "linear_conv_kernel_dim", linear_conv_kernel_dim, ops::kMostTaps);
  require_size(where, "linear_key_head_dim", linear_key_head_dim);
  require_size(where, "linear_value_head_dim", linear_value_head_dim);
  require_size(where, "linear_num_key_heads", linear_num_key_heads);
  require_size(where, "linear_num_value_heads", linear_num_value_heads);
  require(
      linear_num_value_heads % linear_num_key_heads == 0,
      "{}linear_num_value_heads: expected a multiple of linear_num_key_heads ({}), found {}",
      where,
      linear_num_key_heads,
      linear_num_value_heads);
}

}  // namespace lehr::model
