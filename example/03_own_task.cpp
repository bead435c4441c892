// A task of your own: it maps a batch to model inputs, and outputs to the loss. Here it is next-token prediction that
// counts the loss of capital letters twice. Trainer, data, checkpoints and metrics are Lehr's.
#include <fmt/core.h>

#include <filesystem>

#include "lehr/base/log.h"
#include "lehr/model/llama3/family.h"
#include "lehr/train/trainer.h"

using namespace lehr;

class WeightedCausalLMTask : public train::CausalLMTask {
 public:
  // A sum over the valid tokens; the trainer divides by their number over the whole step.
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const train::Batch& batch) const override {
    const at::Tensor capitals = is_capital(batch.at("labels"));
    return (outputs.nll() * (1 + capitals)).sum();  // nll(): (B, T), 0 where there is no label
  }

  // Further sums, reported divided by the number of valid tokens.
  std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& outputs, const train::Batch& batch) const override {
    const at::Tensor capitals = is_capital(batch.at("labels"));
    return {{"share_of_capitals", capitals.sum()}, {"plain_loss", outputs.nll().detach().sum()}};
  }

 private:
  static at::Tensor is_capital(const at::Tensor& labels) {
    return labels.ge('A').logical_and(labels.le('Z')).to(at::kFloat);
  }
};

std::unique_ptr<train::TrainTask> weighted_task(const train::TrainConfig&) {
  return std::make_unique<WeightedCausalLMTask>();
}

int main() {
  train::TrainConfig config;
  config.job.dump_folder = std::filesystem::temp_directory_path() / "lehr_example_03";
  config.model.name = "llama3";
  config.model.flavor = "debugmodel";
  config.model.args.hidden_size = 32;
  config.model.args.num_hidden_layers = 2;
  config.tokenizer.path = "byte";
  config.data.datasets = {{.path = "recipe/data/tinyshakespeare.txt"}};
  config.training.seq_len = 64;
  config.training.steps = 20;
  config.optimizer.lr = 5e-3;
  config.lr_scheduler.warmup_steps = 2;
  config.checkpoint.enable = false;
  config.metrics.enable_tensorboard = false;

  train::TrainSpecs specs;
  specs.add({.family = model::llama3_family(), .build = {.task = weighted_task}});
  Logger log("", /*quiet=*/true);
  train::Trainer trainer(config, {.specs = specs, .log = log, .stop_requested = {}});
  trainer.events().subscribe(train::Event::step_end, [](const train::EventContext& context) {
    if (context.step % 5 == 0) {
      fmt::print(
          "step {:>2}: loss {:.3f}, unweighted {:.3f}, {:.1f} % capitals\n",
          context.step,
          context.metrics->at("loss"),
          context.metrics->at("plain_loss"),
          100 * context.metrics->at("share_of_capitals"));
    }
  });
  trainer.run();
  std::filesystem::remove_all(config.job.dump_folder);
}
