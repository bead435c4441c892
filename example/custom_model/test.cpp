// Tests of a custom model: its equations, its files, its pipeline stages and its runs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "config.h"
#include "family.h"
#include "layer.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/base/log.h"
#include "lehr/config/config.h"
#include "lehr/pretrained/convert.h"
#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"
#include "lehr/train/trainer.h"

namespace parallel_decoder {
namespace {
using namespace lehr;
namespace fs = std::filesystem;

constexpr auto kLayout = descriptor::ExpertLayout::per_expert;

/// Returns an empty folder for the running test.
fs::path test_folder() {
  const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const fs::path folder = fs::temp_directory_path() / "parallel_decoder" / test;
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

/// Runs six steps of the recipe in `folder`, or stops after fewer, as a signal would. Returns the last checkpoint's
/// folder.
fs::path train_six_steps(const fs::path& folder, int64_t stop_after = 6) {
  const Overrides overrides{
      {"job.dump_folder", "\"" + folder.string() + "\""}, {"training.steps", "6"}, {"checkpoint.interval", "6"}};
  const Config config = load_config<Config>({.file = "recipe.toml", .overrides = overrides});
  Logger log("", /*quiet=*/true);
  train::TrainSpecs specs;
  specs.add(family());
  int64_t step = 0;
  train::Trainer trainer(
      config.train, {.specs = specs, .log = log, .stop_requested = [&] { return step >= stop_after; }});
  trainer.events().subscribe(train::Event::step_end, [&](const train::EventContext& now) { step = now.step; });
  trainer.run();
  return folder / "checkpoints" / ("step-" + std::to_string(step));
}

/// Loads one pipeline stage of a checkpoint's model, reading only its own tensors.
std::shared_ptr<nn::Model> load(const fs::path& checkpoint, const pipeline::PipelineStageInfo& stage = {}) {
  const auto args = family().from_hf_folder(checkpoint);
  auto model = args->build({.stage = stage});
  nn::materialize(*model, at::kCPU, at::kFloat);
  pretrained::load_weights(*model, args->state_map(kLayout), state::WeightReader(checkpoint));
  return model;
}

// The paper's equations, in ATen. Positions are 0..T-1.
at::Tensor rotated(const at::Tensor& heads, double base) {  // (B, T, N, D)
  const int64_t size = heads.size(3);
  const auto frequencies = at::pow(base, -at::arange(0, size, 2, heads.options()) / size);
  const auto angles = at::outer(at::arange(heads.size(1), heads.options()), frequencies).unsqueeze(1);  // (T, 1, D/2)
  const auto halves = heads.chunk(2, -1);
  return at::cat(
      {halves[0] * angles.cos() - halves[1] * angles.sin(), halves[1] * angles.cos() + halves[0] * angles.sin()}, -1);
}

at::Tensor attention(const at::Tensor& x, nn::GroupedQueryAttentionImpl& weights, const LayerParameters& p) {
  auto heads = [&](const nn::Linear& linear, int64_t count) {
    return at::matmul(x, linear->weight.t()).view({x.size(0), x.size(1), count, p.head_dim});
  };
  const int64_t shared = p.num_attention_heads / p.num_key_value_heads;
  const auto q = rotated(heads(weights.q_proj, p.num_attention_heads), 10000).transpose(1, 2);  // (B, N, T, D)
  const auto k = rotated(heads(weights.k_proj, p.num_key_value_heads), 10000).repeat_interleave(shared, 2);
  const auto v = heads(weights.v_proj, p.num_key_value_heads).repeat_interleave(shared, 2).transpose(1, 2);
  const auto scores = at::matmul(q, k.permute({0, 2, 3, 1})) / std::sqrt(p.head_dim);  // (B, N, T, T)
  const auto later = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
  const auto mixed = at::matmul(scores.masked_fill(later, -INFINITY).softmax(-1), v);
  return at::matmul(mixed.transpose(1, 2).flatten(2), weights.o_proj->weight.t());
}

TEST(ParallelLayer, IsAttentionAndFeedForwardSideBySideBehindOneNorm) {
  const LayerParameters params{
      .hidden_size = 24,
      .intermediate_size = 40,
      .num_attention_heads = 4,
      .num_key_value_heads = 2,
      .head_dim = 6,
      .rms_norm_eps = 1e-5,
      .initializer_range = 0.3};
  ParallelLayer layer(params);
  nn::materialize(*layer, at::kCPU, at::kDouble);
  layer->reset_parameters();
  at::NoGradGuard no_gradients;
  layer->input_layernorm->weight.copy_(at::linspace(0.5, 1.5, params.hidden_size));
  const at::Tensor x = at::randn({2, 7, params.hidden_size}, at::kDouble);
  const at::Tensor positions = at::arange(7).unsqueeze(0);

  const at::Tensor normed =
      x * (x.square().mean(-1, true) + params.rms_norm_eps).rsqrt() * layer->input_layernorm->weight;
  const at::Tensor gate = at::matmul(normed, layer->mlp->gate_proj->weight.t());
  const at::Tensor up = at::matmul(normed, layer->mlp->up_proj->weight.t());
  const at::Tensor expected = x + attention(normed, *layer->self_attn, params) +
                              at::matmul(gate * gate.sigmoid() * up, layer->mlp->down_proj->weight.t());
  const at::Tensor found = layer(x, nn::RotaryEmbeddingProvider(10000, params.head_dim)(positions, at::kDouble));
  // The order of float64 operations differs; values are at most about 10.
  EXPECT_LT((found - expected).abs().max().item<double>(), 1e-12);
}

TEST(ParallelDecoder, KeepsFusedTensorsOnDiskAndWritesBackTheBytesThatItRead) {
  const fs::path folder = test_folder();
  const fs::path checkpoint = train_six_steps(folder / "run");
  const state::WeightReader reader(checkpoint);
  const auto model = load(checkpoint);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    parameters[name] = parameter->value();
  }
  auto rows_of = [&](const std::vector<std::string>& names) {
    std::vector<at::Tensor> parts;
    for (const std::string& name : names) {
      parts.push_back(parameters.at("model.layers.1." + name + "_proj.weight"));
    }
    return at::cat(parts);
  };
  EXPECT_TRUE(at::equal(
      reader.tensor("model.layers.1.attn.qkv.weight"), rows_of({"self_attn.q", "self_attn.k", "self_attn.v"})));
  EXPECT_TRUE(at::equal(reader.tensor("model.layers.1.mlp.gate_up.weight"), rows_of({"mlp.gate", "mlp.up"})));

  const auto stored = pretrained::stored_tensors(*model, family().from_hf_folder(checkpoint)->state_map(kLayout));
  EXPECT_EQ(stored.size(), reader.names().size());
  for (const auto& [name, tensor] : stored) {
    EXPECT_TRUE(at::equal(tensor.view(at::kInt), reader.tensor(name).view(at::kInt))) << name;  // bits
  }
  // Lehr's tools support the family too, and write the same file.
  descriptor::ModelFamilies families;
  families.add(family());
  pretrained::convert_checkpoint({.model = checkpoint, .output = folder / "copy"}, families);
  EXPECT_EQ(read_file(checkpoint / "model.safetensors"), read_file(folder / "copy" / "model.safetensors"));
}

TEST(ParallelDecoder, InTwoPipelineStagesIsTheWholeModel) {
  const fs::path checkpoint = train_six_steps(test_folder());
  const at::Tensor ids = at::arange(2 * 16).view({2, 16});
  const at::Tensor labels = ids + 1;
  const auto whole = load(checkpoint)->forward({.input_ids = ids, .labels = labels});
  const auto between = load(checkpoint, {.current_stage = 0, .num_stages = 2})->forward({.input_ids = ids});
  const auto last = load(checkpoint, {.current_stage = 1, .num_stages = 2})
                        ->forward({.hidden_states = between.hidden_states, .labels = labels});
  EXPECT_FALSE(between.logps.defined());
  EXPECT_TRUE(at::equal(whole.logps, last.logps));
}

TEST(ParallelDecoder, StoppedAndResumedEqualsNeverStoppedBitForBit) {
  const fs::path folder = test_folder();
  const fs::path once = train_six_steps(folder / "once");
  EXPECT_EQ(train_six_steps(folder / "twice", 2).filename(), "step-2");
  const fs::path twice = train_six_steps(folder / "twice");
  for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(read_file(once / file), read_file(twice / file)) << file;
  }
}

TEST(Config, ReportsMistakesInItsOwnSectionTogetherWithLehrs) {
  try {
    load_config<Config>({.file = "recipe.toml", .overrides = {{"goal.los_fall", "1"}, {"training.seq_len", "-1"}}});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("loss_fall"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("training.seq_len"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace parallel_decoder
