#include "lehr/model/qwen3_dense/descriptor.h"

#include "lehr/model/decoder_descriptor.h"
#include "lehr/model/qwen3_dense/layer.h"

namespace lehr::model {

std::shared_ptr<const descriptor::ModelDescriptor> qwen3_dense_descriptor() {
  return std::make_shared<DecoderDescriptor<Qwen3DenseLayerImpl, Qwen3DenseLayerParameters>>(LayerWeightNames{
      .attention =
          {"self_attn.q_proj.weight",
           "self_attn.k_proj.weight",
           "self_attn.v_proj.weight",
           "self_attn.o_proj.weight",
           "self_attn.q_norm.weight",
           "self_attn.k_norm.weight"},
      .ffn = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}});
}

}  // namespace lehr::model
