// A run on any mesh equals a run on one device.
//
// In float64, over whole training steps with accumulation, clipping, packed documents and activation checkpointing.
#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "test/base/error_of.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::all_meshes;
using testing::Case;
using testing::every_mesh;
using testing::every_nth;
using testing::expect_equal;
using testing::family;
using testing::Folder;
using ::testing::HasSubstr;
using testing::kSteps;
using testing::Mesh;
using testing::on_mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::tiny_run;
using testing::train_on;

// Every kind of mesh is among those with at most four ranks, and those of eight with three degrees of 2.
bool stands_for_its_kind(const Mesh& mesh) {
  return mesh.world() <= 4 || std::max({mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp}) == 2;
}

// Without LEHR_ALL_MESHES=1, Qwen3 and Llama 3, whose runs are the shortest, run on every mesh by turns. Every other
// family runs on every second of its meshes, and the family after it on those between.
std::vector<Case> every_family_and_mesh() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const std::vector<Mesh>& meshes) {
    for (const Mesh& mesh : meshes) {
      cases.push_back({name, mesh});
    }
  };
  add("qwen3", every_nth(2, every_mesh(false), 1));
  add("llama3", every_nth(2, every_mesh(false)));
  std::vector<Mesh> with_experts = every_mesh(true);
  if (!all_meshes()) {
    with_experts.erase(
        std::remove_if(
            with_experts.begin(), with_experts.end(), [](const Mesh& mesh) { return !stands_for_its_kind(mesh); }),
        with_experts.end());
  }
  add("qwen3_moe", every_nth(2, with_experts, 1));
  const std::vector<Mesh> some{
      {.dp_shard = 2},
      {.cp = 2},
      {.tp = 4},
      {.dp_shard = 2, .tp = 2},
      {.cp = 2, .tp = 2},
      {.dp_shard = 2, .cp = 2, .tp = 2}};
  // Norms after the sub-blocks, and one over the width that tp cuts; biases; windows, which cp cuts; layers without
  // rotary positions or with others; layers with other heads, of which tp = 4 cuts two; keys and values of other
  // layers.
  size_t first = 0;
  for (const char* name :
       {"olmo2", "qwen2", "mistral", "smollm3", "olmo3", "gemma3", "gemma4", testing::kGemma4Small}) {
    add(name, every_nth(2, some, first++ % 2));
  }
  // Other routers; in some, layers without experts.
  const std::vector<Mesh> of_routers{
      {.dp_shard = 2, .ep = 2},
      {.cp = 2},
      {.tp = 2},
      {.tp = 4, .ep = 4},
      {.dp_replicate = 2, .cp = 2, .ep = 2},
      {.dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}};
  for (const char* name :
       {"mixtral", "deepseek_v3", "glm4_moe", "gpt_oss", "minimax_m2", testing::kGemma4WithExperts}) {
    add(name, every_nth(2, of_routers, first++ % 2));
  }
  // Documents, whose states begin anew, also in the chunks of cp, which states pass through.
  const std::vector<Mesh> of_states{
      {.dp_shard = 2, .ep = 2},
      {.dp_shard = 4},
      {.tp = 2},
      {.tp = 4, .ep = 4},
      {.dp_replicate = 2, .tp = 2, .ep = 2},
      {.dp_shard = 2, .tp = 2, .ep = 4},
      {.cp = 2},
      {.cp = 4, .ep = 2},
      {.cp = 2, .tp = 2},
      {.dp_replicate = 2, .cp = 2, .ep = 2},
      {.dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}};
  add("qwen3_next", every_nth(2, of_states));
  const std::vector<Mesh> without_experts{
      {.dp_shard = 2},
      {.cp = 2},
      {.cp = 4},
      {.tp = 2},
      {.tp = 4},
      {.dp_replicate = 2, .dp_shard = 2},
      {.dp_shard = 2, .tp = 2},
      {.cp = 2, .tp = 2},
      {.dp_shard = 2, .cp = 2, .tp = 2}};
  add("nemotron_h", every_nth(2, without_experts));
  add("qwen3_5", every_nth(3, without_experts, 1));
  add("qwen3_5_moe", every_nth(4, of_states, 3));
  add(testing::kNemotronHWithExperts, every_nth(2, of_states, 1));
  return cases;
}

class EveryMesh : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Families, EveryMesh, ::testing::ValuesIn(every_family_and_mesh()), [](const auto& one) {
  return ::testing::PrintToString(one.param);
});

TEST(FamiliesOnMeshes, AreAllFamilies) {
  std::set<std::string> found;
  for (const Case& one : every_family_and_mesh()) {
    found.insert(one.family);
  }
  EXPECT_THAT(found, ::testing::UnorderedElementsAreArray(testing::trained_families()));
}

// Families of which no mesh below has more than two data-parallel ranks have fewer sequences per step.
Overrides run_of(const std::string& name) {
  Overrides overrides = family(name);
  if (name != "qwen3" && name != "qwen3_moe" && name != "llama3" && name != "qwen3_next" && name != "nemotron_h" &&
      !name.starts_with("qwen3_5") && name != testing::kNemotronHWithExperts) {
    overrides.emplace_back("training.global_batch_size", "4");
  }
  return overrides;
}

