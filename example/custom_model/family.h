// The model family of parallel decoders, for Lehr's trainer and tools.
#pragma once

#include "lehr/descriptor/model_args.h"

namespace parallel_decoder {

/// Returns the family "parallel", with the size "small". Its model folders have model_type "parallel_decoder" in
/// config.json, and name the tensors of a layer as follows; other tensors have Hugging Face's usual names.
///
/// | stored, after model.layers.N. | parameters |
/// | --- | --- |
/// | attn.qkv.weight | self_attn.{q,k,v}_proj.weight, rows concatenated |
/// | attn.out.weight | self_attn.o_proj.weight |
/// | mlp.gate_up.weight | mlp.{gate,up}_proj.weight, rows concatenated |
/// | mlp.down.weight | mlp.down_proj.weight |
/// | norm.weight | input_layernorm.weight |
lehr::descriptor::ModelFamily family();

}  // namespace parallel_decoder
