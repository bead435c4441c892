#include "lehr/peft/adapter_folder.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/model/gpt_oss/family.h"
#include "lehr/model/nemotron_h/family.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/model/qwen3_moe/family.h"
#include "lehr/peft/inject.h"
#include "lehr/state/bound_map.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/safetensors_writer.h"
#include "test/base/temporary_folder.h"
#include "test/peft/support.h"

namespace lehr::peft {
namespace {
using ::testing::ElementsAre;
using testing::fails_with;
using testing::tiny;

struct Injected {
  std::unique_ptr<descriptor::ModelArgs> args;
  std::shared_ptr<nn::Model> model;
  std::vector<StoredName> base;
};

Injected injected(const Method& method, std::unique_ptr<descriptor::ModelArgs> args = tiny()) {
  Injected made{.args = std::move(args), .model = nullptr, .base = {}};
  made.model = made.args->build({});
  made.base = stored_names(*made.args);
  inject_peft_and_freeze(method, *made.model);
  return made;
}

std::vector<std::string> stored(const Injected& made) {
  std::vector<std::string> names;
  for (const auto& entry : adapter_stored_names(*made.model, made.base, tuned_tensors(*made.model, made.base))) {
    names.push_back(entry.stored);
  }
  return names;
}

std::vector<std::string> texts(const Node& list) {
  std::vector<std::string> result;
  for (const Node& item : list.items()) {
    result.push_back(item.as_string());
  }
  return result;
}

Node config_of(const Injected& made) {
  return adapter_config(*made.model, made.base, made.args->head(), "/models/base");
}

void write(const TemporaryFolder& folder, const Injected& made, const Node& config) {
  state::NamedTensors tensors;
  state::TensorSpecs parameters;
  for (const auto& [name, parameter] : nn::named_parameters(*made.model)) {
    parameters[name] = {.shape = parameter->shape()};
  }
  const auto map = to_map(adapter_stored_names(*made.model, made.base, tuned_tensors(*made.model, made.base)));
  for (const auto& tensor : state::BoundMap(map.inverse(), parameters).outputs()) {
    tensors.emplace_back(tensor.name, at::zeros(tensor.shape));
  }
  state::save_safetensors(folder.path() / "adapter_model.safetensors", tensors);
  write_file_atomically(folder.path() / "adapter_config.json", to_json(config));
}

TEST(AdapterFolder, NamesTensorsLikePeft) {
  const auto made = injected(
      {Stack{{{Lora{.module_name_pattern = R"(.*\.1\..*down_proj)"}}, {FullTune{R"(model\.(norm|embed_tokens))"}}}}});
  EXPECT_THAT(
      stored(made),
      ElementsAre(
          "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight",
          "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight",
          "base_model.model.model.embed_tokens.weight",
          "base_model.model.model.norm.weight"));
  const Node config = config_of(made);
  EXPECT_THAT(texts(config.at("target_modules")), ElementsAre("model.layers.1.mlp.down_proj"));
  EXPECT_THAT(texts(config.at("modules_to_save")), ElementsAre("model.embed_tokens", "model.norm"));
  EXPECT_EQ(config.at("peft_type").as_string(), "LORA");
  EXPECT_EQ(config.at("task_type").as_string(), "CAUSAL_LM");
  EXPECT_EQ(config.at("base_model_name_or_path").as_string(), "/models/base");
}

TEST(AdapterFolder, NamesModulesByTheirLastComponentIfThatIsUnambiguous) {
  const Node config = config_of(injected({Lora{.module_name_pattern = ".*(q|v)_proj", .r = 4, .alpha = 6.5}}));
  EXPECT_THAT(texts(config.at("target_modules")), ElementsAre("q_proj", "v_proj"));
  EXPECT_TRUE(config.at("modules_to_save").is_null());
  EXPECT_EQ(config.at("r").as_int(), 4);
  EXPECT_EQ(config.at("lora_alpha").as_double(), 6.5);
}

TEST(AdapterFolder, ContainsATiedHeadAndItsEmbeddings) {
  const auto made = injected(
      {Stack{{{Lora{.module_name_pattern = ".*q_proj"}}, {FullTune{R"(model\.embed_tokens)"}}}}}, tiny(/*tied=*/true));
  EXPECT_THAT(texts(config_of(made).at("modules_to_save")), ElementsAre("model.embed_tokens", "lm_head"));
  EXPECT_EQ(stored(made).back(), "base_model.model.lm_head.weight");
}

TEST(AdapterFolder, ContainsASegmentedTableAsAWhole) {
  auto args = tiny();
  descriptor::ModelOverrides overrides;
  overrides.split_vocab_size = {{"text", 30}, {"added", 10}};
  overrides.split_vocab_order = {"text", "added"};
  args->apply(overrides);
  const auto made = injected(
      {Stack{{{Lora{.module_name_pattern = ".*q_proj"}}, {FullTune{R"(model\.embed_tokens\..*\.added)"}}}}},
      std::move(args));
  const auto names = adapter_stored_names(*made.model, made.base, tuned_tensors(*made.model, made.base));
  ASSERT_GE(names.size(), 2U);
  const auto& last = names.back();
  const auto& before = names[names.size() - 2];
  EXPECT_EQ(before.stored, "base_model.model.model.embed_tokens.weight");
  EXPECT_EQ(last.stored, before.stored);
  EXPECT_EQ(last.rows, 10);
  EXPECT_EQ(last.first_row, 30);
}

TEST(AdapterFolder, RefusesTheAdapterOfAPartOfAStoredTensor) {
  auto made = injected({Lora{.module_name_pattern = ".*(q|o)_proj"}});
  for (StoredName& entry : made.base) {
    if (entry.parameter == "model.layers.1.self_attn.q_proj.weight") {
      entry.stored = "model.layers.1.self_attn.qkv.weight";
      entry.rows = 16;
    }
  }
  EXPECT_THAT(
      [&] { stored(made); },
      fails_with(
          "model.layers.1.self_attn.q_proj: is a part of the stored tensor model.layers.1.self_attn.qkv.weight"));
}

TEST(AdapterFolder, ContainsOneAdapterPerExpert) {
  auto args = model::qwen3_moe_family().flavors.at("debugmodel")();
  descriptor::ModelOverrides overrides;
  overrides.num_hidden_layers = 1;
  overrides.num_experts = 2;
  overrides.num_experts_per_tok = 1;
  args->apply(overrides);
  const auto made = injected({Lora{.module_name_pattern = ".*experts.down_proj", .r = 5}}, std::move(args));
  EXPECT_THAT(
      stored(made),
      ElementsAre(
          "base_model.model.model.layers.0.mlp.experts.0.down_proj.lora_A.weight",
          "base_model.model.model.layers.0.mlp.experts.0.down_proj.lora_B.weight",
          "base_model.model.model.layers.0.mlp.experts.1.down_proj.lora_A.weight",
          "base_model.model.model.layers.0.mlp.experts.1.down_proj.lora_B.weight"));
  EXPECT_THAT(texts(config_of(made).at("target_modules")), ElementsAre("down_proj"));
  const TemporaryFolder folder;
  write(folder, made, config_of(made));
  const auto fresh = made.args->build({});
  EXPECT_EQ(add_adapters_of(read_adapter_config(folder.path()), *fresh, made.base).size(), 4U);
  EXPECT_EQ(adapted_layers(*fresh).size(), 1U);
}

// Its experts are stored transposed, all in one tensor. They stay as they are beside adapters of attention.
TEST(AdapterFolder, HoldsTheAttentionOfModelsWhoseExpertsAreStoredTransposed) {
  const auto gpt_oss = [] {
    auto args = model::gpt_oss_family().flavors.at("debugmodel")();
    descriptor::ModelOverrides overrides;
    overrides.num_hidden_layers = 1;
    args->apply(overrides);
    return args;
  };
  const auto made = injected(
      {Stack{{{Lora{.module_name_pattern = R"(.*self_attn\.q_proj)"}}, {FullTune{R"(.*mlp\.router\.gate)"}}}}},
      gpt_oss());
  EXPECT_THAT(
      stored(made),
      ElementsAre(
          "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
          "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
          "base_model.model.model.layers.0.mlp.router.weight",
          "base_model.model.model.layers.0.mlp.router.bias"));
  const TemporaryFolder folder;
  write(folder, made, config_of(made));
  const auto fresh = made.args->build({});
  EXPECT_EQ(add_adapters_of(read_adapter_config(folder.path()), *fresh, made.base).size(), 4U);

  const std::string experts = "model.layers.0.mlp.grouped_experts.";
  const auto refused = [&](const std::string& projection, const std::string& key) {
    return fails_with(
        experts + projection + ".weight: is loaded from model.layers.0.mlp.experts." + projection +
        " with the operation 'transpose 1 2', which adapter folders do not support; leave it out by " + key);
  };
  EXPECT_THAT(
      [&] { stored(injected({Lora{.module_name_pattern = ".*_proj"}}, gpt_oss())); },
      refused("gate_up_proj", "peft.target_pattern"));
  const Method tuned{Stack{{{Lora{.module_name_pattern = ".*q_proj"}}, {FullTune{R"(.*experts\.down_proj)"}}}}};
  EXPECT_THAT([&] { stored(injected(tuned, gpt_oss())); }, refused("down_proj", "peft.full_tune_pattern"));
}

std::unique_ptr<descriptor::ModelArgs> nemotron_h() {
  auto args = model::nemotron_h_family().flavors.at("debugmodel")();
  descriptor::ModelOverrides overrides;
  overrides.hidden_size = 16;
  overrides.num_hidden_layers = 2;
  overrides.vocab_size = 40;
  args->apply(overrides);
  return args;
}

constexpr const char* kInProj = "layers.0.mixer.in_proj";
constexpr int64_t kInProjRows = 2 * 8 * 32 + 2 * 4 * 16 + 8;  // z and x, B and C, dt

// transformers' modules begin with "model.", the stored tensors with "backbone.".
TEST(AdapterFolder, HasTheNamesOfTransformersModules) {
  const Method two{Stack{{{Lora{.module_name_pattern = R"(.*(in|q)_proj)"}}, {FullTune{R"(model\.norm)"}}}}};
  const auto made = injected(two, nemotron_h());
  EXPECT_THAT(
      stored(made),
      ElementsAre(
          "base_model.model.model.layers.0.mixer.in_proj.lora_A.weight",
          "base_model.model.model.layers.0.mixer.in_proj.lora_B.weight",
          "base_model.model.model.layers.1.mixer.q_proj.lora_A.weight",
          "base_model.model.model.layers.1.mixer.q_proj.lora_B.weight",
          "base_model.model.model.norm_f.weight"));
  EXPECT_THAT(texts(config_of(made).at("target_modules")), ElementsAre("in_proj", "q_proj"));
  EXPECT_THAT(texts(config_of(made).at("modules_to_save")), ElementsAre("model.norm_f"));
}

// The adapter of a projection whose stored rows are in another order has its own rows stored in that order, so that the
// stored update is that of the stored weight.
TEST(AdapterFolder, StoresRowsInTheOrderOfTheStoredWeight) {
  const auto made = injected({Lora{.module_name_pattern = ".*in_proj", .r = 2}}, nemotron_h());
  const state::StateMap weights = made.args->state_map(descriptor::ExpertLayout::per_expert);
  const state::StateMap adapters = to_map(adapter_stored_names(*made.model, made.base, {}));
  const auto output_of = [](const state::StateMap& map, const std::string& input, const at::Tensor& value) {
    const state::ValueSource source({{input, value}});
    const state::BoundMap bound(map.from({input}), source.specs());
    const std::string name = bound.map().outputs().front().name;
    return state::read_output(bound, source, name, whole_box(bound.outputs().front().shape));
  };
  const at::Tensor a = at::randn({2, 16}, at::kDouble), b = at::randn({kInProjRows, 2}, at::kDouble);
  const std::string prefix = std::string("base_model.model.model.") + kInProj;
  const at::Tensor own_a = output_of(adapters, prefix + ".lora_A.weight", a);
  const at::Tensor own_b = output_of(adapters, prefix + ".lora_B.weight", b);
  EXPECT_TRUE(at::equal(own_a, a));
  EXPECT_FALSE(at::equal(own_b, b)) << "the rows are in the same order";
  const at::Tensor update = output_of(weights, std::string("backbone.") + kInProj + ".weight", b.matmul(a));
  EXPECT_TRUE(at::allclose(own_b.matmul(own_a), update, 0, 1e-12));
}

// A whole projection has the rows of the stored weight too.
TEST(AdapterFolder, StoresWholeModulesInTheOrderOfTheStoredWeight) {
  const Method two{Stack{{{Lora{.module_name_pattern = ".*q_proj"}}, {FullTune{R"(.*in_proj)"}}}}};
  const auto made = injected(two, nemotron_h());
  const state::StateMap map =
      to_map(adapter_stored_names(*made.model, made.base, tuned_tensors(*made.model, made.base)));
  const state::StateMap weights = made.args->state_map(descriptor::ExpertLayout::per_expert);
  const at::Tensor value = at::randn({kInProjRows, 16}, at::kDouble);
  const auto parameter_of = [&](const state::StateMap& of, const std::string& stored) {
    const state::ValueSource source({{stored, value}});
    const state::BoundMap bound(of.from({stored}), source.specs());
    return state::read_output(
        bound, source, "model.layers.0.mamba.in_proj.weight", whole_box(bound.outputs().front().shape));
  };
  const at::Tensor own = parameter_of(map, std::string("base_model.model.model.") + kInProj + ".weight");
  EXPECT_TRUE(at::equal(own, parameter_of(weights, std::string("backbone.") + kInProj + ".weight")));
  EXPECT_FALSE(at::equal(own, value)) << "the rows are in the same order";
}

// As PEFT writes them for a model whose code came with its checkpoint.
TEST(AdapterFolder, IsReadWithTheNamesOfTheCheckpointToo) {
  const auto made = injected({Lora{.module_name_pattern = ".*in_proj"}}, nemotron_h());
  for (const std::string prefix : {"model.", "backbone."}) {
    const TemporaryFolder folder;
    write_file_atomically(folder.path() / "adapter_config.json", to_json(config_of(made)));
    const std::string name = "base_model.model." + prefix + kInProj;
    state::save_safetensors(
        folder.path() / "adapter_model.safetensors",
        {{name + ".lora_A.weight", at::zeros({8, 16})}, {name + ".lora_B.weight", at::zeros({kInProjRows, 8})}});
    const auto fresh = made.args->build({});
    const auto names = stored_names(folder.path(), *made.args);
    const auto read = add_adapters_of(read_adapter_config(folder.path()), *fresh, names);
    ASSERT_EQ(read.size(), 2U);
    EXPECT_EQ(read.back().stored, name + ".lora_B.weight");
    EXPECT_EQ(read.back().parameter, "model.layers.0.mamba.in_proj.lora.B");
  }
}

// modules_to_save alone, under both names.
TEST(AdapterFolder, MayHoldWholeModulesOnly) {
  const auto made = injected({Lora{.module_name_pattern = ".*in_proj"}}, nemotron_h());
  for (const std::string prefix : {"model.", "backbone."}) {
    const TemporaryFolder folder;
    write_file_atomically(folder.path() / "adapter_config.json", to_json(config_of(made)));
    const std::string name = "base_model.model." + prefix + "norm_f.weight";
    state::save_safetensors(folder.path() / "adapter_model.safetensors", {{name, at::zeros({16})}});
    const auto fresh = made.args->build({});
    const auto read =
        add_adapters_of(read_adapter_config(folder.path()), *fresh, stored_names(folder.path(), *made.args));
    ASSERT_EQ(read.size(), 1U) << prefix;
    EXPECT_EQ(read.front().stored, name);
    EXPECT_EQ(read.front().parameter, "model.norm.weight");
    EXPECT_TRUE(adapted_layers(*fresh).empty());
  }
}

// PEFT names the modules of the model that it adapted. The older names are those before transformers 4.52.
TEST(AdapterFolder, IsReadWithTheNamesOfAMultimodalModel) {
  const auto made = injected({Lora{.module_name_pattern = ".*q_proj"}});
  for (const auto& [prefix, head] :
       {std::pair("model.language_model.", "lm_head."), {"language_model.model.", "language_model.lm_head."}}) {
    SCOPED_TRACE(prefix);
    const TemporaryFolder folder;
    write_file_atomically(folder.path() / "adapter_config.json", to_json(config_of(made)));
    const std::string module = std::string("base_model.model.") + prefix + "layers.0.self_attn.q_proj.";
    const std::string table = std::string("base_model.model.") + head + "weight";
    state::save_safetensors(
        folder.path() / "adapter_model.safetensors",
        {{module + "lora_A.weight", at::zeros({8, 16})},
         {module + "lora_B.weight", at::zeros({16, 8})},
         {table, at::zeros({40, 16})}});
    const auto fresh = made.args->build({});
    const auto read =
        add_adapters_of(read_adapter_config(folder.path()), *fresh, stored_names(folder.path(), *made.args));
    ASSERT_EQ(read.size(), 3U);
    EXPECT_EQ(read[0].stored, module + "lora_A.weight");
    EXPECT_EQ(read[0].parameter, "model.layers.0.self_attn.q_proj.lora.A");
    EXPECT_EQ(read[2].stored, table);
  }
}

// PEFT trains both if modules_to_save names both; one of them was left out without a word.
TEST(AdapterFolder, RefusesOtherWeightsForATiedHeadThanForTheEmbeddings) {
  const auto made = injected({Lora{.module_name_pattern = ".*q_proj"}}, tiny(/*tied=*/true));
  const std::string table = "base_model.model.model.embed_tokens.weight", head = "base_model.model.lm_head.weight";
  const auto reading = [&made](state::NamedTensors tensors) {
    const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.";
    tensors.emplace_back(module + "lora_A.weight", at::zeros({8, 16}));
    tensors.emplace_back(module + "lora_B.weight", at::zeros({16, 8}));
    return [&made, tensors] {
      const TemporaryFolder folder;
      write_file_atomically(folder.path() / "adapter_config.json", to_json(config_of(made)));
      state::save_safetensors(folder.path() / "adapter_model.safetensors", tensors);
      add_adapters_of(read_adapter_config(folder.path()), *made.args->build({}), made.base);
      require_one_table(folder.path(), *made.model, made.base);
    };
  };
  const at::Tensor ones = at::ones({40, 16}), zeros = at::zeros({40, 16});
  EXPECT_NO_THROW(reading({})());
  EXPECT_NO_THROW(reading({{table, ones}, {head, ones.to(at::kBFloat16)}})());
  EXPECT_THAT(
      reading({{table, ones}, {head, zeros}}), fails_with("has other weights in " + head + " than in " + table));
  EXPECT_THAT(reading({{table, ones}}), fails_with("has weights for one of the two only, " + table));
  EXPECT_THAT(reading({{head, ones}}), fails_with("has weights for one of the two only, " + head));
}

TEST(AdapterFolder, RefusesParametersThatOtherOperationsMake) {
  auto made = injected({Lora{.module_name_pattern = R"(.*0\.self_attn\.q_proj)"}});
  const std::string name = "model.layers.0.self_attn.q_proj.weight";
  made.base = stored_names(state::sequential(
      {state::split("q", {"left", "right"}, 1, {8, 8}), state::concatenate({"right", "left"}, name, 1, {8, 8})}));
  EXPECT_THAT(
      [&] { stored(made); },
      fails_with(name + ": is loaded from q with the operation 'split 1 [8, 8], then concatenate 1 [8, 8]'"));
}

TEST(AdapterFolder, ReadsBackWhatItWrites) {
  const Method two{Stack{
      {{Lora{.module_name_pattern = ".*(q|v)_proj", .r = 2, .alpha = 8, .dropout = 0.1}},
       {Lora{.module_name_pattern = ".*o_proj", .r = 3, .alpha = 3, .dropout = 0.1}},
       {FullTune{R"(model\.norm)"}}}}};
  const auto made = injected(two);
  const TemporaryFolder folder;
  EXPECT_FALSE(is_adapter_folder(folder.path()));
  write(folder, made, config_of(made));
  EXPECT_TRUE(is_adapter_folder(folder.path()));
  const AdapterInfo info = read_adapter_config(folder.path());
  EXPECT_EQ(info.base_model, "/models/base");
  require_same_scaling(info, *made.model, made.base);

  const auto fresh = tiny()->build({});
  const auto names = add_adapters_of(info, *fresh, made.base);
  EXPECT_EQ(names.size(), stored(made).size());
  const auto there = adapted_layers(*made.model);
  const auto here = adapted_layers(*fresh);
  ASSERT_EQ(here.size(), there.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(here[i].name, there[i].name);
    EXPECT_EQ(here[i].lora->settings().r, there[i].lora->settings().r);
    EXPECT_EQ(here[i].lora->settings().alpha, there[i].lora->settings().alpha);
    EXPECT_EQ(here[i].lora->settings().dropout, 0.1);
  }

  const auto other = injected({Lora{.module_name_pattern = ".*(q|v|o)_proj", .r = 2, .alpha = 9}});
  EXPECT_THAT(
      [&] { require_same_scaling(info, *other.model, other.base); }, fails_with("the adapter's scaling is 4 ("));
}

TEST(AdapterFolder, RefusesOtherKindsOfAdapters) {
  const auto made = injected({Lora{.module_name_pattern = ".*q_proj"}});
  const auto reading = [&](const std::string& key, const Node& value) {
    return [&made, key, value] {
      const TemporaryFolder folder;
      Node config = config_of(made);
      config.set(key, value);
      write(folder, made, config);
      read_adapter_config(folder.path());
    };
  };
  EXPECT_THAT(reading("peft_type", Node("IA3")), fails_with("peft_type: expected \"LORA\", found \"IA3\""));
  EXPECT_THAT(reading("use_dora", Node(true)), fails_with("use_dora: this variant of LoRA is not supported"));
  EXPECT_THAT(reading("bias", Node("all")), fails_with("bias: adapters with biases"));
  EXPECT_THAT(reading("init_lora_weights", Node("pissa")), fails_with("belong to a modified base"));
  EXPECT_THAT(reading("r", Node("eight")), fails_with("adapter_config.json"));
  EXPECT_NO_THROW(reading("target_modules", Node("all-linear"))());
}

TEST(AdapterFolder, RefusesTheAdapterOfAnotherModel) {
  const auto made = injected({Lora{.module_name_pattern = ".*q_proj"}});
  const TemporaryFolder folder;
  write(folder, made, config_of(made));
  state::save_safetensors(
      folder.path() / "adapter_model.safetensors", {{"base_model.model.h.0.attn.lora_A.weight", at::zeros({2, 2})}});
  EXPECT_THAT(
      [&] { add_adapters_of(read_adapter_config(folder.path()), *tiny()->build({}), made.base); },
      fails_with("contains no adapter for a module of this model"));
}

// Otherwise memory for a LoRA rank of any size would be allocated.
TEST(AdapterFolder, RefusesARankThatItsTensorsDoNotHave) {
  const auto made = injected({Lora{.module_name_pattern = ".*q_proj", .r = 2}});
  const auto adding = [&](int64_t rank) {
    return [&made, rank] {
      const TemporaryFolder folder;
      Node config = config_of(made);
      config.set("r", Node(rank));
      write(folder, made, config);
      add_adapters_of(read_adapter_config(folder.path()), *tiny()->build({}), made.base);
    };
  };
  EXPECT_NO_THROW(adding(2)());
  for (const int64_t rank : {int64_t{1} << 40, int64_t{3}, int64_t{0}, int64_t{-2}}) {
    EXPECT_THAT(adding(rank), fails_with(fmt::format("found {}", rank)));
  }
}

TEST(AdapterFolder, PatternsHaveLimits) {
  const auto made = injected({Lora{.module_name_pattern = ".*q_proj", .r = 2}});
  const auto adding = [&](const std::string& pattern) {
    return [&made, pattern] {
      const TemporaryFolder folder;
      Node config = config_of(made);
      Node patterns = Node::make_table();
      patterns.set(pattern, Node(int64_t{2}));
      config.set("rank_pattern", patterns);
      write(folder, made, config);
      add_adapters_of(read_adapter_config(folder.path()), *tiny()->build({}), made.base);
    };
  };
  EXPECT_NO_THROW(adding("layers\\.[0-9]+\\.self_attn\\.q_proj")());
  EXPECT_THAT(
      adding("(.*.*.*.*.*.*.*.*)*[!?]"), fails_with("rank_pattern: the regular expression takes too many steps"));
  EXPECT_THAT(adding(std::string(100'000, '(')), fails_with("rank_pattern: the regular expression has"));
  EXPECT_THAT(adding("a{999999999}"), fails_with("is not a supported regular expression"));
}

TEST(AdapterFolder, RefusesLayersWithDifferentGlobalSettings) {
  const auto made = injected(
      {Stack{{{Lora{.module_name_pattern = ".*q_proj"}}, {Lora{.module_name_pattern = ".*v_proj", .dropout = 0.5}}}}});
  EXPECT_THAT([&] { config_of(made); }, fails_with("differ in dropout or use_rslora"));
}

}  // namespace
}  // namespace lehr::peft