// The run of a family on one device, once per process.
const Outcome& alone(const std::string& name) {
  static std::map<std::string, Outcome> outcomes;
  const auto found = outcomes.find(name);
  if (found != outcomes.end()) {
    return found->second;
  }
  const Folder folder;
  const auto one_device = tiny_run(folder.path(), run_of(name));
  testing::train(one_device);
  return outcomes[name] = outcome_of(one_device);
}

TEST_P(EveryMesh, EqualsOneDevice) {
  const auto& [name, mesh, what, overrides] = GetParam();
  const Folder folder;
  const auto config = tiny_run(folder.path(), run_of(name));
  train_on(mesh, config);
  expect_equal(alone(name), outcome_of(config));
}

// The initial parameters on one device.
const std::map<std::string, at::Tensor>& whole_parameters(const std::string& name) {
  static std::map<std::string, std::map<std::string, at::Tensor>> parameters;
  std::map<std::string, at::Tensor>& whole = parameters[name];
  if (whole.empty()) {
    const Folder folder;
    on_mesh({}, tiny_run(folder.path(), run_of(name)), 0, [&](Trainer& trainer) {
      for (const auto& [key, parameter] : nn::named_parameters(trainer.model())) {
        whole[key] = parameter->value().detach().clone();
      }
    });
  }
  return whole;
}

TEST_P(EveryMesh, StartsFromTheBitsOfOneDevice) {
  const std::string& name = GetParam().family;
  const auto& whole = whole_parameters(name);
  const Folder folder;
  std::mutex mutex;
  on_mesh(GetParam().mesh, tiny_run(folder.path(), run_of(name)), 0, [&](Trainer& trainer) {
    const std::lock_guard lock(mutex);
    for (const auto& [key, parameter] : nn::named_parameters(trainer.model())) {
      EXPECT_TRUE(at::equal(parameter->value(), narrow_to(whole.at(key), parameter->box()))) << key;
    }
  });
}

// Without a launcher, and so without a transport.
TEST(CpuOffload, OnOneRankShardsTheModelOverItself) {
  const Folder folder;
  auto config = tiny_run(folder.path(), family("qwen3"));
  config.parallelism.fsdp_cpu_offload = true;
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = log});
  const auto modules = trainer.model().modules();
  EXPECT_TRUE(std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    const auto* hooked = dynamic_cast<const nn::Module*>(module.get());
    return hooked != nullptr && !hooked->call_hooks().empty();
  })) << "nothing unshards its weights";
  trainer.run();
  expect_equal(alone("qwen3"), outcome_of(config));
}

// Every kind of run below is also tested with CPU offload.
TEST(CpuOffload, EqualsOneDevice) {
  const std::map<std::string, std::vector<Mesh>> meshes_of{
      {"qwen3", {{}, {.dp_replicate = 2, .dp_shard = 2}, {.dp_shard = 2, .cp = 2, .tp = 2}, {.dp_shard = 2, .pp = 2}}},
      {"qwen3_moe", {{}, {.dp_shard = 4, .ep = 2}}}};
  for (const auto& [name, list] : meshes_of) {
    for (const Mesh& mesh : list) {
      SCOPED_TRACE(mesh.name());
      const Folder folder;
      auto config = tiny_run(folder.path(), family(name));
      config.parallelism.fsdp_cpu_offload = true;
      train_on(mesh, config);
      expect_equal(alone(name), outcome_of(config));
    }
  }
}

TEST(Shares, OfRanksTogetherAreTheSequencesOfOneDevice) {
  const Folder folder;
  const auto config = tiny_run(folder.path());
  const auto tokenizer = build_tokenizer(config);
  const auto data = open_run_data(config, *tokenizer, {.vocab_size = 257}, [](const std::string&) {});
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const auto whole = data.train(RowShare::all(8), 24);
    std::vector<std::unique_ptr<BatchStream>> parts;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      parts.push_back(data.train({.global = 8, .first = rank * 8 / ranks, .count = 8 / ranks}, 24));
    }
    for (int step = 0; step < 3; ++step) {
      const Batch wanted = *whole->next();
      std::map<std::string, std::vector<at::Tensor>> rows;
      for (const auto& part : parts) {
        const Batch batch = *part->next();
        for (const auto& [name, tensor] : batch) {
          rows[name].push_back(tensor);
        }
      }
      for (const auto& [name, tensor] : wanted) {
        if (name != "document_ids") {  // absent in a share whose sequences are single documents
          EXPECT_TRUE(at::equal(at::cat(rows.at(name)), tensor)) << name;
        }
      }
    }
  }
}

struct TwoMeshes {
  Mesh from;
  Mesh to;
};

void PrintTo(const TwoMeshes& pair, std::ostream* out) {
  *out << pair.from.name() << "_to_" << pair.to.name();
}

