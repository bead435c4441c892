#!/usr/bin/env python3
"""Writes the references of families: tiny random models, and what transformers computes with them.

    python script/make_family_references.py test/data/reference [CASE ...]     (needs torch, transformers, safetensors)

Every case has logits, loss and gradients of a batch, packed documents (each computed alone), a greedy continuation and
ten steps of AdamW. Tensors with the suffix _f64 are those of the same modules with every "float32" of their source read
as float64, so that norms, softmax and rotary angles are float64 too.
"""
import contextlib, json, sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
SMALL = {"vocab_size": 31, "hidden_size": 12, "intermediate_size": 14, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
         "hidden_act": "silu", "initializer_range": 0.02, "attention_dropout": 0.0, "use_cache": True}
DEEPSEEK = {"model_type": "deepseek_v3", "moe_intermediate_size": 5, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 6, "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4, "v_head_dim": 3, "num_key_value_heads": 3, "attention_bias": False}
GLM = {"model_type": "glm4_moe", "moe_intermediate_size": 5, "n_routed_experts": 4, "num_experts_per_tok": 2,
       "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 8, "partial_rotary_factor": 0.5, "n_group": 1,
       "topk_group": 1, "norm_topk_prob": True, "num_nextn_predict_layers": 0, "rope_theta": 1000,
       "rope_scaling": None, "rms_norm_eps": 1e-5}
NEXT = {"model_type": "qwen3_next", "head_dim": 8, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 4,
        "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_value_head_dim": 5, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 5, "shared_expert_intermediate_size": 6,
        "partial_rotary_factor": 0.25, "rope_theta": 1000}
QWEN3_5 = {key: value for key, value in NEXT.items()
           if "expert" not in key and "moe" not in key and "rope" not in key and "rotary" not in key}
QWEN3_5 |= {"model_type": "qwen3_5_text",
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000, "partial_rotary_factor": 0.25,
                                "mrope_interleaved": True, "mrope_section": [1, 1, 0]}}
QWEN3_5_MOE = QWEN3_5 | {"model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
                         "moe_intermediate_size": 5, "shared_expert_intermediate_size": 6}
# The keys of MiniMax M2's own files. transformers' class does not read those from scoring_func to
# mtp_transformer_layers.
MINIMAX = {"model_type": "minimax_m2", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8,
           "rope_theta": 1000, "rotary_dim": 4, "scoring_func": "sigmoid", "use_routing_bias": True,
           "use_qk_norm": True, "qk_norm_type": "per_layer", "shared_intermediate_size": 0, "num_mtp_modules": 3,
           "mtp_transformer_layers": 1, "bos_token_id": 1, "eos_token_id": 2}
# The keys of Nemotron-H's own files.
NEMOTRON = {"model_type": "nemotron_h", "head_dim": 8, "mamba_num_heads": 6, "mamba_head_dim": 4, "n_groups": 2,
            "ssm_state_size": 5, "conv_kernel": 4, "expand": 2, "chunk_size": 16, "use_conv_bias": True,
            "use_bias": False, "mamba_proj_bias": False, "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2",
            "mlp_bias": False, "attention_bias": False, "time_step_limit": [0.0, float("inf")], "time_step_min": 0.001,
            "time_step_max": 0.1, "time_step_floor": 0.0001, "layer_norm_epsilon": 1e-5, "residual_in_fp32": False,
            "rescale_prenorm_residual": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NEMOTRON_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
                    "moe_shared_expert_intermediate_size": 7, "n_shared_experts": 1}
QWEN3_MOE = {"model_type": "qwen3_moe", "head_dim": 6, "num_experts": 4, "num_experts_per_tok": 2,
             "moe_intermediate_size": 5}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 6,
           "rope_theta": 150000, "rms_norm_eps": 1e-5, "attention_bias": True, "pad_token_id": 0}
# The keys of Gemma 4's own files.
GEMMA4 = {"model_type": "gemma4_text", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
          "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "attention_bias": False,
          "final_logit_softcapping": 8.0, "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0,
          "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "use_bidirectional_attention": "vision",
          "vocab_size_per_layer_input": 31, "enable_moe_block": False, "num_experts": None, "top_k_experts": None,
          "moe_intermediate_size": None, "sliding_window": 3,
          "rope_parameters": {FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                              SLIDING: {"rope_theta": 10000.0, "rope_type": "default"}}}
