#include "lehr/prune/pruned_model.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/descriptor/model_descriptor.h"
#include "lehr/pretrained/weights.h"
#include "lehr/prune/layer_cuts.h"

namespace lehr::prune {

namespace {
std::vector<pretrained::Replacement> dropped_subblocks(const Pruning& pruning) {
  std::vector<pretrained::Replacement> dropped;
  for (size_t i = 0; i < pruning.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    if (pruning.layers[i].no_attention) {
      dropped.push_back({.layer = layer, .subblock = pretrained::Subblock::attention});
    }
    if (pruning.layers[i].no_ffn) {
      dropped.push_back({.layer = layer, .subblock = pretrained::Subblock::ffn});
    }
  }
  return dropped;
}

// A router that chooses among groups of experts counts them by their places, so as many have to stay in each group.
void require_whole_groups(
    const descriptor::ModelArgs& args,
    const Pruning& pruning,
    const std::vector<descriptor::BlockConfig>& blocks,
    const std::string& folder) {
  const Node config = args.to_hf_config("");
  const Node* const groups = config.find("n_group");
  const Node* const chosen = config.find("topk_group");
  if (groups == nullptr || chosen == nullptr || groups->as_int() <= chosen->as_int()) {
    return;
  }
  for (size_t layer = 0; layer < pruning.layers.size(); ++layer) {
    const auto* moe = std::get_if<descriptor::MoESubblock>(&blocks[layer].ffn);
    const std::vector<int64_t>& kept = pruning.layers[layer].experts;
    if (moe == nullptr || kept.empty()) {
      continue;
    }
    std::vector<int64_t> of_group(static_cast<size_t>(groups->as_int()));
    for (const int64_t expert : kept) {
      ++of_group.at(static_cast<size_t>(expert * groups->as_int() / moe->num_local_experts));
    }
    require(
        std::count(of_group.begin(), of_group.end(), of_group.front()) == groups->as_int(),
        "{}: layer {}: n_group: the router chooses among {} groups of experts, of which {} would be left; keep as many of "
        "each, or make experts narrower (--expert-width)",
        folder,
        layer,
        groups->as_int(),
        fmt::join(of_group, ", "));
  }
}

// QK-norm over the full width has a weight per row of k_proj. With one KV head, which cannot be pruned, they look
// alike.
nn::QKNormWidth qk_norm_width(const state::TensorSpecs& specs, const std::string& layer) {
  const auto norm = specs.find(layer + "self_attn.k_norm.weight"), keys = specs.find(layer + "self_attn.k_proj.weight");
  const bool full = norm != specs.end() && keys != specs.end() && norm->second.shape.at(0) == keys->second.shape.at(0);
  return full ? nn::QKNormWidth::full : nn::QKNormWidth::head;
}
}  // namespace

PrunedModel::PrunedModel(
    const std::filesystem::path& folder, const Pruning& pruning, const descriptor::ModelFamilies& families)
    : parts_(folder, dropped_subblocks(pruning), families),
      parameters_(parts_.map(), parts_.specs()),
      args_(families.from_hf_folder(folder)) {
  const auto blocks = args_->block_configs();
  args_->set_block_configs(child_blocks(pruning, blocks, folder.string() + ": "));
  require_whole_groups(*args_, pruning, blocks, folder.string());
  args_->check(folder.string() + ": after pruning: ");
  specs_ = parameters_.output_specs();
  const descriptor::ModelDescriptor& descriptor = families.descriptor_of_hf_folder(folder);
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const std::string prefix = descriptor.layer_block_name(static_cast<int64_t>(layer)) + ".";
    const CutRules rules{
        .scale_pruned_weights = pruning.scale_pruned_weights, .qk_norm_width = qk_norm_width(specs_, prefix)};
    for (auto& [name, spec] : specs_) {
      if (!name.starts_with(prefix)) {
        continue;
      }
      auto found = cut_of(name.substr(prefix.size()), spec.shape, pruning.layers[layer], blocks[layer], rules);
      if (found) {
        spec.shape = shape_after(*found, spec.shape);
        cuts_.emplace(name, std::move(*found));
      }
    }
    if (pruning.layers[layer].linear_attention) {
      const auto& attention = std::get<descriptor::AttentionSubblock>(blocks[layer].attention);
      replace_by_linear(LinearProduct::of_attention(prefix, attention.num_key_value_heads, specs_));
    }
    if (pruning.layers[layer].linear_ffn) {
      replace_by_linear(LinearProduct::of_ffn(prefix, specs_));
    }
  }
  for (const auto& [name, wanted] : pretrained::parameter_specs(*args_->build({}))) {
    require(
        specs_.contains(name) && specs_.at(name).shape == wanted.shape,
        "{}: {}: pruning gives it another shape than the child's config.json",
        folder.string(),
        name);
  }
}

void PrunedModel::replace_by_linear(LinearProduct product) {
  std::erase_if(specs_, [&](const auto& one) { return product.replaces(one.first); });
  specs_[product.name()] = product.spec();
  linear_.emplace(product.name(), std::move(product));
}

const ParameterCut* PrunedModel::cut(const std::string& name) const {
  const auto found = cuts_.find(name);
  return found == cuts_.end() ? nullptr : &found->second;
}

at::Tensor PrunedModel::read(const std::string& name, const Box& box) const {
  const auto read_parent = [&](const std::string& parameter, const Box& wanted) {
    return state::read_output(parameters_, parts_, parameter, wanted);
  };
  const auto linear = linear_.find(name);
  const ParameterCut* how = cut(name);
  if (how == nullptr && linear == linear_.end()) {
    return read_parent(name, box);
  }
  const auto type = state::scalar_type(specs_.at(name).dtype);
  if (!type) {
    fail("{}: weights of type {} cannot be pruned", name, state::dtype_name(specs_.at(name).dtype));
  }
  return how == nullptr ? linear->second.read(box, *type, read_parent)
                        : apply(*how, box, *type, [&](const Box& wanted) { return read_parent(name, wanted); });
}

void PrunedModel::copy(const std::string& name, const Box& box, const at::Tensor& target) const {
  if (cut(name) == nullptr && !linear_.contains(name)) {
    state::read_into(parameters_, parts_, name, box, target);
  } else {
    target.copy_(read(name, box));
  }
}

void PrunedModel::load(nn::Module& model) const {
  std::vector<std::string> wanted;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    wanted.push_back(name);
  }
  pretrained::read_parameters(model, state::BoundMap(state::identity(wanted), specs_), *this);
}

}  // namespace lehr::prune