const std::vector<TwoMeshes> kPairsOfMeshes{
    {{.dp_shard = 4}, {.dp_shard = 2, .tp = 2}},
    {{.dp_shard = 4, .ep = 4}, {.dp_shard = 4}},
    {{.dp_replicate = 2, .dp_shard = 2, .tp = 2}, {}},
    {{}, {.dp_shard = 2, .cp = 2, .tp = 2}},
    {{.cp = 4}, {.dp_replicate = 4}},
    {{.tp = 4}, {.dp_shard = 4}},
    {{.dp_shard = 2, .ep = 2}, {.cp = 2, .ep = 2}},
    {{.dp_replicate = 2, .dp_shard = 2}, {.tp = 2}},
    {{.dp_shard = 2, .cp = 2, .tp = 2, .ep = 4}, {.dp_replicate = 2}},
    {{.dp_replicate = 2, .dp_shard = 4}, {.dp_shard = 2, .cp = 2}},
    {{.tp = 2}, {.tp = 4, .ep = 2}},
    {{.dp_shard = 4, .ep = 2}, {.dp_shard = 2, .ep = 2}},
    {{.dp_shard = 2, .tp = 4, .ep = 4}, {}},
    {{.pp = 2}, {.dp_shard = 2}},
    {{.dp_shard = 4, .ep = 2}, {.dp_shard = 2, .ep = 2, .pp = 2}},
    {{.tp = 2, .pp = 2}, {}}};

class AnyMeshToAnyMesh : public ::testing::TestWithParam<TwoMeshes> {};
INSTANTIATE_TEST_SUITE_P(
    Pairs, AnyMeshToAnyMesh, ::testing::ValuesIn(every_nth(2, kPairsOfMeshes)), [](const auto& pair) {
      return ::testing::PrintToString(pair.param);
    });

// A run that is stopped on one mesh and resumed on another equals the uninterrupted run. Every second pair runs unless
// LEHR_ALL_MESHES=1.
TEST_P(AnyMeshToAnyMesh, ContinuesLikeOneDevice) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), family("qwen3_moe"));
  train_on(GetParam().from, config, kSteps / 2);
  EXPECT_TRUE(std::filesystem::exists(testing::checkpoint(config, kSteps / 2)));
  EXPECT_FALSE(std::filesystem::exists(testing::checkpoint(config, kSteps)));
  train_on(GetParam().to, config);
  expect_equal(alone("qwen3_moe"), outcome_of(config));
}

std::string quoted(const std::filesystem::path& path) {
  return "\"" + path.string() + "\"";
}

struct Kind {
  std::string name;
  Overrides overrides;
  std::vector<Mesh> meshes;
  std::string weights = "model";  // stem of the saved weights
};

