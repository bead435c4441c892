// Runs that train a part of a model: saved files, resumption, and errors.
#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/config/json.h"
#include "lehr/metric/metrics_log.h"
#include "lehr/peft/adapter_folder.h"
#include "lehr/peft/inject.h"
#include "lehr/pretrained/model_folder.h"
#include "lehr/state/weights.h"
#include "lehr/train/batches.h"
#include "lehr/train/validate.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {
using testing::checkpoint;
using testing::curve;
using testing::expect_same_bits;
using testing::Folder;
using ::testing::HasSubstr;
using ::testing::Property;
using testing::tensors;
using ::testing::Throws;
using testing::tiny_run;
using testing::train;

auto fails_with(const std::string& text) {
  return Throws<Error>(Property(&Error::what, HasSubstr(text)));
}

std::string quoted(const std::filesystem::path& path) {
  return "\"" + path.string() + "\"";
}

// A regular expression as a literal string of TOML.
std::string pattern(const std::string& expression) {
  return "'" + expression + "'";
}

// A base of twelve steps, trained once for all tests.
const std::filesystem::path& base() {
  static const Folder folder;
  static const std::filesystem::path path = [] {
    const auto config = tiny_run(folder.path());
    train(config);
    return checkpoint(config, 12);
  }();
  return path;
}

TrainConfig lora_run(const std::filesystem::path& folder, const Overrides& more = {}) {
  Overrides all{
      {"checkpoint.initial_load_path", quoted(base())},
      {"peft.method", "lora"},
      {"peft.r", "4"},
      {"optimizer.lr", "0.01"}};
  return tiny_run(folder, testing::joined(all, more));
}

TEST(PeftRun, TrainsAdaptersOnly) {
  const Folder folder;
  const auto config = lora_run(folder.path(), {{"peft.target_pattern", pattern(".*\\.(q|v)_proj")}});
  Logger log("", true);
  const auto list = testing::specs();
  Trainer trainer(config, {.specs = list, .log = log, .stop_requested = {}});
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    before[name] = parameter->value().detach().clone();
  }
  int64_t updates = 0;
  trainer.events().subscribe(Event::gradients_ready, [&](const EventContext& context) {
    ++updates;
    for (const auto& [name, parameter] : nn::named_parameters(*context.model)) {
      EXPECT_EQ(parameter->value().grad().defined(), name.find(".lora.") != std::string::npos) << name;
    }
  });
  trainer.run();
  EXPECT_EQ(updates, 12);
  int64_t changed = 0;
  for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
    const bool same = at::equal(parameter->value(), before.at(name));
    EXPECT_EQ(same, name.find(".lora.") == std::string::npos) << name;
    changed += same ? 0 : 1;
  }
  EXPECT_EQ(changed, 8);  // A and B of q and v in two layers
  EXPECT_LT(curve(config, "loss").back(), curve(config, "loss").front());

  const auto moments = tensors(checkpoint(config, 12), "optimizer");
  EXPECT_EQ(moments.size(), 8 * 3U);
  EXPECT_FALSE(state::WeightReader::exists(checkpoint(config, 12)));
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors", "model_config.json", "trainer.json"}) {
    EXPECT_TRUE(std::filesystem::exists(checkpoint(config, 12) / file)) << file;
  }
}

// With all options that could make a resumed run differ.
TEST(PeftRun, StoppedAndResumedEqualsNeverStoppedBitForBit) {
  const Overrides all{
      {"training.mixed_precision_param", "bfloat16"},
      {"peft.dropout", "0.2"},
      {"peft.full_tune_pattern", pattern("model\\.norm")},
      {"activation_checkpoint.mode", "full"}};
  const Folder whole;
  const Folder parts;
  const auto once = lora_run(whole.path(), all);
  train(once);
  const auto twice = lora_run(parts.path(), all);
  EXPECT_TRUE(train(twice, 5).stopped);
  EXPECT_TRUE(train(twice, 3).stopped);
  EXPECT_EQ(train(twice).step, 12);
  expect_same_bits(
      tensors(checkpoint(once, 12), peft::kAdapterStem), tensors(checkpoint(twice, 12), peft::kAdapterStem));
  expect_same_bits(tensors(checkpoint(once, 12), "optimizer"), tensors(checkpoint(twice, 12), "optimizer"));
  EXPECT_EQ(curve(once, "loss"), curve(twice, "loss"));
  EXPECT_EQ(curve(once, "grad_norm"), curve(twice, "grad_norm"));
  EXPECT_EQ(curve(once, "validation_loss"), curve(twice, "validation_loss"));
}

