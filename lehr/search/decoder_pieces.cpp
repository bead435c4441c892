#include "lehr/search/decoder_pieces.h"

#include <utility>

#include "lehr/base/error.h"
#include "lehr/descriptor/model_descriptor.h"

namespace lehr::search {

namespace {
using descriptor::BlockConfig;
using descriptor::NoOpSubblock;

BlockConfig empty_layer() {
  return {.attention = NoOpSubblock{}, .ffn = NoOpSubblock{}};
}

bool is_empty(const BlockConfig& block) {
  return block.attention_is_no_op() && block.ffn_is_no_op();
}
}  // namespace

DecoderPieces::DecoderPieces(
    std::filesystem::path folder, const descriptor::ModelFamilies& families, at::Device device, at::ScalarType dtype)
    : folder_(std::move(folder)),
      families_(families),
      descriptor_(families.descriptor_of_hf_folder(folder_)),
      args_(families.from_hf_folder(folder_)),
      blocks_(args_->block_configs()),
      device_(device),
      dtype_(dtype) {
  require(
      args_->head() == descriptor::Head::causal_lm,
      "{}: a search compares language models; this model has another head",
      folder_.string());
  require(
      !blocks_.empty(),
      "{}: {} models have no block configs, so their layers cannot differ",
      folder_.string(),
      args_->model_type());
  require(
      args_->decoder_form().has_value(),
      "{}: {} models have no closed-form costs, which the budgets of a search need",
      folder_.string(),
      args_->model_type());
}

Piece DecoderPieces::build_on_meta(int64_t stage, const BlockConfig& block) const {
  const int64_t stages = num_layers() + 2;
  const auto args = families_.from_hf_folder(folder_);
  std::vector<BlockConfig> blocks(static_cast<size_t>(stages), empty_layer());
  blocks[static_cast<size_t>(stage)] = block;
  args->set_block_configs(std::move(blocks));
  args->shift_layers(1);
  return args->build(
      {.stage = {
           .current_stage = stage,
           .num_stages = stages,
           .layers_by_stage = std::vector<int64_t>(static_cast<size_t>(stages), 1)}});
}

Piece DecoderPieces::build(int64_t stage, const BlockConfig& block) const {
  Piece piece = build_on_meta(stage, block);
  nn::materialize(*piece, device_, dtype_);
  piece->eval();
  return piece;
}

Piece DecoderPieces::embeddings() const {
  return build(0, empty_layer());
}

Piece DecoderPieces::layer(int64_t index, const BlockConfig& block) const {
  return is_empty(block) ? nullptr : build(index + 1, block);
}

Piece DecoderPieces::layer_on_meta(int64_t index, const BlockConfig& block) const {
  return is_empty(block) ? nullptr : build_on_meta(index + 1, block);
}

Piece DecoderPieces::head() const {
  return build(num_layers() + 1, empty_layer());
}

void DecoderPieces::each_parameter(
    const nn::Model& piece,
    int64_t layer,
    const std::function<void(const std::string& name, nn::Parameter& parameter)>& fill) const {
  const std::string here = descriptor_.layer_block_name(layer + 1) + ".";
  const std::string whole = descriptor_.layer_block_name(layer) + ".";
  for (const auto& [name, parameter] : nn::named_parameters(piece)) {
    fill(name.starts_with(here) ? whole + name.substr(here.size()) : name, *parameter);
  }
}

at::Tensor run_piece(const Piece& piece, const nn::ModelInputs& inputs, const at::Tensor& hidden_states) {
  if (!piece) {
    return hidden_states;
  }
  nn::ModelInputs own = inputs;
  own.labels = at::Tensor();
  own.hidden_states = hidden_states;
  return piece->forward(own).hidden_states;
}

}  // namespace lehr::search
