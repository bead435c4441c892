// Gemma 4: its config.json, its equations in plain ATen, counts, names of tensors, packed documents and caches.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numbers>

#include "lehr/config/json.h"
#include "lehr/descriptor/block_table.h"
#include "lehr/descriptor/text_config.h"
#include "lehr/model/gemma4/family.h"
#include "lehr/nn/model.h"
#include "test/model/changed_config.h"
#include "test/model/state_layers.h"

namespace lehr::model {
namespace {

using test::Changes;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// The keys of the published 26B-A4B model; layer_types is left out.
constexpr const char* kPublished = R"({"architectures": ["Gemma4ForConditionalGeneration"], "boi_token_id": 255999,
  "eos_token_id": [1, 106, 50], "model_type": "gemma4", "text_config": {"attention_bias": false,
  "attention_dropout": 0.0, "attention_k_eq_v": true, "bos_token_id": 2, "dtype": "bfloat16", "enable_moe_block": true,
  "eos_token_id": 1, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2816, "hidden_size_per_layer_input": 0,
  "initializer_range": 0.02, "intermediate_size": 2112, "max_position_embeddings": 262144, "model_type": "gemma4_text",
  "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128, "num_global_key_value_heads": 2,
  "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0, "pad_token_id": 0,
  "rms_norm_eps": 1e-06, "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25,
  "rope_theta": 1000000.0, "rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0,
  "rope_type": "default"}}, "sliding_window": 1024, "tie_word_embeddings": true, "top_k_experts": 8,
  "use_bidirectional_attention": "vision", "use_cache": true, "use_double_wide_mlp": false, "vocab_size": 262144,
  "vocab_size_per_layer_input": 262144}, "tie_word_embeddings": true, "vision_config": {"model_type": "gemma4_vision"}})";

Node text_config() {
  return descriptor::text_config_of(parse_json(kPublished, "config.json"));
}

// What the model is written as, without the tokens.
std::string written(const Changes& changes) {
  auto args = test::changed(gemma4_family(), text_config(), changes);
  args->set_special_tokens({}, {}, {});
  return to_json(args->to_hf_config("bfloat16"));
}

std::string problem(const Changes& changes) {
  return test::problem_of_changed(gemma4_family(), text_config(), changes);
}

TEST(Gemma4, ReadsTheTextModelOfThePublishedFile) {
  const std::string own = to_json(gemma4_family().from_flavor("26B-A4B")->to_hf_config("bfloat16"));
  EXPECT_EQ(written({}), own);
  EXPECT_EQ(
      written(
          {{"global_head_dim", "absent"},
           {"rms_norm_eps", "absent"},
           {"rope_parameters", "null"},
           {"num_kv_shared_layers", "absent"},
           {"tie_word_embeddings", "absent"},
           {"use_bidirectional_attention", "absent"},
           {"use_double_wide_mlp", "absent"}}),
      own)
      << "absent keys have the values of transformers' class";
  EXPECT_EQ(
      test::changed(gemma4_family(), text_config(), {{"use_double_wide_mlp", "true"}})->block_configs(),
      test::changed(gemma4_family(), text_config(), {})->block_configs())
      << "it has no effect without shared layers";
  EXPECT_EQ(test::changed(gemma4_family(), text_config(), {})->eos_token_ids(), (std::vector<int64_t>{1, 106, 50}));
  const Node read = parse_json(own, "config.json");
  EXPECT_EQ(to_json(gemma4_family().from_hf_config(read)->to_hf_config("bfloat16")), own) << "written and read";
}

