// The family of parallel decoders as Lehr's trainer and tools see it.
#pragma once

#include "lehr/descriptor/model_args.h"

namespace parallel_decoder {

/// "parallel", with the size "small". Its folders have model_type "parallel_decoder" in config.json, and name the
/// tensors of a layer as follows; the others have Hugging Face's usual names.
///
/// | stored, behind model.layers.N. | parameters |
/// | --- | --- |
/// | attn.qkv.weight | self_attn.{q,k,v}_proj.weight, rows one behind the other |
/// | attn.out.weight | self_attn.o_proj.weight |
/// | mlp.gate_up.weight | mlp.{gate,up}_proj.weight, rows one behind the other |
/// | mlp.down.weight | mlp.down_proj.weight |
/// | norm.weight | input_layernorm.weight |
lehr::descriptor::ModelFamily family();

}  // namespace parallel_decoder