// Kinds of runs that `family("qwen3")` does not cover: other tasks, other ways to save memory, adapters, a sample at
// the end.
std::vector<Kind> kinds(const std::filesystem::path& folder, const std::filesystem::path& base) {
  std::string rows;
  for (size_t i = 0; i < 64; ++i) {
    const std::string text = std::string("the quick brown fox jumps over the dog").substr(i % 17, 4 + i % 9);
    rows += fmt::format("{{\"text\": \"{}\", \"label\": {}}}\n", text, i % 2);
  }
  write_file_atomically(folder / "rows.jsonl", rows);
  const Overrides lora{
      {"checkpoint.initial_load_path", quoted(base)},
      {"peft.method", "lora"},
      {"peft.r", "4"},
      {"peft.target_pattern", "'.*_proj'"}};
  Overrides with_dropout = lora;
  with_dropout.emplace_back("peft.dropout", "0.25");
  Overrides experts_reduced_once = family("qwen3_moe");
  experts_reduced_once.emplace_back("parallelism.fsdp_reduce_each_microbatch", "false");
  const Overrides labels{
      {"training.task", "classification"},
      {"training.classifier_dropout", "0.1"},
      {"data.datasets.0.path", quoted(folder / "rows.jsonl")},
      {"data.datasets.0.kind", "classification"},
      {"data.datasets.0.split_documents", "\"\""},
      {"data.validation_path", quoted(folder / "rows.jsonl")},
      {"data.validation_fraction", "0"}};
  // A batch has up to 12 tokens, which are 16 on every mesh: more padding would be part of float8's scales.
  // Some words have several tokens, which dropout drops in any position.
  std::string words;
  for (size_t i = 0; i < 64; ++i) {
    words += fmt::format(R"({{"tokens": ["{}", "fox", "{}"], "ner_tags": [{}, 0, {}]}})", i * i, i, i % 3, i % 2);
    words += '\n';
  }
  write_file_atomically(folder / "words.jsonl", words);
  const Overrides labels_of_words{
      {"training.task", "token_classification"},
      {"training.num_labels", "3"},
      {"training.classifier_dropout", "0.1"},
      {"data.datasets.0.path", quoted(folder / "words.jsonl")},
      {"data.datasets.0.kind", "token_classification"},
      {"data.datasets.0.split_documents", "\"\""},
      {"data.validation_path", quoted(folder / "words.jsonl")},
      {"data.validation_fraction", "0"}};
  Overrides labels_of_experts = family("qwen3_moe"), labels_in_float8 = labels;
  labels_of_experts.insert(labels_of_experts.end(), labels.begin(), labels.end());
  labels_in_float8.emplace_back("float8.enable", "true");
  labels_in_float8.emplace_back("model.args.intermediate_size", "32");
  return {
      {"classification",
       labels,
       {{.dp_shard = 2},
        {.dp_shard = 2, .tp = 2},
        {.dp_replicate = 2, .tp = 4},
        {.dp_shard = 2, .pp = 2},
        {.cp = 4},
        {.cp = 2, .tp = 2},
        {.dp_shard = 2, .cp = 2, .pp = 2}}},
      {"classification_of_experts",
       labels_of_experts,
       {{.tp = 8}, {.dp_shard = 2, .tp = 2, .ep = 4}, {.dp_shard = 2, .cp = 2, .ep = 2}}},
      {"classification_in_float8", labels_in_float8, {{.tp = 8}, {.dp_shard = 2, .tp = 4}, {.cp = 2}}},
      {"token_classification",
       labels_of_words,
       {{.dp_shard = 2},
        {.cp = 2},
        {.pp = 2},
        {.cp = 2, .tp = 2},
        {.dp_shard = 2, .tp = 2},
        {.dp_replicate = 2, .cp = 2, .pp = 2}}},
      {"sft",
       {{"model.args.vocab_size", "1024"},
        {"model.args.max_position_embeddings", "128"},
        {"tokenizer.path", "\"recipe/data/chat_tokenizer\""},
        {"data.validation_fraction", "0.0"},
        {"data.validation_path", "\"recipe/data/instructions_validation.json\""},
        {"data.datasets.0.path", "\"recipe/data/instructions.json\""},
        {"data.datasets.0.kind", "\"chat\""},
        {"data.datasets.0.split_documents", "\"\""},
        {"data.datasets.0.prompt_key", "\"instruction\""},
        {"data.datasets.0.input_key", "\"input\""},
        {"data.datasets.0.answer_key", "\"output\""},
        {"training.task", "\"sft\""},
        {"training.seq_len", "64"},
        {"validation.local_batch_size", "32"}},
       {{.dp_shard = 2, .cp = 2}, {.tp = 2}, {.cp = 2, .pp = 2}}},
      {"tied", {{"model.args.tie_word_embeddings", "true"}}, {{.dp_shard = 2, .tp = 2}, {.dp_replicate = 2, .cp = 2}}},
      {"ring",
       {{"parallelism.context_parallel_rotate_method", "ring"}},
       {{.cp = 4}, {.dp_shard = 2, .cp = 2, .tp = 2}}},
      {"never_resharded",
       {{"parallelism.fsdp_reshard_after_forward", "never"}, {"activation_checkpoint.mode", "none"}},
       {{.dp_shard = 4}}},
      {"always_resharded",
       {{"parallelism.fsdp_reshard_after_forward", "always"},
        {"activation_checkpoint.mode", "selective"},
        {"activation_checkpoint.selective_ac_option", "\"2\""}},
       {{.dp_shard = 2, .cp = 2}}},
      {"matmuls_recomputed",
       {{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", "\"op\""}},
       {{.dp_shard = 2, .cp = 2}, {.dp_shard = 2, .tp = 2}, {.dp_shard = 2, .pp = 2}}},
      {"reduced_once",
       {{"parallelism.fsdp_reduce_each_microbatch", "false"}},
       {{.dp_shard = 2, .cp = 2}, {.dp_replicate = 2, .dp_shard = 2}, {.dp_shard = 2, .pp = 2}}},
      {"experts_reduced_once", experts_reduced_once, {{.dp_shard = 4, .ep = 2}}},
      {"text",
       {{"sample.prompt", "\"KING\""}, {"sample.max_new_tokens", "8"}},
       {{.dp_shard = 2}, {.tp = 2}, {.dp_shard = 2, .pp = 2}}},
      {"adapters", lora, {{.dp_shard = 2}, {.dp_replicate = 2, .cp = 2}, {.dp_shard = 2, .tp = 2}}, "adapter_model"},
      {"adapters_with_dropout",
       with_dropout,
       {{.cp = 2}, {.dp_shard = 2, .cp = 2, .tp = 2}, {.cp = 4}, {.dp_shard = 2}},
       "adapter_model"}};
}

// Of each kind, every third mesh runs unless LEHR_ALL_MESHES=1, from another one than for the kind before; and every
// third kind has its weights in host memory once.
void expect_law(const std::vector<Kind>& list) {
  for (size_t number = 0; number < list.size(); ++number) {
    const Kind& kind = list[number];
    SCOPED_TRACE(kind.name);
    const std::vector<Mesh> meshes = every_nth(3, kind.meshes, number % std::min<size_t>(3, kind.meshes.size()));
    const bool offloads = all_meshes() || number % 3 == 0;
    Overrides overrides = family("qwen3");
    overrides.insert(overrides.end(), kind.overrides.begin(), kind.overrides.end());
    const Folder of_one;
    const auto one_device = tiny_run(of_one.path(), overrides);
    testing::train(one_device);
    const Outcome wanted = outcome_of(one_device, kind.weights);
    for (size_t i = 0; i < meshes.size() + (offloads ? 1 : 0); ++i) {
      const bool offload = i == meshes.size();
      const Mesh& mesh = offload ? kind.meshes.back() : meshes[i];
      SCOPED_TRACE(mesh.name() + (offload ? " with weights in host memory" : ""));
      const Folder folder;
      auto config = tiny_run(folder.path(), overrides);
      config.parallelism.fsdp_cpu_offload = offload;
      train_on(mesh, config);
      expect_equal(wanted, outcome_of(config, kind.weights));
      const std::string text = "sample.txt";
      if (std::filesystem::exists(std::filesystem::path(one_device.job.dump_folder) / text)) {
        EXPECT_EQ(
            read_file(std::filesystem::path(config.job.dump_folder) / text),
            read_file(std::filesystem::path(one_device.job.dump_folder) / text));
      }
    }
  }
}