# A case's keys are those of its config.json, as published ones have them.
CASES = {
    # The keys of Llama 2's own files; biases of the attention, as in some of its descendants.
    "llama_biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": False, "pretraining_tp": 1,
                     "rope_theta": 10000.0, "rope_scaling": None, "num_attention_heads": 4, "num_key_value_heads": 2,
                     "hidden_size": 8, "bos_token_id": 1, "eos_token_id": 2},
    "llama_yarn": {"model_type": "llama", "tie_word_embeddings": True, "rope_theta": 1000.0, "head_dim": 6,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "llama_linear": {"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 3,
                     "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
    # The keys of Qwen3's own files.
    "qwen3_yarn": {"model_type": "qwen3", "head_dim": 8, "rope_theta": 1000000, "max_window_layers": 3,
                   "attention_bias": False, "sliding_window": None, "use_sliding_window": False,
                   "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "qwen3_window": {"model_type": "qwen3", "head_dim": 4, "use_sliding_window": True, "sliding_window": 4,
                     "max_window_layers": 1, "num_attention_heads": 6, "num_key_value_heads": 2,
                     "tie_word_embeddings": True, "rope_theta": 1000.0},
    "qwen3_biases": {"model_type": "qwen3", "head_dim": 6, "attention_bias": True, "num_attention_heads": 5,
                     "num_key_value_heads": 5,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    # The keys of Qwen3 MoE's own files.
    "qwen3_moe_layers": QWEN3_MOE | {"mlp_only_layers": [1], "decoder_sparse_step": 1, "norm_topk_prob": True,
                                     "output_router_logits": False, "router_aux_loss_coef": 0.001, "rope_theta": 1000000.0,
                                     "rope_scaling": None, "use_sliding_window": False, "attention_bias": False},
    "qwen3_moe_window": QWEN3_MOE | {"use_sliding_window": True, "sliding_window": 4, "norm_topk_prob": False,
                                     "num_experts": 5, "num_experts_per_tok": 3, "num_attention_heads": 4,
                                     "num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 1000.0},
    # As transformers 5 names its modules.
    "qwen3_moe_fused": QWEN3_MOE | {"attention_bias": True, "num_experts": 3, "num_experts_per_tok": 1,
                                    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}},
    # Query heads that are no power of two; the keys of Qwen2.5's own files.
    "qwen2_tied": {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1000000.0, "max_window_layers": 3,
                   "sliding_window": 32768, "use_sliding_window": False, "use_mrope": False},
    "qwen2_window": {"model_type": "qwen2", "tie_word_embeddings": False, "rope_theta": 10000.0,
                     "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen2_layer_types": {"model_type": "qwen2", "num_attention_heads": 6, "num_key_value_heads": 2,
                          "use_sliding_window": True, "sliding_window": 3, "layer_types": [SLIDING, FULL, SLIDING],
                          "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    "qwen2_yarn": {"model_type": "qwen2", "num_attention_heads": 2, "num_key_value_heads": 2, "rope_theta": 1000.0,
                   "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "mistral_window": {"model_type": "mistral", "rope_theta": 10000.0, "sliding_window": 4, "bos_token_id": 1,
                       "eos_token_id": 2},
    "mistral_full": {"model_type": "mistral", "rope_theta": 1000000.0, "sliding_window": None, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "hidden_size": 8},
    # Heads whose widths do not add up to the hidden size, as in Mistral Nemo.
    "mistral_head_dim": {"model_type": "mistral", "head_dim": 6, "num_attention_heads": 5, "num_key_value_heads": 5,
                         "rope_theta": 100.0, "sliding_window": None},
    "mistral_tied": {"model_type": "mistral", "head_dim": 2, "tie_word_embeddings": True, "sliding_window": 2,
                     "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000.0}},
    "smollm3_interval": {"model_type": "smollm3", "num_hidden_layers": 5, "no_rope_layer_interval": 4,
                         "rope_theta": 5000000.0, "use_sliding_window": False, "sliding_window": None,
                         "attention_bias": False, "mlp_bias": False, "pretraining_tp": 2, "pad_token_id": 0},
    "smollm3_layers": {"model_type": "smollm3", "no_rope_layers": [0, 1, 1], "tie_word_embeddings": False,
                       "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 8, "pad_token_id": 0},
    "smollm3_window": {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 3, "pad_token_id": 0,
                       "no_rope_layers": [1, 0, 1], "num_attention_heads": 6, "num_key_value_heads": 3},
    "smollm3_layer_types": {"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 4, "pad_token_id": 0,
                            "no_rope_layers": [1, 0, 1], "layer_types": [SLIDING, FULL, FULL],
                            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "olmo2_grouped": {"model_type": "olmo2", "rope_theta": 500000.0, "tie_word_embeddings": False, "pad_token_id": 0},
    "olmo2_tied": {"model_type": "olmo2", "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0,
                   "tie_word_embeddings": True, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "olmo2_biases": {"model_type": "olmo2", "attention_bias": True, "num_attention_heads": 4, "num_key_value_heads": 2,
                     "hidden_size": 8, "num_hidden_layers": 2, "pad_token_id": 0,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    # YaRN in full layers only, as in OLMo 3's own files.
    "olmo3_yarn": {"model_type": "olmo3", "rope_theta": 500000, "sliding_window": 3, "pad_token_id": 0,
                   "num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
                   "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8,
                                    "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1}},
    "olmo3_pattern": {"model_type": "olmo3", "num_hidden_layers": 5, "sliding_window": 5, "pad_token_id": 0,
                      "num_attention_heads": 6, "num_key_value_heads": 6},
    "olmo3_two_bases": {"model_type": "olmo3", "sliding_window": 4, "pad_token_id": 0,
                        "layer_types": [FULL, SLIDING, FULL], "num_attention_heads": 4, "num_key_value_heads": 2,
                        "hidden_size": 8,
                        "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 1000.0},
                                            SLIDING: {"rope_type": "default", "rope_theta": 10.0}}},
    "olmo3_full": {"model_type": "olmo3", "sliding_window": 4, "pad_token_id": 0, "layer_types": [FULL] * 3},
    # The keys of Gemma 3's own files.
    "gemma3_pattern": {"model_type": "gemma3_text", "num_hidden_layers": 4, "head_dim": 4, "sliding_window": 3,
                       "sliding_window_pattern": 3, "query_pre_attn_scalar": 6, "rope_theta": 1000000,
                       "rope_local_base_freq": 10000, "rope_scaling": None, "attn_logit_softcapping": None,
                       "final_logit_softcapping": None, "cache_implementation": "hybrid", "attention_bias": False,
                       "hidden_activation": "gelu_pytorch_tanh"},
    "gemma3_linear": {"model_type": "gemma3_text", "head_dim": 6, "sliding_window": 4, "query_pre_attn_scalar": 8,
                      "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": [SLIDING, FULL, SLIDING],
                      "rope_theta": 1000, "rope_local_base_freq": 10,
                      "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "gemma3_untied": {"model_type": "gemma3_text", "head_dim": 4, "sliding_window": 5, "query_pre_attn_scalar": 1,
                      "sliding_window_pattern": 2, "tie_word_embeddings": False},
    "gemma3_tables": {"model_type": "gemma3_text", "head_dim": 2, "num_attention_heads": 6, "num_key_value_heads": 6,
                      "sliding_window": 2, "query_pre_attn_scalar": 4, "layer_types": [FULL, SLIDING, FULL],
                      "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 100.0},
                                          SLIDING: {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}}},
    "gemma4_dense": GEMMA4 | {"num_hidden_layers": 4, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    # What the class has if keys are absent: rotary bases, and a last layer with full attention. No softcap.
    "gemma4_values": {"model_type": "gemma4_text", "head_dim": 6, "global_head_dim": 8, "hidden_size_per_layer_input": 0,
                      "attention_bias": True, "num_attention_heads": 6, "num_key_value_heads": 3, "sliding_window": 4,
                      "num_global_key_value_heads": 2, "tie_word_embeddings": False},
    "gemma4_experts": GEMMA4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                                "moe_intermediate_size": 5, "layer_types": [SLIDING, FULL, FULL]},
    # Heads of single layers, as transformers 5 writes them.
    "gemma4_per_layer": {key: value for key, value in GEMMA4.items() if "global" not in key}
                        | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 3, "moe_intermediate_size": 5,
                           "layer_types": [FULL, SLIDING, FULL], "final_logit_softcapping": 30.0,
                           "per_layer_config": {"0": {"head_dim": 10, "num_key_value_heads": 4},
                                                "2": {"head_dim": 10, "num_key_value_heads": 4}},
                           "rope_parameters": {FULL: {"partial_rotary_factor": 0.5, "rope_theta": 100.0, "factor": 2.0,
                                                      "rope_type": "proportional"},
                                               SLIDING: {"rope_theta": 10.0, "rope_type": "linear", "factor": 2.0}}},
    # Inputs of layers, and layers with the keys and values of earlier ones, as in E2B.
    "gemma4_small": GEMMA4 | {"hidden_size_per_layer_input": 6, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
                              "attention_k_eq_v": False, "num_global_key_value_heads": None, "num_hidden_layers": 6,
                              "num_key_value_heads": 1, "layer_types": [SLIDING, SLIDING, FULL] * 2},
    "gemma4_shared_values": GEMMA4 | {"hidden_size_per_layer_input": 10, "num_kv_shared_layers": 2,
                                      "num_hidden_layers": 5, "attention_bias": True,
                                      "tie_word_embeddings": False, "sliding_window": 4,
                                      "layer_types": [FULL, SLIDING, FULL, SLIDING, FULL]},
    "gemma4_inputs": GEMMA4 | {"hidden_size_per_layer_input": 8, "enable_moe_block": True, "num_experts": 4,
                               "top_k_experts": 2, "moe_intermediate_size": 5, "layer_types": [SLIDING, SLIDING, FULL]},
    # The keys of Mixtral's own files.
    "mixtral_experts": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "rope_theta": 1e6,
                        "sliding_window": None, "output_router_logits": False, "router_aux_loss_coef": 0.02,
                        "bos_token_id": 1, "eos_token_id": 2, "router_jitter_noise": 0.0, "rms_norm_eps": 1e-5},
    "mixtral_window": {"model_type": "mixtral", "num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 4,
                       "head_dim": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2},
    "mixtral_yarn": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 3, "head_dim": 4,
                     "num_attention_heads": 5, "num_key_value_heads": 5, "rope_theta": 1000.0, "sliding_window": 6,
                     "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    # As transformers 5 names its modules.
    "mixtral_fused": {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 3,
                      "tie_word_embeddings": True, "num_hidden_layers": 2,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
    # The keys of DeepSeek-V3's own files.
    "deepseek_v3_yarn": DEEPSEEK | {"q_lora_rank": 7, "n_group": 4, "topk_group": 2, "n_routed_experts": 8,
                                    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "rope_theta": 1000,
                                    "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1,
                                                     "original_max_position_embeddings": 16, "mscale": 1.0,
                                                     "mscale_all_dim": 0.7},
                                    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1,
                                    "num_nextn_predict_layers": 0, "ep_size": 1, "aux_loss_alpha": 0.001},
    # One projection of queries, as in Moonlight.
    "deepseek_v3_one_group": DEEPSEEK | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "n_shared_experts": 2,
                                         "first_k_dense_replace": 2, "rope_theta": 50000, "n_routed_experts": 5,
                                         "routed_scaling_factor": 2.446},
    "deepseek_v3_biases": DEEPSEEK | {"q_lora_rank": 5, "n_group": 2, "topk_group": 1, "attention_bias": True,
                                      "first_k_dense_replace": 0, "num_hidden_layers": 2, "norm_topk_prob": False,
                                      "rope_interleave": False, "num_attention_heads": 2, "num_key_value_heads": 2,
                                      "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "deepseek_v3_fused": DEEPSEEK | {"q_lora_rank": 6, "n_group": 3, "topk_group": 2, "n_routed_experts": 6,
                                     "num_hidden_layers": 2, "tie_word_embeddings": True, "rope_theta": 100},
    # The keys of Kimi K2's own files, whose YaRN has one beta.
    "kimi_k2": DEEPSEEK | {"model_type": "kimi_k2", "q_lora_rank": 5, "n_group": 1, "topk_group": 1,
                           "qk_rope_head_dim": 8, "n_routed_experts": 6, "num_experts_per_tok": 3,
                           "routed_scaling_factor": 2.827, "norm_topk_prob": True, "rope_theta": 50.0,
                           "rope_scaling": {"type": "yarn", "factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0,
                                            "original_max_position_embeddings": 16, "mscale": 1.0,
                                            "mscale_all_dim": 1.0},
                           "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1,
                           "num_nextn_predict_layers": 0, "aux_loss_alpha": 0.001, "seq_aux": True,
                           "pretraining_tp": 1},
    # The keys of GLM-4.5's own files; Air has no norms of queries and keys.
    "glm4_moe_norms": GLM | {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 2.5},
    "glm4_moe_air": GLM | {"use_qk_norm": False, "attention_bias": True, "routed_scaling_factor": 1.0,
                           "first_k_dense_replace": 2, "num_attention_heads": 6, "num_key_value_heads": 2},
    "glm4_moe_groups": GLM | {"n_group": 2, "topk_group": 1, "n_routed_experts": 6, "n_shared_experts": 2,
                              "first_k_dense_replace": 0, "num_hidden_layers": 2, "head_dim": 4,
                              "norm_topk_prob": False, "rope_theta": 100,
                              "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "glm4_moe_fused": GLM | {"tie_word_embeddings": True, "num_hidden_layers": 2, "use_qk_norm": True,
                             "rope_parameters": {"rope_type": "default", "rope_theta": 50.0,
                                                 "partial_rotary_factor": 0.25}},
    "minimax_m2_published": MINIMAX | {"attn_type_list": [1, 1, 1]},
    # partial_rotary_factor decides, not rotary_dim.
    "minimax_m2_table": MINIMAX | {"num_local_experts": 5, "num_experts_per_tok": 3, "num_attention_heads": 6,
                                   "num_key_value_heads": 2,
                                   "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                                       "partial_rotary_factor": 0.25}},
    "minimax_m2_yarn": MINIMAX | {"num_experts_per_tok": 1, "num_attention_heads": 5, "num_key_value_heads": 5,
                                  "head_dim": 6, "router_jitter_noise": 0.0, "router_aux_loss_coef": 0.001,
                                  "rope_scaling": {"type": "yarn", "factor": 4.0,
                                                   "original_max_position_embeddings": 16}},
    # As transformers 5 names its modules; heads are rotated as a whole.
    "minimax_m2_fused": {key: value for key, value in MINIMAX.items() if key not in ("rotary_dim", "rope_theta")}
                        | {"tie_word_embeddings": True, "num_hidden_layers": 2, "num_local_experts": 3,
                           "num_attention_heads": 4, "num_key_value_heads": 2},
    # The keys of Qwen3-Next's own files.
    "qwen3_next_interval": NEXT | {"num_hidden_layers": 4, "full_attention_interval": 4, "decoder_sparse_step": 1,
                                   "mlp_only_layers": [], "norm_topk_prob": True, "output_router_logits": False,
                                   "router_aux_loss_coef": 0.001, "attention_bias": False, "rope_scaling": None,
                                   "use_sliding_window": False, "tie_word_embeddings": False},
    # An odd number of value heads, and layers without experts.
    "qwen3_next_types": NEXT | {"layer_types": [FULL, LINEAR, LINEAR], "linear_num_key_heads": 1,
                                "linear_num_value_heads": 5, "linear_conv_kernel_dim": 3, "mlp_only_layers": [1],
                                "norm_topk_prob": False, "num_attention_heads": 6, "num_key_value_heads": 2},
    # Rows and documents longer than a chunk of the scan, and no multiple of it.
    "qwen3_next_chunks": NEXT | {"num_hidden_layers": 2, "full_attention_interval": 2, "linear_key_head_dim": 3,
                                 "linear_value_head_dim": 7, "max_position_embeddings": 128},
    # As transformers 5 names its modules.
    "qwen3_next_fused": NEXT | {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL], "linear_num_value_heads": 3,
                                "decoder_sparse_step": 2, "tie_word_embeddings": True,
                                "rope_parameters": {"rope_type": "default", "rope_theta": 50.0,
                                                    "partial_rotary_factor": 0.5}},
    # The keys of Qwen3.5's own files.
    "qwen3_5_interval": QWEN3_5 | {"num_hidden_layers": 4, "full_attention_interval": 4, "attn_output_gate": True,
                                   "layer_types": [LINEAR, LINEAR, LINEAR, FULL], "attention_bias": False,
                                   "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 0,
                                   "mtp_use_dedicated_embeddings": False, "tie_word_embeddings": False},
    "qwen3_5_types": QWEN3_5 | {"layer_types": [FULL, LINEAR, LINEAR], "linear_num_key_heads": 1,
                                "linear_num_value_heads": 5, "linear_conv_kernel_dim": 3, "num_attention_heads": 6,
                                "num_key_value_heads": 2, "tie_word_embeddings": True},
    # Rows and documents longer than a chunk of the scan, and no multiple of it.
    "qwen3_5_chunks": QWEN3_5 | {"num_hidden_layers": 2, "full_attention_interval": 2, "linear_key_head_dim": 3,
                                 "linear_value_head_dim": 7, "max_position_embeddings": 128},
    # As many value heads as key heads, and a convolution of two taps.
    "qwen3_5_heads": QWEN3_5 | {"layer_types": [LINEAR, FULL, LINEAR], "linear_num_value_heads": 3,
                                "linear_conv_kernel_dim": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
                                "head_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                                                   "partial_rotary_factor": 1.0}},
    # The keys of Qwen3.5's own files.
    "qwen3_5_moe_interval": QWEN3_5_MOE | {"num_hidden_layers": 4, "full_attention_interval": 4,
                                           "attn_output_gate": True, "mamba_ssm_dtype": "float32", "num_experts": 6,
                                           "num_experts_per_tok": 3, "mtp_num_hidden_layers": 0,
                                           "tie_word_embeddings": False},
    "qwen3_5_moe_chunks": QWEN3_5_MOE | {"num_hidden_layers": 2, "full_attention_interval": 2,
                                         "linear_key_head_dim": 3, "linear_value_head_dim": 7, "num_experts_per_tok": 1,
                                         "max_position_embeddings": 128},
    "qwen3_5_moe_fused": QWEN3_5_MOE | {"full_attention_interval": 2, "output_router_logits": False,
                                        "router_aux_loss_coef": 0.001},
    "qwen3_5_moe_experts": QWEN3_5_MOE | {"num_hidden_layers": 2, "layer_types": [LINEAR, FULL],
                                          "linear_num_key_heads": 2, "tie_word_embeddings": True,
                                          "rope_parameters": {"rope_type": "default", "rope_theta": 50.0,
                                                              "partial_rotary_factor": 0.5}},
    "nemotron_h_pattern": NEMOTRON | {"num_hidden_layers": 5, "hybrid_override_pattern": "M-M*-"},
    # An odd number of groups, two layers of Mamba-2 in a row, no biases of convolutions.
    "nemotron_h_groups": NEMOTRON | {"num_hidden_layers": 4, "hybrid_override_pattern": "*MM-", "n_groups": 3,
                                     "mamba_num_heads": 9, "mamba_head_dim": 3, "conv_kernel": 3,
                                     "use_conv_bias": False, "num_attention_heads": 6, "num_key_value_heads": 2},
    # Rows and documents longer than a chunk of the scan, and no multiple of it. (A cache needs a layer of attention.)
    "nemotron_h_chunks": NEMOTRON | {"num_hidden_layers": 3, "hybrid_override_pattern": "M*-", "ssm_state_size": 7,
                                     "n_groups": 1, "max_position_embeddings": 128},
    # The keys of transformers 5, and a limit of time steps that cuts.
    "nemotron_h_types": NEMOTRON | {"layers_block_type": [LINEAR, FULL, "mlp"], "time_step_min": 0.7,
                                    "time_step_max": 1.0, "mamba_num_heads": 4, "n_groups": 4},
    # The keys of Nemotron 3 Nano's own files.
    "nemotron_h_experts": NEMOTRON | NEMOTRON_EXPERTS | {"num_hidden_layers": 5, "hybrid_override_pattern": "MEM*E",
                                                         "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
                                                         "routed_scaling_factor": 2.5, "norm_eps": 1e-5,
                                                         "partial_rotary_factor": 1.0, "rope_theta": 10000,
                                                         "mamba_ssm_cache_dtype": "float32",
                                                         "moe_shared_expert_overlap": False},
    # A router with groups, and a feed-forward block too; the keys of transformers 5.
    "nemotron_h_router": NEMOTRON | NEMOTRON_EXPERTS | {"layers_block_type": ["moe", FULL, "mlp", LINEAR],
                                                        "num_hidden_layers": 4, "n_routed_experts": 6, "n_group": 3,
                                                        "topk_group": 2, "norm_topk_prob": False,
                                                        "routed_scaling_factor": 1.5},
    # As transformers 5 names its modules.
    "nemotron_h_fused": NEMOTRON | NEMOTRON_EXPERTS | {"hybrid_override_pattern": "*EM", "n_routed_experts": 5,
                                                       "num_experts_per_tok": 3},
    # Routed experts in a latent space, as in Nemotron 3 Super; its modules for multi-token prediction are not read.
    "nemotron_h_latent": NEMOTRON | NEMOTRON_EXPERTS | {"num_hidden_layers": 4, "hybrid_override_pattern": "ME*E",
                                                        "moe_latent_size": 6, "routed_scaling_factor": 5.0,
                                                        "num_nextn_predict_layers": 1,
                                                        "mtp_hybrid_override_pattern": "*E"},
    # The keys of gpt-oss's own files.
    "gpt_oss_yarn": GPT_OSS | {"layer_types": [SLIDING, FULL, SLIDING], "sliding_window": 4, "swiglu_limit": 7.0,
                               "experts_per_token": 2, "initial_context_length": 16, "router_aux_loss_coef": 0.9,
                               "output_router_logits": False,
                               "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0,
                                                "original_max_position_embeddings": 16, "rope_type": "yarn",
                                                "truncate": False}},
    # A limit low enough to clamp values.
    "gpt_oss_clamp": GPT_OSS | {"swiglu_limit": 0.3, "swiglu_alpha": 1.1, "num_local_experts": 5, "sliding_window": 3,
                                "num_experts_per_tok": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
                                "tie_word_embeddings": True,
                                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    # What the class has if keys are absent: YaRN, and a window in every other layer.
    "gpt_oss_defaults": {"model_type": "gpt_oss", "num_local_experts": 3, "num_experts_per_tok": 2, "head_dim": 4,
                         "num_attention_heads": 5, "num_key_value_heads": 5, "sliding_window": 5, "pad_token_id": 0},
    "gpt_oss_full": GPT_OSS | {"attention_bias": False, "layer_types": [FULL] * 3, "num_experts_per_tok": 4,
                               "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    # Experts in MXFP4, whose blocks are 32 wide.
    "gpt_oss_mxfp4": GPT_OSS | {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
                                "num_local_experts": 3, "sliding_window": 4, "head_dim": 4,
                                "quantization_config": {"quant_method": "mxfp4"}},
}
FUSED = {"mixtral_fused", "deepseek_v3_fused", "glm4_moe_fused", "minimax_m2_fused", "qwen3_next_fused", "qwen3_5_moe_fused",
         "nemotron_h_fused", "qwen3_moe_fused"}
FUSED |= {case for case in CASES if case.startswith("gpt_oss")}
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-5, "weight_decay": 0.1, "max_grad_norm": 1.0}
STEPS = 10
# The lengths of the documents of a row; the other rows are as long.
DOCUMENTS = {name: [66, 1, 13] for name in CASES if name.endswith("_chunks")}


@contextlib.contextmanager
def float32_is_float64():
    names = {"float32": torch.float32, "float": torch.float}
    to_float = torch.Tensor.float
    for name in names:
        setattr(torch, name, torch.float64)
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        for name, dtype in names.items():
            setattr(torch, name, dtype)
        torch.Tensor.float = to_float
        torch.set_default_dtype(torch.float32)


def randomize(model):
    for name, parameter in model.named_parameters():
        spread = torch.randn(parameter.shape)
        is_norm = name.endswith(("norm.weight", "norm_f.weight", "norm_1.weight", "norm_2.weight", "router.scale",
                                 "per_expert_scale"))
        zero_centered = model.config.model_type.startswith(("gemma3", "qwen3_next", "qwen3_5"))
        plain = is_norm and (not zero_centered or "linear_attn" in name)
        # Norms of tensors with small values would amplify gradients, and their rounding.
        inner = 0.5 if model.config.model_type.startswith("olmo") else 0.22
        std = 0.2 if is_norm or name.endswith("bias") else 0.8 if "embed" in name or "sinks" in name else inner
        parameter.data = (1 if plain else 0) + std * spread
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.1 * torch.randn(buffer.shape))
        if name.endswith("layer_scalar"):
            buffer.copy_(1 + 0.2 * torch.randn(buffer.shape))


def with_backbone(tensors):
    """The tensors of Nemotron-H with the published prefix."""
    return {name.replace("model.", "backbone."): tensor for name, tensor in tensors.items()}


def published(tensors, model_type):
    """The tensors with the names of published checkpoints: one per expert and projection."""
    result = {}
    if model_type == "nemotron_h":
        for name, tensor in with_backbone(tensors).items():
            layer, found, projection = name.partition(".experts.")
            result |= ({f"{layer}.experts.{e}.{projection}.weight": one for e, one in enumerate(tensor)} if found else
                       {name: tensor})
        return result
    for name, tensor in tensors.items():
        layer, found, projection = name.partition(".mlp.experts.")
        mixtral = model_type in ("mixtral", "minimax_m2")
        block = layer + (".block_sparse_moe.experts" if mixtral else ".mlp.experts")
        if not found:
            for router in ("gate.", "e_score_correction_bias") if mixtral else ():
                name = name.replace(f".mlp.{router}", f".block_sparse_moe.{router}")
            result[name] = tensor
        elif projection == "down_proj":
            result |= {f"{block}.{e}.{'w2' if mixtral else 'down_proj'}.weight": one for e, one in enumerate(tensor)}
        else:
            for e, one in enumerate(tensor):
                gate, up = one.chunk(2)
                result[f"{block}.{e}.{'w1' if mixtral else 'gate_proj'}.weight"] = gate
                result[f"{block}.{e}.{'w3' if mixtral else 'up_proj'}.weight"] = up
    return result


def in_mxfp4(weights):
    """Replaces experts by random blocks and scales; returns what is stored, and the weights as transformers reads them."""
    stored = dict(weights)
    for name, weight in weights.items():
        if name.endswith(".experts.gate_up_proj") or name.endswith(".experts.down_proj"):
            experts, inner, rows = weight.shape
            blocks = torch.randint(256, (experts, rows, inner // 32, 16), dtype=torch.uint8)
            scales = torch.randint(121, 126, (experts, rows, inner // 32), dtype=torch.uint8)
            del stored[name]
            stored |= {name + "_blocks": blocks, name + "_scales": scales}
            weights[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    return stored, weights


def config_of(folder):
    """Returns the config. Kimi K2 is a DeepSeek-V3 with a model_type that transformers does not know."""
    keys = json.loads((folder / "config.json").read_text())
    if keys["model_type"] == "kimi_k2":
        return AutoConfig.for_model(**keys | {"model_type": "deepseek_v3"})
    return AutoConfig.from_pretrained(folder)


def load(folder, weights=None):
    config = config_of(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                             experts_implementation="eager").eval()
    if weights is None:
        randomize(model)
    else:
        model.load_state_dict(weights)
    return model


def mean_loss(model, ids, labels):
    logits = model(ids).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def outputs(model, inputs, documents):
    """Logits, loss and packed documents, and gradients of the loss."""
    ids, labels, packed = inputs["input_ids"], inputs["labels"], inputs["packed_input_ids"]
    loss = mean_loss(model, ids, labels)
    loss.backward()
    found = {"logits": model(ids).logits, "loss": loss}
    parts = [model(part).logits for part in packed.split(documents, dim=1)]
    found["packed_logits"] = torch.cat(parts, 1)
    targets = torch.cat([part[0, 1:] for part in packed.split(documents, dim=1)])
    scored = torch.cat([part[0, :-1] for part in parts])
    found["packed_loss"] = torch.nn.functional.cross_entropy(scored, targets)
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return found, grads


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weight_decay"])
    losses, norms = [], []
    for ids in batches:
        optimizer.zero_grad()
        loss = mean_loss(model, ids, ids)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAMW["max_grad_norm"]))
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses), torch.stack(norms)


def write(folder, case):
    folder.mkdir(parents=True, exist_ok=True)
    model_class = {"gemma3_text": "Gemma3", "gemma4_text": "Gemma4", "smollm3": "SmolLM3", "deepseek_v3": "DeepseekV3", "kimi_k2": "DeepseekV3",
                   "glm4_moe": "Glm4Moe", "minimax_m2": "MiniMaxM2",
                   "qwen3_next": "Qwen3Next", "qwen3_5_text": "Qwen3_5", "qwen3_5_moe_text": "Qwen3_5Moe",
                   "gpt_oss": "GptOss", "qwen3_moe": "Qwen3Moe",
                   "nemotron_h": "NemotronH"}.get(case["model_type"], case["model_type"].title())
    config = SMALL | case | {"architectures": [model_class + "ForCausalLM"], "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(sum(folder.name.encode()))
    model = load(folder)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    stored = weights
    if "quantization_config" in config:
        stored, weights = in_mxfp4(weights)
        model.load_state_dict(weights)
    stored = {k: v for k, v in stored.items() if not (k == "lm_head.weight" and model.config.tie_word_embeddings)}
    fused = with_backbone if case["model_type"] == "nemotron_h" else lambda tensors: tensors
    named = fused if folder.name in FUSED else lambda t: published(t, case["model_type"])
    save_file({k: v.clone() for k, v in named(stored).items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    documents = DOCUMENTS.get(folder.name, [7, 1, 4])
    tokens = sum(documents)
    inputs = {name: torch.randint(1, SMALL["vocab_size"], shape)
              for name, shape in {"input_ids": (2, tokens), "packed_input_ids": (1, tokens),
                                  "train_input_ids": (STEPS, 2, tokens)}.items()}
    inputs["labels"] = inputs["input_ids"].clone()
    inputs["labels"][1, 3:6] = -100
    inputs["train_labels"] = inputs["train_input_ids"].clone()
    inputs["packed_position_ids"] = torch.cat([torch.arange(n) for n in documents])[None]
    inputs["packed_doc_ids"] = torch.repeat_interleave(torch.arange(len(documents)), torch.tensor(documents))[None]
    expected, grads = outputs(model, inputs, documents)
    with float32_is_float64():
        exact = {k: v.double() for k, v in weights.items()}
        twins, twin_grads = outputs(load(folder, exact).double(), inputs, documents)
        losses, norms = train(load(folder, exact).double(), inputs["train_input_ids"])
    off = max((value - expected[name]).abs().max().item() for name, value in twins.items())
    twins |= {"train_clip_losses": losses, "train_clip_grad_norms": norms}
    expected |= {name + "_f64": value for name, value in twins.items()}
    grads = named(grads) | {name + "_f64": value for name, value in named(twin_grads).items()}
    prompt = inputs["input_ids"][:1, :6]
    with torch.no_grad():
        generated = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0,
                                   use_cache=case["model_type"] != "nemotron_h")  # which ignores time_step_min
    expected |= {"gen_prompt.0": prompt[0], "gen_tokens.0": generated[0, 6:]}
    expected["train_clip_losses"] = train(model, inputs["train_input_ids"])[0]
    for tensor in twins.values():
        assert tensor.dtype == torch.float64
    save_file({k: v.detach().clone().contiguous() for k, v in (inputs | expected).items()},
              folder / "oracle.safetensors")
    save_file({k: v.detach().clone().contiguous() for k, v in grads.items()}, folder / "grads.safetensors")
    (folder / "oracle.json").write_text(json.dumps({"adamw": {"train_clip": ADAMW}}) + "\n")
    print(f"{folder.name}: float32 is off by {off:.1e}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES:
        write(Path(sys.argv[1]) / name, CASES[name])
