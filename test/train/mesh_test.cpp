// The equality law of meshes: however a run is spread over ranks, it computes what one device computes.
//
// In float64, over ten whole training steps with accumulation, clipping, packed documents and activation checkpointing.
// Sums are taken in another order, which costs some 1e-16 of each; ten steps of AdamW amplify that (the update divides
// by the root of a mean of squares), and 1e-10 relative leaves room for it.
#include <gmock/gmock.h>

#include <mutex>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/metric/metrics_log.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;
using Overrides = std::vector<std::pair<std::string, std::string>>;

constexpr double kTolerance = 1e-10;

struct Mesh {
  int64_t dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, ep = 1;
  int64_t world() const { return dp_replicate * dp_shard * cp * tp; }
  std::string name() const { return fmt::format("dpr{}_dps{}_cp{}_tp{}_ep{}", dp_replicate, dp_shard, cp, tp, ep); }
};

// All meshes of at most eight ranks with degrees 1, 2 and 4.
std::vector<Mesh> meshes(bool experts) {
  const std::vector<int64_t> degrees{1, 2, 4};
  std::vector<Mesh> found;
  for (const int64_t dpr : degrees) {
    for (const int64_t dps : degrees) {
      for (const int64_t cp : degrees) {
        for (const int64_t tp : degrees) {
          for (const int64_t ep : experts ? degrees : std::vector<int64_t>{1}) {
            const Mesh mesh{dpr, dps, cp, tp, ep};
            if (mesh.world() > 1 && mesh.world() <= 8 && dps * cp * tp % ep == 0) {
              found.push_back(mesh);
            }
          }
        }
      }
    }
  }
  return found;
}

Overrides family(const std::string& name) {
  Overrides overrides{
      {"model.args.num_attention_heads", "8"},
      {"model.args.num_key_value_heads", "4"},
      {"model.args.head_dim", "4"},
      {"training.dtype", "float64"},
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "16"},
      {"training.steps", "10"},
      {"training.max_norm", "0.5"},
      {"activation_checkpoint.mode", "full"},
      {"data.datasets.0.split_documents", "\"blank_line\""},
      {"checkpoint.interval", "10"}};
  if (name == "llama3") {
    overrides.emplace_back("model.name", "llama3");
  } else if (name == "qwen3_moe") {
    for (const auto& entry : Overrides{
             {"model.name", "qwen3_moe"},
             {"model.args.num_experts", "8"},
             {"model.args.num_experts_per_tok", "2"},
             {"model.args.moe_intermediate_size", "8"},
             {"model.args.expert_bias", "true"},
             {"training.router_aux_loss_coef", "0.01"},
             {"training.router_z_loss_coef", "0.001"}}) {
      overrides.push_back(entry);
    }
  }
  return overrides;
}

// Runs `body` with the trainer of each rank of that mesh, ranks as threads.
void on_mesh(
    const Mesh& mesh, TrainConfig config, int64_t stop_after, const std::function<void(Trainer& trainer)>& body) {
  config.parallelism.data_parallel_replicate_degree = mesh.dp_replicate;
  config.parallelism.data_parallel_shard_degree = mesh.dp_shard;
  config.parallelism.context_parallel_degree = mesh.cp;
  config.parallelism.tensor_parallel_degree = mesh.tp;
  config.parallelism.expert_parallel_degree = mesh.ep;
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        Logger quiet("", true);
        const auto list = testing::specs();
        int64_t steps = 0;
        Trainer trainer(
            config,
            {.specs = list,
             .log = quiet,
             .stop_requested = [&] { return stop_after > 0 && steps >= stop_after; },
             .transport = &transport});
        // A stop that one rank alone is told of.
        if (transport.rank() == transport.world_size() - 1) {
          trainer.events().subscribe(Event::step_end, [&](const EventContext&) { ++steps; });
        }
        body(trainer);
      },
      std::chrono::seconds(60));
}

// Trains; `stop_after` > 0 ends the run after that step, as a signal to one rank would.
void train_on(const Mesh& mesh, const TrainConfig& config, int64_t stop_after = 0) {
  on_mesh(mesh, config, stop_after, [](Trainer& trainer) { trainer.run(); });
}

