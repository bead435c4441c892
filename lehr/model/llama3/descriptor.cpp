#include "lehr/model/llama3/descriptor.h"

#include "lehr/model/decoder_descriptor.h"
#include "lehr/model/llama3/layer.h"

namespace lehr::model {

std::shared_ptr<const descriptor::ModelDescriptor> llama3_descriptor() {
  return std::make_shared<DecoderDescriptor<Llama3LayerImpl, Llama3LayerParameters>>(LayerWeightNames{
      .attention =
          {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight"},
      .ffn = {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}});
}

}  // namespace lehr::model