// In float64, so that only rounding (1e-12 relative) is left between different micro-batch sizes. The masks of dropout
// must not depend on the size either, nor on recompute.
TEST(PeftRun, MicrobatchSizeAndRecomputeDoNotChangeTheLoss) {
  std::vector<std::vector<double>> runs;
  for (const auto& [rows, mode] :
       {std::pair{"1", "none"}, {"2", "none"}, {"4", "none"}, {"2", "full"}, {"2", "selective"}}) {
    const Folder folder;
    const auto config = lora_run(
        folder.path(),
        {{"training.local_batch_size", rows},
         {"training.dtype", "float64"},
         {"peft.dropout", "0.3"},
         {"activation_checkpoint.mode", mode}});
    train(config);
    runs.push_back(curve(config, "loss"));
  }
  for (size_t i = 0; i < runs[0].size(); ++i) {
    EXPECT_NEAR(runs[0][i], runs[1][i], 1e-12 * runs[0][i]);
    EXPECT_NEAR(runs[0][i], runs[2][i], 1e-12 * runs[0][i]);
  }
  EXPECT_EQ(runs[1], runs[3]);
  EXPECT_EQ(runs[1], runs[4]);
}

TEST(PeftRun, DropoutChangesTheTrainingAndNotTheValidation) {
  const Folder with;
  const Folder without;
  const Overrides frozen{{"optimizer.lr", "0"}, {"training.steps", "6"}};
  Overrides dropping = frozen;
  dropping.emplace_back("peft.dropout", "0.5");
  // Adapters with an effect: those of an earlier run.
  const Folder first;
  const auto trained = lora_run(first.path());
  train(trained);
  const auto start = quoted(checkpoint(trained, 12));
  Overrides a = frozen;
  a.emplace_back("peft.init_from", start);
  dropping.emplace_back("peft.init_from", start);
  const auto plain = lora_run(without.path(), a);
  const auto dropped = lora_run(with.path(), dropping);
  train(plain);
  train(dropped);
  EXPECT_NE(curve(plain, "loss"), curve(dropped, "loss"));
  EXPECT_EQ(curve(plain, "validation_loss"), curve(dropped, "validation_loss"));
  EXPECT_EQ(curve(plain, "validation_loss").back(), curve(trained, "validation_loss").back()) << "init_from goes on";
}

double validation_loss(const TrainConfig& config, const std::filesystem::path& model_folder) {
  const auto opened = pretrained::ModelFolder::open(model_folder, testing::families());
  const auto tokenizer = data::load_tokenizer("byte");
  const auto data = open_run_data(config, *tokenizer, {.vocab_size = 257}, [](const std::string&) {});
  const auto model = opened.load(at::kCPU, parameter_type(config.training));
  const CausalLMTask task;
  return validate(*model, task, *data.validation(RowShare::all(config.validation.local_batch_size), {}), {}).loss;
}

TEST(PeftRun, ItsFolderIsLoadedWithTheBaseThatItNames) {
  const Folder folder;
  const auto config = lora_run(
      folder.path(), {{"peft.full_tune_pattern", pattern("model\\.(norm|embed_tokens)")}, {"peft.alpha", "6.5"}});
  train(config);
  EXPECT_EQ(validation_loss(config, checkpoint(config, 12)), curve(config, "validation_loss").back());
  EXPECT_GT(validation_loss(config, base()), curve(config, "validation_loss").back());

  const auto moved = folder.path() / "moved";
  std::filesystem::copy(checkpoint(config, 12), moved);
  Node adapter = parse_json_file(moved / "adapter_config.json");
  adapter.set("base_model_name_or_path", Node("Qwen/Qwen3-0.6B"));
  write_file_atomically(moved / "adapter_config.json", to_json(adapter));
  EXPECT_THAT(
      [&] { pretrained::ModelFolder::open(moved, testing::families()); },
      fails_with("\"Qwen/Qwen3-0.6B\" is not a folder on this machine"));
  EXPECT_EQ(pretrained::ModelFolder::open(moved, testing::families(), base()).base, base());
  std::filesystem::remove(moved / "model_config.json");  // as PEFT writes the folder: the base determines the shape
  EXPECT_EQ(pretrained::ModelFolder::open(moved, testing::families(), base()).args->vocab_size(), 257);
}

