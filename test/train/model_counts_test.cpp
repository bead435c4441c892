// The FLOPs of partial training, by hand and by the operators of a real step.
#include "lehr/train/model_counts.h"

#include <gtest/gtest.h>

#include "lehr/meter/operation_meter.h"
#include "lehr/train/build_stage.h"
#include "test/train/mesh_support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using testing::joined;
using testing::tiny_run;

constexpr int64_t kTokens = 64;

struct Part {
  const char* name;
  Overrides peft;
  // Of tiny_run's Qwen3, per token: forward, gradients of inputs, and gradients of weights; 0 if it is not written out.
  double matmul_flops = 0;
  double attention_flops_per_pair = 0;
};

Overrides lora(const std::string& pattern) {
  return {
      {"peft.method", "lora"},
      {"peft.r", "4"},
      {"peft.target_pattern", "'" + pattern + "'"},
      {"checkpoint.initial_load_path", "base"}};
}

Overrides full_tune(const std::string& pattern) {
  return {{"peft.method", "full_tune"}, {"peft.full_tune_pattern", "'" + pattern + "'"}};
}

// H = 16, two heads of 8 and one key head, an FFN of 24, a vocabulary of 257, two layers.
constexpr double kQ = 16 * 16, kKeyOrValue = 16 * 8, kO = 16 * 16, kMlp = 3 * 16 * 24, kHead = 16 * 257;
constexpr double kInputs = kQ + 2 * kKeyOrValue;
constexpr double kLayer = kInputs + kO + kMlp;
constexpr double kForward = 2 * (2 * kLayer + kHead);
// A pair's score and weighted value in one layer; backward has twice as many.
constexpr double kPair = 2 * 2 * (8 + 8);
// Adapters of rank 4: A of q, k and v; B of q, k and v; and all of o, gate, up and down.
constexpr double kA = 3 * 4 * 16, kB = 4 * (16 + 8 + 8), kOthers = 4 * (16 + 16) + 3 * 4 * (16 + 24);
constexpr double kAdapters = kA + kB + kOthers;

std::vector<Part> parts() {
  return {
      // All adapters have 2 forward and 4 backward, but nothing below the first layer needs a gradient: there is none
      // of the inputs of its q, k and v.
      {"lora_everywhere",
       lora(".*_proj"),
       kForward + 2 * (2 * kLayer + kHead - kInputs) + 2 * 6 * kAdapters - 2 * kA,
       2 * 3 * kPair},
      {"lora_in_the_last_layer",
       lora(R"(.*layers\.1\..*_proj)"),
       kForward + 2 * (kLayer + kHead - kInputs) + 6 * kAdapters - 2 * kA,
       (2 + 2) * kPair},
      {"the_last_layer",
       full_tune(R"(model\.layers\.1)"),
       kForward + 2 * (kLayer + kHead) + 2 * kLayer,  // its norm is below q, k and v
       (2 + 2) * kPair},
      // Attention is below it.
      {"an_output_matrix", full_tune(R"(.*layers\.1\.mlp\.down_proj)"), kForward + 2 * kHead + 2 * 16 * 24, 2 * kPair},
      {"the_head", full_tune("lm_head"), kForward + 2 * kHead, 2 * kPair},
      {"the_norm_before_the_head", full_tune(R"(model\.norm)"), kForward + 2 * kHead, 2 * kPair},
      {"the_embedding", full_tune(R"(model\.embed_tokens)"), 2 * kForward, 2 * 3 * kPair},
      {"the_embedding_that_is_the_head",
       joined(full_tune(R"(model\.embed_tokens)"), {{"model.args.tie_word_embeddings", "true"}}),
       2 * kForward + 2 * kHead,
       2 * 3 * kPair},
      {"everything", full_tune(R"(model|lm_head)"), 3 * kForward, 2 * 3 * kPair}};
}

struct Counted {
  descriptor::ModelCounts told;
  OperationCounts executed;  // of one sequence
};

