// Distillation: the loss and its gradients written out in plain ATen, runs with a teacher on one device and on ranks,
// resumed runs, and refusals.
#include "lehr/train/distillation.h"

#include <ATen/ops/cosine_similarity.h>
#include <ATen/ops/log_softmax.h>
#include <gmock/gmock.h>

#include "lehr/nn/head.h"
#include "lehr/train/run.h"
#include "lehr/train/step.h"
#include "test/train/mesh_support.h"
#include "test/train/written_model.h"

namespace lehr::train {
namespace {

using model::test::LayerShape;
using testing::curve;
using testing::error_of;
using testing::every_nth;
using testing::Folder;
using ::testing::HasSubstr;
using testing::Mesh;
using testing::outcome_of;
using testing::train;

const std::vector<LayerShape> kTeacher{{4, 32}, {4, 32}, {4, 32}};
/// A pruned child: narrower, and one layer that is nothing at all.
const std::vector<LayerShape> kStudent{{4, 16}, {0, 0}, {2, 32}};

// So that predictions are far from uniform, and no two logits are nearly equal.
void sharpen(nn::Model& model) {
  at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    parameter->value().mul_(parameter->shape().size() > 1 ? 6 : 1);
  }
}

void write_teacher(
    const std::filesystem::path& folder, int64_t vocabulary, const std::vector<LayerShape>& layers = kTeacher) {
  testing::write_model(folder, "llama", layers, 7, vocabulary);
  const auto teacher = pretrained::ModelFolder::open(folder, testing::families());
  const auto model = teacher.load(at::kCPU, at::kFloat);
  sharpen(*model);
  state::save_safetensors(
      folder / "model.safetensors",
      pretrained::stored_tensors(*model, teacher.args->state_map(descriptor::ExpertLayout::per_expert)));
}

/// Ten steps in float64 of a heterogeneous Qwen3, with a Llama as its teacher.
TrainConfig distilled_run(
    const std::filesystem::path& folder,
    const Overrides& more = {},
    const std::vector<LayerShape>& student = kStudent) {
  write_teacher(folder / "teacher", 257);
  std::filesystem::create_directory(folder / "shape");
  write_file_atomically(folder / "shape/config.json", model::test::config_json("qwen3", student, 257, /*tied=*/true));
  Overrides overrides{
      {"training.dtype", "float64"},
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "4"},
      {"training.steps", "10"},
      {"activation_checkpoint.mode", "full"},
      {"data.datasets.0.split_documents", "\"blank_line\""},
      {"checkpoint.interval", "5"},
      {"distillation.teacher", "\"" + (folder / "teacher").string() + "\""},
      {"distillation.temperature", "1.5"},
      {"distillation.loss_weight", "0.2"}};
  TrainConfig config = testing::tiny_run(folder, testing::joined(overrides, more));
  config.model = {};
  config.model.hf_assets_path = (folder / "shape").string();
  return config;
}

std::shared_ptr<nn::Model> built(const std::string& model_type, const std::vector<LayerShape>& layers, uint64_t seed) {
  const Folder folder;
  write_file_atomically(folder.path() / "config.json", model::test::config_json(model_type, layers, 257));
  const auto model = testing::families().from_hf_folder(folder.path())->build({});
  nn::materialize(*model, at::kCPU, at::kDouble);
  model->reset_parameters({.seed = seed});
  sharpen(*model);
  return model;
}

struct Results {
  at::Tensor logits;                    // (B, T, V)
  std::vector<at::Tensor> after_layer;  // (B, T, H) each
};

Results results_of(nn::Model& model, const Batch& batch) {
  Results results;
  std::vector<at::Tensor> layer_inputs;
  nn::ModelInputs inputs = CausalLMTask().build_forward_inputs(batch);
  inputs.layer_inputs = &layer_inputs;
  inputs.layer_outputs = &results.after_layer;
  results.logits = model.logits(model.forward(inputs).hidden_states);
  for (size_t i = 1; i < layer_inputs.size(); ++i) {
    EXPECT_TRUE(at::equal(results.after_layer[i - 1], layer_inputs[i])) << i;
  }
  return results;
}