// transformers 5.23 writes the heads of full layers as differences of single layers.
TEST(Gemma4, ReadsTheHeadsOfSingleLayers) {
  const std::string full = R"({"head_dim": 512, "num_key_value_heads": 2})";
  std::string layers;
  for (const char* layer : {"05", "11", "17", "23", "29"}) {
    layers += fmt::format(R"({}"{}": {})", layers.empty() ? "" : ", ", layer, full);
  }
  const Changes saved{{"global_head_dim", "absent"}, {"num_global_key_value_heads", "absent"}};
  const auto with = [&](const std::string& table) {
    Changes changes = saved;
    changes.emplace_back("per_layer_config", "{" + table + "}");
    return changes;
  };
  EXPECT_EQ(written(with(layers)), written({}));
  EXPECT_EQ(written(with(layers + R"(, "0": {"head_dim": 256})")), written({})) << "a sliding layer as the model says";
  Changes separate = with(layers);
  separate.emplace_back("attention_k_eq_v", "false");
  const std::string once = written(separate);
  EXPECT_THAT(once, HasSubstr(R"("17":)")) << "num_global_key_value_heads has no effect without attention_k_eq_v";
  const auto again = gemma4_family().from_hf_config(parse_json(once, "config.json"));
  again->set_special_tokens({}, {}, {});
  EXPECT_EQ(again->block_configs(), test::changed(gemma4_family(), text_config(), separate)->block_configs());
  EXPECT_EQ(to_json(again->to_hf_config("bfloat16")), once);
  EXPECT_THAT(problem(with(layers + R"(, "0": {"head_dim": 512})")), HasSubstr("found others in layer 0"));
  EXPECT_THAT(problem(with(R"("29": )" + full)), HasSubstr("layers with full attention, found others in layer 5"));
  EXPECT_THAT(problem(with(R"("30": {})")), HasSubstr("per_layer_config: expected layers from 0 to 29, found \"30\""));
  EXPECT_THAT(problem(with(R"("5": {"skip": ["mlp"]})")), HasSubstr("per_layer_config.5: expected head_dim and"));
}

// The keys of the published E2B model that differ from those of 26B-A4B.
TEST(Gemma4, ReadsTheSmallPublishedFile) {
  const Changes e2b{
      {"attention_k_eq_v", "false"},
      {"enable_moe_block", "false"},
      {"hidden_size", "1536"},
      {"hidden_size_per_layer_input", "256"},
      {"intermediate_size", "6144"},
      {"max_position_embeddings", "131072"},
      {"moe_intermediate_size", "null"},
      {"num_attention_heads", "8"},
      {"num_experts", "null"},
      {"num_global_key_value_heads", "null"},
      {"num_hidden_layers", "35"},
      {"num_key_value_heads", "1"},
      {"num_kv_shared_layers", "20"},
      {"sliding_window", "512"},
      {"top_k_experts", "null"},
      {"use_double_wide_mlp", "true"},
      {"layer_types", "[" + [] {
         std::string types;
         for (int64_t layer = 0; layer < 35; ++layer) {
           types += fmt::format(R"({}"{}_attention")", layer == 0 ? "" : ", ", layer % 5 == 4 ? "full" : "sliding");
         }
         return types;
       }() + "]"}};
  const std::string own = to_json(gemma4_family().from_flavor("E2B")->to_hf_config("bfloat16"));
  EXPECT_EQ(written(e2b), own);
  EXPECT_EQ(to_json(gemma4_family().from_hf_config(parse_json(own, "config.json"))->to_hf_config("bfloat16")), own);
}

TEST(Gemma4, SharesKeysAndValuesAsFarAsFewerLayersAllow) {
  const auto shared_of = [](int64_t layers) {
    const auto args = gemma4_family().from_flavor("E2B");
    descriptor::ModelOverrides overrides;
    overrides.num_hidden_layers = layers;
    args->apply(overrides);
    args->check("");
    return args->to_hf_config("float32").at("num_kv_shared_layers").as_int();
  };
  EXPECT_EQ(shared_of(35), 20);
  EXPECT_EQ(shared_of(12), 7) << "layer 4 is the first with full attention";
  EXPECT_EQ(shared_of(3), 0) << "only the last layer has full attention";
}

