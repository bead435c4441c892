"""Random valid config.json files of the families that Lehr reads, for random_configs.py.

draw(rng, family) returns the keys of a config.json of that family, as published folders spell them. Keys that have a
default are left out now and then, and some configs have a key that Lehr refuses.
"""

SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"


def chance(rng, probability):
    return rng.random() < probability


def scaling(rng, dim):
    """RoPE scaling for `dim` rotated elements, without theta; the type's key is added by with_type()."""
    kind = rng.choice(["linear", "dynamic", "yarn", "yarn", "llama3", "default"])
    if kind == "default" or (kind == "dynamic" and dim <= 2):
        return "default", {}
    table = {"factor": rng.choice([1.5, 2.0, 4, 8.0])}
    if kind == "llama3":
        table |= {"low_freq_factor": rng.choice([1.0, 0.5]), "high_freq_factor": rng.choice([4.0, 2]),
                  "original_max_position_embeddings": rng.choice([8, 16, 64])}
    if kind == "dynamic" and chance(rng, 0.2):
        table["original_max_position_embeddings"] = rng.choice([4, 16])
    if kind == "yarn":
        optional = {"original_max_position_embeddings": rng.choice([4, 8, 16, 64]), "beta_fast": rng.choice([32, 4.0]),
                    "beta_slow": rng.choice([1, 0.5]), "attention_factor": rng.choice([0.7, 1.3]),
                    "mscale": rng.choice([1.0, 0.707]), "mscale_all_dim": rng.choice([0.5, 1.0, 0]),
                    "truncate": rng.choice([True, False])}
        table |= {key: value for key, value in optional.items()
                  if chance(rng, 0.7 if key == "original_max_position_embeddings" else 0.3)}
    return kind, table


def with_type(rng, kind, table, key=None):
    return {key or rng.choice(["rope_type", "rope_type", "type"]): kind} | table


def put_rope(rng, c, dim, partial=None):
    """Positions in the spelling of transformers 4 or 5. `partial` is partial_rotary_factor, which may be in the table."""
    theta = rng.choice([None, 100, 1000.0, 10000, 500000.0])
    kind, table = scaling(rng, dim) if chance(rng, 0.7) else ("default", {})
    beside = {} if partial is None else {"partial_rotary_factor": partial}
    if kind == "default" and chance(rng, 0.5):
        c |= beside | rng.choice([{}, {"rope_scaling": None}, {"rope_parameters": None}])
        c |= {} if theta is None else {"rope_theta": theta}
        return
    table = with_type(rng, kind, table)
    if chance(rng, 0.5):
        table, beside = table | beside, {}
    if chance(rng, 0.5):
        table, outer = table | ({} if theta is None else {"rope_theta": theta}), {}
    else:
        outer = {} if theta is None else {"rope_theta": theta}
    c |= {rng.choice(["rope_scaling", "rope_parameters"]): table} | outer | beside
    if kind in ("yarn", "llama3") and chance(rng, 0.1):
        c["original_max_position_embeddings"] = rng.choice([4, 16])


def put_layer_ropes(rng, c, dim, thetas, local_key):
    """Positions of models whose sliding layers have their own."""
    if chance(rng, 0.5):
        tables = {}
        for kind_of_layer in (FULL, SLIDING):
            kind, table = scaling(rng, dim) if chance(rng, 0.6) else ("default", {})
            table = with_type(rng, kind, table, None if kind == "default" else "rope_type")
            if chance(rng, 0.8):
                table["rope_theta"] = rng.choice(thetas)
            tables[kind_of_layer] = table
        c["rope_parameters"] = tables
    elif chance(rng, 0.7):
        kind, table = scaling(rng, dim)
        c["rope_scaling"] = with_type(rng, kind, table, "rope_type" if chance(rng, 0.9) else "type")
    if local_key and chance(rng, 0.6):
        c |= {"rope_theta": rng.choice(thetas), local_key: rng.choice(thetas)}
    if not local_key and chance(rng, 0.1):
        c["rope_theta"] = rng.choice(thetas)