// The definition: all logits, a sum over the tokens that have a label.
at::Tensor written_out_loss(
    nn::Model& student, nn::Model& teacher, const Batch& batch, const DistillationConfig& config) {
  const Results of_teacher = [&] {
    at::NoGradGuard no_grad;
    return results_of(teacher, batch);
  }();
  const Results of_student = results_of(student, batch);
  const double t = config.temperature;
  const at::Tensor counts = batch.at("labels").ne(-100).to(at::kDouble);  // (B, T)
  const at::Tensor log_p = at::log_softmax(of_teacher.logits / t, -1);
  const at::Tensor log_q = at::log_softmax(of_student.logits / t, -1);
  const at::Tensor kl = (log_p.exp() * (log_p - log_q)).sum(-1);
  at::Tensor distance = at::zeros_like(kl);
  for (size_t i = 0; i < of_student.after_layer.size(); ++i) {
    distance = distance + 1 - at::cosine_similarity(of_student.after_layer[i], of_teacher.after_layer[i], -1);
  }
  distance = distance / static_cast<double>(of_student.after_layer.size());
  const at::Tensor labels = batch.at("labels").clamp_min(0).unsqueeze(-1);
  const at::Tensor nll = -at::log_softmax(of_student.logits, -1).gather(-1, labels).squeeze(-1);
  const at::Tensor each =
      config.kl_weight * t * t * kl + config.cosine_weight * distance + config.loss_weight * nll;  // (B, T)
  return (each * counts).sum() / counts.sum();
}

TEST(Distillation, HasTheLossAndTheGradientsOfItsDefinition) {
  const auto student = built("qwen3", kStudent, 1), same = built("qwen3", kStudent, 1);
  const auto teacher = built("llama", kTeacher, 2);
  const at::Tensor labels = at::randint(257, {3, 9}, at::kLong);
  const Batch batch{
      {"input_ids", at::randint(257, {3, 9}, at::kLong)},
      {"labels", labels.masked_fill(at::rand({3, 9}) < 0.3, -100)},
      {"position_ids", at::arange(9).expand({3, 9}).contiguous()}};
  for (const double temperature : {1.0, 1.5}) {
    DistillationConfig config;
    config.kl_weight = 0.7;
    config.cosine_weight = 0.4;
    config.loss_weight = 0.3;
    config.temperature = temperature;
    const at::Tensor expected = written_out_loss(*same, *teacher, batch, config);
    expected.backward();

    const CausalLMTask usual;
    const DistillationTask task(usual, config, teacher);
    const auto optimizer = testing::default_optimizer(*student);
    TrainStep step(*student, task, *optimizer, {.local_batch_size = 2, .compute = at::kDouble});
    const auto gradients = step.forward_backward(batch, 0, 1);
    // 1e-12: sums of float64 in another order, over the micro-batches too.
    for (const auto& [name, parameter] : nn::named_parameters(*student)) {
      at::Tensor wanted;
      for (const auto& [other, its] : nn::named_parameters(*same)) {
        wanted = other == name ? its->value().grad() : wanted;
      }
      const double scale = wanted.abs().max().item<double>();
      EXPECT_GT(scale, 0) << name;
      EXPECT_LE((parameter->value().grad() - wanted).abs().max().item<double>(), 1e-12 * scale) << name;
    }
    for (const auto& [name, parameter] : nn::named_parameters(*teacher)) {
      EXPECT_FALSE(parameter->value().grad().defined()) << name;
    }
    for (const auto& [name, parameter] : nn::named_parameters(*same)) {
      parameter->value().mutable_grad().reset();
    }
    nn::ModelInputs inputs = task.build_forward_inputs(batch);
    EXPECT_TRUE(task.teacher_of_stage(0)->run(inputs, {}, {}).empty());
    const nn::ModelOutputs outputs = student->forward(inputs);
    const double valid = static_cast<double>(task.count_valid(batch));
    EXPECT_NEAR(task.compute_loss(outputs, batch).item<double>() / valid, expected.item<double>(), 1e-12);
  }
}

