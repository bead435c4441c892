// A pipeline run equals one device, with every schedule, alone and combined with other kinds of parallelism. As in
// test/train/mesh_test.cpp, runs are in float64 over whole steps.
#include <cctype>

#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::all_meshes;
using testing::expect_equal;
using testing::family;
using testing::Folder;
using testing::joined;
using testing::kSchedules;
using testing::Mesh;
using testing::Outcome;
using testing::outcome_of;
using testing::Schedule;
using testing::tiny_run;
using testing::train_on;

// Enough layers for eight stages, and micro-batches for every schedule on four ranks.
Overrides with(Overrides overrides, const Overrides& more, int64_t layers = 8) {
  overrides.emplace_back("model.args.num_hidden_layers", std::to_string(layers));
  return testing::joined(overrides, more);
}

struct Model {
  std::string name;
  std::string family;
  Overrides overrides;
};

// The run on one device, once for all schedules.
const Outcome& alone(const Model& model, int64_t layers = 8) {
  static std::map<std::pair<std::string, int64_t>, Outcome> outcomes;
  const std::pair key(model.name, layers);
  const auto found = outcomes.find(key);
  if (found != outcomes.end()) {
    return found->second;
  }
  const Folder folder;
  const auto one_device = tiny_run(folder.path(), with(family(model.family), model.overrides, layers));
  testing::train(one_device);
  return outcomes[key] = outcome_of(one_device);
}

void expect_law(const Model& model, const Schedule& schedule, const Mesh& mesh, int64_t layers = 8) {
  SCOPED_TRACE(model.name + " " + schedule.name + " " + mesh.name());
  Overrides overrides = model.overrides;
  const Overrides chosen = of(schedule);
  overrides.insert(overrides.end(), chosen.begin(), chosen.end());
  const Folder folder;
  const auto config = tiny_run(folder.path(), with(family(model.family), overrides, layers));
  train_on(mesh, config);
  expect_equal(alone(model, layers), outcome_of(config));
}

const Model kUntied{"untied", "qwen3", {{"model.args.tie_word_embeddings", "false"}}};
const Model kTied{
    "tied, nothing computed again",
    "qwen3",
    {{"model.args.tie_word_embeddings", "true"}, {"activation_checkpoint.mode", "none"}}};
const Model kExperts{"experts", "qwen3_moe", {{"activation_checkpoint.mode", "selective"}}};
// Two replicas of four stages, too, have the eight micro-batches that DualPipeV needs.
const Model kUntiedOnReplicas{
    "untied, twice the sequences",
    "qwen3",
    {{"model.args.tie_word_embeddings", "false"}, {"training.global_batch_size", "16"}}};
const Model kExpertsOnReplicas{
    "experts, twice the sequences",
    "qwen3_moe",
    {{"activation_checkpoint.mode", "selective"}, {"training.global_batch_size", "16"}}};

struct Combination {
  const Model& model;
  Mesh mesh;
};

// The combinations of pipelines with other parallelism. Activation checkpointing is on except for the tied model.
const std::vector<Combination> kCombinations{
    {kUntied, {.dp_shard = 2, .pp = 2}},
    {kTied, {.dp_shard = 2, .pp = 2}},
    {kExperts, {.dp_shard = 2, .ep = 2, .pp = 2}},
    {kUntied, {.tp = 2, .pp = 2}},
    {kTied, {.tp = 2, .pp = 2}},
    {kExperts, {.tp = 2, .pp = 2}},
    {kUntied, {.cp = 2, .pp = 2}},
    {kTied, {.cp = 2, .pp = 2}},
    {kExperts, {.cp = 2, .ep = 2, .pp = 2}},
    {kUntiedOnReplicas, {.dp_replicate = 2, .pp = 4}},
    {kExpertsOnReplicas, {.dp_shard = 2, .ep = 2, .pp = 4}}};

struct Run {
  Schedule schedule;
  Model model;
  Mesh mesh;
};

