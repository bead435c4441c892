#include "lehr/plan/equal_layers.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/data/tokenizer.h"
#include "lehr/plan/stage_pieces.h"

namespace lehr::plan {

namespace {
using descriptor::BlockConfig;
using descriptor::DecoderForm;

// The tokens of a sequence that a token sees at most.
int64_t seen_tokens(const DecoderForm& form, size_t layer, int64_t seq_len) {
  const int64_t window = layer < form.windows.size() ? form.windows[layer] : 0;
  const bool sees_all = window == 0 || (window >= seq_len && !form.full_attention);
  return sees_all ? seq_len : window;
}

// Returns how layers differ; empty if they do not.
std::string difference(const descriptor::ModelArgs& args) {
  const auto form = args.decoder_form().value_or(DecoderForm{});
  if (args.is_heterogeneous() || form.num_kv_shared_layers > 0 || form.hidden_size_per_layer_input > 0) {
    return "block_configs, num_kv_shared_layers or hidden_size_per_layer_input in its config.json";
  }
  const std::vector<BlockConfig> blocks = args.block_configs();
  const auto dense = static_cast<size_t>(leading_dense_layers(args));
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    if (form.has_states(layer) != form.has_states(0)) {
      return fmt::format(
          "layer {} has a state in place of attention, and layer {} has none",
          form.has_states(0) ? 0 : layer,
          form.has_states(0) ? layer : 0);
    }
    const BlockConfig& usual = blocks[dense];
    if (blocks[layer].attention != usual.attention || (layer >= dense && blocks[layer].ffn != usual.ffn)) {
      return fmt::format(
          "layer {}: {}; layer {}: {}",
          std::min(layer, dense),
          describe(blocks[std::min(layer, dense)]),
          std::max(layer, dense),
          describe(blocks[std::max(layer, dense)]));
    }
  }
  return {};
}
}  // namespace

std::string difference_of_windows(const descriptor::ModelArgs& args, int64_t seq_len) {
  const auto form = args.decoder_form().value_or(DecoderForm{});
  const int64_t first = seen_tokens(form, 0, seq_len);
  for (size_t layer = 0; layer < form.windows.size(); ++layer) {
    if (const int64_t seen = seen_tokens(form, layer, seq_len); seen != first) {
      return fmt::format(
          "a token sees up to {} tokens in layer 0, and {} in layer {}, of training.seq_len = {}",
          first,
          seen,
          layer,
          seq_len);
    }
  }
  return {};
}

void require_equal_layers(
    const train::TrainConfig& config, const train::TrainSpec& spec, const descriptor::ModelArgs& args) {
  const std::string found = difference(args);
  require(
      found.empty(),
      "lehr plan --search: one measured layer stands for all layers, but the layers of this model differ ({}); plan "
      "single meshes without --search",
      found);
  const auto tokenizer = data::load_tokenizer("byte", "tokenizer.path");
  train::TrainConfig small = config;
  for (const int64_t layers : StagePieces::measured_layers(args)) {
    small.model.args.num_hidden_layers = layers;
    try {
      spec.build.model_args(small, spec.family, *tokenizer);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::usage) {
        throw;
      }
      fail(
          "lehr plan --search: the search measures models of other depths, and a key of this model is not for {} layers "
          "({}); remove the key, or plan single meshes without --search",
          layers,
          error.what());
    }
  }
}

}  // namespace lehr::plan