TEST(Distillation, OfTheTeacherItselfHasNoLossAndNoGradient) {
  const Folder folder;
  auto config = distilled_run(
      folder.path(),
      {{"training.steps", "1"},
       {"lr_scheduler.warmup_steps", "0"},
       {"distillation.loss_weight", "0"},
       {"checkpoint.initial_load_path", "\"" + (folder.path() / "teacher").string() + "\""}});
  config.model.hf_assets_path = (folder.path() / "teacher").string();
  train(config);
  EXPECT_EQ(curve(config, "kl"), std::vector<double>{0});
  EXPECT_EQ(curve(config, "agreement"), std::vector<double>{1});
  EXPECT_NEAR(curve(config, "cosine").at(0), 0, 1e-15);  // rounding of float64
  EXPECT_NEAR(curve(config, "grad_norm").at(0), 0, 1e-14);
}

TEST(Distillation, BringsAHeterogeneousStudentCloserToItsTeacher) {
  const Folder folder;
  const auto config = distilled_run(
      folder.path(), {{"training.steps", "40"}, {"optimizer.lr", "0.01"}, {"distillation.loss_weight", "0"}});
  train(config);
  for (const char* key : {"loss", "kl", "cosine"}) {
    const auto values = curve(config, key);
    ASSERT_EQ(values.size(), 40U) << key;
    EXPECT_LT(values.back(), 0.8 * values.front()) << key;
  }
  EXPECT_GT(curve(config, "agreement").back(), curve(config, "agreement").front());
  EXPECT_EQ(curve(config, "ce").size(), 40U);
}

TEST(Distillation, ValidatesByTheUsualLoss) {
  const Overrides still{{"optimizer.lr", "1e-40"}, {"training.steps", "1"}, {"lr_scheduler.warmup_steps", "0"}};
  const Folder one, two;
  const auto distilled = distilled_run(one.path(), still);
  auto usual = distilled_run(two.path(), still);
  usual.distillation = {};
  train(distilled);
  train(usual);
  EXPECT_EQ(curve(distilled, "validation_loss"), curve(usual, "validation_loss"));
  // The means are summed in another order: rounding of float64.
  EXPECT_NEAR(curve(distilled, "ce").at(0), curve(usual, "loss").at(0), 1e-12);
  EXPECT_GT(std::abs(curve(distilled, "loss").at(0) - curve(usual, "loss").at(0)), 0.1);
}

const char* const kCurves[] = {"loss", "kl", "ce", "cosine", "agreement"};

void expect_equal_runs(const TrainConfig& wanted, const TrainConfig& found) {
  testing::expect_equal(outcome_of(wanted), outcome_of(found));
  for (const char* key : kCurves) {
    const auto a = curve(wanted, key), b = curve(found, key);
    const bool compared = std::string(key) != "cosine" || wanted.distillation.cosine_weight > 0;
    ASSERT_EQ(a.size(), compared ? static_cast<size_t>(wanted.training.steps) : 0U) << key;
    ASSERT_EQ(b.size(), a.size()) << key;
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i], b[i], testing::kTolerance * std::abs(a[i])) << key << " " << i;
    }
  }
}

// Of the runs on many meshes.
const Overrides kFewSteps{
    {"training.steps", std::to_string(testing::kSteps)}, {"checkpoint.interval", std::to_string(testing::kSteps)}};