void PrintTo(const Run& run, std::ostream* out) {
  for (const char c : run.schedule.name + " " + run.model.name + " " + run.mesh.name()) {
    *out << (std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_');
  }
}

// Every schedule, alone on two and on four ranks, and combined with every other kind of parallelism. Without
// LEHR_ALL_MESHES=1 (some minutes), every third of these runs, so that each schedule runs alone on two and on four
// ranks and with a third of the combinations, and each combination with a third of the schedules.
std::vector<Run> runs_of_every_schedule() {
  std::vector<Run> runs;
  for (size_t number = 0; number < kSchedules.size(); ++number) {
    const Schedule& schedule = kSchedules[number];
    size_t place = number;
    for (const int64_t ranks : {2, 4}) {
      for (const Model& model : {kUntied, kTied, kExperts}) {
        if (all_meshes() || place % 3 == 0) {
          runs.push_back({schedule, model, {.pp = ranks}});
        }
        ++place;
      }
      ++place;  // another model on four ranks
    }
    for (size_t i = 0; i < kCombinations.size(); ++i) {
      if (all_meshes() || (number + i) % 3 == 0) {
        runs.push_back({schedule, kCombinations[i].model, kCombinations[i].mesh});
      }
    }
  }
  return runs;
}

class EverySchedule : public ::testing::TestWithParam<Run> {};
INSTANTIATE_TEST_SUITE_P(Runs, EverySchedule, ::testing::ValuesIn(runs_of_every_schedule()), [](const auto& run) {
  return ::testing::PrintToString(run.param);
});

// Two ranks have at most four stages.
TEST_P(EverySchedule, EqualsOneDevice) {
  const auto& [schedule, model, mesh] = GetParam();
  expect_law(model, schedule, mesh, 2 * mesh.pp);
}

// Stages that gather their parameters and reduce their gradients once per step, sequences that are gathered again in
// backward, and experts that are computed in parts: alone and combined. Every second one unless LEHR_ALL_MESHES=1.
std::vector<Run> runs_that_keep_whole() {
  const Overrides once{
      {"parallelism.fsdp_reshard_after_forward", "\"never\""}, {"parallelism.fsdp_reduce_each_microbatch", "false"}};
  const Overrides again{{"parallelism.tensor_parallel_regather", "true"}};
  const Overrides parts{{"parallelism.expert_parallel_parts", "2"}};
  const auto changed = [](Model model, const Overrides& more) {
    model.overrides.insert(model.overrides.end(), more.begin(), more.end());
    return model;
  };
  const Model both = changed(changed(kUntied, once), again);
  return {
      {{"1F1B", 1}, changed(kUntied, once), {.dp_shard = 2, .pp = 2}},
      {{"Interleaved1F1B", 2}, changed(kUntied, once), {.dp_shard = 2, .pp = 4}},
      {{"ZBVZeroBubble", 2}, changed(kUntied, once), {.dp_shard = 4, .pp = 2}},
      {{"1F1B", 1}, changed(kTied, once), {.dp_replicate = 2, .dp_shard = 2, .pp = 2}},
      {{"ZBH1", 1}, changed(kUntied, once), {.cp = 2, .pp = 2}},
      {{"Interleaved1F1B", 2}, changed(kExperts, once), {.dp_shard = 2, .ep = 2, .pp = 2}},
      {{"1F1B", 1}, changed(kUntied, again), {.tp = 2, .pp = 2}},
      {{"ZBH2", 1}, changed(kTied, again), {.tp = 2, .pp = 2}},
      {{"Interleaved1F1B", 2}, both, {.tp = 2, .pp = 2}},
      {{"Interleaved1F1B", 2}, both, {.dp_shard = 2, .tp = 2, .pp = 2}},
      {{"DualPipeV", 2}, both, {.dp_shard = 2, .tp = 2, .pp = 2}},
      {{"ZBVZeroBubble", 2}, changed(changed(kExperts, once), again), {.tp = 2, .pp = 2}},
      {{"1F1B", 1}, changed(kExperts, parts), {.dp_shard = 2, .ep = 2, .pp = 2}},
      {{"ZBVZeroBubble", 2}, changed(changed(kExperts, once), parts), {.dp_shard = 2, .ep = 2, .pp = 2}}};
}

TEST(KeptWhole, EqualsOneDevice) {
  for (const auto& run : testing::every_nth(2, runs_that_keep_whole(), 1)) {
    expect_law(run.model, run.schedule, run.mesh, 2 * run.mesh.pp);
  }
}

// Cases that float64 does not cover: different dtypes of weights and computation, and noise.
Model narrow(std::string name, const Overrides& overrides) {
  Model model{
      std::move(name),
      "qwen3",
      {{"model.args.num_hidden_layers", "2"}, {"training.global_batch_size", "8"}, {"training.steps", "10"}}};
  model.overrides.insert(model.overrides.end(), overrides.begin(), overrides.end());
  return model;
}

const Overrides kBfloat16Arithmetic{{"training.dtype", "float32"}, {"training.mixed_precision_param", "bfloat16"}};

Outcome outcome_on(const Mesh& mesh, const Model& model) {
  const Folder folder;
  const auto config = tiny_run(folder.path(), with(family(model.family), model.overrides));
  train_on(mesh, config);
  return outcome_of(config);
}

// A micro-batch has one sequence on one device and in a pipeline alike, and gradients are summed in the same order. So
// gradients have the same bits, and so do all later results; noise is determined by seed, step, parameter and element.
// Weights are untied: the gradients of a table that is used on two stages would be summed separately.
TEST(MixedRuns, HaveTheBitsOfOneDeviceInAPurePipeline) {
  const Overrides untied{{"model.args.tie_word_embeddings", "false"}, {"optimizer.lr", "1e-3"}};
  for (const Model& model :
       {narrow("bfloat16 arithmetic", joined(untied, kBfloat16Arithmetic)),
        narrow(
            "stochastic rounding",
            joined(untied, {{"training.dtype", "bfloat16"}, {"optimizer.name", "stochastic_adamw"}}))}) {
    SCOPED_TRACE(model.name);
    const Outcome& wanted = alone(model);
    testing::expect_moved(testing::initial_weights(with(family(model.family), model.overrides)), wanted.tensors);
    const Outcome found = outcome_on({.pp = 2}, model);
    EXPECT_EQ(found.curves.at("loss"), wanted.curves.at("loss"));
    for (size_t i = 0; i < wanted.curves.at("grad_norm").size(); ++i) {  // stages sum in float64, each its own
      EXPECT_NEAR(found.curves.at("grad_norm")[i], wanted.curves.at("grad_norm")[i], 1e-12) << i;
    }
    testing::expect_same_bits(wanted.tensors, found.tensors);
  }
}

// Compares the change of each weight in ten steps with that on one device. With SGD, since AdamW turns a gradient that
// is only rounding into a full step. Data-parallel ranks sum their bfloat16 gradients in float32 in another order,
// which rarely changes a bit: 2^-8 of the tensor's largest change is one unit of bfloat16. For a tied table, one device
// sums its two gradients in bfloat16, and two stages sum them in float32: an error of 2^-9 of a gradient in each of ten
// steps, which later steps with other roundings amplify.
TEST(MixedRuns, ChangeEachWeightLikeOneDevice) {
  struct Case {
    const char* tied;
    double tolerance;
  };
  for (const Case& one : {Case{"false", 1.0 / 256}, Case{"true", 1.0 / 32}}) {
    const Model model = narrow(
        std::string("bfloat16 arithmetic, tied ") + one.tied,
        joined(
            kBfloat16Arithmetic,
            {{"model.args.tie_word_embeddings", one.tied},
             {"optimizer.name", "sgd"},
             {"optimizer.momentum", "0.9"},
             {"optimizer.lr", "0.2"}}));
    SCOPED_TRACE(model.name);
    const auto before = testing::initial_weights(with(family(model.family), model.overrides));
    const Outcome& wanted = alone(model);
    testing::expect_moved(before, wanted.tensors);
    EXPECT_LT(wanted.curves.at("loss").back(), wanted.curves.at("loss").front() - 0.5) << "nats";
    const Outcome found = outcome_on({.dp_shard = 2, .pp = 2}, model);
    for (size_t i = 0; i < wanted.curves.at("loss").size(); ++i) {
      const double loss = wanted.curves.at("loss")[i];
      EXPECT_NEAR(found.curves.at("loss")[i], loss, 2e-3 * loss) << i;  // bfloat16 keeps three digits
    }
    for (const auto& [name, start] : before) {
      const at::Tensor change = wanted.tensors.at(name) - start;
      const at::Tensor error = (found.tensors.at(name) - start - change).abs();
      EXPECT_LE(error.max().item<double>(), one.tolerance * change.abs().max().item<double>()) << name;
    }
  }
}

// Parameter groups that exist on one stage only, smaller micro-batches, a stage without experts.
TEST(MixedRuns, EqualOneDeviceInFloat64) {
  const std::vector<std::pair<Model, Mesh>> runs{
      {{"groups",
        "qwen3",
        {{"model.args.tie_word_embeddings", "false"},
         {"optimizer.param_groups.0.pattern", "\"lm_head\""},
         {"optimizer.param_groups.0.weight_decay", "0.0"}}},
       {.pp = 2}},
      {{"rows by one", "qwen3", {{"training.local_batch_size", "4"}}}, {.pp = 2}},
      {{"dense first half", "qwen3_moe", {{"model.args.mlp_only_layers", "[0, 1, 2, 3]"}}}, {.pp = 2}}};
  for (const auto& [model, mesh] : runs) {
    SCOPED_TRACE(model.name);
    const Folder folder;
    Overrides overrides = model.overrides;
    if (model.name == "rows by one") {
      overrides.emplace_back("parallelism.pipeline_parallel_microbatch_size", "1");
    }
    const auto config = tiny_run(folder.path(), with(family(model.family), overrides));
    train_on(mesh, config);
    expect_equal(alone(model), outcome_of(config));
  }
}

// Stages that send the counts of tokens along, also to and from stages without experts.
TEST(PaddedExperts, OfPipelinesEqualOneDevice) {
  const Folder data;
  const Overrides padded = testing::padded_documents(data.path());
  const auto dense = [&](const std::string& layers) {
    return testing::joined(padded, {{"model.args.mlp_only_layers", layers}});
  };
  expect_law({"padded", "qwen3_moe", padded}, {"DualPipeV", 2}, {.pp = 2}, 4);
  expect_law({"padded, dense first half", "qwen3_moe", dense("[0, 1]")}, {"ZBH1", 1}, {.cp = 2, .pp = 2}, 4);
  expect_law({"padded, dense second half", "qwen3_moe", dense("[2, 3]")}, {"1F1B", 1}, {.tp = 2, .pp = 2}, 4);
}

// Scales over tokens are those of a micro-batch, which has one sequence on every mesh; a deferred wgrad is of the same
// micro-batch. A difference of 1e-16 changes the rounding of an element with a probability of about 1e-15.
TEST(Float8, EqualsOneDevice) {
  const Overrides float8{{"float8.enable", "true"}, {"model.args.intermediate_size", "32"}};
  expect_law({"float8", "qwen3", float8}, {"ZBVZeroBubble", 2}, {.pp = 2}, 4);
  expect_law({"float8", "qwen3", float8}, {"ZBH1", 1}, {.dp_shard = 2, .pp = 2}, 4);
  expect_law({"float8 and experts", "qwen3_moe", float8}, {"DualPipeV", 2}, {.dp_shard = 2, .ep = 2, .pp = 2}, 4);
  Overrides of_experts = float8;
  of_experts.emplace_back("float8.moe_fqns", R"(['.*\.grouped_experts\..*'])");
  of_experts.emplace_back("model.args.moe_intermediate_size", "16");
  expect_law({"experts in float8", "qwen3_moe", of_experts}, {"ZBVZeroBubble", 2}, {.tp = 4, .ep = 2, .pp = 2}, 4);
}

// A head as costly as three layers, and MoE layers after dense layers.
const Model kLargeVocabulary{"large vocabulary", "qwen3", {{"model.args.vocab_size", "1028"}}};
const Model kHalfExperts{
    "experts in the second half",
    "qwen3_moe",
    {{"model.args.mlp_only_layers", "[0, 1, 2, 3]"}, {"model.args.intermediate_size", "160"}}};

Model by_cost(Model model) {
  model.overrides.emplace_back("parallelism.pipeline_parallel_balance", "cost");
  return model;
}

TEST(BalanceByCost, EqualsOneDevice) {
  expect_law(by_cost(kLargeVocabulary), {"1F1B", 1}, {.pp = 4});
  expect_law(by_cost(kLargeVocabulary), {"ZBVZeroBubble", 2}, {.dp_shard = 2, .pp = 2});
  expect_law(by_cost(kHalfExperts), {"Interleaved1F1B", 2}, {.pp = 2});
}

// The number of layers of each rank.
std::vector<int64_t> layers_of_ranks(const TrainConfig& config, int64_t ranks) {
  std::vector<int64_t> layers(static_cast<size_t>(ranks));
  testing::on_mesh({.pp = ranks}, config, 0, [&](Trainer& trainer) {
    layers[static_cast<size_t>(trainer.ranks().context()->rank())] = trainer.model().num_local_layers();
  });
  return layers;
}

TEST(BalanceByCost, AssignsFewerLayersToTheHeadAndToCostlyLayers) {
  const auto layers = [](const Model& model, int64_t ranks) {
    const Folder folder;
    return layers_of_ranks(tiny_run(folder.path(), with(family(model.family), model.overrides)), ranks);
  };
  EXPECT_EQ(layers(kLargeVocabulary, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(layers(by_cost(kLargeVocabulary), 4), (std::vector<int64_t>{3, 2, 2, 1}));
  EXPECT_EQ(layers(by_cost(kLargeVocabulary), 2), (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(layers(by_cost(kHalfExperts), 2), (std::vector<int64_t>{3, 5}));
}

// Checkpoints do not depend on stages, so a run may change its assignment of layers at any time.
TEST(BalanceByCost, ContinuesWithAnyOtherStages) {
  const Folder folder;
  const auto config = [&](const Model& model) {
    return tiny_run(folder.path(), with(family(model.family), model.overrides));
  };
  train_on({.pp = 2}, config(by_cost(kLargeVocabulary)), 2);
  train_on({.pp = 4}, config(kLargeVocabulary), 1);
  EXPECT_FALSE(std::filesystem::exists(testing::checkpoint(config(kLargeVocabulary), testing::kSteps)))
      << "nothing is left to the last mesh";
  train_on({.pp = 4}, config(by_cost(kLargeVocabulary)));
  expect_equal(alone(kLargeVocabulary), outcome_of(config(kLargeVocabulary)));
}

TEST(BalanceByCost, RefusesManualAssignments) {
  const auto refuses = [](const Overrides& more, const std::string& text) {
    const Folder folder;
    Overrides overrides = by_cost(kLargeVocabulary).overrides;
    overrides.insert(overrides.end(), more.begin(), more.end());
    EXPECT_THAT(
        [&] { train_on({.pp = 4}, tiny_run(folder.path(), with(family("qwen3"), overrides))); },
        ::testing::ThrowsMessage<Error>(::testing::HasSubstr(text)));
  };
  refuses(
      {{"parallelism.pipeline_parallel_last_stage_less_layers", "1"}},
      "parallelism.pipeline_parallel_balance: \"cost\" chooses the layers of every stage");
  refuses({{"model.args.num_hidden_layers", "3"}}, "model.args.num_hidden_layers: pipeline stages: 3 layers cannot");
}

// A custom schedule: GPipe by hand, with stages in a V.
TEST(CustomSchedule, EqualsOneDevice) {
  const Folder folder;
  std::string rows[2];
  const auto add = [&](int64_t rank, const std::string& kind, int64_t stage, int64_t m) {
    rows[rank] += fmt::format("{}{}{}{}", rows[rank].empty() ? "" : ",", stage, kind, m);
  };
  for (const int64_t stage : {0, 1, 2, 3}) {
    for (int64_t m = 0; m < 8; ++m) {
      add(stage == 0 || stage == 3 ? 0 : 1, "F", stage, m);
    }
  }
  for (const int64_t stage : {3, 2, 1, 0}) {
    for (int64_t m = 0; m < 8; ++m) {
      add(stage == 0 || stage == 3 ? 0 : 1, m % 2 == 0 ? "B" : "I", stage, m);
    }
  }
  for (const int64_t stage : {0, 1, 2, 3}) {
    for (int64_t m = 1; m < 8; m += 2) {
      add(stage == 0 || stage == 3 ? 0 : 1, "W", stage, m);
    }
  }
  const auto file = folder.path() / "schedule.csv";
  write_file_atomically(file, rows[0] + "\n" + rows[1] + "\n");
  const auto config = tiny_run(
      folder.path(),
      with(
          family("qwen3"),
          {{"model.args.tie_word_embeddings", "true"},
           {"activation_checkpoint.mode", "none"},
           {"parallelism.pipeline_parallel_schedule_csv", "\"" + file.string() + "\""}},
          4));
  train_on({.pp = 2}, config);
  expect_equal(alone(kTied, 4), outcome_of(config));
}

// Norms after the sub-blocks, biases, windows, layers without rotary positions or with others, scaled embeddings, other
// routers, states: all families but those of the other tests, and Llama 3, whose layer is Qwen3's without QK-norm.
const std::vector<std::string>& other_families() {
  static const auto kFamilies = [] {
    auto names = testing::trained_families();
    std::erase_if(names, [](const auto& name) { return name == "qwen3" || name == "qwen3_moe" || name == "llama3"; });
    return names;
  }();
  return kFamilies;
}

class PipelineOfFamilies : public ::testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(
    Families, PipelineOfFamilies, ::testing::Range<size_t>(0, other_families().size()), [](const auto& one) {
      return other_families()[one.param];
    });

// Without LEHR_ALL_MESHES=1, a family has two of the four pipelines, and the next family the others.
TEST_P(PipelineOfFamilies, ComputesWhatOneDeviceComputes) {
  const std::string& family = other_families()[GetParam()];
  const Model model{family, family, {{"model.args.num_hidden_layers", "4"}, {"training.global_batch_size", "4"}}};
  const std::vector<std::pair<Schedule, Mesh>> pipelines{
      {{"1F1B", 1}, {.pp = 2}},
      {{"ZBVZeroBubble", 2}, {.pp = 2}},
      {{"Interleaved1F1B", 2}, {.cp = 2, .pp = 2}},
      {{"1F1B", 1}, {.tp = 2, .pp = 2}}};
  for (const auto& [schedule, mesh] : testing::every_nth(2, pipelines, GetParam() % 2)) {
    expect_law(model, schedule, mesh);
  }
  if (model.family == "qwen3_next" || model.family == "qwen3_5" ||
      model.family == "nemotron_h") {  // their states pass between ranks in backward too
    expect_law(model, {"ZBVZeroBubble", 2}, {.cp = 2, .pp = 2});
  }
}

}  // namespace
}  // namespace lehr::train
