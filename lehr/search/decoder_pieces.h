// A decoder as pieces that run one after another: embeddings, single layers, final norm with head. Any layer can be
// replaced by one of another shape, and a forward can begin at any layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lehr/descriptor/model_args.h"

namespace lehr::search {

/// A piece is a pipeline stage: a model of its own that reads hidden states, and ids if it has the embeddings. Null is
/// a layer without sub-blocks, which returns its input.
using Piece = std::shared_ptr<nn::Model>;

/// Builds the pieces of a family's decoder, without weights. A piece of layer i is the middle one of pipeline stages of
/// one layer each; an empty layer before the first and after the last one hold the embeddings and the head.
class DecoderPieces {
 public:
  /// Opens `folder`/config.json. Throws a usage error for a model without a language-model head, and for a family
  /// without a descriptor, block configs or closed-form costs. `families` must outlive it.
  DecoderPieces(
      std::filesystem::path folder, const descriptor::ModelFamilies& families, at::Device device, at::ScalarType dtype);

  const std::vector<descriptor::BlockConfig>& blocks() const { return blocks_; }
  int64_t num_layers() const { return static_cast<int64_t>(blocks_.size()); }
  const descriptor::ModelArgs& args() const { return *args_; }
  const descriptor::ModelDescriptor& descriptor() const { return descriptor_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

  /// Each is allocated on the device, in eval mode, with undefined values.
  Piece embeddings() const;
  Piece layer(int64_t index, const descriptor::BlockConfig& block) const;
  /// The same on meta: its modules, and no memory.
  Piece layer_on_meta(int64_t index, const descriptor::BlockConfig& block) const;
  Piece head() const;

  /// Calls `fill` with each parameter of a piece of that layer (any index for embeddings and head) and its name in the
  /// whole model.
  void each_parameter(
      const nn::Model& piece,
      int64_t layer,
      const std::function<void(const std::string& name, nn::Parameter& parameter)>& fill) const;

 private:
  Piece build_on_meta(int64_t stage, const descriptor::BlockConfig& block) const;
  Piece build(int64_t stage, const descriptor::BlockConfig& block) const;

  std::filesystem::path folder_;
  const descriptor::ModelFamilies& families_;
  const descriptor::ModelDescriptor& descriptor_;
  std::unique_ptr<descriptor::ModelArgs> args_;
  std::vector<descriptor::BlockConfig> blocks_;
  at::Device device_;
  at::ScalarType dtype_;
};

/// Runs a piece on the hidden states of a batch, whose positions and mask are in `inputs`. Returns its hidden states.
at::Tensor run_piece(const Piece& piece, const nn::ModelInputs& inputs, const at::Tensor& hidden_states);

}  // namespace lehr::search