def put_heads(rng, c, fits=False, own_width=True, null=False, always=False):
    """Heads and their width. `fits`: hidden_size is a multiple of the heads; `own_width`: head_dim may be any number;
    `null`: and null; `always`: the class has a default of its own, so the key is given."""
    kv_heads = rng.choice([1, 1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 3, 4] if kv_heads < 3 else [1, 2])
    width = rng.choice([2, 4, 6, 8, 10])
    hidden = heads * width
    c |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    if own_width and (always or chance(rng, 0.6)):
        hidden = heads * rng.randrange(max(1, 6 // heads), 24 // heads + 2) if fits else rng.randrange(6, 40)
        c["head_dim"] = width
    elif hidden > 60:
        hidden, width = heads * 4, 4
    if "head_dim" not in c and chance(rng, 0.4):
        c["head_dim"] = None if null and chance(rng, 0.5) else width
    c["hidden_size"] = hidden
    return width


def layer_types(rng, c, other=SLIDING):
    return [rng.choice([other, FULL]) for _ in range(c["num_hidden_layers"])]


def window(rng):
    return rng.choice([1, 2, 3, 5, 8, 16, 64])


def llama(rng, c):
    put_rope(rng, c, put_heads(rng, c, fits=True, null=True))
    c |= {"attention_bias": rng.choice([True, False]), "mlp_bias": False, "pretraining_tp": 1}


def put_last_windows(rng, c):
    if chance(rng, 0.6):
        c |= {"use_sliding_window": True, "sliding_window": window(rng), "max_window_layers": rng.randrange(0, 5)}
    else:
        c |= {"use_sliding_window": False, "sliding_window": rng.choice([None, 4]), "max_window_layers": 1}
    if c["use_sliding_window"] and chance(rng, 0.4):
        c["layer_types"] = layer_types(rng, c)


def qwen2(rng, c):
    put_rope(rng, c, put_heads(rng, c))
    put_last_windows(rng, c)
    if chance(rng, 0.2):
        c["attention_bias"] = rng.choice([True, False])  # which the class does not read


def qwen3(rng, c):
    put_rope(rng, c, put_heads(rng, c, always=True))
    put_last_windows(rng, c)
    c["attention_bias"] = rng.choice([True, False])


def mistral(rng, c):
    put_rope(rng, c, put_heads(rng, c, null=True))
    c["sliding_window"] = rng.choice([None, window(rng)])


def smollm3(rng, c):
    put_rope(rng, c, put_heads(rng, c))
    c |= {"pad_token_id": 0, "attention_bias": rng.choice([True, False]), "mlp_bias": False}
    if chance(rng, 0.5):
        c["no_rope_layers"] = [rng.randrange(2) for _ in range(c["num_hidden_layers"] + rng.choice([0, 0, 2]))]
    else:
        c["no_rope_layer_interval"] = rng.randrange(1, 5)
    if chance(rng, 0.6):
        c |= {"use_sliding_window": True, "sliding_window": window(rng)}
        if chance(rng, 0.5):
            c["layer_types"] = layer_types(rng, c)
    elif chance(rng, 0.3):
        c |= {"use_sliding_window": False, "sliding_window": rng.choice([None, 4])}


def olmo2(rng, c):
    put_rope(rng, c, put_heads(rng, c))
    c |= {"attention_bias": rng.choice([True, False]), "pad_token_id": 0}


def olmo3(rng, c):
    width = put_heads(rng, c)
    c |= {"attention_bias": rng.choice([True, False]), "pad_token_id": 0, "sliding_window": window(rng)}
    if chance(rng, 0.6):
        c["layer_types"] = layer_types(rng, c)
    put_layer_ropes(rng, c, width, [100.0, 500000.0], None)
    if chance(rng, 0.3):
        c["rope_local_base_freq"] = 100.0  # which the class does not read


def gemma3(rng, c):
    width = put_heads(rng, c, fits=True, always=True)
    c |= {"query_pre_attn_scalar": rng.choice([width, 1, 7, 256]), "hidden_activation": "gelu_pytorch_tanh",
          "sliding_window": window(rng), "attention_bias": rng.choice([True, False]), "attn_logit_softcapping": None,
          "final_logit_softcapping": None, "pad_token_id": 0}
    del c["hidden_act"]
    if chance(rng, 0.5):
        c["layer_types"] = layer_types(rng, c)
    elif chance(rng, 0.7):
        c["sliding_window_pattern"] = rng.randrange(1, 5)
    put_layer_ropes(rng, c, width, [100, 10000.0, 1000000.0], "rope_local_base_freq")


def gemma4(rng, c):
    width, heads = put_heads(rng, c, always=True), c["num_attention_heads"]
    wide = rng.choice([2, 4, 8, 10, 16])
    divisors = [n for n in (1, 2, 3, 4) if heads % n == 0]
    c |= {"hidden_activation": "gelu_pytorch_tanh", "sliding_window": window(rng), "pad_token_id": 0,
          "attention_bias": rng.choice([True, False]), "attention_k_eq_v": rng.choice([True, False]),
          "final_logit_softcapping": rng.choice([None, 2.0, 30.0]), "hidden_size_per_layer_input": 0,
          "num_kv_shared_layers": 0, "use_double_wide_mlp": rng.choice([True, False]),
          "use_bidirectional_attention": rng.choice([None, "vision"])}
    del c["hidden_act"]
    types = layer_types(rng, c)
    types[-1] = FULL
    c["layer_types"] = types
    if chance(rng, 0.5):
        c |= {"hidden_size_per_layer_input": rng.randrange(8, 17), "vocab_size_per_layer_input": c["vocab_size"]}
        # Layers of each kind come before those that share.
        firsts = [types.index(kind) for kind in set(types)]
        c["num_kv_shared_layers"] = rng.randrange(len(types) - max(firsts))
    if chance(rng, 0.3):
        heads_of_full = {"head_dim": wide, "num_key_value_heads": rng.choice(divisors)}
        c["per_layer_config"] = {str(i): heads_of_full for i, kind in enumerate(types) if kind == FULL}
    else:
        c |= {"global_head_dim": wide, "num_global_key_value_heads": rng.choice([None] + divisors)}
    if chance(rng, 0.7):
        tables = {}
        for kind_of_layer, dim in ((FULL, wide), (SLIDING, width)):
            kind, table = scaling(rng, dim) if chance(rng, 0.4) else ("default", {})
            if kind == "yarn":
                table.setdefault("original_max_position_embeddings", 16)  # which this class requires
            if chance(rng, 0.6):
                kind, table = "proportional", {"partial_rotary_factor": rng.choice([0.25, 0.5, 0.7, 1.0])}
                table |= {"factor": 2.0} if chance(rng, 0.3) else {}
            tables[kind_of_layer] = {"rope_type": kind, "rope_theta": rng.choice([100.0, 10000.0])} | table
        c["rope_parameters"] = tables
    if chance(rng, 0.5):
        experts = rng.randrange(1, 7)
        c |= {"enable_moe_block": True, "num_experts": experts, "top_k_experts": rng.randrange(1, experts + 1),
              "moe_intermediate_size": rng.randrange(1, 9)}


def put_experts(rng, c, key="num_experts"):
    experts = rng.randrange(1, 7)
    c |= {key: experts, "num_experts_per_tok": rng.randrange(1, experts + 1), "output_router_logits": False,
          "router_aux_loss_coef": 0.01}


def put_sparse_layers(rng, c):
    put_experts(rng, c)
    c |= {"moe_intermediate_size": rng.randrange(2, 12), "norm_topk_prob": rng.choice([True, False]),
          "decoder_sparse_step": rng.choice([1, 1, 2, 3]),
          "mlp_only_layers": rng.choice([[], None, [0], [c["num_hidden_layers"] - 1]])}


def grows_or_yarn(c):
    tables = str(c.get("rope_scaling")) + str(c.get("rope_parameters"))
    return "dynamic" in tables or "yarn" in tables


def mixtral(rng, c):
    width = put_heads(rng, c, null=True)
    put_rope(rng, c, width)
    if grows_or_yarn(c):
        c["head_dim"] = width  # without which transformers fails
    put_experts(rng, c, rng.choice(["num_local_experts", "num_local_experts", "num_experts"]))
    c |= {"sliding_window": rng.choice([None, window(rng)]), "router_jitter_noise": 0.0}


def qwen3_moe(rng, c):
    put_rope(rng, c, put_heads(rng, c))
    put_sparse_layers(rng, c)
    c |= {"use_sliding_window": rng.choice([True, False]), "sliding_window": rng.choice([None, window(rng)]),
          "max_window_layers": 1, "attention_bias": rng.choice([True, False])}


def put_groups(rng, c):
    """The router of DeepSeek-V3: groups have two experts at least."""
    groups, size = rng.choice([1, 1, 2, 3]), rng.randrange(2, 4)
    chosen = rng.randrange(1, groups + 1)
    c |= {"n_routed_experts": groups * size, "n_group": groups, "topk_group": chosen,
          "num_experts_per_tok": rng.randrange(1, chosen * size + 1), "moe_intermediate_size": rng.randrange(2, 9),
          "norm_topk_prob": rng.choice([True, False]), "routed_scaling_factor": rng.choice([1.0, 2.5, 0.5]),
          "n_shared_experts": 1}


def put_first_dense(rng, c):
    put_groups(rng, c)
    c |= {"n_shared_experts": rng.choice([1, 1, 2, 3]), "num_nextn_predict_layers": rng.choice([0, 0, 1]),
          "first_k_dense_replace": rng.randrange(0, c["num_hidden_layers"] + 1)}


def deepseek_v3(rng, c):
    heads, rotary = rng.choice([1, 2, 3, 4]), rng.choice([2, 4, 8])
    c |= {"hidden_size": rng.randrange(6, 30), "num_attention_heads": heads, "num_key_value_heads": heads,
          "q_lora_rank": rng.choice([None, rng.randrange(2, 9)]), "kv_lora_rank": rng.randrange(2, 12),
          "qk_nope_head_dim": rng.randrange(1, 8), "qk_rope_head_dim": rotary, "v_head_dim": rng.randrange(1, 9),
          "attention_bias": rng.choice([False, True]), "rope_interleave": rng.choice([True, True, False])}
    put_rope(rng, c, rotary)
    table = c.get("rope_scaling") or c.get("rope_parameters")
    if table and chance(rng, 0.5):
        table.setdefault("mscale_all_dim", rng.choice([0.7, 1.0]))  # of other types than YaRN, too
    put_first_dense(rng, c)
    if chance(rng, 0.3):
        c |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1, "ep_size": 1}
    if chance(rng, 0.2):
        c["head_dim"] = rotary  # which the class computes


def glm4_moe(rng, c):
    width = put_heads(rng, c)
    partial = rng.choice([None, 0.5, 0.25, 1.0])
    if width * (partial or 0.5) % 2:
        partial = 1.0
    put_rope(rng, c, int(width * (partial or 0.5)), partial)
    put_first_dense(rng, c)
    c |= {"use_qk_norm": rng.choice([True, False]), "attention_bias": rng.choice([True, False])}


def minimax_m2(rng, c):
    width = put_heads(rng, c, always=True)
    rotated = rng.randrange(2, width + 1, 2)
    if chance(rng, 0.7):
        put_rope(rng, c, rotated)
        c["rotary_dim"] = rotated
    else:
        put_rope(rng, c, rotated, rotated / width)
        c |= rng.choice([{}, {"rotary_dim": 2}])  # which the other key overrides
    put_experts(rng, c, rng.choice(["num_local_experts", "num_local_experts", "num_experts"]))
    c["router_jitter_noise"] = 0.0
    if chance(rng, 0.3):
        c |= {"scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True, "qk_norm_type": "per_layer",
              "shared_intermediate_size": 0, "attn_type_list": [1] * c["num_hidden_layers"], "num_mtp_modules": 3}


def put_delta_net(rng, c):
    width = put_heads(rng, c, always=True)
    partial = rng.choice([None, 0.5, 0.25, 1.0])
    if width * (partial or 0.25) % 2:
        partial = 1.0
    put_rope(rng, c, int(width * (partial or 0.25)), partial)
    keys = rng.randrange(1, 4)
    c |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * rng.randrange(1, 4),
          "linear_key_head_dim": rng.randrange(1, 9), "linear_value_head_dim": rng.randrange(1, 9),
          "linear_conv_kernel_dim": rng.randrange(1, 5)}
    if chance(rng, 0.5):
        c["layer_types"] = layer_types(rng, c, LINEAR)
    else:
        c["full_attention_interval"] = rng.randrange(1, 5)


