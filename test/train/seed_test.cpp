// The effects of the seeds in the config.
#include <gtest/gtest.h>

#include "lehr/train/batches.h"
#include "lehr/train/builders.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::tiny_run;

/// The weights that a new run starts from, as one vector.
at::Tensor initial_weights(const Overrides& overrides) {
  const Folder folder;
  Logger log("", true);
  const TrainSpecs list = testing::specs();
  Trainer trainer(tiny_run(folder.path(), overrides), {.specs = list, .log = log, .stop_requested = {}});
  std::vector<at::Tensor> parts;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    parts.push_back(parameter->value().detach().flatten());
  }
  return at::cat(parts);
}

/// The inputs of a new run's first step.
at::Tensor first_batch(const Overrides& overrides) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path(), overrides);
  const auto tokenizer = build_tokenizer(config);
  const RunData data = open_run_data(config, *tokenizer, {.vocab_size = 257}, [](const std::string&) {});
  return data.train(RowShare::all(4), 0)->next()->at("input_ids");
}

TEST(Seeds, OfTheRunDetermineTheInitialWeights) {
  const at::Tensor weights = initial_weights({{"debug.seed", "1"}});
  EXPECT_TRUE(at::equal(weights, initial_weights({{"debug.seed", "1"}, {"data.seed", "5"}})));
  EXPECT_FALSE(at::equal(weights, initial_weights({{"debug.seed", "2"}})));
}

TEST(Seeds, OfTheDataDetermineItsOrderAndDefaultToTheRunsSeed) {
  const at::Tensor rows = first_batch({{"debug.seed", "1"}, {"data.seed", "5"}});
  EXPECT_TRUE(at::equal(rows, first_batch({{"debug.seed", "2"}, {"data.seed", "5"}})));
  EXPECT_TRUE(at::equal(rows, first_batch({{"debug.seed", "5"}})));
  EXPECT_FALSE(at::equal(rows, first_batch({{"debug.seed", "1"}, {"data.seed", "6"}})));
  EXPECT_FALSE(at::equal(rows, first_batch({{"debug.seed", "6"}})));
}

}  // namespace
}  // namespace lehr::train