TEST(Gemma4, EndsWithFullAttentionAsInTransformers) {
  const auto types = [](const Changes& changes) {
    std::string kinds;
    const Node config = parse_json(written(changes), "config.json");
    for (const Node& type : config.at("layer_types").items()) {
      kinds += type.as_string().substr(0, 1);
    }
    return kinds;
  };
  EXPECT_EQ(types({{"num_hidden_layers", "8"}}), "sssssfsf");
  EXPECT_EQ(
      types({{"num_hidden_layers", "2"}, {"layer_types", R"(["sliding_attention", "sliding_attention"])"}}), "sf");
  const auto args = gemma4_family().from_flavor("debugmodel");
  descriptor::ModelOverrides overrides;
  overrides.num_hidden_layers = 3;
  args->apply(overrides);
  EXPECT_EQ(args->to_hf_config("float32").at("layer_types").at(2).as_string(), "full_attention");
}

TEST(Gemma4, RefusesByName) {
  EXPECT_THAT(
      problem({{"hidden_size_per_layer_input", "-1"}}), HasSubstr("hidden_size_per_layer_input: expected a positive"));
  EXPECT_THAT(
      problem({{"hidden_size_per_layer_input", "absent"}, {"vocab_size_per_layer_input", "100"}}),
      HasSubstr("vocab_size_per_layer_input: expected vocab_size (262144), found 100"));
  EXPECT_EQ(problem({{"vocab_size_per_layer_input", "100"}}), "accepted") << "there is no table";
  EXPECT_EQ(problem({{"num_kv_shared_layers", "24"}}), "accepted") << "layer 5 is the first with full attention";
  EXPECT_THAT(
      problem({{"num_kv_shared_layers", "25"}}),
      HasSubstr("num_kv_shared_layers: expected a number from 0 to 24, so that"));
  for (const char* shared : {"31", "-1", "-9223372036854775808"}) {
    EXPECT_THAT(
        problem({{"num_kv_shared_layers", shared}, {"use_double_wide_mlp", "true"}}),
        HasSubstr(
            fmt::format("num_kv_shared_layers: expected a number from 0 to num_hidden_layers (30), found {}", shared)));
  }
  EXPECT_THAT(
      problem({{"use_bidirectional_attention", "\"all\""}}), HasSubstr("use_bidirectional_attention: expected"));
  EXPECT_THAT(problem({{"hidden_activation", "\"gelu\""}}), HasSubstr("hidden_activation: expected gelu_pytorch_tanh"));
  EXPECT_THAT(problem({{"rope_theta", "10"}}), HasSubstr("rope_theta: expected tables in rope_parameters"));
  EXPECT_THAT(problem({{"top_k_experts", "absent"}}), HasSubstr("'top_k_experts' is missing"));
  EXPECT_EQ(problem({{"enable_moe_block", "false"}, {"top_k_experts", "null"}}), "accepted");
  EXPECT_THAT(
      problem({{"top_k_experts", "129"}}), HasSubstr("num_experts_per_tok: expected at most num_experts (128)"));
  EXPECT_THAT(problem({{"global_head_dim", "0"}}), HasSubstr("global_head_dim: expected a positive number, found 0"));
  EXPECT_THAT(problem({{"global_head_dim", "7"}}), HasSubstr("global_head_dim: expected an even number"));
  EXPECT_THAT(
      problem({{"num_global_key_value_heads", "3"}}), HasSubstr("a multiple of num_global_key_value_heads (3)"));
  EXPECT_THAT(problem({{"final_logit_softcapping", "0"}}), HasSubstr("final_logit_softcapping: expected a positive"));
  EXPECT_THAT(
      problem({{"block_configs", R"([{"attention": {"no_op": true}, "ffn": {"no_op": true}}])"}}),
      HasSubstr("block_configs: expected no such key"));
  EXPECT_THAT(
      problem(
          {{"rope_parameters", R"({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 1.5}})"}}),
      HasSubstr("partial_rotary_factor: expected a number from 0 to 1, found 1.5"));
}

