#include "test/train/mesh_support.h"

#include "lehr/base/value_of.h"

namespace lehr::train::testing {

std::vector<Mesh> every_mesh(bool experts) {
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

Overrides of(const Schedule& schedule) {
  return {
      {"parallelism.pipeline_parallel_schedule", schedule.name},
      {"parallelism.pipeline_parallel_stages_per_rank", std::to_string(schedule.stages_per_rank)}};
}

namespace {
struct Flavor {
  const char* family;
  const char* name;
};

// Other flavors than debugmodel, by their names as families.
const std::map<std::string, Flavor>& other_flavors() {
  static const std::map<std::string, Flavor> kFlavors{
      {kGemma4WithExperts, {"gemma4", "debugmodel_moe"}},
      {kGemma4Small, {"gemma4", "debugmodel_small"}},
      {kNemotronHWithExperts, {"nemotron_h", "debugmodel_moe"}}};
  return kFlavors;
}
}  // namespace

std::vector<std::string> trained_families() {
  std::vector<std::string> names = families().names();
  for (const auto& [name, flavor] : other_flavors()) {
    names.push_back(name);
  }
  return names;
}

const descriptor::ModelArgs& debug_model(const std::string& name) {
  static const auto kModels = [] {
    const descriptor::ModelFamilies all = families();
    std::map<std::string, std::unique_ptr<descriptor::ModelArgs>> models;
    for (const std::string& family : all.names()) {
      models[family] = all.from_flavor(family, "debugmodel");
    }
    for (const auto& [variant, flavor] : other_flavors()) {
      models[variant] = all.from_flavor(flavor.family, flavor.name);
    }
    for (const auto& [family, model] : models) {
      model->keep_mtp_modules(true);
    }
    return models;
  }();
  return *kModels.at(name);
}

descriptor::DecoderForm form_of(const std::string& name) {
  return value_of(debug_model(name).decoder_form(), "form");
}

Overrides family(const std::string& name) {
  const descriptor::DecoderForm form = form_of(name);
  Overrides overrides{
      {"model.args.num_attention_heads", "8"},
      {"model.args.num_key_value_heads", "4"},
      {"model.args.head_dim", "4"},
      {"training.dtype", "float64"},
      {"training.local_batch_size", "1"},
      {"training.global_batch_size", "8"},
      {"training.steps", std::to_string(kSteps)},
      {"training.max_norm", "0.5"},
      {"activation_checkpoint.mode", "full"},
      {"data.datasets.0.split_documents", "\"blank_line\""},
      {"checkpoint.interval", std::to_string(kSteps)}};
  const auto variant = other_flavors().find(name);
  const bool is_variant = variant != other_flavors().end();
  overrides.emplace_back("model.name", is_variant ? variant->second.family : name);
  if (is_variant) {
    overrides.emplace_back("model.flavor", variant->second.name);
  }
  if (form.full_attention) {
    overrides.emplace_back("model.args.global_head_dim", "8");
  }
  if (name == "gemma4" || name == kGemma4WithExperts) {
    overrides.emplace_back("model.args.num_global_key_value_heads", "2");
  }
  if (name == kGemma4Small) {
    overrides.emplace_back("model.args.num_hidden_layers", "6");  // of which the last four share keys and values
  }
  if (form.latent_attention) {
    overrides.emplace_back("model.args.num_key_value_heads", "8");
    overrides.emplace_back("model.args.head_dim", "16");
  }
  if (form.delta_net) {
    overrides.emplace_back("model.args.num_hidden_layers", "4");  // the last one has full attention
    overrides.emplace_back("model.args.head_dim", "8");
  }
  if (name == "nemotron_h") {
    overrides.emplace_back("model.args.num_hidden_layers", "4");  // Mamba-2, attention, a feed-forward block, Mamba-2
  }
  if (name == kNemotronHWithExperts) {
    overrides.emplace_back("model.args.num_hidden_layers", "4");  // Mamba-2, attention, experts, a feed-forward block
    overrides.emplace_back("model.args.moe_shared_expert_intermediate_size", "16");
  }
  if (debug_model(name).has_experts()) {
    for (const auto& entry : Overrides{
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

Overrides padded_documents(const std::filesystem::path& folder) {
  std::string documents;
  for (size_t i = 0; i < 96; ++i) {
    documents += std::string("the quick brown fox jumps over the dog").substr(i % 13, 16 + i % 9) + "\n\n";
  }
  write_file_atomically(folder / "documents.txt", documents);
  const std::string path = "\"" + (folder / "documents.txt").string() + "\"";
  return {
      {"data.datasets.0.path", path},
      {"data.validation_path", path},
      {"data.validation_fraction", "0"},
      {"data.packing", "\"whole\""}};
}

TrainConfig with_degrees(TrainConfig config, const Mesh& mesh) {
  config.parallelism.data_parallel_replicate_degree = mesh.dp_replicate;
  config.parallelism.data_parallel_shard_degree = mesh.dp_shard;
  config.parallelism.context_parallel_degree = mesh.cp;
  config.parallelism.tensor_parallel_degree = mesh.tp;
  config.parallelism.expert_parallel_degree = mesh.ep;
  config.parallelism.pipeline_parallel_degree = mesh.pp;
  return config;
}

void on_mesh(
    const Mesh& mesh,
    const TrainConfig& of_run,
    int64_t stop_after,
    const std::function<void(Trainer& trainer)>& body) {
  const TrainConfig config = with_degrees(of_run, mesh);
  mesh::run_ranks(
      mesh.world(),
      [&](mesh::Transport& transport) {
        Logger quiet("", true);
        const auto list = specs();
        int64_t steps = 0;
        Trainer trainer(
            config,
            {.specs = list,
             .log = quiet,
             .stop_requested = [&] { return stop_after > 0 && steps >= stop_after; },
             .transport = &transport});
        // Only one rank receives the request to stop.
        if (transport.rank() == transport.world_size() - 1) {
          trainer.events().subscribe(Event::step_end, [&](const EventContext&) { ++steps; });
        }
        body(trainer);
      },
      std::chrono::seconds(60));
}

void train_on(const Mesh& mesh, const TrainConfig& config, int64_t stop_after) {
  on_mesh(mesh, config, stop_after, [](Trainer& trainer) { trainer.run(); });
}

Outcome outcome_of(const TrainConfig& config, const std::string& weights) {
  const std::filesystem::path folder = config.job.dump_folder;
  Outcome outcome;
  for (const char* key :
       {"loss",
        "grad_norm",
        "validation_loss",
        "accuracy",
        "load_balancing_loss",
        "router_z_loss",
        "mtp_loss",
        "expert_load_max",
        "kl",
        "ce",
        "agreement",
        "cosine"}) {
    outcome.curves[key] = metric::read_metric(folder / "metrics.jsonl", key).values;
  }
  for (const std::string& stem : {weights, std::string("optimizer")}) {
    const state::WeightReader reader(checkpoint(config, config.training.steps), stem);
    for (const auto& name : reader.names()) {
      outcome.tensors[name] = reader.tensor(name).clone();
    }
  }
  return outcome;
}

std::map<std::string, at::Tensor> initial_weights(Overrides overrides) {
  overrides.emplace_back("optimizer.lr", "1e-40");
  overrides.emplace_back("training.steps", "1");
  overrides.emplace_back("lr_scheduler.warmup_steps", "0");
  const Folder folder;
  const auto config = tiny_run(folder.path(), overrides);
  train(config);
  return tensors(checkpoint(config, 1), "model");
}

void expect_moved(const std::map<std::string, at::Tensor>& before, const std::map<std::string, at::Tensor>& after) {
  for (const auto& [name, value] : before) {
    const at::Tensor old = value.to(at::kDouble);
    if (old.dim() > 1) {
      EXPECT_GT((after.at(name).to(at::kDouble) - old).norm().item<double>(), 1e-3 * old.norm().item<double>()) << name;
    }
  }
}

void expect_equal(const Outcome& wanted, const Outcome& found) {
  for (const auto& [key, values] : wanted.curves) {
    ASSERT_EQ(found.curves.at(key).size(), values.size()) << key;
    ASSERT_TRUE(key != "loss" || values.size() >= static_cast<size_t>(kSteps));
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

}  // namespace lehr::train::testing