def qwen3_next(rng, c):
    put_delta_net(rng, c)
    put_sparse_layers(rng, c)
    c["shared_expert_intermediate_size"] = rng.randrange(1, 9)


def qwen3_5(rng, c):
    put_delta_net(rng, c)
    c |= {"attn_output_gate": True, "mtp_num_hidden_layers": rng.choice([0, 1])}


def qwen3_5_moe(rng, c):
    qwen3_5(rng, c)
    put_experts(rng, c)
    c |= {"moe_intermediate_size": rng.randrange(1, 9), "shared_expert_intermediate_size": rng.randrange(1, 9)}
    if chance(rng, 0.7):
        del c["intermediate_size"]


def nemotron_h(rng, c):
    """A cache of transformers needs a layer of attention."""
    mixers = [rng.choice("MM*-E") for _ in range(c.pop("num_hidden_layers"))] + ["*"]
    rng.shuffle(mixers)
    put_heads(rng, c, always=True)
    put_groups(rng, c)
    groups, width = rng.choice([1, 2, 3]), rng.randrange(1, 7)
    c |= {"mamba_num_heads": groups * rng.randrange(1, 4), "mamba_head_dim": width, "n_groups": groups,
          "ssm_state_size": rng.randrange(1, 9), "conv_kernel": rng.randrange(1, 5), "expand": 2,
          "chunk_size": rng.choice([2, 8, 256]), "use_conv_bias": rng.choice([True, False]), "use_bias": False,
          "mamba_proj_bias": False, "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2", "mlp_bias": False,
          "attention_bias": False, "residual_in_fp32": rng.choice([True, False]), "time_step_min": rng.choice([0.001, 0.5]),
          "time_step_max": rng.choice([0.7, 1.0]), "time_step_floor": 0.0001,
          "layer_norm_epsilon": c.pop("rms_norm_eps"), "moe_shared_expert_intermediate_size": rng.randrange(1, 9),
          "moe_latent_size": rng.choice([None, None, 5]), "tie_word_embeddings": False, "pad_token_id": 0,
          "time_step_limit": rng.choice([[0.0, float("inf")], [0.1, 0.5]]), "num_nextn_predict_layers": 0}
    del c["hidden_act"]
    if chance(rng, 0.5):
        c |= {"hybrid_override_pattern": "".join(mixers), "num_hidden_layers": len(mixers)}
    else:
        names = {"M": rng.choice([LINEAR, "mamba"]), "*": rng.choice([FULL, "attention"]), "-": "mlp", "E": "moe"}
        c["layers_block_type"] = [names[mixer] for mixer in mixers]
        c |= {"num_hidden_layers": len(mixers)} if chance(rng, 0.5) else {}