// Ways to recompute, one document per sequence, and adapters beside frozen convolutions and decays.
TEST(GatedDeltaNet, OfEveryKindOfRunEqualsOneDeviceWithContextParallelism) {
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), run_of("qwen3_next"));
  testing::train(base);
  const auto with = [](const Overrides& more) {
    Overrides overrides = run_of("qwen3_next");
    return testing::joined(overrides, more);
  };
  expect_law(
      {{"nothing recomputed", with({{"activation_checkpoint.mode", "none"}}), {{.cp = 2}}},
       {"matmuls recomputed",
        with({{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", "\"op\""}}),
        {{.cp = 2, .tp = 2}}},
       {"one document", with({{"data.datasets.0.split_documents", "\"\""}}), {{.cp = 4}}},
       {"adapters",
        with(
            {{"checkpoint.initial_load_path", quoted(testing::checkpoint(base, kSteps))},
             {"peft.method", "lora"},
             {"peft.r", "4"},
             {"peft.target_pattern", "'.*(out_proj|in_proj_ba)'"}}),
        {{.dp_shard = 2, .cp = 2}},
        "adapter_model"}});
}

TEST(EveryKindOfRun, EqualsOneDevice) {
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), family("qwen3"));
  testing::train(base);
  const Folder data;
  expect_law(kinds(data.path(), testing::checkpoint(base, kSteps)));
}

// Backward gathers the sequences of tensor-parallel blocks again: alone, and with everything else that recomputes.
TEST(GatheredAgain, EqualsOneDevice) {
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), family("qwen3"));
  testing::train(base);
  const auto again = [](Overrides overrides, const std::string& mode, const std::string& option = "op") {
    overrides.emplace_back("parallelism.tensor_parallel_regather", "true");
    overrides.emplace_back("activation_checkpoint.mode", mode);
    overrides.emplace_back("activation_checkpoint.selective_ac_option", "\"" + option + "\"");
    return overrides;
  };
  const Overrides lora{
      {"checkpoint.initial_load_path", quoted(testing::checkpoint(base, kSteps))},
      {"peft.method", "lora"},
      {"peft.r", "4"},
      {"peft.target_pattern", "'.*_proj'"}};
  const Overrides float8{{"float8.enable", "true"}, {"model.args.intermediate_size", "32"}};
  expect_law(
      {{"nothing recomputed", again({}, "none"), {{.tp = 4}, {.cp = 2, .tp = 2}, {.dp_shard = 2, .tp = 2}}},
       {"matmuls recomputed", again({}, "selective"), {{.tp = 2}, {.dp_shard = 2, .cp = 2, .tp = 2}}},
       {"every second layer recomputed", again({}, "selective", "2"), {{.tp = 2}}},
       {"all layers recomputed", again({}, "full"), {{.tp = 2}}},
       {"float8", again(float8, "none"), {{.tp = 2}, {.cp = 2, .tp = 2}}},
       {"float8, matmuls recomputed", again(float8, "selective"), {{.tp = 2}}},
       {"adapters", again(lora, "none"), {{.tp = 2}, {.dp_shard = 2, .tp = 2}}, "adapter_model"},
       {"experts", again(family("qwen3_moe"), "none"), {{.tp = 2}, {.dp_shard = 2, .tp = 2, .ep = 2}}},
       {"experts, matmuls recomputed", again(family("qwen3_moe"), "selective"), {{.dp_shard = 2, .tp = 2, .ep = 4}}}});
}

// With context parallelism some micro-batches of a rank are mostly padding, and no rank counts it.
TEST(PaddedExperts, EqualOneDevice) {
  const Folder data;
  const Overrides overrides = testing::joined(family("qwen3_moe"), testing::padded_documents(data.path()));
  Overrides matmuls_recomputed = overrides;
  matmuls_recomputed.emplace_back("activation_checkpoint.mode", "selective");
  expect_law(
      {{"recomputed",
        overrides,
        {{.cp = 2, .tp = 2, .ep = 2},
         {.dp_shard = 4, .ep = 2},
         {.tp = 4, .ep = 4},
         {.tp = 2, .pp = 2},
         {.dp_replicate = 2, .cp = 2},
         {.cp = 4},
         {.dp_shard = 2, .cp = 2, .pp = 2}}},
       {"matmuls recomputed", matmuls_recomputed, {{.tp = 2, .ep = 2}, {.dp_shard = 2, .cp = 2}}}});
}

// Experts that are computed in parts, with everything that recomputes.
TEST(PartsOfExperts, EqualOneDevice) {
  const auto parts = [](const std::string& mode) {
    Overrides overrides = family("qwen3_moe");
    overrides.emplace_back("parallelism.expert_parallel_parts", "2");
    overrides.emplace_back("activation_checkpoint.mode", mode);
    return overrides;
  };
  expect_law(
      {{"nothing recomputed", parts("none"), {{.dp_shard = 2, .ep = 2}, {.dp_shard = 2, .tp = 2, .ep = 2}}},
       {"matmuls recomputed", parts("selective"), {{.cp = 2, .ep = 2}}},
       {"all recomputed", parts("full"), {{.dp_replicate = 2, .dp_shard = 2, .ep = 2}}}});
}

