#include "lehr/model/qwen3_moe/descriptor.h"

#include "lehr/model/decoder_descriptor.h"
#include "lehr/model/qwen3_moe/layer.h"

namespace lehr::model {

std::shared_ptr<const descriptor::ModelDescriptor> qwen3_moe_descriptor() {
  return std::make_shared<DecoderDescriptor<Qwen3MoELayerImpl, Qwen3MoELayerParameters>>(LayerWeightNames{
      .attention =
          {"self_attn.q_proj.weight",
           "self_attn.k_proj.weight",
           "self_attn.v_proj.weight",
           "self_attn.o_proj.weight",
           "self_attn.q_norm.weight",
           "self_attn.k_norm.weight"},
      .ffn = {
          "mlp.gate_proj.weight",
          "mlp.up_proj.weight",
          "mlp.down_proj.weight",
          "mlp.gate.weight",
          "mlp.gate.e_score_correction_bias",
          "mlp.experts.#.gate_proj.weight",
          "mlp.experts.#.up_proj.weight",
          "mlp.experts.#.down_proj.weight",
          "mlp.experts.gate_up_proj",
          "mlp.experts.down_proj"}});
}

}  // namespace lehr::model
