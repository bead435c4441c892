#include "lehr/prune/prune.h"

#include "lehr/prune/pruned_model.h"

namespace lehr::prune {

namespace {
// PruneReport::rescaled_keys
std::vector<int64_t> rescaled_keys(const PruneReport& report, const std::optional<descriptor::DecoderForm>& form) {
  std::vector<int64_t> layers;
  if (!form || !form->qk_norm || form->qk_norm_width != nn::QKNormWidth::full) {
    return layers;
  }
  for (size_t layer = 0; layer < report.before.size(); ++layer) {
    const auto* before = std::get_if<descriptor::AttentionSubblock>(&report.before[layer].attention);
    const auto* after = std::get_if<descriptor::AttentionSubblock>(&report.after[layer].attention);
    if (before != nullptr && after != nullptr && after->num_key_value_heads < before->num_key_value_heads) {
      layers.push_back(static_cast<int64_t>(layer));
    }
  }
  return layers;
}
}  // namespace

PruneReport write_pruned(const PruneTarget& target, const Pruning& pruning, const descriptor::ModelFamilies& families) {
  pretrained::require_new_folder(target.output);
  const PrunedModel child(target.model, pruning, families);
  PruneReport report;
  report.before = families.from_hf_folder(target.model)->block_configs();
  report.after = child.args().block_configs();
  report.left_out = child.parent().left_out();

  Node config = pretrained::plain_text_config(target.model);
  if (report.after != report.before) {
    pretrained::set_blocks(config, child.args());
  }
  const auto layout = child.parent().layout();
  static_cast<pretrained::WrittenModel&>(report) = pretrained::write_model_folder(
      {.model = target.model,
       .output = target.output,
       .max_shard_bytes = target.max_shard_bytes,
       .subblocks = target.subblocks,
       .texts =
           {{"config.json", pretrained::config_text(target.model / "config.json", config)},
            {kPruningFile, pruning_json(pruning, target.model)}},
       .before_each = target.before_each},
      child.args(),
      state::BoundMap(child.args().state_map(layout).inverse(), child.specs()),
      child,
      families);
  report.rescaled_keys = rescaled_keys(report, child.args().decoder_form());
  return report;
}

}  // namespace lehr::prune