// The kinds of models: layers may have experts, values that are their keys, or inputs of their own and keys and values
// of earlier layers.
struct Kind {
  const char* name;
  const char* flavor;
  bool experts = false, keys_as_values = false, cross_layer = false;

  int64_t layers() const { return cross_layer ? 6 : 4; }
};

// A model of sliding layers and as many others, and what its config.json says.
struct Small {
  std::unique_ptr<descriptor::ModelArgs> args;
  std::shared_ptr<nn::Model> model;
  std::map<std::string, at::Tensor> parameters;  // leaves of their own, with the values of the model's
};

constexpr int64_t kHidden = 12, kHeads = 4, kWindow = 3, kExperts = 5, kTopK = 2, kVocabulary = 31, kInput = 5;
constexpr double kEps = 1e-3, kCap = 2;

Small small(const Kind& kind) {
  const auto family = gemma4_family();
  const Node config = family.from_flavor(kind.flavor)->to_hf_config("float32");
  std::string types;
  for (int64_t layer = 0; layer < kind.layers(); ++layer) {
    types += fmt::format(R"({}"{}_attention")", layer == 0 ? "" : ", ", layer % 2 == 0 ? "sliding" : "full");
  }
  Changes changes{
      {"hidden_size", std::to_string(kHidden)},
      {"intermediate_size", "10"},
      {"num_hidden_layers", std::to_string(kind.layers())},
      {"layer_types", "[" + types + "]"},
      {"num_attention_heads", std::to_string(kHeads)},
      {"num_key_value_heads", "2"},
      {"head_dim", "6"},
      {"global_head_dim", "10"},
      {"attention_k_eq_v", kind.keys_as_values ? "true" : "false"},
      {"num_global_key_value_heads", "1"},
      {"sliding_window", std::to_string(kWindow)},
      {"vocab_size", std::to_string(kVocabulary)},
      {"vocab_size_per_layer_input", std::to_string(kVocabulary)},
      {"rms_norm_eps", std::to_string(kEps)},
      {"initializer_range", "0.4"},
      {"final_logit_softcapping", std::to_string(kCap)},
      {"rope_parameters",
       R"({"full_attention": {"rope_type": "proportional", "rope_theta": 100, "factor": 2,
           "partial_rotary_factor": 0.5}, "sliding_attention": {"rope_type": "default", "rope_theta": 10}})"}};
  if (kind.cross_layer) {
    changes.emplace_back("hidden_size_per_layer_input", std::to_string(kInput));
    changes.emplace_back("num_kv_shared_layers", "2");
  }
  if (kind.experts) {
    changes.emplace_back("num_experts", std::to_string(kExperts));
    changes.emplace_back("top_k_experts", std::to_string(kTopK));
    changes.emplace_back("moe_intermediate_size", "7");
  }
  Small made{.args = test::changed(family, config, changes), .model = {}, .parameters = {}};
  made.model = made.args->build({});
  nn::materialize(*made.model, at::kCPU, at::kDouble);
  made.model->reset_parameters({.seed = 5});
  at::manual_seed(3);
  for (const auto& [name, parameter] : nn::named_parameters(*made.model)) {
    const at::NoGradGuard no_grad;
    at::Tensor value = parameter->value();
    value.add_(at::randn_like(value), 0.2);  // so that norms and scales are not 1
    const at::Tensor leaf = value.detach().to(at::kDouble).clone();
    made.parameters[name] = parameter->is_state() ? leaf : leaf.set_requires_grad(true);
  }
  return made;
}

at::Tensor normed(const at::Tensor& x, const at::Tensor& weight = {}) {
  const at::Tensor y = x / (x.square().mean(-1, true) + kEps).sqrt();
  return weight.defined() ? y * weight : y;
}

at::Tensor gelu_of(const at::Tensor& x) {
  return 0.5 * x * (1 + (std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)).tanh());
}

