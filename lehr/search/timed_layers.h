// Layers that are timed: on the inputs of a prefill, and on those of a decoding step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lehr/descriptor/block_account.h"
#include "lehr/search/decoder_pieces.h"

namespace lehr::search {

/// The inputs of a prefill, and of a decoding step: the last token of each sequence.
struct TimedInputs {
  TimedInputs(const DecoderPieces& pieces, const descriptor::Workload& work);

  nn::ModelInputs prefill;
  nn::ModelInputs decode;
  int64_t cached_tokens;
};

/// Waits for the device that computes the tensor.
void wait_for(const at::Tensor& tensor);

/// The sizes of the model's sub-blocks.
descriptor::DecoderForm form_of(const DecoderPieces& pieces);
/// True if that layer's attention, with this block config, is gated DeltaNet.
bool has_delta_net(const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block);

/// A layer with its cache. Each step runs with a copy of the cache, so that its length stays the same.
class DecodingLayer {
 public:
  DecodingLayer(
      const DecoderPieces& pieces,
      int64_t layer,
      const descriptor::BlockConfig& block,
      Piece piece,
      const TimedInputs& inputs);

  at::Tensor step(const TimedInputs& inputs, const at::Tensor& hidden_states) const;

 private:
  Piece piece_;
  nn::KeyValueCaches caches_{1};  // of the piece's only layer
};

/// Copies of a layer that run one after another, as many as the model has layers (2 to 16) if memory allows, so that
/// weights come from where they do in a model, and not from the cache of the call before. `inputs` must outlive it.
class LayersInRow {
 public:
  LayersInRow(
      const DecoderPieces& pieces, int64_t layer, const descriptor::BlockConfig& block, const TimedInputs& inputs);

  /// Returns their number; 0 for a layer without sub-blocks.
  size_t size() const { return copies_.size(); }

  void prefill() const;
  void decode() const;

 private:
  void run(const std::function<at::Tensor(size_t copy)>& run_one) const;

  const TimedInputs& inputs_;
  std::vector<Piece> copies_;
  std::vector<DecodingLayer> decoding_;
  at::Tensor all_, last_;
};

}  // namespace lehr::search
