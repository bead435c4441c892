#include "lehr/train/generate.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/base/random.h"

namespace lehr::train {

int64_t sample_token(const at::Tensor& logits, const SamplingOptions& options, double uniform) {
  if (options.temperature == 0) {
    return logits.argmax().item<int64_t>();
  }
  auto [values, ids] = (logits.to(at::kDouble).cpu() / options.temperature).sort(/*dim=*/-1, /*descending=*/true);
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
  const at::Device device = options.device.value_or(nn::named_parameters(model).front().parameter->value().device());
  c10::InferenceMode inference;
  nn::KeyValueCaches caches(static_cast<size_t>(model.num_local_layers()));
  const RandomStream stream(options.seed, "generate");
  at::Tensor input = at::tensor(prompt, at::kLong).unsqueeze(0).to(device);  // (1, T)
  std::vector<int64_t> generated;
  for (int64_t i = 0; i < options.max_new_tokens; ++i) {
    nn::ModelInputs inputs;
    inputs.input_ids = input;
    inputs.caches = &caches;
    const at::Tensor hidden_states = model.forward(inputs).hidden_states;
    const at::Tensor logits = model.logits(hidden_states.narrow(1, hidden_states.size(1) - 1, 1)).view(-1);  // (V)
    const int64_t token = sample_token(logits, options, stream.uniform(static_cast<uint64_t>(i)));
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