def gpt_oss(rng, c):
    put_rope(rng, c, put_heads(rng, c, null=True, always=True))
    put_experts(rng, c, rng.choice(["num_local_experts", "num_local_experts", "num_experts"]))
    c |= {"attention_bias": rng.choice([True, True, False]), "sliding_window": window(rng), "pad_token_id": 0,
          "swiglu_limit": rng.choice([7.0, 0.4, 1.5]), "swiglu_alpha": rng.choice([1.702, 1.1])}
    if chance(rng, 0.6):
        c["layer_types"] = layer_types(rng, c)


FAMILIES = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "mistral": mistral, "smollm3": smollm3, "olmo2": olmo2,
            "olmo3": olmo3, "gemma3_text": gemma3, "gemma4_text": gemma4, "mixtral": mixtral, "qwen3_moe": qwen3_moe,
            "deepseek_v3": deepseek_v3, "glm4_moe": glm4_moe, "qwen3_next": qwen3_next, "qwen3_5_text": qwen3_5,
            "qwen3_5_moe_text": qwen3_5_moe, "nemotron_h": nemotron_h,
            "gpt_oss": gpt_oss, "minimax_m2": minimax_m2}
CLASS = {"qwen2": "Qwen2", "smollm3": "SmolLM3", "gemma3_text": "Gemma3", "gemma4_text": "Gemma4", "qwen3_moe": "Qwen3Moe",
         "deepseek_v3": "DeepseekV3", "glm4_moe": "Glm4Moe", "qwen3_next": "Qwen3Next", "qwen3_5_text": "Qwen3_5",
         "qwen3_5_moe_text": "Qwen3_5Moe", "nemotron_h": "NemotronH",
         "gpt_oss": "GptOss", "minimax_m2": "MiniMaxM2"}