// Rotates the pairs (i, i + D / 2) of heads (B, T, heads, D) by these frequencies, of which later ones are 0.
at::Tensor rotated(const at::Tensor& x, const std::vector<double>& frequencies) {
  const int64_t half = x.size(-1) / 2;
  std::vector<double> all = frequencies;
  all.resize(static_cast<size_t>(half), 0);
  const at::Tensor angles =
      at::arange(x.size(1), at::kDouble).view({1, -1, 1, 1}) * at::tensor(all, at::kDouble).view({1, 1, 1, -1});
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()}, -1);
}

// The equations of transformers' module, one line each.
class Plain {
 public:
  explicit Plain(const Small& small) : p_(small.parameters) {}

  at::Tensor logits(const at::Tensor& ids) const {
    const at::Tensor& table = of("model.embed_tokens.token_embedding.default.weight");
    at::Tensor x = at::embedding(table, ids) * std::sqrt(static_cast<double>(kHidden));
    const at::Tensor inputs = inputs_of_layers(ids, x);
    for (int64_t i = 0; p_.contains(fmt::format("model.layers.{}.layer_scalar", i)); ++i) {
      const at::Tensor input = inputs.defined() ? inputs.select(2, i) : at::Tensor();
      x = layer(x, input, fmt::format("model.layers.{}.", i), i % 2 == 0);
    }
    x = normed(x, of("model.norm.weight")).matmul(table.t());
    return kCap * (x / kCap).tanh();
  }

 private:
  const at::Tensor& of(const std::string& name) const { return p_.at(name); }
  at::Tensor times(const at::Tensor& x, const std::string& name) const {
    return x.matmul(of(name + ".weight").transpose(-1, -2));
  }

  // What each layer reads of a token, (B, T, layers, kInput).
  at::Tensor inputs_of_layers(const at::Tensor& ids, const at::Tensor& embeddings) const {
    const std::string name = "model.per_layer.";
    if (!p_.contains(name + "per_layer_projection_norm.weight")) {
      return {};
    }
    const auto by_layer = [&](const at::Tensor& x) { return x.view({x.size(0), x.size(1), -1, kInput}); };
    const at::Tensor own = at::embedding(of(name + "embed_tokens_per_layer.token_embedding.default.weight"), ids);
    const at::Tensor projected = times(embeddings, name + "per_layer_model_projection") / std::sqrt(double{kHidden});
    return (normed(by_layer(projected), of(name + "per_layer_projection_norm.weight")) +
            by_layer(own) * std::sqrt(double{kInput})) /
           std::numbers::sqrt2;
  }

  at::Tensor layer(const at::Tensor& input, const at::Tensor& own_input, const std::string& name, bool slides) const {
    const auto norm = [&](const at::Tensor& x, const std::string& own) {
      return normed(x, of(name + own + ".weight"));
    };
    const at::Tensor x =
        input +
        norm(attention(norm(input, "input_layernorm"), name + "self_attn.", slides), "post_attention_layernorm");
    const at::Tensor ffn = norm(x, "pre_feedforward_layernorm");
    at::Tensor y =
        times(gelu_of(times(ffn, name + "mlp.gate_proj")) * times(ffn, name + "mlp.up_proj"), name + "mlp.down_proj");
    if (p_.contains(name + "moe.router.scale")) {
      y = norm(y, "post_feedforward_layernorm_1") +
          norm(experts(norm(x, "pre_feedforward_layernorm_2"), x, name + "moe."), "post_feedforward_layernorm_2");
    }
    at::Tensor z = x + norm(y, "post_feedforward_layernorm");
    if (own_input.defined()) {
      const at::Tensor gated = gelu_of(times(z, name + "per_layer_input_gate")) * own_input;
      z = z + norm(times(gated, name + "per_layer_projection"), "post_per_layer_input_norm");
    }
    return z * of(name + "layer_scalar");
  }

