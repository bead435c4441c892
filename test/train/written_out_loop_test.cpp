// Whole runs of the trainer equal a written-out training loop.
#include "test/train/written_out_loop.h"

#include <gtest/gtest.h>

#include "lehr/metric/metrics_log.h"
#include "lehr/nn/head.h"
#include "test/train/given_batches.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using namespace written_out;
using testing::Folder;
using testing::tiny_run;

// Both loops differ only in the order of sums, 1e-16 each; six steps of AdamW amplify that.
constexpr double kTolerance = 1e-12;

TrainConfig config_of(const Folder& folder, const Overrides& more) {
  Overrides overrides{
      {"training.dtype", "float64"},
      {"training.steps", std::to_string(kSteps)},
      {"training.seq_len", std::to_string(kTokens)},
      {"training.local_batch_size", std::to_string(kMicrobatchSize)},
      {"training.global_batch_size", std::to_string(kBatchSize)},
      {"training.max_norm", std::to_string(kMaxNorm)},
      {"optimizer.lr", std::to_string(kLearningRate)},
      {"optimizer.beta1", std::to_string(kBeta1)},
      {"optimizer.beta2", std::to_string(kBeta2)},
      {"optimizer.eps", std::to_string(kEps)},
      {"optimizer.weight_decay", std::to_string(kWeightDecay)},
      {"lr_scheduler.warmup_steps", "2"},
      {"lr_scheduler.min_lr_factor", "0.1"},
      {"model.args.initializer_range", "0.2"},
      {"checkpoint.enable", "false"},
      {"validation.enable", "false"}};
  return tiny_run(folder.path(), testing::joined(overrides, more));
}

// Random sequences; the first micro-batch has far fewer labels than the second: 5 + step against 24.
std::vector<Batch> random_steps() {
  std::vector<Batch> steps;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor ids = at::randint(257, {kBatchSize, kTokens + 1}, at::kLong);
    const at::Tensor labels = ids.narrow(1, 1, kTokens).clone();
    labels[0].slice(0, 2 + step).fill_(nn::kIgnoreIndex);
    labels[1].slice(0, 0, kTokens - 3).fill_(nn::kIgnoreIndex);
    steps.push_back(
        {{"input_ids", ids.narrow(1, 0, kTokens)},
         {"labels", labels},
         {"position_ids", at::arange(kTokens, at::kLong).expand({kBatchSize, kTokens})}});
  }
  return steps;
}

// The trainer's run on these batches. `initial` receives its initial weights.
Outcome run_trainer(
    const TrainConfig& config,
    const std::vector<Batch>& steps,
    bool deferred_results,
    std::map<std::string, at::Tensor>& initial) {
  TrainSpec spec = testing::specs().at(config.model);
  testing::give_batches(spec, steps);
  TrainSpecs list;
  list.add(spec);
  Logger log("", true);
  Trainer trainer(config, {.specs = list, .log = log, .deferred_results = deferred_results});
  initial = copies_of(trainer.model());
  EXPECT_EQ(trainer.run().step, kSteps);
  Outcome outcome{.logged = {}, .weights = copies_of(trainer.model())};
  for (const char* key :
       {"loss",
        "grad_norm",
        "lr",
        "num_tokens",
        "step_labels",
        "load_balancing_loss",
        "router_z_loss",
        "expert_load_max"}) {
    outcome.logged[key] =
        metric::read_metric(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl", key).values;
  }
  return outcome;
}

// The written-out loop on a model with these weights.
Outcome run_written_loop(
    const TrainConfig& config, const std::vector<Batch>& steps, const std::map<std::string, at::Tensor>& initial) {
  const auto tokenizer = build_tokenizer(config);
  const auto list = testing::specs();
  WrittenLoop loop{.model = build_model_args(config, list.at(config.model).family, *tokenizer)->build({})};
  nn::materialize(*loop.model, at::kCPU, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : nn::named_parameters(*loop.model)) {
      at::Tensor value = parameter->value();
      value.copy_(initial.at(name));
    }
  }
  for (const auto& module : loop.model->modules()) {
    if (auto router = std::dynamic_pointer_cast<nn::TopKRouterImpl>(module)) {
      router->gate->add_call_hook(std::make_shared<KeepLogits>(loop.logits));
      loop.routers.push_back(std::move(router));
    }
  }
  return loop.run(steps);
}

void expect_equal(const Outcome& written, const Outcome& trained) {
  for (const auto& [key, values] : written.logged) {
    ASSERT_EQ(trained.logged.at(key).size(), values.size()) << key;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(trained.logged.at(key)[i], values[i], kTolerance * std::abs(values[i])) << key << " " << i;
    }
  }
  ASSERT_EQ(trained.weights.size(), written.weights.size());
  for (const auto& [name, value] : written.weights) {
    const double tolerance = value.scalar_type() == at::kDouble ? kTolerance : 1e-6;  // routers' biases are float32
    const double error = (trained.weights.at(name) - value).abs().max().item<double>();
    EXPECT_LE(error, tolerance * value.abs().max().item<double>()) << name;
  }
}

void expect_the_written_loop(const Overrides& overrides, bool deferred_results = false) {
  const Folder folder;
  const TrainConfig config = config_of(folder, overrides);
  const std::vector<Batch> steps = random_steps();
  std::map<std::string, at::Tensor> initial;
  const Outcome trained = run_trainer(config, steps, deferred_results, initial);
  expect_equal(run_written_loop(config, steps, initial), trained);
}

TEST(WrittenOutLoop, EqualsTheTrainerForQwen3) {
  expect_the_written_loop({});
}

TEST(WrittenOutLoop, EqualsTheTrainerWithDeferredReadBack) {
  expect_the_written_loop({}, /*deferred_results=*/true);
}

TEST(WrittenOutLoop, EqualsTheTrainerForLlama3WithTiedWeights) {
  expect_the_written_loop({{"model.name", "llama3"}, {"model.args.tie_word_embeddings", "true"}});
}

TEST(WrittenOutLoop, EqualsTheTrainerForQwen3MoEWithRouterLossesAndExpertBias) {
  expect_the_written_loop(
      {{"model.name", "qwen3_moe"},
       {"model.args.num_experts", std::to_string(kExperts)},
       {"model.args.num_experts_per_tok", std::to_string(kTopK)},
       {"model.args.moe_intermediate_size", "8"},
       {"model.args.expert_bias", "true"},
       {"training.router_aux_loss_coef", std::to_string(kAuxLoss)},
       {"training.router_z_loss_coef", std::to_string(kZLoss)},
       {"training.load_balance_coeff", std::to_string(kBiasRate)}});
}

}  // namespace
}  // namespace lehr::train
