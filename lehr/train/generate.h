// Text generation from a causal language model, one token at a time with a key/value cache.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "lehr/nn/model.h"

namespace lehr::train {

/// How the next token is chosen.
struct SamplingOptions {
  int64_t max_new_tokens = 128;
  double temperature = 1.0;               ///< Logits are divided by it; 0: always the most likely token.
  int64_t top_k = 0;                      ///< Only the k most likely tokens; 0: all.
  double top_p = 1.0;                     ///< Only the most likely tokens that hold this probability together.
  uint64_t seed = 0;                      ///< Token number i depends on the seed and i alone.
  std::vector<int64_t> stop_ids = {};     ///< Generation ends with (and without) one of these.
  int64_t max_positions = 0;              ///< Longest sequence of the model; 0: no limit.
  std::optional<at::Device> device = {};  ///< Where forward computes; by default where the parameters are.
};

/// One token from `logits` (V): the pure part of sampling. `uniform` is in [0, 1).
int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, double uniform);

/// New ids after `prompt` (at least one id). `on_token` sees each id as it comes and may return false to stop.
/// Usage errors: an empty prompt; a prompt, with what is to be generated, longer than max_positions.
std::vector<int64_t> generate(
    nn::Model& model,
    const std::vector<int64_t>& prompt,
    const SamplingOptions& options,
    const std::function<bool(int64_t)>& on_token = {});

}  // namespace lehr::train
