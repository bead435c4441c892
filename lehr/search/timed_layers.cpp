#include "lehr/search/timed_layers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lehr/base/value_of.h"

namespace lehr::search {

namespace {
nn::ModelInputs input_of(const DecoderPieces& pieces, int64_t sequences, int64_t tokens) {
  nn::ModelInputs inputs;
  const at::Tensor ids = at::arange(sequences * tokens, at::kLong) * 7919 % pieces.args().vocab_size();
  inputs.input_ids = ids.view({sequences, tokens}).to(pieces.device());
  return inputs;
}

}  // namespace

TimedInputs::TimedInputs(const DecoderPieces& pieces, const descriptor::Workload& work)
    : prefill(input_of(pieces, 1, work.num_tokens)),
      decode(input_of(pieces, work.num_sequences, 1)),
      cached_tokens(work.num_tokens - 1) {}

void wait_for(const at::Tensor& tensor) {
  tensor.flatten().narrow(0, 0, 1).cpu();
}

descriptor::DecoderForm form_of(const DecoderPieces& pieces) {
  return value_of(pieces.args().decoder_form(), "decoder_form");
}

bool has_delta_net(const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block) {
  return std::holds_alternative<descriptor::AttentionSubblock>(block.attention) &&
         form_of(pieces).has_states(static_cast<size_t>(layer));
}

namespace {
// What a layer keeps of a token: keys and values, or the latent and its rotated part.
struct CachedToken {
  int64_t heads = 0, key_size = 0, value_size = 0;
  std::optional<int64_t> window = {};  // of the tokens that it keeps

  at::Tensor values(const DecoderPieces& pieces, int64_t sequences, int64_t tokens, int64_t size) const {
    return at::full({sequences, tokens, heads, size}, 0.02, at::TensorOptions(pieces.device()).dtype(pieces.dtype()));
  }
};

// Returns nothing for a layer that keeps no tokens.
std::optional<CachedToken> cached_token(
    const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block) {
  const auto* attention = std::get_if<descriptor::AttentionSubblock>(&block.attention);
  if (attention == nullptr || has_delta_net(pieces, layer, block)) {
    return std::nullopt;
  }
  const descriptor::DecoderForm form = form_of(pieces);
  if (const auto& latent = form.latent_attention) {
    return CachedToken{.heads = 1, .key_size = latent->kv_lora_rank, .value_size = latent->qk_rope_head_dim};
  }
  const int64_t window = form.window(static_cast<size_t>(layer), *attention);
  return CachedToken{
      .heads = attention->num_key_value_heads,
      .key_size = form.head_dim,
      .value_size = form.head_dim,
      .window = window > 0 ? std::optional(window) : std::nullopt};
}

// Hidden states of the shape that a layer takes.
at::Tensor hidden_states_of(const DecoderPieces& pieces, const nn::ModelInputs& inputs) {
  const int64_t size = form_of(pieces).hidden_size;
  const at::Tensor values = at::linspace(-1, 1, inputs.input_ids.numel() * size, at::kFloat);
  return values.view({inputs.input_ids.size(0), inputs.input_ids.size(1), size})
      .to(at::TensorOptions(pieces.device()).dtype(pieces.dtype()));
}

}  // namespace

DecodingLayer::DecodingLayer(
    const DecoderPieces& pieces,
    int64_t layer,
    const descriptor::BlockConfig& block,
    Piece piece,
    const TimedInputs& inputs)
    : piece_(std::move(piece)) {
  if (has_delta_net(pieces, layer, block) && inputs.cached_tokens > 0) {  // a state, alike after any number of tokens
    nn::ModelInputs first = inputs.decode;
    first.caches = &caches_;
    run_piece(piece_, first, hidden_states_of(pieces, first));
  }
  const auto cached = cached_token(pieces, layer, block);
  // In two parts, so that the cache has grown and no step reallocates it.
  for (const int64_t tokens : {inputs.cached_tokens - 1, int64_t{1}}) {
    if (cached && tokens > 0 && inputs.cached_tokens > 0) {
      const int64_t sequences = inputs.decode.input_ids.size(0);
      caches_.front().append(
          cached->values(pieces, sequences, tokens, cached->key_size),
          cached->values(pieces, sequences, tokens, cached->value_size),
          cached->window);
    }
  }
}

at::Tensor DecodingLayer::step(const TimedInputs& inputs, const at::Tensor& hidden_states) const {
  nn::KeyValueCaches caches = caches_;
  nn::ModelInputs own = inputs.decode;
  own.caches = &caches;
  return run_piece(piece_, own, hidden_states);
}

namespace {
// With real numbers as weights: denormal ones would be slow.
std::vector<Piece> copies_of(
    const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block, const TimedInputs& inputs) {
  constexpr int64_t kMost = 16;
  constexpr int64_t kCopiesBytes = int64_t{1} << 29;
  std::vector<Piece> copies{pieces.layer(layer, block)};
  if (!copies.front()) {
    return {};
  }
  int64_t bytes = 1;
  for (const auto& [name, parameter] : nn::named_parameters(*copies.front())) {
    bytes += static_cast<int64_t>(parameter->value().nbytes());
  }
  if (const auto cached = cached_token(pieces, layer, block)) {  // in a cache that has doubled
    const int64_t tokens = std::min(inputs.cached_tokens, cached->window.value_or(inputs.cached_tokens));
    bytes += 2 * inputs.decode.input_ids.size(0) * tokens * cached->heads * (cached->key_size + cached->value_size) *
             static_cast<int64_t>(c10::elementSize(pieces.dtype()));
  }
  const int64_t most = std::clamp<int64_t>(pieces.num_layers(), 2, kMost);
  const int64_t count = std::clamp<int64_t>(kCopiesBytes / bytes, 2, most);
  while (static_cast<int64_t>(copies.size()) < count) {
    copies.push_back(pieces.layer(layer, block));
  }
  for (const Piece& copy : copies) {
    for (const auto& [name, parameter] : nn::named_parameters(*copy)) {
      const at::Tensor value = parameter->value();
      value.normal_(0, 0.02);
    }
  }
  return copies;
}

}  // namespace

LayersInRow::LayersInRow(
    const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block, const TimedInputs& inputs)
    : inputs_(inputs),
      copies_(copies_of(pieces, layer, block, inputs)),
      all_(hidden_states_of(pieces, inputs.prefill)),
      last_(hidden_states_of(pieces, inputs.decode)) {
  for (const Piece& copy : copies_) {
    decoding_.emplace_back(pieces, layer, block, copy, inputs);
  }
}

void LayersInRow::prefill() const {
  run([&](size_t copy) { return run_piece(copies_[copy], inputs_.prefill, all_); });
}

void LayersInRow::decode() const {
  run([&](size_t copy) { return decoding_[copy].step(inputs_, last_); });
}

void LayersInRow::run(const std::function<at::Tensor(size_t copy)>& run_one) const {
  at::Tensor last;
  for (size_t copy = 0; copy < size(); ++copy) {
    last = run_one(copy);
  }
  wait_for(last);
}

}  // namespace lehr::search