// What a run leaves behind.
struct Outcome {
  std::map<std::string, std::vector<double>> curves;
  std::map<std::string, at::Tensor> tensors;
};

Outcome outcome_of(const TrainConfig& config, const std::string& weights = "model") {
  const std::filesystem::path folder = config.job.dump_folder;
  Outcome outcome;
  for (const char* key :
       {"loss",
        "grad_norm",
        "validation_loss",
        "accuracy",
        "load_balancing_loss",
        "router_z_loss",
        "expert_load_max"}) {
    outcome.curves[key] = metric::read_metric(folder / "metrics.jsonl", key).values;
  }
  for (const std::string& stem : {weights, std::string("optimizer")}) {
    const state::WeightReader reader(folder / "checkpoints/step-10", stem);
    for (const auto& name : reader.names()) {
      outcome.tensors[name] = reader.tensor(name).clone();
    }
  }
  return outcome;
}

void expect_equal(const Outcome& wanted, const Outcome& found) {
  for (const auto& [key, values] : wanted.curves) {
    ASSERT_EQ(found.curves.at(key).size(), values.size()) << key;
    ASSERT_TRUE(key != "loss" || values.size() == 10);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(found.curves.at(key)[i], values[i], kTolerance * std::abs(values[i])) << key << " " << i;
    }
  }
  ASSERT_EQ(found.tensors.size(), wanted.tensors.size());
  for (const auto& [name, value] : wanted.tensors) {
    const at::Tensor other = found.tensors.at(name);
    ASSERT_EQ(other.sizes(), value.sizes()) << name;
    const double scale = value.to(at::kDouble).abs().max().item<double>();
    const double error = (other.to(at::kDouble) - value.to(at::kDouble)).abs().max().item<double>();
    EXPECT_LE(error, kTolerance * scale) << name;
  }
}

class EveryMesh : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(
    Families, EveryMesh, ::testing::Values("qwen3", "qwen3_moe", "llama3"), [](const auto& family_name) {
      return family_name.param;
    });

TEST_P(EveryMesh, ComputesWhatOneDeviceComputes) {
  const Folder alone;
  const auto one_device = tiny_run(alone.path(), family(GetParam()));
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device);
  for (const Mesh& mesh : meshes(GetParam() == "qwen3_moe")) {
    SCOPED_TRACE(mesh.name());
    const Folder folder;
    const auto config = tiny_run(folder.path(), family(GetParam()));
    train_on(mesh, config);
    expect_equal(wanted, outcome_of(config));
    if (HasFailure()) {
      break;  // the others would say the same at length
    }
  }
}

TEST_P(EveryMesh, StartsFromTheBitsOfOneDevice) {
  const Folder alone;
  const auto config = tiny_run(alone.path(), family(GetParam()));
  std::map<std::string, at::Tensor> whole;
  on_mesh({}, config, 0, [&](Trainer& trainer) {
    for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
      whole[name] = parameter->value().detach().clone();
    }
  });
  for (const Mesh& mesh : meshes(GetParam() == "qwen3_moe")) {
    const Folder folder;
    std::mutex mutex;
    on_mesh(mesh, tiny_run(folder.path(), family(GetParam())), 0, [&](Trainer& trainer) {
      const std::lock_guard lock(mutex);
      for (const auto& [name, parameter] : nn::named_parameters(trainer.model())) {
        EXPECT_TRUE(at::equal(parameter->value(), narrow_to(whole.at(name), parameter->box())))
            << mesh.name() << " " << name;
      }
    });
  }
}

TEST(Shares, OfRanksTogetherAreTheRowsOfOneDevice) {
  const Folder folder;
  const auto config = tiny_run(folder.path());
  const auto tokenizer = build_tokenizer(config);
  const auto data = open_run_data(config, *tokenizer, 257, [](const std::string&) {});
  for (const int64_t ranks : {1, 2, 4, 8}) {
    const auto whole = data.train(RowShare::all(8), 3);
    std::vector<std::unique_ptr<BatchStream>> parts;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      parts.push_back(data.train({.global = 8, .first = rank * 8 / ranks, .count = 8 / ranks}, 3));
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
        if (name != "document_ids") {  // which a share of single documents goes without
          EXPECT_TRUE(at::equal(at::cat(rows.at(name)), tensor)) << name;
        }
      }
    }
  }
}

