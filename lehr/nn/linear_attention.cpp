#include "lehr/nn/linear_attention.h"

#include "lehr/base/error.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/attention/attention_sequences.h"

namespace lehr::nn {

at::Tensor linear_attention_sequences(const ops::AttentionMask& mask, int64_t rows, int64_t tokens) {
  require(
      mask.causal && !mask.allowed.defined() && !mask.bias.defined(),
      "linear attention: attention_mask: a state passes from each token to the next, so allowed and bias are not "
      "supported; use document_ids and key_padding");
  if (operator_watch() != nullptr) {
    return {};
  }
  const auto lengths = ops::cumulative_lengths_of(mask, rows, tokens);
  if (!lengths) {
    fail(
        "linear attention: attention_mask: a document is in several pieces, or its ids are on a device that the host "
        "cannot read; give each document consecutive tokens, and the mask its sequence_ends");
  }
  return *lengths;
}

at::Tensor add_skip(const at::Tensor& output, const at::Tensor& values, const at::Tensor& skip) {
  return skip.defined() ? output + values * skip.to(values.scalar_type()).unsqueeze(-1) : output;
}

at::Tensor HasLinearAttentionCore::mix(
    const LinearAttentionStreams& streams, const ops::AttentionMask& mask, KeyValueCache* cache) const {
  if (core_) {
    require(
        cache == nullptr,
        "linear attention: a cache holds the states of whole sequences, of which this module has a part; generate with "
        "one rank of context_parallel");
    return core_(streams, mask);
  }
  const int64_t rows = streams.decay.size(0), tokens = streams.decay.size(1), before = streams.weights[0].size(2) - 1;
  const at::Tensor lengths = linear_attention_sequences(mask, rows, tokens);
  require(
      cache == nullptr || !lengths.defined(),
      "linear attention: attention_mask: document_ids and key_padding are not supported with a cache; generate from one "
      "sequence per row, without padding");
  const bool continues = cache != nullptr && !cache->states().empty();
  std::array<at::Tensor, 3> heads;
  std::vector<at::Tensor> states;  // the last tokens before the convolutions, (B, W - 1, ...), and the state
  for (size_t i = 0; i < heads.size(); ++i) {
    const at::Tensor& x = streams.heads[i];
    const at::Tensor tail = continues ? cache->states()[i] : at::Tensor();
    heads[i] = ops::causal_conv(x, streams.weights[i], lengths, tail, streams.biases[i]);
    if (cache != nullptr) {
      auto shape = x.sizes().vec();
      shape[1] = before;
      const at::Tensor longer = at::cat({continues ? tail : at::zeros(shape, x.options()), x}, 1);
      states.push_back(longer.narrow(1, tokens, before).clone());
    }
  }
  const ops::GatedDelta result = ops::gated_delta_rule(
      {.query = heads[0],
       .key = heads[1],
       .value = heads[2],
       .decay = streams.decay,
       .beta = streams.beta,
       .initial_state = continues ? cache->states()[3] : at::Tensor(),
       .cumulative_lengths = lengths,
       .update = streams.update});
  if (cache != nullptr) {
    states.push_back(result.final_state);
    cache->set_states(std::move(states), tokens);
  }
  return add_skip(result.output, heads[2], streams.skip);
}

}  // namespace lehr::nn