// Every second mesh unless LEHR_ALL_MESHES=1.
TEST(Distillation, OnRanksEqualsOneDevice) {
  const Folder one;
  const auto alone = distilled_run(one.path(), kFewSteps);
  train(alone);
  const std::vector<Mesh> meshes{
      {.dp_shard = 2},
      {.dp_replicate = 2},
      {.dp_replicate = 2, .dp_shard = 2},
      {.cp = 2},
      {.dp_shard = 2, .cp = 2},
      {.dp_replicate = 2, .cp = 2},
      {.tp = 2},
      {.dp_shard = 2, .cp = 2, .tp = 2}};
  for (const Mesh& mesh : every_nth(2, meshes, 1)) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = distilled_run(folder.path(), kFewSteps);
    testing::train_on(mesh, config);
    expect_equal_runs(alone, config);
  }
}

// The model has as many layers as stages; each compares its layers with the teacher's there. Every second case unless
// LEHR_ALL_MESHES=1.
TEST(Distillation, InPipelineStagesEqualsOneDevice) {
  const std::vector<LayerShape> student{{4, 16}, {0, 32}, {2, 32}, {4, 16}};
  const std::vector<LayerShape> teacher{{4, 32}, {4, 32}, {4, 32}, {2, 32}};
  const auto run_in = [&](const Folder& folder, int64_t sequences, const Overrides& more) {
    Overrides overrides = kFewSteps;
    overrides.emplace_back("training.global_batch_size", std::to_string(sequences));
    overrides.insert(overrides.end(), more.begin(), more.end());
    const auto config = distilled_run(folder.path(), overrides, student);
    write_teacher(folder.path() / "teacher", 257, teacher);
    return config;
  };
  struct Alone {
    Folder folder;
    TrainConfig config;
  };
  std::map<int64_t, std::unique_ptr<Alone>> all_alone;  // by sequences per step
  struct Case {
    Mesh mesh;
    testing::Schedule schedule;
    Overrides more = {};
  };
  const Overrides unequal_stages{{"parallelism.pipeline_parallel_first_stage_less_layers", "2"}};
  const std::vector<Case> cases{
      {{.pp = 2}, {"1F1B", 1}},
      {{.pp = 2}, {"GPipe", 1}, unequal_stages},
      {{.pp = 2}, {"ZBVZeroBubble", 2}},
      {{.pp = 2}, {"Interleaved1F1B", 2}},
      {{.dp_shard = 2, .pp = 2}, {"GPipe", 1}},
      {{.dp_shard = 2, .pp = 2}, {"ZBH1", 1}, {{"parallelism.fsdp_reshard_after_forward", "never"}}},
      {{.tp = 2, .pp = 2}, {"1F1B", 1}, {{"training.local_batch_size", "2"}}},
      {{.tp = 2, .pp = 2}, {"DualPipeV", 2}},
      {{.dp_replicate = 2, .pp = 4}, {"ZBH2", 1}},
      {{.cp = 2, .pp = 2}, {"InterleavedZeroBubble", 2}},
      {{.dp_shard = 2, .tp = 2, .pp = 2}, {"GPipe", 1}}};
  for (const auto& [mesh, schedule, more] : every_nth(2, cases, 1)) {
    SCOPED_TRACE(mesh.name() + " " + schedule.name);
    const int64_t sequences = 4 * mesh.dp_replicate * mesh.dp_shard;
    auto& alone = all_alone[sequences];
    if (!alone) {
      alone = std::make_unique<Alone>();
      alone->config = run_in(alone->folder, sequences, {});
      train(alone->config);
    }
    Overrides overrides = testing::of(schedule);
    overrides.insert(overrides.end(), more.begin(), more.end());
    const Folder folder;
    const auto config = run_in(folder, sequences, overrides);
    testing::train_on(mesh, config);
    expect_equal_runs(alone->config, config);
  }
}