# For which transformers has no class, or none that its auto class finds.
NO_CLASSIFIER = {"gemma4_text", "glm4_moe", "minimax_m2", "nemotron_h", "qwen3_5_moe_text"}
NO_TOKEN_CLASSIFIER = NO_CLASSIFIER | {"olmo2", "olmo3", "gemma3_text", "qwen3_5_text"}
# Where null is the number of heads.
NULL_KEY_VALUE_HEADS = {"llama", "qwen2", "qwen3", "smollm3", "olmo2", "olmo3", "deepseek_v3"}
# Keys whose defaults fit all configs.
MAY_LACK = ["rms_norm_eps", "hidden_act", "tie_word_embeddings", "sliding_window", "layer_types", "max_window_layers",
            "attention_bias", "mlp_bias", "norm_topk_prob", "routed_scaling_factor", "n_shared_experts",
            "decoder_sparse_step", "mlp_only_layers", "rope_interleave", "use_qk_norm", "query_pre_attn_scalar",
            "swiglu_limit", "swiglu_alpha", "linear_conv_kernel_dim", "use_conv_bias", "conv_kernel", "time_step_min",
            "layer_norm_epsilon", "use_sliding_window", "hidden_activation", "no_rope_layer_interval",
            "num_nextn_predict_layers", "router_aux_loss_coef", "rotary_dim", "chunk_size", "moe_latent_size", "time_step_limit"]
