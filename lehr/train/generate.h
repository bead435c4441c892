// Text generation from a causal language model, one token at a time with a key/value cache.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lehr/nn/model.h"

namespace lehr::train {

class Ranks;

/// Sampling options for the next token.
struct SamplingOptions {
  int64_t max_new_tokens = 128;
  double temperature = 1.0;               ///< Divides the logits; 0: greedy decoding.
  int64_t top_k = 0;                      ///< Only the k most likely tokens; 0: all.
  double top_p = 1.0;                     ///< Nucleus sampling: only the most likely tokens with this total
                                          ///< probability.
  uint64_t seed = 0;                      ///< Token i depends only on the seed and i.
  std::vector<int64_t> stop_ids = {};     ///< Generation ends before any of these.
  int64_t max_positions = 0;              ///< Maximum sequence length of the model; 0: no limit.
  std::optional<at::Device> device = {};  ///< Device of forward; default: that of the parameters.
  const Ranks* ranks = nullptr;           ///< Null: one device. All ranks must call, and all get the same tokens.
};

/// Samples one token from `logits` (V): the deterministic part of sampling. `uniform` is in [0, 1). Throws a runtime
/// error if a logit is NaN or +infinity.
int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, double uniform);

/// Throws a usage error if text cannot be generated on these ranks: tensor parallelism pads sequences, which the state
/// of nn::GatedDeltaNet or nn::Mamba2 would include. The model may be on meta.
void check_generation(const nn::Model& model, const Ranks& ranks);

/// Returns new ids after `prompt` (at least one id). `on_token` receives each id and may return false to stop. Throws a
/// usage error for an empty prompt, if prompt and generated tokens exceed max_positions, and as check_generation.
std::vector<int64_t> generate(
    nn::Model& model,
    const std::vector<int64_t>& prompt,
    const SamplingOptions& options,
    const std::function<bool(int64_t)>& on_token = {});

}  // namespace lehr::train