Counted count(const Overrides& overrides) {
  const Folder folder;
  const auto all =
      joined({{"training.seq_len", std::to_string(kTokens)}, {"model.args.tie_word_embeddings", "false"}}, overrides);
  const TrainConfig config = tiny_run(folder.path(), all);
  const auto list = testing::specs();
  const TrainSpec& spec = list.at(config.model);
  const auto args = spec.build.model_args(config, spec.family, *spec.build.tokenizer(config));
  Counted counted{.told = count_model(config, *args, spec.build), .executed = {}};

  const auto model = build_with_adapters(config, *args, spec.build);
  nn::materialize(*model, at::kCPU, at::kFloat);
  model->reset_parameters({.seed = 1});
  const at::Tensor ids = at::randint(args->vocab_size(), {1, kTokens}, at::kLong);
  const OperationMeter meter;
  model->forward({.input_ids = ids, .labels = ids}).logps.sum().backward();
  counted.executed = meter.counts();
  return counted;
}

// A figure may be wrong by 0.1 %; all counts are of the same operators.
void expect_close(double found, double wanted) {
  EXPECT_NEAR(found, wanted, 1e-3 * wanted);
}

class ModelCounts : public ::testing::TestWithParam<Part> {};
INSTANTIATE_TEST_SUITE_P(Parts, ModelCounts, ::testing::ValuesIn(parts()), [](const auto& part) {
  return std::string(part.param.name);
});

TEST_P(ModelCounts, AreThoseOfTheGradientsThatAreNeeded) {
  const Part& part = GetParam();
  const descriptor::ModelCounts told = count(part.peft).told;
  expect_close(static_cast<double>(told.attention_flops_per_pair), part.attention_flops_per_pair);
  expect_close(static_cast<double>(told.flops_per_token), part.matmul_flops + part.attention_flops_per_pair * kTokens);
  expect_close(
      static_cast<double>(told.causal_flops_per_token),
      part.matmul_flops + part.attention_flops_per_pair * kTokens / 2);
}

TEST_P(ModelCounts, AreThoseOfARealStep) {
  for (const char* name : {"qwen3", "qwen3_moe", "llama3"}) {
    SCOPED_TRACE(name);
    auto overrides = GetParam().peft;
    overrides.emplace_back("model.name", name);
    if (std::string(name) == "qwen3_moe") {
      overrides.insert(
          overrides.end(),
          {{"model.args.num_experts", "4"},
           {"model.args.num_experts_per_tok", "2"},
           {"model.args.moe_intermediate_size", "12"}});
      if (GetParam().name == std::string("an_output_matrix")) {
        continue;  // experts have other names
      }
    }
    const auto [told, executed] = count(overrides);
    const auto per_pair = static_cast<double>(told.attention_flops_per_pair);
    expect_close(per_pair * kTokens * (kTokens + 1) / 2, executed.attention_flops);
    expect_close(
        static_cast<double>(told.flops_per_token) - per_pair * kTokens,
        (executed.matmul_flops - executed.recomputed_flops) / kTokens);
  }
}

// Training everything, by the model's closed formula and by operators: all weights but those of norms multiply.
TEST(ModelCountsOfWholeModels, AreTheFormulas) {
  const auto whole = count({{"model.args.hidden_size", "256"}}).told;
  const auto tuned = count({{"model.args.hidden_size", "256"},
                            {"peft.method", "full_tune"},
                            {"peft.full_tune_pattern", "'model|lm_head'"}})
                         .told;
  EXPECT_EQ(whole.attention_flops_per_pair, tuned.attention_flops_per_pair);
  constexpr double kNorms = 2 * (2 * 256 + 2 * 8) + 256;
  EXPECT_NEAR(
      static_cast<double>(whole.causal_flops_per_token),
      static_cast<double>(tuned.causal_flops_per_token) + 6 * kNorms,
      1);
}

}  // namespace
}  // namespace lehr::train
