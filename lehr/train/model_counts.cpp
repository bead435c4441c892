#include "lehr/train/model_counts.h"

#include <algorithm>
#include <cmath>

#include "lehr/meter/on_meta.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/peft/inject.h"
#include "lehr/train/build_stage.h"

namespace lehr::train {

namespace {
// FLOPs of forward and backward, without recomputation.
struct TrainingFlops {
  double per_token = 0;  // of matmuls
  double per_pair = 0;   // of attention, for a query and a key that it sees
};

nn::ModelInputs sequence_on_meta(int64_t tokens, descriptor::Head head) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kLong);
  nn::ModelInputs inputs;
  inputs.input_ids = at::empty({1, tokens}, options);
  inputs.labels = at::empty({1, tokens}, options);
  inputs.position_ids = at::empty({1, tokens}, options);
  if (head != descriptor::Head::token_classification) {
    inputs.pooling_mask = at::empty({1, tokens}, options.dtype(at::kBool));
  }
  return inputs;
}

// Runs one sequence on meta. The results depend neither on its length nor on dropout.
TrainingFlops measure(TrainConfig config, const descriptor::ModelArgs& args, const Builders& build) {
  constexpr int64_t kTokens = 32;
  const int64_t tokens = std::min(kTokens, config.training.seq_len);
  config.activation_checkpoint.mode = "none";
  const OnMeta on_meta;
  const auto model = build_with_adapters(config, args, build);
  nn::materialize(*model, at::kMeta, at::kFloat);
  model->eval();
  const OperationMeter meter;
  for (const auto& [name, output] : model->forward(sequence_on_meta(tokens, args.head())).to_dict()) {
    if (output.requires_grad() && (name == "logps" || name == "scores" || name == "embeddings")) {
      output.sum().backward();
    }
  }
  const OperationCounts& counts = meter.counts();
  const auto pairs = static_cast<double>(tokens * (tokens + 1) / 2);
  return {.per_token = counts.matmul_flops / static_cast<double>(tokens), .per_pair = counts.attention_flops / pairs};
}
}  // namespace

descriptor::ModelCounts count_model(
    const TrainConfig& config, const descriptor::ModelArgs& args, const Builders& build) {
  descriptor::ModelCounts counts = args.get_nparams_and_flops(config.training.seq_len);
  if (!config.peft.enabled()) {
    return counts;
  }
  TrainingFlops flops;
  try {
    flops = measure(config, args, build);
  } catch (const std::exception&) {
    // A family that does not run on meta can still be trained; a wrong figure would be worse than none.
  }
  const double attention = flops.per_pair * static_cast<double>(config.training.seq_len);  // of all pairs
  counts.flops_per_token = std::llround(flops.per_token + attention);
  counts.causal_flops_per_token = std::llround(flops.per_token + attention / 2);
  counts.attention_flops_per_pair = std::llround(flops.per_pair);
  counts.layer_flops_per_token.clear();
  return counts;
}

}  // namespace lehr::train
