// The MiniMax M2 family: its models, the functions that lay them out on a mesh, and its sizes.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/model/decoder_family.h"
#include "lehr/model/qwen3_moe/family.h"

namespace lehr::model {

/// MiniMax M2's layer (https://github.com/MiniMax-AI/MiniMax-M2) is Qwen3-MoE's with QK-norm over the full width,
/// partial RoPE, and a sigmoid router with a bias for expert selection.
using MiniMaxM2Layer = Qwen3MoELayer;
using MiniMaxM2LayerParameters = Qwen3MoELayerParameters;
LEHR_DECODER_FAMILY(MiniMaxM2, minimax_m2);

/// Returns the family "minimax_m2", with the published size and "debugmodel".
descriptor::ModelFamily minimax_m2_family();

}  // namespace lehr::model