// Only the divergence of the heads: the teacher has layers, widths and a head of its own, and is cut by itself.
TEST(Distillation, InPipelineStagesOfATeacherOfOtherDepthEqualsOneDevice) {
  const auto run_in = [&](const Folder& folder, const Overrides& more) {
    Overrides overrides{{"distillation.cosine_weight", "0"}};
    const auto config = distilled_run(folder.path(), testing::joined(overrides, more), {{4, 16}, {2, 32}});
    write_teacher(folder.path() / "teacher", 257, {{4, 32}, {4, 32}, {2, 32}, {4, 32}, {4, 16}});
    return config;
  };
  const Folder one, folder;
  const auto alone = run_in(one, {});
  train(alone);
  const auto config = run_in(folder, {{"parallelism.pipeline_parallel_schedule", "1F1B"}});
  testing::train_on({.dp_shard = 2, .pp = 2}, config);
  expect_equal_runs(alone, config);
}

// The cost of the model's layers cuts it after the third, that of the teacher's after the second.
TEST(Distillation, CutsATeacherOfTheModelsDepthLikeTheModel) {
  const auto run_in = [&](const Folder& folder, const Overrides& more) {
    const auto config = distilled_run(folder.path(), more, {{0, 8}, {0, 8}, {4, 96}, {4, 96}});
    write_teacher(folder.path() / "teacher", 257, {{4, 32}, {4, 32}, {4, 32}, {4, 32}});
    return config;
  };
  const Folder one, folder;
  const auto alone = run_in(one, {});
  train(alone);
  const auto config = run_in(folder, {{"parallelism.pipeline_parallel_balance", "cost"}});
  testing::train_on({.pp = 2}, config);
  expect_equal_runs(alone, config);
}

TEST(Distillation, RefusesATeacherWithFewerLayersThanStages) {
  const Folder folder;
  auto config = distilled_run(
      folder.path(),
      {{"distillation.cosine_weight", "0"}, {"parallelism.pipeline_parallel_schedule", "1F1B"}},
      {{4, 16}, {4, 16}, {2, 32}, {4, 16}});
  const std::string message = error_of([&] { testing::train_on({.pp = 4}, config); });
  EXPECT_THAT(message, HasSubstr("distillation.teacher: parallelism.pipeline_parallel_degree"));
  EXPECT_FALSE(std::filesystem::exists(config.job.dump_folder));
}

TEST(Distillation, OfATeacherThatIsUnshardedOnceEqualsOneDevice) {
  const Folder one, folder;
  const auto alone = distilled_run(one.path());
  const auto config = distilled_run(folder.path(), {{"parallelism.fsdp_reshard_after_forward", "never"}});
  train(alone);
  testing::train_on({.dp_shard = 2, .tp = 2}, config);
  expect_equal_runs(alone, config);
}

// Experts of both models are on two ranks each, beside shards of the rest.
TEST(Distillation, OfExpertsOnRanksEqualsOneDevice) {
  const std::vector<LayerShape> teacher{{4, 8, 6, 2}, {2, 32}, {4, 8, 6, 3}},
      student{{4, 8, 4, 2}, {0, 0}, {2, 8, 6, 2}};
  const auto run_in = [&](const Folder& folder, const Overrides& more = {}) {
    auto config = distilled_run(folder.path(), more);
    testing::write_model(folder.path() / "experts", "qwen3_moe", teacher, 7, 257);
    write_file_atomically(folder.path() / "shape/config.json", model::test::config_json("qwen3_moe", student, 257));
    config.distillation.teacher = (folder.path() / "experts").string();
    return config;
  };
  // Router losses depend on the tokens of a forward pass, which on ranks are others.
  Overrides losses = kFewSteps;
  losses.emplace_back("training.router_aux_loss_coef", "0");
  losses.emplace_back("training.router_z_loss_coef", "0");
  const Folder one;
  const auto alone = run_in(one, losses);
  train(alone);
  for (const Mesh& mesh :
       {Mesh{.dp_shard = 2, .ep = 2}, Mesh{.cp = 2, .ep = 2}, Mesh{.dp_shard = 2, .tp = 2, .ep = 2}}) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = run_in(folder, losses);
    testing::train_on(mesh, config);
    expect_equal_runs(alone, config);
  }
}