# Keys that Lehr refuses in most families, and that some class reads; with the first ones, transformers may fail.
MAY_FAIL = [{"mlp_bias": True}, {"hidden_act": "gelu"}, {"attention_dropout": 0.1}, {"final_logit_softcapping": 5.0},
            {"attn_logit_softcapping": 5.0}, {"use_bias": True}, {"mamba_proj_bias": True}, {"mlp_hidden_act": "silu"},
            {"partial_rotary_factor": 0.5}, {"hidden_activation": "silu"}]
RARE = MAY_FAIL + [{"attention_bias": True}, {"use_sliding_window": True}, {"tie_word_embeddings": True}]


def put_head(rng, family, c):
    prefix = CLASS.get(family, family.title())
    heads = ["ForCausalLM"] * 4
    heads += [] if family in NO_CLASSIFIER else ["ForSequenceClassification"]
    heads += [] if family in NO_TOKEN_CLASSIFIER else ["ForTokenClassification"]
    head = rng.choice(heads)
    c["architectures"] = [prefix + head]
    if head != "ForCausalLM":
        labels = rng.randrange(1, 5)
        c["pad_token_id"] = 0 if head == "ForTokenClassification" else rng.choice([0, 0, 4, None])
        c |= rng.choice([{"num_labels": labels}, {"id2label": {str(i): f"L{i}" for i in range(labels)}}, {}])


def draw(rng, family):
    c = {"model_type": family, "vocab_size": rng.randrange(20, 60), "num_hidden_layers": rng.randrange(1, 5),
         "intermediate_size": rng.randrange(2, 24), "max_position_embeddings": rng.choice([8, 16, 32, 128]),
         "rms_norm_eps": rng.choice([1e-6, 1e-5, 1e-3]), "hidden_act": "silu", "initializer_range": 0.02,
         "tie_word_embeddings": rng.choice([True, False]), "attention_dropout": 0.0, "bos_token_id": 1,
         "eos_token_id": rng.choice([2, [2, 3], None]), "use_cache": True,
         rng.choice(["torch_dtype", "dtype"]): "float32"}
    FAMILIES[family](rng, c)
    if family in NULL_KEY_VALUE_HEADS and c["num_key_value_heads"] == c["num_attention_heads"] and chance(rng, 0.3):
        c["num_key_value_heads"] = None
    if chance(rng, 0.1):
        c |= rng.choice(RARE)
    layers_differ = "per_layer_config" in c or c.get("num_kv_shared_layers")  # as layer_types says
    for key in MAY_LACK:
        if key in c and chance(rng, 0.15) and not (key == "layer_types" and layers_differ):
            del c[key]
    if family in ("qwen2", "qwen3", "smollm3") and not {"use_sliding_window", "sliding_window"} <= c.keys():
        c.pop("layer_types", None)  # whose windows would have no size
    put_head(rng, family, c)
    return c
