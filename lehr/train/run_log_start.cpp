// How a run begins: what trains, where, with how much memory and work.
#include "lehr/base/log.h"
#include "lehr/train/float8.h"
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
  // Value and gradient in the parameters' type; a copy and its gradient to compute with under mixed precision.
  const int64_t each =
      2 * bytes_of(t.dtype) + (compute_type(t) == at::kBFloat16 && t.dtype != Precision::bfloat16 ? 4 : 0);
  log_.plain("");
  log_.info("{}", config_.job.description);
  log_.info(
      "model      {} {}: {} parameters, {} layers{}",
      args.model_type(),
      config_.model.flavor,
      human_count(static_cast<double>(counts_.num_parameters)),
      model.num_local_layers(),
      config_.parallelism.pipeline_parallel_degree > 1 ? " on this rank" : "");
  log_.info(
      "compute    {} in {}{}, {} threads",
      device.str(),
      name_of(t.dtype),
      t.mixed_precision_param ? ", arithmetic in " + *t.mixed_precision_param : "",
      at::get_num_threads());
  if (ranks.world_size() > 1) {
    log_.info(
        "mesh       {} ranks: {} ({})",
        ranks.world_size(),
        ranks.context()->parameters().describe(),
        ranks.context()->transport().name());
  }
  if (config_.float8.enable) {
    log_.info("float8     {}", describe_float8(config_.float8, model, device));
  }
  if (config_.peft.enabled()) {
    log_.info(
        "peft       {}: {} of {} parameters train ({:.2g} %){}",
        config_.peft.method,
        human_count(static_cast<double>(trains_.trainable)),
        human_count(static_cast<double>(trains_.total)),
        100.0 * static_cast<double>(trains_.trainable) / static_cast<double>(trains_.total),
        config_.peft.has_adapters() ? fmt::format("; rank {}, alpha {}", config_.peft.r, config_.peft.alpha) : "");
  }
  // Without adapters checkpoints hold everything, so frozen weights stay in the parameters' type.
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
                                  "; {} more from the first save on, for the copy that is written",
                                  human_bytes(static_cast<double>(expected->saves)))
                            : "");
  } else {
    log_.info(
        "memory     {} for weights, gradients and optimizer state{}, activations besides",
        human_bytes(static_cast<double>(each * trained + state_and_frozen)),
        ranks.world_size() > 1 ? " on this rank" : "");
  }
  log_.info(
      "work       {} FLOPs a token ({} counting only what causal attention needs){}",
      human_count(static_cast<double>(counts_.flops_per_token)),
      human_count(static_cast<double>(counts_.causal_flops_per_token)),
      peak_flops_ > 0 ? fmt::format("; this machine multiplies at {}FLOP/s", human_count(peak_flops_)) : "");
  log_.info(
      "run        steps {} to {}, {} tokens each ({} rows of {}{}), seed {}, results in {}",
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