// A run that is stopped on one mesh and resumed on another goes on as if nothing had happened.
TEST(AnyMeshToAnyMesh, GoesOnAsOneDeviceWould) {
  const std::vector<std::pair<Mesh, Mesh>> pairs{
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
      {{.dp_shard = 2, .tp = 4, .ep = 4}, {}}};
  const Folder alone;
  const auto one_device = tiny_run(alone.path(), family("qwen3_moe"));
  testing::train(one_device);
  const Outcome wanted = outcome_of(one_device);
  for (const auto& [from, to] : pairs) {
    SCOPED_TRACE(from.name() + " to " + to.name());
    const Folder folder;
    const auto config = tiny_run(folder.path(), family("qwen3_moe"));
    train_on(from, config, 5);
    EXPECT_TRUE(std::filesystem::exists(testing::checkpoint(config, 5)));
    EXPECT_FALSE(std::filesystem::exists(testing::checkpoint(config, 10)));
    train_on(to, config);
    expect_equal(wanted, outcome_of(config));
  }
}

std::string quoted(const std::filesystem::path& path) {
  return "\"" + path.string() + "\"";
}

struct Kind {
  std::string name;
  Overrides overrides;
  std::vector<Mesh> meshes;
  std::string weights = "model";  // what is saved
};

// What `family("qwen3")` leaves out: other tasks, other ways to save memory, adapters, a text at the end.
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
  return {
      {"classification",
       {{"training.task", "classification"},
        {"training.classifier_dropout", "0.1"},
        {"data.datasets.0.path", quoted(folder / "rows.jsonl")},
        {"data.datasets.0.kind", "classification"},
        {"data.datasets.0.split_documents", "\"\""},
        {"data.validation_path", quoted(folder / "rows.jsonl")},
        {"data.validation_fraction", "0"}},
       {{.dp_shard = 2}, {.dp_shard = 2, .tp = 2}, {.dp_replicate = 2, .tp = 4}}},
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
       {{.dp_shard = 2, .cp = 2}, {.tp = 2}}},
      {"tied", {{"model.args.tie_word_embeddings", "true"}}, {{.dp_shard = 2, .tp = 2}, {.dp_replicate = 2, .cp = 2}}},
      {"ring",
       {{"parallelism.context_parallel_rotate_method", "ring"}},
       {{.cp = 4}, {.dp_shard = 2, .cp = 2, .tp = 2}}},
      {"never_resharded",
       {{"parallelism.fsdp_reshard_after_forward", "never"}, {"activation_checkpoint.mode", "none"}},
       {{.dp_shard = 4}}},
      {"always_resharded",
       {{"parallelism.fsdp_reshard_after_forward", "always"}, {"activation_checkpoint.mode", "selective"}},
       {{.dp_shard = 2, .cp = 2}}},
      {"reduced_once",
       {{"parallelism.fsdp_reduce_each_microbatch", "false"}},
       {{.dp_shard = 2, .cp = 2}, {.dp_replicate = 2, .dp_shard = 2}}},
      {"experts_reduced_once", experts_reduced_once, {{.dp_shard = 4, .ep = 2}}},
      {"text", {{"sample.prompt", "\"KING\""}, {"sample.max_new_tokens", "8"}}, {{.dp_shard = 2}}},
      {"adapters", lora, {{.dp_shard = 2}, {.dp_replicate = 2, .cp = 2}}, "adapter_model"},
      {"adapters_with_dropout", with_dropout, {{.dp_shard = 2}}, "adapter_model"}};
}