TEST(Distillation, KeepsShardsOfTheTeacherAndItsWholeHead) {
  const Folder folder;
  const auto config = testing::with_degrees(distilled_run(folder.path()), {.dp_shard = 4});
  mesh::run_ranks(
      4,
      [&](mesh::Transport& transport) {
        Logger quiet("", true);
        const auto list = testing::specs();
        const auto run = build_run(config, {.specs = list, .log = quiet, .transport = &transport});
        const Batch batch{
            {"input_ids", at::arange(32).unsqueeze(0)},
            {"labels", at::arange(32).unsqueeze(0)},
            {"position_ids", at::arange(32).unsqueeze(0)}};
        const auto targets_of = [&] {
          nn::ModelInputs inputs = run->distillation->build_forward_inputs(batch);
          run->distillation->teacher_of_stage(0)->run(inputs, {}, {});
          return inputs.distillation;
        };
        const auto targets = targets_of();
        const at::Tensor head = targets->head_weight.clone();
        EXPECT_EQ(head.sizes(), (std::vector<int64_t>{257, model::test::kHidden}));
        // The head and the final norm, padded to shards of the same size.
        const int64_t unit = (257 + 1) * model::test::kHidden,
                      gathered = run->teacher_on_ranks->stages().front().sharded.gathered_bytes();
        EXPECT_GE(gathered, 8 * unit);
        EXPECT_LE(gathered, 8 * (unit + 4 * model::test::kHidden));
        // A second batch has the same teacher.
        EXPECT_TRUE(at::equal(targets_of()->head_weight, head));

        const auto& teacher = *run->teacher->args;
        const int64_t parameters = teacher.get_nparams_and_flops(32).num_parameters;
        const int64_t table = 257 * model::test::kHidden, layers = 3, kept = (layers + 1) * 32 * model::test::kHidden;
        const int64_t shards = parameters / 4 + table + 2 * (parameters - table) / layers;
        EXPECT_LT(shards, parameters);
        EXPECT_EQ(teacher_bytes(config, teacher, run->ranks.context()), 8 * (shards + kept));
      },
      std::chrono::seconds(60));
}

// In a pipeline a rank has some of its layers; the forecast is at least what any rank allocates.
TEST(Distillation, CountsTheTeachersStagesOfARank) {
  for (const char* less : {"0", "1"}) {  // layers by stage: 2 and 2, or 1 and 3
    SCOPED_TRACE(less);
    const Folder folder;
    const auto config = testing::with_degrees(
        distilled_run(folder.path(), {{"parallelism.pipeline_parallel_first_stage_less_layers", less}}), {.pp = 2});
    mesh::run_ranks(
        2,
        [&](mesh::Transport& transport) {
          Logger quiet("", true);
          const auto list = testing::specs();
          const auto run = build_run(config, {.specs = list, .log = quiet, .transport = &transport});
          int64_t bytes = 0;
          for (const ModelOnRanks::Stage& stage : run->teacher_on_ranks->stages()) {
            for (const auto& [name, parameter] : nn::named_parameters(*stage.model)) {
              bytes += static_cast<int64_t>(parameter->value().nbytes());
            }
          }
          const int64_t forecast = teacher_bytes(run->config, *run->teacher->args, run->ranks.context());
          // Rank 0 has two micro-batches in flight, each with the hidden states after two layers; or rank 1 has one,
          // with those after three layers and those of the head.
          const int64_t kept = 8 * 2 * 2 * 32 * model::test::kHidden;
          EXPECT_GT(bytes, 0);
          EXPECT_GE(forecast, bytes + kept);
          EXPECT_LT(
              forecast - kept, teacher_bytes(run->config, *run->teacher->args) - 8 * 4 * 32 * model::test::kHidden);
        },
        std::chrono::seconds(60));
  }
}

