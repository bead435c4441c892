// A published config.json of Nemotron-H, and changes of it.
#pragma once

#include <memory>
#include <string>

#include "lehr/model/nemotron_h/family.h"
#include "test/model/changed_config.h"

namespace lehr::model::test {

/// The keys of NVIDIA's config.json of the 8B model that concern its shape, and some of those without effect.
inline constexpr const char* kNemotronH8B = R"({
  "architectures": ["NemotronHForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2, "head_dim": 128, "hidden_dropout": 0.0,
  "hidden_size": 4096, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
  "initializer_range": 0.02, "intermediate_size": 21504, "layer_norm_epsilon": 1e-05, "mamba_head_dim": 64,
  "mamba_hidden_act": "silu", "mamba_num_heads": 128, "mamba_proj_bias": false, "max_position_embeddings": 8192,
  "mlp_bias": false, "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "n_groups": 8,
  "num_attention_heads": 32, "num_hidden_layers": 52, "num_key_value_heads": 8, "num_logits_to_keep": 1,
  "pad_token_id": 0, "rescale_prenorm_residual": true, "residual_in_fp32": false, "rms_norm_eps": 1e-05,
  "sliding_window": null, "ssm_state_size": 128, "tie_word_embeddings": false, "time_step_floor": 0.0001,
  "time_step_limit": [0.0, Infinity], "time_step_max": 0.1, "time_step_min": 0.001, "torch_dtype": "bfloat16",
  "use_bias": false, "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true, "vocab_size": 131072})";

/// The file with other values.
inline std::unique_ptr<descriptor::ModelArgs> nemotron_h_with(const Changes& changes) {
  return changed(nemotron_h_family(), parse_json(kNemotronH8B, "config.json"), changes);
}

/// The message of the usage error for that file, or "accepted".
inline std::string nemotron_h_problem(const Changes& changes) {
  return problem_of_changed(nemotron_h_family(), parse_json(kNemotronH8B, "config.json"), changes);
}

}  // namespace lehr::model::test
