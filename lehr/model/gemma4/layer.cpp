#include "lehr/model/gemma4/layer.h"

#include "lehr/model/layer_parameters.h"
#include "lehr/nn/residual_stream.h"
#include "lehr/shard/tensor_parallel.h"

namespace lehr::model {

Gemma4LayerImpl::Gemma4LayerImpl(const Gemma4LayerParameters& params, int64_t layer_index) {
  const auto init = nn::Init::normal(params.initializer_range);
  const auto declare_norm = [&](const char* name, nn::RMSNorm& norm) {
    declare_module(name, norm, nn::RMSNorm(params.hidden_size, params.rms_norm_eps));
  };
  auto attention = attention_parameters(params, layer_index);
  attention.qk_norm_eps = attention.v_norm_eps = params.rms_norm_eps;
  if (!params.pattern.slides(layer_index)) {
    attention.head_dim = params.full_attention.head_dim;
    attention.num_key_value_heads = params.full_attention.num_key_value_heads;
    attention.keys_as_values = params.full_attention.keys_as_values;
  }
  const bool reads = params.cross_layer().role(layer_index) == KeyValueRole::reads;
  attention.reads_keys_and_values = reads;
  declare_module("self_attn", self_attn, nn::GroupedQueryAttention(attention));
  const int64_t inner_size =
      reads && params.use_double_wide_mlp ? 2 * params.intermediate_size : params.intermediate_size;
  declare_module("mlp", mlp, nn::GeGLU(params.hidden_size, inner_size, nn::Gelu::tanh, init));
  declare_norm("input_layernorm", input_layernorm);
  declare_norm("post_attention_layernorm", post_attention_layernorm);
  declare_norm("pre_feedforward_layernorm", pre_feedforward_layernorm);
  declare_norm("post_feedforward_layernorm", post_feedforward_layernorm);
  if (params.moe) {
    declare_module("moe", moe, nn::MoELayer(*params.moe));
    declare_norm("post_feedforward_layernorm_1", post_feedforward_layernorm_1);
    declare_norm("pre_feedforward_layernorm_2", pre_feedforward_layernorm_2);
    declare_norm("post_feedforward_layernorm_2", post_feedforward_layernorm_2);
  }
  if (const int64_t width = params.hidden_size_per_layer_input; width > 0) {
    declare_module("per_layer_input_gate", per_layer_input_gate, nn::Linear(params.hidden_size, width, init));
    declare_module("per_layer_projection", per_layer_projection, nn::Linear(width, params.hidden_size, init));
    declare_norm("post_per_layer_input_norm", post_per_layer_input_norm);
  }
  declare_state("layer_scalar", layer_scalar, {1}, nn::Init::ones());
}

at::Tensor Gemma4LayerImpl::forward(
    const at::Tensor& hidden_states,
    const nn::PositionEmbeddings& position_embeddings,
    const nn::AttentionMask& attention_mask,
    nn::KeyValueCache* cache,
    const at::Tensor& input,
    nn::KeysAndValues* shared) {
  nn::ResidualStream residual(hidden_states);
  const at::Tensor attended =
      self_attn(residual.normed(input_layernorm), position_embeddings, attention_mask, cache, shared);
  residual.add_normed(attended, post_attention_layernorm);
  at::Tensor output = mlp(residual.normed(pre_feedforward_layernorm));
  if (moe) {
    const at::Tensor& stream = residual.hidden_states();
    const at::Tensor of_experts = moe(pre_feedforward_layernorm_2(stream), stream);
    output = post_feedforward_layernorm_1(output) + post_feedforward_layernorm_2(of_experts);
  }
  residual.add_normed(output, post_feedforward_layernorm);
  if (per_layer_input_gate) {
    require(
        input.defined(), "layer: expected a per-layer input (B, T, P), since hidden_size_per_layer_input is above 0");
    const at::Tensor gate = at::gelu(per_layer_input_gate(residual.hidden_states()), "tanh");  // (B, T, P)
    residual.add_normed(per_layer_projection(gate * input), post_per_layer_input_norm);
  }
  return residual.hidden_states() * layer_scalar.to(hidden_states.scalar_type());
}

void tensor_parallel(Gemma4LayerImpl& layer, mesh::DistributedContext& context) {
  // Each rank maps its part of the sequence.
  for (nn::Linear* const linear : {&layer.per_layer_input_gate, &layer.per_layer_projection}) {
    if (*linear) {
      shard::on_parts(**linear, context);
    }
  }
  shard::tensor_parallel_children(layer, context);
  if (const int64_t ranks = context.size(mesh::axis::tp); ranks > 1) {
    layer.own_parameter("layer_scalar")
        ->lay_out(mesh::axis::tp, Placement::replicate(), context.index(mesh::axis::tp), ranks);
  }
}

}  // namespace lehr::model