TEST(Distillation, DoesNotDependOnTheMicrobatchSize) {
  const Folder one, two;
  const auto small = distilled_run(one.path());
  const auto large = distilled_run(two.path(), {{"training.local_batch_size", "4"}});
  train(small);
  train(large);
  expect_equal_runs(small, large);
}

TEST(Distillation, StoppedAndResumedEqualsNeverStoppedBitForBit) {
  const Folder one, two;
  const auto whole = distilled_run(one.path());
  const auto parts = distilled_run(two.path());
  train(whole);
  EXPECT_TRUE(train(parts, 5).stopped);
  train(parts);
  testing::expect_same_bits(outcome_of(whole).tensors, outcome_of(parts).tensors);
  for (const char* key : kCurves) {
    EXPECT_EQ(curve(whole, key), curve(parts, key)) << key;
  }
}

TEST(Distillation, TrainsAdaptersAndInMixedPrecision) {
  const Folder adapters, mixed;
  testing::write_model(adapters.path() / "base", "qwen3", kStudent, 3, 257);
  const std::string base = "\"" + (adapters.path() / "base").string() + "\"";
  auto config = distilled_run(
      adapters.path(),
      {{"peft.method", "lora"},
       {"optimizer.lr", "0.02"},
       {"training.steps", "30"},
       {"checkpoint.initial_load_path", base}});
  config.model.hf_assets_path = (adapters.path() / "base").string();
  train(config);
  EXPECT_LT(curve(config, "loss").back(), 0.9 * curve(config, "loss").front());

  config = distilled_run(
      mixed.path(),
      {{"training.dtype", "float32"}, {"training.mixed_precision_param", "bfloat16"}, {"optimizer.lr", "0.01"}});
  train(config);
  EXPECT_LT(curve(config, "kl").back(), 0.9 * curve(config, "kl").front());
}

TEST(Distillation, OfConversationsComparesAnswersOnly) {
  const Folder folder;
  write_teacher(folder.path() / "teacher", 1024);
  const auto config = testing::tiny_run(
      folder.path(),
      {{"model.args.vocab_size", "1024"},
       {"model.args.max_position_embeddings", "128"},
       {"tokenizer.path", "\"recipe/data/chat_tokenizer\""},
       {"data.validation_fraction", "0.0"},
       {"validation.enable", "false"},
       {"data.datasets.0.path", "\"recipe/data/instructions.json\""},
       {"data.datasets.0.kind", "\"chat\""},
       {"data.datasets.0.prompt_key", "\"instruction\""},
       {"data.datasets.0.input_key", "\"input\""},
       {"data.datasets.0.answer_key", "\"output\""},
       {"training.task", "\"sft\""},
       {"training.seq_len", "64"},
       {"training.steps", "2"},
       {"distillation.teacher", "\"" + (folder.path() / "teacher").string() + "\""},
       {"distillation.cosine_weight", "0"}});
  train(config);
  // Divided by the labels of answers: the first loss is about that of uniform predictions.
  EXPECT_NEAR(curve(config, "ce").at(0), std::log(1024.0), 0.1);
  EXPECT_NEAR(curve(config, "kl").at(0), curve(config, "loss").at(0), 1e-5);  // rounding of float32
  EXPECT_TRUE(curve(config, "cosine").empty());
}