TEST(PeftRun, FullTuneTrainsTheNamedModulesAndSavesTheWholeModel) {
  const Folder folder;
  const auto config = tiny_run(
      folder.path(),
      {{"checkpoint.initial_load_path", quoted(base())},
       {"peft.method", "full_tune"},
       {"peft.full_tune_pattern", pattern(".*mlp")},
       {"training.mixed_precision_param", "bfloat16"}});
  EXPECT_TRUE(train(config, 5).stopped);
  train(config);
  const auto start = tensors(base(), "model");
  for (const auto& [name, tensor] : tensors(checkpoint(config, 12), "model")) {
    EXPECT_EQ(at::equal(tensor, start.at(name)), name.find(".mlp.") == std::string::npos) << name;
  }
}

TEST(PeftRun, RefusesToContinueWithOtherTrainedParameters) {
  const Folder folder;
  const auto run = [&](const Overrides& peft) {
    Overrides all{{"checkpoint.initial_load_path", quoted(base())}, {"training.steps", "2"}};
    return [config = tiny_run(folder.path(), testing::joined(all, peft))] { train(config); };
  };
  run({{"peft.method", "full_tune"}, {"peft.full_tune_pattern", pattern("model\\.norm")}})();
  EXPECT_THAT(run({}), fails_with("peft.method: the run so far did not train model.embed_tokens."));
  EXPECT_THAT(
      run({{"peft.method", "full_tune"}, {"peft.full_tune_pattern", pattern(".*mlp")}}),
      fails_with("which this one does; keep method and patterns of [peft]"));
}

TEST(PeftRun, AdaptersOfExpertsResumeBitForBit) {
  const Overrides mixture{
      {"model.name", "qwen3_moe"},
      {"model.args.num_experts", "4"},
      {"model.args.num_experts_per_tok", "2"},
      {"model.args.moe_intermediate_size", "12"},
      {"training.steps", "6"},
      {"checkpoint.interval", "3"}};
  const Folder start;
  const auto whole = tiny_run(start.path(), mixture);
  train(whole);
  Overrides adapters = mixture;
  adapters.emplace_back("checkpoint.initial_load_path", quoted(checkpoint(whole, 6)));
  const Folder a;
  const Folder b;
  const auto once = lora_run(a.path(), adapters);
  train(once);
  const auto twice = lora_run(b.path(), adapters);
  EXPECT_TRUE(train(twice, 4).stopped);
  train(twice);
  expect_same_bits(tensors(checkpoint(once, 6), peft::kAdapterStem), tensors(checkpoint(twice, 6), peft::kAdapterStem));
  EXPECT_EQ(curve(once, "loss"), curve(twice, "loss"));
  EXPECT_EQ(validation_loss(once, checkpoint(once, 6)), curve(once, "validation_loss").back());
}

TEST(PeftRun, AClassifierTrainsItsHeadAndKeepsIt) {
  const Folder folder;
  write_file_atomically(folder.path() / "rows.jsonl", [] {
    std::string rows;
    for (int i = 0; i < 40; ++i) {
      rows += i % 2 == 0 ? "{\"text\": \"aaaa\", \"label\": 0}\n" : "{\"text\": \"zzzz\", \"label\": 1}\n";
    }
    return rows;
  }());
  auto config = lora_run(
      folder.path(),
      {{"training.task", "classification"},
       {"data.datasets.0.path", quoted(folder.path() / "rows.jsonl")},
       {"data.datasets.0.kind", "classification"},
       {"data.validation_path", quoted(folder.path() / "rows.jsonl")},
       {"data.validation_fraction", "0"}});
  train(config);
  const auto saved = tensors(checkpoint(config, 12), peft::kAdapterStem);
  EXPECT_TRUE(saved.contains("base_model.model.score.weight"));
  const auto opened = pretrained::ModelFolder::open(checkpoint(config, 12), testing::families());
  const auto model = opened.load(at::kCPU, at::kFloat);
  for (const auto& [name, parameter] : nn::named_parameters(*model)) {
    if (name == "cls_head.score.weight") {
      EXPECT_TRUE(at::equal(parameter->value(), saved.at("base_model.model.score.weight")));
    }
  }
}