  at::Tensor attention(const at::Tensor& x, const std::string& name, bool slides) const {
    const int64_t batch = x.size(0), tokens = x.size(1);
    const int64_t width = slides ? 6 : 10;
    const auto heads = [&](const std::string& projection) {
      return times(x, name + projection).view({batch, tokens, -1, width});
    };
    const bool has_values = p_.contains(name + "v_proj.weight");
    const std::vector<double> frequencies =
        slides ? std::vector<double>{1, std::pow(10, -2.0 / 6), std::pow(10, -4.0 / 6)}
               : std::vector<double>{0.5, std::pow(100, -2.0 / 10) / 2};  // floor(0.5 * 10 / 2) of five
    const at::Tensor q = rotated(normed(heads("q_proj"), of(name + "q_norm.weight")), frequencies);
    if (p_.contains(name + "k_proj.weight")) {
      const at::Tensor key = heads("k_proj"), value = normed(has_values ? heads("v_proj") : key);
      latest_[slides] = {rotated(normed(key, of(name + "k_norm.weight")), frequencies), value};
    }
    auto [k, v] = latest_.at(slides);  // other layers have those of the latest one of their kind
    k = k.repeat_interleave(kHeads / k.size(2), 2);
    v = v.repeat_interleave(kHeads / v.size(2), 2);
    const at::Tensor distance = at::arange(tokens).unsqueeze(1) - at::arange(tokens);
    const at::Tensor seen = (distance >= 0).logical_and(distance < (slides ? kWindow : tokens));
    const at::Tensor scores = at::einsum("bthd,bshd->bhts", {q, k}).masked_fill(seen.logical_not(), -INFINITY);
    return times(at::einsum("bhts,bshd->bthd", {scores.softmax(-1), v}).flatten(-2), name + "o_proj");
  }

  at::Tensor experts(const at::Tensor& input, const at::Tensor& routed, const std::string& name) const {
    const at::Tensor x = input.view({-1, kHidden});
    const at::Tensor seen =
        normed(routed.reshape({-1, kHidden})) * of(name + "router.scale") / std::sqrt(double{kHidden});
    const auto [best, chosen] = times(seen, name + "router.gate").softmax(-1).topk(kTopK, -1);
    std::vector<at::Tensor> rows;
    for (int64_t t = 0; t < x.size(0); ++t) {
      at::Tensor sum = at::zeros({kHidden}, at::kDouble);
      for (int64_t i = 0; i < kTopK; ++i) {
        const auto e = chosen[t][i].item<int64_t>();
        const auto matrix = [&](const char* projection) {
          return of(name + "grouped_experts." + projection + ".weight")[e];
        };
        const at::Tensor inner = gelu_of(at::mv(matrix("gate_proj"), x[t])) * at::mv(matrix("up_proj"), x[t]);
        const at::Tensor weight = best[t][i] / best[t].sum() * of(name + "router.per_expert_scale")[e];
        sum = sum + weight * at::mv(matrix("down_proj"), inner);
      }
      rows.push_back(sum);
    }
    return at::stack(rows).view(input.sizes());
  }

  const std::map<std::string, at::Tensor>& p_;
  mutable std::map<bool, std::pair<at::Tensor, at::Tensor>> latest_;  // keys and values of layers with a window, or not
};

class Gemma4Models : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds,
    Gemma4Models,
    ::testing::Values(
        Kind{.name = "DenseKeysAsValues", .flavor = "debugmodel", .keys_as_values = true},
        Kind{.name = "DenseValues", .flavor = "debugmodel"},
        Kind{.name = "ExpertsKeysAsValues", .flavor = "debugmodel_moe", .experts = true, .keys_as_values = true},
        Kind{.name = "CrossLayerInputs", .flavor = "debugmodel_small", .cross_layer = true},
        Kind{
            .name = "CrossLayerKeysAsValues",
            .flavor = "debugmodel_small",
            .keys_as_values = true,
            .cross_layer = true}),
    [](const auto& one) { return std::string(one.param.name); });