TEST(EveryKindOfRun, ComputesWhatOneDeviceComputes) {
  const Folder of_base;
  const auto base = tiny_run(of_base.path(), family("qwen3"));
  testing::train(base);
  const Folder data;
  for (const Kind& kind : kinds(data.path(), testing::checkpoint(base, 10))) {
    SCOPED_TRACE(kind.name);
    Overrides overrides = family("qwen3");
    overrides.insert(overrides.end(), kind.overrides.begin(), kind.overrides.end());
    const Folder alone;
    const auto one_device = tiny_run(alone.path(), overrides);
    testing::train(one_device);
    const Outcome wanted = outcome_of(one_device, kind.weights);
    for (const Mesh& mesh : kind.meshes) {
      SCOPED_TRACE(mesh.name());
      const Folder folder;
      const auto config = tiny_run(folder.path(), overrides);
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

// Each is refused before memory is allocated, by every rank alike, with the keys and what to do.
TEST(IllegalMeshes, AreRefusedByName) {
  struct Case {
    Mesh mesh;
    Overrides overrides;
    std::string message;
  };
  const std::string model = "model.args.";
  const std::vector<Case> cases{
      {{.tp = 2},
       {{"training.seq_len", "33"}},
       "training.seq_len: must be a multiple of 2 for context_parallel_degree 1 (twice that, so that ranks have even "
       "work) times tensor_parallel_degree 2, found 33"},
      {{.cp = 2, .tp = 2}, {{"training.seq_len", "36"}}, "training.seq_len: must be a multiple of 8"},
      {{.dp_shard = 4},
       {{"training.global_batch_size", "6"}},
       "training.global_batch_size: must be a multiple of training.local_batch_size (1) times the 4 ranks"},
      {{.tp = 4}, {{model + "num_key_value_heads", "2"}}, "num_key_value_heads: 2 cannot be split evenly"},
      {{.tp = 4},
       {{model + "num_attention_heads", "6"}, {model + "num_key_value_heads", "6"}},
       "num_attention_heads: 6"},
      {{.tp = 4}, {{model + "intermediate_size", "30"}}, "intermediate_size: 30 cannot be split evenly"},
      {{.dp_shard = 2}, {{"optimizer.name", "\"muon\""}}, "optimizer.name: muon updates whole matrices"},
      {{.tp = 2}, {{"optimizer.name", "\"muon\""}}, "optimizer.name: muon updates whole matrices"},
      {{.tp = 2}, {{"sample.prompt", "\"a\""}}, "sample.prompt: a model that is spread"},
      {{.cp = 2}, {{"sample.prompt", "\"a\""}}, "sample.prompt: a model that is spread"},
      {{.dp_shard = 4, .ep = 4},
       {},
       "parallelism.expert_parallel_degree: expected 1, as the model has no experts, found 4"},
      {{.dp_shard = 2}, {{"training.device", "cuda"}}, "training.device: several ranks train on CPUs only"},
      {{.cp = 2},
       {{"training.task", "classification"}},
       "parallelism.context_parallel_degree: a classifier reads one position of a whole row"},
      {{.tp = 2},
       {{"peft.method", "lora"}, {"checkpoint.initial_load_path", "none"}},
       "peft.method: adapters train with data_parallel_replicate"},
      {{.cp = 2},
       {{"peft.method", "lora"}, {"peft.dropout", "0.5"}, {"checkpoint.initial_load_path", "none"}},
       "peft.dropout: masks are drawn by a token's place"},
      {{.dp_shard = 2},
       {{"parallelism.expert_parallel_degree", "4"}},
       "parallelism.expert_parallel_degree: 4 does not divide the 2 ranks"}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.message);
    const Folder folder;
    Overrides overrides = family("qwen3");
    overrides.insert(overrides.end(), one.overrides.begin(), one.overrides.end());
    TrainConfig config = tiny_run(folder.path(), overrides);
    Mesh mesh = one.mesh;
    if (config.parallelism.expert_parallel_degree > 1) {
      mesh.ep = config.parallelism.expert_parallel_degree;
    }
    try {
      train_on(mesh, config);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), HasSubstr(one.message));
    }
    EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(config.job.dump_folder) / "metrics.jsonl"));
  }
}

}  // namespace
}  // namespace lehr::train
