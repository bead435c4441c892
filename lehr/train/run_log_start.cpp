// The start-up report of a run: model, device, memory and work.
#include <algorithm>
#include <vector>

#include "lehr/base/log.h"
#include "lehr/descriptor/block_config.h"
#include "lehr/ops/cpu_choice.h"
#include "lehr/ops/cuda.h"
#include "lehr/state/weights.h"
#include "lehr/train/attention_path.h"
#include "lehr/train/float8.h"
#include "lehr/train/gpu_card.h"
#include "lehr/train/precision.h"
#include "lehr/train/run_log.h"

namespace lehr::train {

namespace {
const char* name_of(Precision precision) {
  return precision == Precision::bfloat16 ? "bfloat16" : precision == Precision::float64 ? "float64" : "float32";
}

int64_t bytes_of(Precision precision) {
  return precision == Precision::bfloat16 ? 2 : precision == Precision::float64 ? 8 : 4;
}

// Returns the shapes of the first layers with grouped-query attention and heads of each size; none if they are unknown.
std::vector<AttentionShape> attention_of(const descriptor::ModelArgs& args) {
  std::vector<AttentionShape> shapes;
  const auto form = args.decoder_form();
  const auto blocks = args.block_configs();
  for (size_t layer = 0; form && !form->latent_attention && layer < blocks.size(); ++layer) {
    const auto* attention = std::get_if<descriptor::AttentionSubblock>(&blocks[layer].attention);
    if (attention == nullptr || form->has_states(layer)) {
      continue;
    }
    const int64_t size = form->heads(form->window(layer, *attention)).head_dim;
    if (std::none_of(shapes.begin(), shapes.end(), [size](const auto& shape) { return shape.head_size == size; })) {
      shapes.push_back(
          {.heads = form->num_attention_heads, .key_heads = attention->num_key_value_heads, .head_size = size});
    }
  }
  return shapes;
}

// Reports the GPU and the kernels that run on it: not as the config requests them, but as they were found.
void report_gpu(Logger& log, const descriptor::ModelArgs& args, at::Device device, at::ScalarType dtype) {
  const auto card = find_card(device);
  log.info("device     {}", card ? card->describe() : "a GPU that the driver does not describe");
  const std::string problem = ops::cuda::open_kernels();
  log.info("kernels    {}", problem.empty() ? "Lehr's (liblehr_cuda.so)" : "plain ATen: " + problem);
  const std::vector<AttentionShape> shapes = attention_of(args);
  for (const AttentionShape& shape : shapes) {
    const std::string of_heads = shapes.size() > 1 ? fmt::format("heads of {}: ", shape.head_size) : "";
    log.info("attention  {}{}", of_heads, describe_attention(shape, device, dtype));
  }
}

// Reports a named dataset, the mesh, float8 and adapters of runs that have them.
void report_parts(
    Logger& log,
    const TrainConfig& config,
    const nn::Model& model,
    const peft::TrainableCounts& trains,
    at::Device device,
    const Ranks& ranks) {
  if (const TrainingConfig& t = config.training; !t.dataset.empty()) {
    const bool own = !config.tokenizer.path.empty();
    log.info(
        "data       {}, for training.dataset = \"{}\"; tokenizer: {}",
        t.path_of_dataset(),
        t.dataset,
        own ? config.tokenizer.path : config.model.hf_assets_path);
  }
  if (ranks.world_size() > 1) {
    log.info(
        "mesh       {} ranks: {} ({})",
        ranks.world_size(),
        ranks.context()->parameters().describe(),
        ranks.context()->transport().name());
  }
  if (config.float8.enable) {
    log.info("float8     {}", describe_float8(config.float8, model, device));
  }
  if (config.peft.enabled()) {
    log.info(
        "peft       {}: {} of {} parameters are trainable ({:.2g} %){}",
        config.peft.method,
        human_count(static_cast<double>(trains.trainable)),
        human_count(static_cast<double>(trains.total)),
        100.0 * static_cast<double>(trains.trainable) / static_cast<double>(trains.total),
        config.peft.has_adapters() ? fmt::format("; rank {}, alpha {}", config.peft.r, config.peft.alpha) : "");
  }
}

// Reports where the weights of a new run come from, if that is not the seed alone.
void report_weights(Logger& log, const TrainConfig& config, const RunState& state) {
  const std::string& assets = config.model.hf_assets_path;
  if (state.step > 0) {
    return;
  }
  if (config.checkpoint.initial_load_path) {
    log.info("weights    loaded from {}", *config.checkpoint.initial_load_path);
  } else if (!assets.empty() && state::WeightReader::exists(assets)) {
    log.warn(
        "model.hf_assets_path: the weights in {} are not loaded, and the run starts from random ones; to train the "
        "model further, set checkpoint.initial_load_path to this folder, too",
        assets);
  }
}
}  // namespace

void RunLog::report_start(
    const descriptor::ModelArgs& args,
    const nn::Model& model,
    const optim::Optimizer& optimizer,
    at::Device device,
    const Ranks& ranks,
    const RunState& state,
    const std::optional<ExpectedMemory>& expected) {
  const TrainingConfig& t = config_.training;
  const int64_t tokens = t.rows_per_step() * t.seq_len;
  // Value and gradient in the parameters' dtype; with mixed precision also a copy and its gradient in the compute
  // dtype.
  const int64_t each =
      2 * bytes_of(t.dtype) + (compute_type(t) == at::kBFloat16 && t.dtype != Precision::bfloat16 ? 4 : 0);
  log_.plain("");
  log_.info("{}", config_.job.description);
  log_.info(
      "model      {}{}: {} parameters, {} layers{}",
      args.model_type(),
      config_.model.flavor.empty() ? "" : " " + config_.model.flavor,
      human_count(static_cast<double>(counts_.num_parameters)),
      model.num_local_layers(),
      config_.parallelism.pipeline_parallel_degree > 1 ? " on this rank" : "");
  log_.info(
      "compute    {} in {}{}, {}{} threads",
      device.str(),
      name_of(t.dtype),
      t.mixed_precision_param ? ", arithmetic in " + *t.mixed_precision_param : "",
      device.is_cpu() ? fmt::format("kernels for {}, ", ops::describe_kernels(compute_type(t))) : "",
      at::get_num_threads());
  if (device.is_cuda()) {
    report_gpu(log_, args, device, compute_type(t));
  }
  report_parts(log_, config_, model, trains_, device, ranks);
  // Without adapters, checkpoints hold all parameters, so frozen weights keep the parameters' dtype.
  const int64_t copy = compute_type(t) == at::kBFloat16 ? 2 : bytes_of(t.dtype);
  const int64_t frozen_each =
      config_.peft.has_adapters() || copy == bytes_of(t.dtype) ? copy : bytes_of(t.dtype) + copy;
  int64_t trained = 0;
  int64_t frozen = 0;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    (parameter->trainable() ? trained : frozen) += parameter->value().numel();
  }
  const int64_t state_and_frozen = frozen_each * frozen + optimizer.state_bytes();
  if (expected) {
    const int64_t kept_each = bytes_of(t.dtype) + (copy == bytes_of(t.dtype) ? 0 : copy);
    log_.info(
        "memory     {} of tensors at most in a step, of which {} (weights and optimizer state) stay between steps{}",
        human_bytes(static_cast<double>(expected->step)),
        human_bytes(static_cast<double>(kept_each * trained + state_and_frozen)),
        expected->saves > 0 ? fmt::format(
                                  "; {} more from the first save on, for copies of checkpoints",
                                  human_bytes(static_cast<double>(expected->saves)))
                            : "");
  } else {
    log_.info(
        "memory     {} for weights, gradients and optimizer state{}, plus activations",
        human_bytes(static_cast<double>(each * trained + state_and_frozen)),
        ranks.world_size() > 1 ? " on this rank" : "");
  }
  if (counts_.flops_per_token > 0) {
    log_.info(
        "work       {} FLOPs per token ({} with causal attention){}",
        human_count(static_cast<double>(counts_.flops_per_token)),
        human_count(static_cast<double>(counts_.causal_flops_per_token)),
        peak_flops_ > 0 ? fmt::format("; peak of this machine: {}FLOP/s", human_count(peak_flops_)) : "");
  }
  if (state.step >= t.steps) {
    log_.info(
        "run        complete: all {} steps are done in {}; for more, raise training.steps and add \"steps\" to "
        "checkpoint.allow_changes",
        t.steps,
        folder_.string());
    return;
  }
  report_weights(log_, config_, state);
  log_.info(
      "run        steps {} to {}, at most {} tokens each ({} sequences of {}{}), seed {}, results in {}",
      state.step + 1,
      t.steps,
      tokens,
      t.rows_per_step(),
      t.seq_len,
      t.rows_per_step() > t.local_batch_size ? fmt::format(", {} at a time", t.local_batch_size) : "",
      config_.debug.seed,
      folder_.string());
}

}  // namespace lehr::train