TEST(PeftRun, RefusesToContinueAsADifferentRun) {
  const Folder folder;
  const Overrides four{{"training.steps", "4"}};
  train(lora_run(folder.path(), four));
  const auto resume = [&](const std::string& key, const std::string& value) {
    return [&folder, key, value] { train(lora_run(folder.path(), {{key, value}})); };
  };
  EXPECT_THAT(resume("peft.alpha", "3"), fails_with("the adapter's scaling is 4 ("));
  EXPECT_THAT(resume("peft.r", "2"), fails_with("set peft.r, peft.alpha"));
  EXPECT_THAT(
      [&] {
        train(lora_run(folder.path(), {{"peft.method", "none"}, {"peft.r", "8"}}));
      },
      fails_with("peft.method: the run so far trained adapters"));
  const Overrides in_full{{"peft.method", "full_tune"}, {"peft.r", "8"}, {"peft.full_tune_pattern", pattern(".*mlp")}};
  EXPECT_THAT(
      [&] { train(lora_run(folder.path(), in_full)); }, fails_with("peft.method: the run so far trained adapters"));
  const Folder other;
  const auto another_base = tiny_run(other.path(), {{"training.steps", "4"}, {"debug.seed", "9"}});
  train(another_base);
  EXPECT_THAT(
      resume("checkpoint.initial_load_path", quoted(checkpoint(another_base, 4))),
      fails_with("holds other weights than those that the adapters"));
}

TEST(PeftRun, RefusesAdaptersThatCannotBeStoredBeforeItMakesItsFolder) {
  const Overrides shape{{"model.name", "gpt_oss"}, {"training.steps", "1"}, {"lr_scheduler.warmup_steps", "0"}};
  const Folder of_base, folder, without;
  const auto whole = tiny_run(of_base.path(), shape);
  train(whole);
  Overrides adapters = shape;
  adapters.emplace_back("checkpoint.initial_load_path", quoted(checkpoint(whole, 1)));
  adapters.emplace_back("peft.target_pattern", "'.*grouped_experts.*_proj'");
  EXPECT_THAT([&] { train(lora_run(folder.path(), adapters)); }, fails_with("grouped_experts"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "out"));
  adapters.emplace_back("checkpoint.enable", "false");
  EXPECT_NO_THROW(train(lora_run(without.path(), adapters))) << "nothing is stored";
}

TEST(PeftRun, NamesTheInvalidKey) {
  const auto run = [](const Overrides& overrides) {
    return [overrides] {
      const Folder folder;
      train(lora_run(folder.path(), overrides));
    };
  };
  EXPECT_THAT(
      [] {
        const Folder folder;
        tiny_run(folder.path(), {{"peft.method", "lora"}});
      },
      fails_with("adapters need a base model: set checkpoint.initial_load_path"));
  EXPECT_THAT(
      run({{"peft.target_pattern", pattern(".*qproj")}}), fails_with("the nearest are: model.layers.0.self_attn."));
  EXPECT_THAT(run({{"peft.target_pattern", pattern("(q_proj")}}), fails_with("is not a regular expression"));
  EXPECT_THAT(run({{"peft.method", "full_tune"}}), fails_with("peft.full_tune_pattern: peft.method = \"full_tune\""));
  EXPECT_THAT(
      run({{"peft.method", "none"}, {"peft.full_tune_pattern", pattern(".*")}}), fails_with("has no effect while"));
  const std::pair<const char*, const char*> of_adapters[] = {
      {"peft.target_pattern", "q_proj"},
      {"peft.r", "4"},
      {"peft.alpha", "3"},
      {"peft.dropout", "0.1"},
      {"peft.use_rslora", "true"}};
  for (const auto& [key, value] : of_adapters) {
    EXPECT_THAT(
        run({{"peft.method", "none"}, {key, value}}),
        fails_with(std::string(key) + ": has no effect while peft.method is \"none\""));
  }
  EXPECT_THAT(run({{"peft.init_from", quoted(base())}}), fails_with("peft.init_from: "));
  const Folder folder;
  const auto adapters = lora_run(folder.path(), {{"training.steps", "4"}});
  train(adapters);
  EXPECT_THAT(
      run({{"checkpoint.initial_load_path", quoted(checkpoint(adapters, 4))}}),
      fails_with("holds an adapter, not a model"));
  EXPECT_THAT(
      run({{"peft.init_from", quoted(checkpoint(adapters, 4))}, {"peft.alpha", "1"}}), fails_with("'s scaling is 4 ("));
  EXPECT_THAT(
      run({{"peft.init_from", quoted(checkpoint(adapters, 4))}, {"peft.target_pattern", pattern(".*q_proj")}}),
      fails_with("unexpected tensors: base_model.model.model.layers.0"));
}

}  // namespace
}  // namespace lehr::train