// On every mesh, each forward pass has one sequence, so scales over tokens are the same. A difference of 1e-16 changes
// the rounding of an element with a probability of about 1e-15.
TEST(Float8, EqualsOneDevice) {
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), family("qwen3"));
  testing::train(base);
  const Overrides all{{"float8.enable", "true"}, {"model.args.intermediate_size", "32"}};
  Overrides but_gradients = all;
  but_gradients.emplace_back("float8.recipe", "rowwise_with_gw_hp");
  const Overrides lora{
      {"float8.enable", "true"},  // in attention only, since the base's FFN sizes are unsupported
      {"checkpoint.initial_load_path", quoted(testing::checkpoint(base, kSteps))},
      {"peft.method", "lora"},
      {"peft.r", "4"},
      {"peft.target_pattern", "'.*_proj'"}};
  expect_law(
      {{"all products",
        all,
        {{.dp_shard = 2},
         {.tp = 2},
         {.tp = 8},
         {.cp = 2},
         {.dp_replicate = 2, .dp_shard = 2},
         {.dp_shard = 2, .cp = 2, .tp = 2},
         {.tp = 2, .pp = 2},
         {.dp_shard = 2, .pp = 2}}},
       {"but the weights' gradients", but_gradients, {{.cp = 2}, {.tp = 4}, {.dp_shard = 2, .cp = 2, .pp = 2}}},
       {"adapters", lora, {{.dp_shard = 2, .tp = 2}, {.dp_shard = 2}}, "adapter_model"}});
}

// Tokens are projected to the latent space on their own rank, and the sums of experts' results back on it.
TEST(EveryKindOfRun, OfExpertsInALatentSpaceEqualsOneDevice) {
  Overrides latent = family(testing::kNemotronHWithExperts);
  latent.emplace_back("model.args.moe_latent_size", "6");
  expect_law(
      {{"latent experts",
        latent,
        {{.dp_shard = 2, .tp = 2, .ep = 4},
         {.tp = 2},
         {.cp = 2, .ep = 2},
         {.dp_shard = 2, .tp = 2, .ep = 2, .pp = 2}}}});
}

// Shared experts have a part of the tokens on each rank of tp.
TEST(Float8, OfSharedExpertsEqualsOneDevice) {
  const Overrides shared{
      {"float8.enable", "true"},
      {"model.name", "qwen3_next"},
      {"model.args.num_hidden_layers", "4"},
      {"model.args.head_dim", "8"},
      {"model.args.num_experts", "8"},
      {"model.args.num_experts_per_tok", "2"},
      {"model.args.moe_intermediate_size", "8"}};
  expect_law({{"shared experts", shared, {{.tp = 2}, {.dp_shard = 2, .tp = 2, .ep = 4}}}});
}

// Experts in float8. The ranks of ep have tokens of one sequence, or weight gradients are in high precision: a scale of
// `rowwise` is that of an expert's tokens in one forward pass.
TEST(Float8, OfExpertsEqualsOneDevice) {
  const auto experts = [](const Overrides& more) {
    Overrides overrides = family("qwen3_moe");
    for (const auto& entry : Overrides{
             {"float8.enable", "true"},
             {"float8.moe_fqns", R"(['.*\.grouped_experts\..*'])"},
             {"model.args.moe_intermediate_size", "16"},
             {"model.args.intermediate_size", "32"}}) {
      overrides.push_back(entry);
    }
    return testing::joined(overrides, more);
  };
  const Overrides gradients_in_high_precision{{"float8.recipe", "rowwise_with_gw_hp"}};
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), experts({{"float8.enable", "false"}, {"float8.moe_fqns", "[]"}}));
  testing::train(base);
  expect_law(
      {{"all matmuls",
        experts({}),
        {{.dp_shard = 2},
         {.dp_replicate = 2, .cp = 2},
         {.cp = 2, .ep = 2},
         {.tp = 4, .ep = 2},
         {.dp_shard = 2, .tp = 2, .ep = 2},
         {.tp = 2, .ep = 2, .pp = 2}}},
       {"matmuls recomputed",
        experts({{"activation_checkpoint.mode", "selective"}, {"activation_checkpoint.selective_ac_option", "\"op\""}}),
        {{.dp_shard = 2, .tp = 2, .ep = 2}}},
       {"Muon", experts({{"optimizer.name", "muon"}}), {{.dp_shard = 2, .tp = 2, .ep = 2}}},
       {"but the weights' gradients",
        experts(gradients_in_high_precision),
        {{.dp_shard = 2, .ep = 2}, {.dp_shard = 2, .cp = 2, .ep = 4}}},
       {"adapters",
        experts(
            {{"checkpoint.initial_load_path", quoted(testing::checkpoint(base, kSteps))},
             {"peft.method", "lora"},
             {"peft.r", "4"},
             {"peft.target_pattern", R"('.*\.grouped_experts\..*')"}}),
        {{.dp_shard = 2, .tp = 2, .ep = 4}},
        "adapter_model"}});
}