TEST(Distillation, AddsTheTeacherToTheForecast) {
  const Folder folder;
  auto config = distilled_run(folder.path(), {{"activation_checkpoint.mode", "auto"}});
  const auto teacher = testing::families().from_hf_folder(folder.path() / "teacher");
  const int64_t parameters = teacher->get_nparams_and_flops(32).num_parameters;
  const int64_t bytes = teacher_bytes(config, *teacher);
  EXPECT_EQ(bytes, 8 * (parameters + (3 + 1) * 32 * model::test::kHidden));
  config.distillation.cosine_weight = 0;
  EXPECT_EQ(teacher_bytes(config, *teacher), 8 * (parameters + 32 * model::test::kHidden));
  config.distillation.cosine_weight = 1;

  const auto chosen = [&](int64_t memory) {
    Logger quiet("", true);
    const auto list = testing::specs();
    const RunEnvironment environment{
        .specs = list,
        .log = quiet,
        .forecast =
            [](const TrainConfig& with, const TrainSpec&, const descriptor::ModelArgs&, int64_t) {
              return StepForecast{.peak = with.activation_checkpoint.mode == "none" ? 1000 : 100, .extra_flops = 0.1};
            },
        .memory = memory};
    return build_run(config, environment)->config.activation_checkpoint.mode;
  };
  EXPECT_EQ(chosen(bytes + 1000), "none");
  EXPECT_NE(chosen(bytes + 999), "none");
}

TEST(Distillation, IsRefusedByNameWhereItIsNotSupported) {
  const Folder folder;
  const auto message = [&](const Overrides& overrides) {
    return error_of([&] { testing::tiny_run(folder.path(), overrides); });
  };
  const std::pair<std::string, std::string> teacher{"distillation.teacher", "\"somewhere\""};
  EXPECT_THAT(
      message({teacher, {"training.task", "\"classification\""}}),
      HasSubstr("distillation.teacher: a classifier has no token distribution"));
  EXPECT_THAT(
      message({teacher, {"training.cuda_graphs", "true"}}), HasSubstr("distillation.teacher: the teacher's work"));
  EXPECT_THAT(
      message({teacher, {"distillation.kl_weight", "0"}, {"distillation.cosine_weight", "0"}}),
      HasSubstr("distillation.kl_weight: all weights of the loss are 0"));
  EXPECT_THAT(
      message({{"distillation.temperature", "2"}}),
      HasSubstr("distillation.teacher: the other keys of [distillation]"));
  EXPECT_THAT(message({teacher, {"distillation.temperature", "0"}}), HasSubstr("distillation.temperature"));
  EXPECT_THAT(message({teacher, {"distillation.cosine_weight", "-1"}}), HasSubstr("distillation.cosine_weight"));
}

// Of two segments, a rank has a part of each.
TEST(Distillation, NeedsVocabulariesThatAreSplitAlikeForTensorParallelism) {
  const Folder folder;
  auto config = distilled_run(folder.path());
  const auto student = testing::families().from_hf_folder(folder.path() / "shape");
  student->apply({.split_vocab_size = {{"old", 200}, {"new", 57}}, .split_vocab_order = {"old", "new"}});
  EXPECT_TRUE(open_teacher(config, testing::families(), *student));
  config.parallelism.tensor_parallel_degree = 2;
  EXPECT_THAT(
      error_of([&] { open_teacher(config, testing::families(), *student); }),
      HasSubstr("has segments of 257 tokens, and the model of 200, 57"));
}

TEST(Distillation, NamesATeacherThatDoesNotFit) {
  const auto message = [&](const std::vector<LayerShape>& student, const Overrides& overrides) {
    const Folder folder;
    const auto config = distilled_run(folder.path(), overrides, student);
    return error_of([&] { train(config); });
  };
  EXPECT_THAT(
      message(kStudent, {{"distillation.teacher", "\"nowhere\""}}),
      HasSubstr("distillation.teacher: nowhere is not a folder"));
  EXPECT_THAT(
      message({{4, 16}, {2, 32}}, {}),
      AllOf(HasSubstr("distillation.cosine_weight"), HasSubstr("has 3 layers of size 24, and the model 2 of size 24")));

  const Folder folder;
  testing::write_model(folder.path() / "small", "llama", kTeacher, 7);
  EXPECT_THAT(
      message(kStudent, {{"distillation.teacher", "\"" + (folder.path() / "small").string() + "\""}}),
      HasSubstr("has 29 tokens, but the model's has 257"));
}

}  // namespace
}  // namespace lehr::train
