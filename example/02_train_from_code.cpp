// The trainer in a program of your own: the config is written in code, and callbacks subscribe to events.
#include <fmt/core.h>

#include <filesystem>

#include "lehr/base/log.h"
#include "lehr/model/qwen3_dense/family.h"
#include "lehr/train/trainer.h"

using namespace lehr;

int main() {
  train::TrainConfig config;
  config.job.dump_folder = std::filesystem::temp_directory_path() / "lehr_example_02";
  config.model.flavor = "debugmodel";
  config.model.args.hidden_size = 48;
  config.model.args.num_hidden_layers = 2;
  config.tokenizer.path = "byte";
  config.data.datasets = {{.path = "recipe/data/tinyshakespeare.txt"}};
  config.training.seq_len = 64;
  config.training.steps = 30;
  config.optimizer.lr = 5e-3;
  config.lr_scheduler.warmup_steps = 3;
  config.checkpoint.enable = false;
  config.metrics.enable_tensorboard = false;

  // The families that the trainer knows: add your own here.
  train::TrainSpecs specs;
  specs.add(model::qwen3_dense_family());

  Logger log("", /*quiet=*/true);
  train::Trainer trainer(config, {.specs = specs, .log = log, .stop_requested = {}});

  double first = 0;
  trainer.events().subscribe(train::Event::step_end, [&](const train::EventContext& context) {
    const double loss = context.metrics->at("loss");
    first = context.step == 1 ? loss : first;
    if (context.step % 10 == 0) {
      fmt::print("step {:>3}: loss {:.3f}\n", context.step, loss);
    }
  });
  // Runs between backward and the optimizer update: read or change gradients here.
  trainer.events().subscribe(train::Event::gradients_ready, [&](const train::EventContext& context) {
    if (context.step == 1) {
      const auto parameter = nn::named_parameters(*context.model).front();
      fmt::print(
          "{} has gradient norm {:.3f}\n", parameter.name, parameter.parameter->value().grad().norm().item<double>());
    }
  });

  const train::TrainResult result = trainer.run();
  fmt::print("loss {:.3f} -> {:.3f}\n", first, result.loss);
  std::filesystem::remove_all(config.job.dump_folder);
  return result.loss < first ? 0 : 1;
}