TEST_P(Gemma4Models, EqualTheirEquationsWithGradients) {
  const Small made = small(GetParam());
  const at::Tensor ids = at::randint(kVocabulary, {2, 9}, at::kLong),
                   labels = at::randint(kVocabulary, {2, 9}, at::kLong);
  nn::ModelInputs inputs;
  inputs.input_ids = ids;
  inputs.labels = labels;
  const at::Tensor losses = made.model->forward(inputs).nll();
  losses.sum().backward();

  const at::Tensor logits = Plain(made).logits(ids);
  const at::Tensor expected = -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1);
  expected.sum().backward();
  EXPECT_LE(test::worst_error(losses, expected), 1e-12);
  {
    const at::NoGradGuard no_grad;
    const at::Tensor states = made.model->forward({.input_ids = ids}).hidden_states;
    EXPECT_LE(test::worst_error(made.model->logits(states), logits), 1e-12);
  }
  int64_t compared = 0;
  for (const auto& [name, parameter] : nn::named_parameters(*made.model)) {
    if (!parameter->is_state()) {
      ASSERT_TRUE(parameter->value().grad().defined()) << name;
      EXPECT_LE(test::worst_error(parameter->value().grad(), made.parameters.at(name).grad()), 1e-10) << name;
      ++compared;
    }
  }
  const Kind& kind = GetParam();
  const int64_t of_layer = kind.experts ? 22 : kind.cross_layer ? 16 : 13;
  const int64_t without_values = kind.keys_as_values ? 2 : 0, of_model = kind.cross_layer ? 5 : 2;
  const int64_t read = kind.cross_layer ? 3 + 3 : 0;  // two layers have no projections and norms of keys and values
  EXPECT_EQ(compared, of_model + kind.layers() * of_layer - without_values - read);
}

TEST_P(Gemma4Models, KeepDocumentsApartAndDecode) {
  const Small made = small(GetParam());
  made.model->eval();
  test::expect_packed_documents_equal_separate_ones(*made.model);
  test::expect_decoding_equals_one_forward(*made.model);
}

// The closed form equals the parameters of each layer; attention has heads of 6 or of 10 elements.
TEST_P(Gemma4Models, AreCounted) {
  const Small made = small(GetParam());
  const auto account = descriptor::blocks_of(*made.args, {}).account;
  EXPECT_EQ(account.total().num_parameters, nn::count_parameters(*made.model));
  const auto counts = made.args->get_nparams_and_flops(9);
  EXPECT_EQ(counts.num_parameters, nn::count_parameters(*made.model));
  const int64_t of_full = GetParam().keys_as_values ? 1 : 2;  // heads
  std::vector<int64_t> cached{24, 20 * of_full, 24, 20 * of_full};
  cached.resize(static_cast<size_t>(GetParam().layers()), 0);
  EXPECT_EQ(counts.kv_cache_per_token, cached);
  const int64_t of_kind = GetParam().layers() / 2;
  EXPECT_EQ(counts.attention_flops_per_pair * 9, of_kind * 12 * kHeads * (6 * (2 * 3 - 9 / 9) + 10 * 9));
  int64_t looked_up = kVocabulary * kInput * GetParam().layers();
  looked_up = GetParam().cross_layer ? looked_up : 0;
  int64_t idle = 0;
  for (const nn::MoELayerImpl* moe_layer : nn::moe_layers(*made.model)) {
    idle += moe_layer->num_idle_parameters();
  }
  EXPECT_EQ(
      counts.flops_per_token, 6 * (counts.num_parameters - looked_up - idle) + counts.attention_flops_per_pair * 9);
}