// The tokens of an expert that ep brings together are those of two data ranks, whose scales are those of a micro-batch
// of both on one device.
TEST(Float8, OfExpertsOfSeveralDataRanksIsThatOfTheirMicroBatchesTogether) {
  Overrides overrides = family("qwen3_moe");
  for (const auto& entry : Overrides{
           {"float8.enable", "true"},
           {"float8.exclude", "['.*']"},
           {"float8.moe_fqns", R"(['.*\.grouped_experts\..*'])"},
           {"model.args.moe_intermediate_size", "16"},
           {"training.router_aux_loss_coef", "0"},
           {"training.router_z_loss_coef", "0"}}) {
    overrides.push_back(entry);
  }
  // One micro-batch per rank and step: the ranks of ep have consecutive sequences, as a micro-batch of one device.
  const auto of_rows = [&](int64_t ranks, const Mesh& mesh, int64_t rows) {
    const Folder folder;
    auto config = tiny_run(folder.path(), overrides);
    config.training.local_batch_size = rows;
    config.training.global_batch_size = ranks;
    if (mesh.world() == 1) {
      testing::train(config);
    } else {
      train_on(mesh, config);
    }
    return outcome_of(config);
  };
  const Outcome of_two = of_rows(2, {}, 2);
  expect_equal(of_two, of_rows(2, {.dp_shard = 2, .ep = 2}, 1));
  expect_equal(of_two, of_rows(2, {.dp_shard = 2, .tp = 2, .ep = 4}, 1));
  expect_equal(of_rows(4, {}, 2), of_rows(4, {.dp_shard = 4, .ep = 2}, 1));
}

// Each is refused by every rank before memory is allocated, with the config keys and the remedy.
TEST(IllegalMeshes, AreRefusedByName) {
  struct Refused {
    Mesh mesh;
    Overrides overrides;
    std::string message;
  };
  const std::string model = "model.args.";
  const std::vector<Refused> cases{
      {{.tp = 2},
       {{"training.seq_len", "33"}},
       "training.seq_len: must be a multiple of 2 for tensor_parallel_degree 2, found 33"},
      {{.cp = 2},
       {{"training.seq_len", "34"}},
       "training.seq_len: must be a multiple of 4 for context_parallel_degree 2 (twice that, to balance the load of "
       "ranks), found 34"},
      {{.cp = 2, .tp = 2},
       {{"training.seq_len", "36"}},
       "training.seq_len: must be a multiple of 8 for context_parallel_degree 2 (twice that, to balance the load of "
       "ranks) times tensor_parallel_degree 2, found 36"},
      {{.dp_shard = 4},
       {{"training.global_batch_size", "6"}},
       "training.global_batch_size: must be a multiple of training.local_batch_size (1) times the 4 data-parallel "
       "ranks"},
      {{.tp = 4},
       {{model + "num_attention_heads", "12"}, {model + "num_key_value_heads", "6"}},
       "num_key_value_heads: 6 cannot be split evenly"},
      {{.tp = 4},
       {{model + "num_attention_heads", "6"}, {model + "num_key_value_heads", "6"}},
       "num_attention_heads: 6"},
      {{.tp = 4}, {{model + "intermediate_size", "30"}}, "intermediate_size: 30 cannot be split evenly"},
      {{.tp = 2},
       {{"model.name", "deepseek_v3"},
        {model + "num_key_value_heads", "8"},
        {model + "head_dim", "16"},
        {"float8.enable", "true"}},
       "float8.exclude: "},
      {{.cp = 2}, {{"sample.prompt", "\"a\""}}, "sample.prompt: generation adds tokens to whole sequences"},
      {{.dp_shard = 4, .ep = 4},
       {},
       "parallelism.expert_parallel_degree: expected 1, because the model has no experts, found 4"},
      {{.dp_shard = 2},
       {{"training.device", "cuda"}},
       "training.device (--device): a GPU was requested, but the ranks are connected by threads"},
      {{.cp = 2},
       {{"training.task", "classification"}, {"data.datasets.0.pad_to_multiple_of", "2"}},
       "data.datasets.0.pad_to_multiple_of: must be a multiple of 4 for parallelism.context_parallel_degree 2"},
      {{.cp = 4, .tp = 2},
       {{"training.task", "embedding"},
        {"data.datasets.0.kind", "pairs"},
        {"training.local_batch_size", "2"},
        {"data.validation_fraction", "0"},
        {"validation.enable", "false"}},
       "data.datasets.0.pad_to_multiple_of: must be a multiple of 16 for parallelism.context_parallel_degree 4"},
      {{.pp = 2},
       {{"training.task", "embedding"},
        {"data.datasets.0.kind", "pairs"},
        {"training.local_batch_size", "4"},
        {"parallelism.pipeline_parallel_microbatch_size", "2"},
        {"data.validation_fraction", "0"},
        {"validation.enable", "false"}},
       "parallelism.pipeline_parallel_microbatch_size: the negatives of training.task"},
      {{.tp = 2},
       {{"training.task", "classification"}, {"data.datasets.0.pad_to_multiple_of", "3"}},
       "data.datasets.0.pad_to_multiple_of: must be a multiple of parallelism.tensor_parallel_degree (2)"},
      {{.cp = 2, .tp = 2},
       {{"training.task", "token_classification"}, {"data.datasets.0.pad_to_multiple_of", "4"}},
       "data.datasets.0.pad_to_multiple_of: must be a multiple of 8 for parallelism.context_parallel_degree 2"},
      {{.tp = 8},
       {{"model.name", "qwen3_next"}, {model + "head_dim", "8"}},
       "linear_num_key_heads: 4 cannot be split evenly over parallelism.tensor_parallel_degree = 8"},
      {{.tp = 8},
       {{"model.name", "nemotron_h"}},
       "n_groups: 4 cannot be split evenly over parallelism.tensor_parallel_degree = 8"},
      {{.pp = 4}, {{model + "num_hidden_layers", "3"}}, "model.args.num_hidden_layers: pipeline stage"},
      {{.pp = 2},
       {{"training.local_batch_size", "2"},
        {"parallelism.pipeline_parallel_microbatch_size", "1"},
        {"model.name", "qwen3_moe"},
        {"model.args.num_experts", "8"},
        {"model.args.num_experts_per_tok", "2"},
        {"training.router_z_loss_coef", "0.1"}},
       "parallelism.pipeline_parallel_microbatch_size: router losses are computed per micro-batch"},
      {{.pp = 2},
       {{"parallelism.pipeline_parallel_stages_per_rank", "3"}},
       "pipeline_parallel_stages_per_rank: pipeline schedule 1F1B: expected exactly 1 stage per rank, found 3"},
      {{.pp = 2},
       {{"training.local_batch_size", "2"}, {"parallelism.pipeline_parallel_microbatch_size", "3"}},
       "parallelism.pipeline_parallel_microbatch_size: must divide training.local_batch_size (2), found 3"},
      {{.pp = 2},
       {{"parallelism.pipeline_parallel_schedule", "DualPipeV"}, {"training.global_batch_size", "3"}},
       "DualPipeV"},
      {{.pp = 2}, {{"parallelism.pipeline_parallel_schedule_csv", "\"recipe/none.csv\""}}, "recipe/none.csv"},
      {{.dp_shard = 2},
       {{"parallelism.expert_parallel_degree", "4"}},
       "parallelism.expert_parallel_degree: 4 does not divide the 2 ranks"}};
  for (const Refused& one : cases) {
    SCOPED_TRACE(one.message);
    const Folder folder;
    Overrides overrides = family("qwen3");
    TrainConfig config = tiny_run(folder.path(), testing::joined(overrides, one.overrides));
    Mesh mesh = one.mesh;
    if (config.parallelism.expert_parallel_degree > 1) {
      mesh.ep = config.parallelism.expert_parallel_degree;
    }
    EXPECT_THAT(error_of([&] { train_on(mesh, config); }), HasSubstr(one.message));
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl"));
  }
}

