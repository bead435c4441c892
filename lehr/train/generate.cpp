#include "lehr/train/generate.h"

#include <algorithm>
#include <cmath>

#include "lehr/base/error.h"
#include "lehr/base/random.h"
#include "lehr/nn/linear_attention.h"
#include "lehr/train/ranks.h"

namespace lehr::train {

namespace {
void require_finite(double logit) {
  if (!std::isfinite(logit)) {
    fail_runtime("generate: a logit is {}, so there is no next token: a weight or a hidden state is not finite", logit);
  }
}
}  // namespace

int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) {
    const auto [largest, most_likely] = logits.max(/*dim=*/-1);  // NaN, if there is one
    const at::Tensor both = at::stack({largest.to(at::kDouble), most_likely.to(at::kDouble)}).cpu();  // one read-back
    require_finite(both[0].item<double>());
    return static_cast<int64_t>(both[1].item<double>());
  }
  auto [values, ids] = (logits.to(at::kDouble).cpu() / options.temperature).sort(/*dim=*/-1, /*descending=*/true);
  require_finite(values[0].item<double>());  // NaN is first
  if (options.top_k > 0 && options.top_k < values.size(0)) {
    values = values.narrow(0, 0, options.top_k);
  }
  const at::Tensor probabilities = values.softmax(-1).contiguous();
  const double* p = probabilities.data_ptr<double>();
  // The smallest set of tokens whose total probability reaches top_p; the most likely token is always included.
  int64_t kept = 0;
  double mass = 0;
  while (kept < probabilities.size(0) && (kept == 0 || mass < options.top_p)) {
    mass += p[kept++];
  }
  double left = uniform * mass;
  int64_t chosen = 0;
  while (chosen + 1 < kept && left >= p[chosen]) {
    left -= p[chosen++];
  }
  return ids[chosen].item<int64_t>();
}

namespace {
// Runs the model on the tokens `input` (1, T) after those in the caches, and returns the logits (V) of the next one.
// Sequence parallelism needs a multiple of `parts` tokens: padding follows the last token, which does not see it, at
// the same position, so that no angle depends on it; the caches forget it.
at::Tensor next_logits(nn::Model& model, const at::Tensor& input, nn::KeyValueCaches& caches, int64_t parts) {
  const int64_t tokens = input.size(1);
  const int64_t padding = (parts - tokens % parts) % parts;
  int64_t cached = 0;  // a layer without attention has no cache
  for (const nn::KeyValueCache& cache : caches) {
    cached = std::max(cached, cache.length());
  }
  nn::ModelInputs inputs;
  inputs.input_ids = at::constant_pad_nd(input, {0, padding});
  if (padding > 0) {
    inputs.position_ids = at::arange(tokens + padding, input.options()).clamp_max(tokens - 1).add(cached).unsqueeze(0);
  }
  inputs.caches = &caches;
  const at::Tensor hidden_states = model.forward(inputs).hidden_states;  // (1, (T + padding) / parts, H)
  for (nn::KeyValueCache& cache : caches) {
    cache.truncate(cached + tokens);
  }
  const int64_t mine = hidden_states.size(1), last = tokens - 1;
  const at::Tensor logits = model.logits(hidden_states.narrow(1, last % mine, 1));  // (1, parts, V)
  return logits.select(1, last / mine).view(-1);
}
}  // namespace

void check_generation(const nn::Model& model, const Ranks& ranks) {
  if (ranks.sequence_parts() == 1) {
    return;
  }
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    require(
        dynamic_cast<const nn::HasLinearAttentionCore*>(entry.value().get()) == nullptr,
        "parallelism.tensor_parallel_degree: generation pads sequences to a multiple of it, and the state of {} (linear "
        "attention) would include the padding; expected 1, found {} (during training, leave out sample.prompt)",
        entry.key(),
        ranks.sequence_parts());
  }
}

std::vector<int64_t> generate(
    nn::Model& model,
    const std::vector<int64_t>& prompt,
    const SamplingOptions& options,
    const std::function<bool(int64_t)>& on_token) {
  require(!prompt.empty(), "prompt: expected at least one token, found none");
  const auto length = static_cast<int64_t>(prompt.size());
  require(
      options.max_positions == 0 || options.max_new_tokens <= options.max_positions - length,
      "prompt: {} tokens and {} new tokens exceed the model's {} positions (max_position_embeddings of its "
      "config.json); request fewer new tokens",
      prompt.size(),
      options.max_new_tokens,
      options.max_positions);
  const Ranks one_device;
  const Ranks& ranks = options.ranks != nullptr ? *options.ranks : one_device;
  check_generation(model, ranks);
  const at::Device device = options.device.value_or(nn::named_parameters(model).front().parameter->value().device());
  const c10::InferenceMode inference(ranks.context() == nullptr);  // a transport's threads write into tensors
  const at::NoGradGuard no_grad;
  nn::KeyValueCaches caches(static_cast<size_t>(model.num_local_layers()));
  const RandomStream stream(options.seed, "generate");
  at::Tensor input = at::tensor(prompt, at::kLong).unsqueeze(0).to(device);  // (1, T)
  std::vector<int64_t> generated;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    const at::Tensor logits = next_logits(model, input, caches, ranks.sequence_parts());
    const int64_t token = ranks.of_main(sample_token(logits, options, stream.uniform(static_cast<uint64_t>(i))));
    if (std::find(options.stop_ids.begin(), options.stop_ids.end(), token) != options.stop_ids.end()) {
      break;
    }
    generated.push_back(token);
    if (on_token && !on_token(token)) {
      break;
    }
    input = at::full({1, 1}, token, at::TensorOptions().dtype(at::kLong).device(device));
  }
  return generated;
}

}  // namespace lehr::train