TEST(Gemma4, CountsThePublishedParameters) {
  const auto total = [](const char* flavor) {
    return descriptor::blocks_of(*gemma4_family().from_flavor(flavor), {}).account.total();
  };
  EXPECT_EQ(total("31B").num_parameters, gemma4_family().from_flavor("31B")->get_nparams_and_flops(64).num_parameters);
  EXPECT_NEAR(static_cast<double>(total("31B").num_parameters), 30.7e9, 0.05e9) << "30.7B, says the model card";
  EXPECT_NEAR(static_cast<double>(total("26B-A4B").num_parameters), 25.2e9, 0.05e9) << "25.2B, says the model card";
  EXPECT_NEAR(static_cast<double>(total("26B-A4B").active_parameters), 3.8e9, 0.05e9) << "3.8B active";
  // The cards count encoders of images and sounds, too, and give the sizes without the tables of layers' inputs.
  const auto effective = [&](const char* flavor, int64_t layers) {
    return static_cast<double>(total(flavor).num_parameters - int64_t{262144} * layers * 256);
  };
  EXPECT_NEAR(effective("E2B", 35), 2.3e9, 0.05e9) << "2.3B effective, says the model card";
  EXPECT_NEAR(effective("E4B", 42), 4.5e9, 0.15e9) << "4.5B effective";
  for (const char* flavor : {"E2B", "E4B"}) {
    EXPECT_EQ(
        total(flavor).num_parameters, gemma4_family().from_flavor(flavor)->get_nparams_and_flops(64).num_parameters);
  }
}

TEST(Gemma4, HasTheNamesOfPublishedTensors) {
  const auto names = [](const char* flavor, descriptor::ExpertLayout layout) {
    return gemma4_family().from_flavor(flavor)->state_map(layout).input_names();
  };
  using descriptor::ExpertLayout;
  const std::vector<std::string> moe = names("debugmodel_moe", ExpertLayout::per_expert);
  EXPECT_EQ(moe, names("debugmodel_moe", ExpertLayout::fused)) << "there is one layout";
  EXPECT_EQ(descriptor::expert_layout_of(moe), ExpertLayout::fused);
  for (const char* name :
       {"router.proj.weight",
        "router.scale",
        "router.per_expert_scale",
        "experts.gate_up_proj",
        "experts.down_proj",
        "mlp.gate_proj.weight",
        "layer_scalar",
        "post_feedforward_layernorm_1.weight"}) {
    EXPECT_THAT(moe, Contains(std::string("model.layers.1.") + name));
  }
  EXPECT_THAT(moe, Contains("model.layers.0.self_attn.v_proj.weight"));
  EXPECT_THAT(moe, Not(Contains("model.layers.1.self_attn.v_proj.weight")));
  EXPECT_THAT(moe, Not(Contains(HasSubstr(".moe."))));
  const std::vector<std::string> small = names("debugmodel_small", ExpertLayout::per_expert);
  for (const char* name :
       {"embed_tokens_per_layer.weight",
        "per_layer_model_projection.weight",
        "per_layer_projection_norm.weight",
        "layers.7.per_layer_input_gate.weight",
        "layers.7.per_layer_projection.weight",
        "layers.7.post_per_layer_input_norm.weight",
        "layers.3.self_attn.k_norm.weight",
        "layers.7.self_attn.q_norm.weight"}) {
    EXPECT_THAT(small, Contains(std::string("model.") + name));
  }
  for (const char* of_keys : {"k_proj", "v_proj", "k_norm"}) {
    EXPECT_THAT(small, Not(Contains(fmt::format("model.layers.4.self_attn.{}.weight", of_keys))));
  }
}

// A table of the vocabulary is stored as one, also if the model has it in segments.
TEST(Gemma4, SplitsTheTableOfTheInputsOfLayers) {
  const auto args = gemma4_family().from_flavor("debugmodel_small");
  const int64_t rows = args->vocab_size();
  descriptor::ModelOverrides overrides;
  overrides.split_vocab_size = {{"first", rows - 10}, {"second", 10}};
  overrides.split_vocab_order = {"first", "second"};
  args->apply(overrides);
  const state::StateMap map = args->state_map(descriptor::ExpertLayout::fused);
  EXPECT_THAT(map.input_names(), Contains("model.embed_tokens_per_layer.weight"));
  EXPECT_THAT(map.output_names(), Contains("model.per_layer.embed_tokens_per_layer.token_embedding.second.weight"));
}

}  // namespace
}  // namespace lehr::model