// Losses, norms that clip, weights and moments are equal, and checkpoints resume on any mesh. Unless LEHR_ALL_MESHES=1,
// each number of heads has every second mesh.
TEST(KeyValueHeads, FewerThanRanksEqualOneDevice) {
  const std::vector<Mesh> all{{.tp = 4}, {.dp_shard = 2, .tp = 4}, {.cp = 2, .tp = 4}, {.tp = 4, .pp = 2}};
  size_t first = 0;
  for (const auto& [name, heads] : {std::pair("qwen3", "2"), std::pair("qwen3", "1"), std::pair("llama3", "2")}) {
    Overrides overrides = family(name);
    overrides.emplace_back("model.args.num_key_value_heads", heads);
    const Folder of_one;
    const auto one_device = tiny_run(of_one.path(), overrides);
    testing::train(one_device);
    const Outcome wanted = outcome_of(one_device);
    for (const Mesh& mesh : every_nth(2, all, first++ % 2)) {
      SCOPED_TRACE(fmt::format("{} with {} heads on {}", name, heads, mesh.name()));
      const Folder folder;
      const auto config = tiny_run(folder.path(), overrides);
      train_on(mesh, config, kSteps / 2);
      train_on(mesh.cp > 1 ? Mesh{.dp_shard = 4} : mesh, config);
      expect_equal(wanted, outcome_of(config));
    }
  }
}

// 12 sequences: two ranks with four each process the last four together with padding.
TEST(Meshes, ABoundedValidationUsesTheSameSequences) {
  auto overrides = family("qwen3");
  for (const auto& entry : Overrides{
           {"training.steps", "1"},
           {"lr_scheduler.warmup_steps", "0"},
           {"validation.steps", "3"},
           {"validation.local_batch_size", "4"}}) {
    overrides.push_back(entry);
  }
  const auto loss_of = [&](const Mesh& mesh, const Overrides& more) {
    const Folder folder;
    auto all = overrides;
    const auto config = tiny_run(folder.path(), testing::joined(all, more));
    train_on(mesh, config);
    return metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", "validation_loss")
        .values.front();
  };
  const double expected = loss_of({}, {});
  // The same number of sequences in other batches.
  EXPECT_NEAR(
      loss_of({}, {{"validation.steps", "4"}, {"validation.local_batch_size", "3"}}),
      expected,
      testing::kTolerance * expected);
  EXPECT_GT(std::abs(loss_of({}, {{"validation.steps", "2"}}) - expected), 1e-6);
  for (const Mesh& mesh : {Mesh{.dp_shard = 2}, Mesh{.dp_replicate = 2, .dp_shard = 2}, Mesh{.dp_shard = 2, .tp = 2}}) {
    EXPECT_NEAR(loss_of(mesh, {}), expected, testing::kTolerance * expected) << mesh.name();
  }
}

}  // namespace
}  // namespace lehr::train
