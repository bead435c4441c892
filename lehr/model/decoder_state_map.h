// The state map between decoder-only models and checkpoints of Hugging Face's transformers.
#pragma once

#include "lehr/descriptor/model_args.h"
#include "lehr/nn/embedding.h"
#include "lehr/nn/module.h"

namespace lehr::model {

/// Maps Hugging Face's tensors to the parameters of a one-stage model, in the model's order. Parameters have Hugging
/// Face's names except for these:
///
/// | stored | parameters |
/// | --- | --- |
/// | model.embed_tokens.weight, lm_head.weight | rows, split over the segments of the vocabulary |
/// | score.weight | cls_head.score.weight |
/// | score.bias | cls_head.score.bias, of a token classifier |
/// | ...mlp.gate.weight | ...mlp.router.gate.weight |
/// | ...mlp.gate.e_score_correction_bias | ...mlp.router.expert_bias |
/// | ...mlp.shared_experts.* | ...mlp.shared_expert.*, of an expert without a gate |
/// | ...mlp.experts.E.{gate,up,down}_proj.weight | ...mlp.grouped_experts.{gate,up,down}_proj.weight, stacked |
/// | ...mlp.experts.gate_up_proj, ...down_proj | the same, split and renamed, if the layout is fused |
/// | ...mlp.experts.up_proj, ...down_proj | the same of experts without gates (Nemotron-H) |
/// | ...mlp.experts.{gate_up,down}_proj | ...mlp.grouped_experts.{gate_up,down}_proj.weight, transposed (gpt-oss) |
/// | ...mlp.experts.{gate_up,down}_proj_bias | ...mlp.grouped_experts.{gate_up,down}_proj.bias (gpt-oss) |
/// | ...X.experts.*, as those of mlp | ...X.grouped_experts.* of an MoE layer with another name X (Gemma 4) |
/// | ...linear_attn.conv1d.weight | ...linear_attn.conv1d.{query,key,value}, split by rows (Qwen3-Next) |
///
/// A bare backbone (with an embedding head) is stored without "model.".
state::StateMap decoder_state_map(
    const nn::Module& model,
    const nn::SplitVocabulary& vocabulary,
    descriptor::ExpertLayout layout,
    descriptor::Head head);

}  // namespace lehr::model
