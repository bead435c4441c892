// A model without a trainer: declare shapes, allocate memory, initialize; then forward, loss and gradients.
#include <fmt/core.h>

#include "lehr/model/qwen3_dense/family.h"

using namespace lehr;

int main() {
  const model::Qwen3DenseForCausalLMParameters parameters{
      .model =
          {.layer =
               {.hidden_size = 64,
                .intermediate_size = 192,
                .num_attention_heads = 4,
                .num_key_value_heads = 2,
                .rms_norm_eps = 1e-6,
                .head_dim = 16},
           .num_hidden_layers = 2,
           .rope_base = 10000,
           .max_position_ids = 128,
           .split_vocab_size = {{"text", 256}, {"special", 8}},  // two segments: new ids do not change the old table
           .split_vocab_order = {"text", "special"}},
      .tie_word_embeddings = true};

  model::Qwen3DenseForCausalLM qwen(
      parameters,
      pipeline::PipelineStageInfo{.current_stage = 0, .num_stages = 1},
      nn::HiddenStatesAggregationMode::mean,
      nn::ActivationCheckpointing{});
  fmt::print("{} parameters, none of them allocated yet\n", nn::count_parameters(*qwen));

  nn::materialize(*qwen, at::kCPU, at::kFloat);
  qwen->reset_parameters({.seed = 7});  // values depend on the seed and the parameters' names only

  const at::Tensor tokens = at::randint(264, {2, 33}, at::kLong);
  const nn::ModelOutputs outputs = qwen->forward({
      .input_ids = tokens.narrow(1, 0, 32),            // (B, T)
      .hidden_states_agg_mask = at::ones({2, 32}),     // (B, T): tokens that the snapshots average over
      .labels = tokens.narrow(1, 1, 32).contiguous(),  // (B, T): labels[t] follows position t
  });
  outputs.nll().mean().backward();

  fmt::print("loss {:.4f}, near log(264) = 5.576\n", outputs.nll().mean().item<double>());
  fmt::print("{} snapshots of hidden states per sequence\n", outputs.hidden_states_snapshot.size(0));
  for (const auto& [name, parameter] : nn::named_parameters(*qwen)) {
    fmt::print("{:<52} gradient norm {:.4f}\n", name, parameter->value().grad().norm().item<double>());
  }
}
