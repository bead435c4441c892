#include "lehr/search/model_space.h"

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/nn/moe.h"

namespace lehr::search {

namespace {
// Whether layers of the family may have linear layers in place of sub-blocks: those of an own family may not.
bool takes_linear_layers(const DecoderPieces& pieces) {
  const Piece piece =
      pieces.layer_on_meta(0, {.attention = descriptor::LinearSubblock{}, .ffn = descriptor::LinearSubblock{}});
  bool found = false;
  pieces.each_parameter(*piece, 0, [&](const std::string& name, nn::Parameter&) {
    found = found || name.ends_with(".linear_attn.weight");  // linear_attn.* alone is gated DeltaNet
  });
  return found;
}

// The groups of experts that the model's routers choose from; 1 without experts.
int64_t expert_groups(const DecoderPieces& pieces) {
  for (int64_t layer = 0; layer < pieces.num_layers(); ++layer) {
    const descriptor::BlockConfig& block = pieces.blocks()[static_cast<size_t>(layer)];
    if (block.is_moe()) {
      return nn::moe_layers(*pieces.layer_on_meta(layer, block)).front()->router->options().n_group;
    }
  }
  return 1;
}

}  // namespace

SpaceConfig space_of_model(SpaceConfig space, const DecoderPieces& pieces) {
  const std::string type = pieces.args().model_type();
  if (!takes_linear_layers(pieces)) {
    space.attention_linear = space.ffn_linear = false;
  }
  require(
      space.kv_heads.empty() || !value_of(pieces.args().decoder_form(), "decoder_form").latent_attention,
      "space.kv_heads: in models of type {} all heads read one latent, so there are no KV heads to remove; leave the key "
      "out",
      type);
  require(
      space.windows.empty() || pieces.args().layers_may_have_windows(),
      "space.windows: the attention of models of type {} has no sliding windows, and their config.json cannot give one "
      "to a layer; leave the key out",
      type);
  space.model_windows = value_of(pieces.args().decoder_form(), "decoder_form").windows;
  const int64_t groups = expert_groups(pieces);
  space.fewer_experts = groups == 1;
  require(
      space.experts.empty() || space.fewer_experts,
      "space.experts: the routers choose among {} groups of experts (n_group), which must stay whole; leave the key out, "
      "and search expert_widths",
      groups);
  return space;
}

}  // namespace lehr::search
