// The tensor-parallel styles of a whole layer.
#include <algorithm>
#include <unordered_set>

#include "lehr/base/error.h"
#include "lehr/shard/tensor_parallel.h"

namespace lehr::shard {

namespace {
using mesh::DistributedContext;

// Applies the style of `child` if it is a `Block`.
template <class Block>
bool style_block(torch::nn::Module& child, DistributedContext& context) {
  auto* block = dynamic_cast<Block*>(&child);
  if (block != nullptr) {
    tensor_parallel(*block, context);
  }
  return block != nullptr;
}

// Whether a style was applied before; false without parameters.
bool is_laid_out(const torch::nn::Module& module) {
  const auto parameters = nn::named_parameters(module);
  return !parameters.empty() && std::all_of(parameters.begin(), parameters.end(), [](const auto& one) {
    return one.parameter->layout().find(mesh::axis::tp) != nullptr;
  });
}
}  // namespace

void tensor_parallel_children(nn::Module& layer, DistributedContext& context) {
  for (const auto& entry : layer.named_children()) {
    torch::nn::Module& child = *entry.value();
    if (is_laid_out(child)) {
      continue;
    }
    if (dynamic_cast<nn::RMSNormImpl*>(&child) != nullptr || dynamic_cast<nn::LayerNormImpl*>(&child) != nullptr ||
        dynamic_cast<nn::LinearSubblockImpl*>(&child) != nullptr) {
      on_parts(dynamic_cast<nn::Module&>(child), context);
      continue;
    }
    const bool has_style = style_block<nn::GroupedQueryAttentionImpl>(child, context) ||
                           style_block<nn::MultiHeadLatentAttentionImpl>(child, context) ||
                           style_block<nn::GatedDeltaNetImpl>(child, context) ||
                           style_block<nn::Mamba2Impl>(child, context) || style_block<nn::SwiGLUImpl>(child, context) ||
                           style_block<nn::GeGLUImpl>(child, context) || style_block<nn::GeluMlpImpl>(child, context) ||
                           style_block<nn::ReluSquaredMlpImpl>(child, context) ||
                           dynamic_cast<nn::MoELayerImpl*>(&child) != nullptr;  // laid out by expert parallelism
    require(
        has_style || context.size(mesh::axis::tp) == 1 || nn::named_parameters(child).empty(),
        "module {}: this kind of module has no tensor-parallel style of its own (parallelism.tensor_parallel_degree = "
        "{}); overload tensor_parallel(Layer&, mesh::DistributedContext&) beside the layer, and apply a style of "
        "shard/tensor_parallel.h to each of its modules",
        entry.key(),
        context.size(mesh::axis::tp));
  }
}

void require_tensor_layouts(
    const nn::Module& root, const DistributedContext& context, const std::vector<const nn::Module*>& exempt) {
  if (context.size(mesh::axis::tp) == 1) {
    return;
  }
  std::unordered_set<const nn::Parameter*> others;
  for (const nn::Module* module : exempt) {
    for (const auto& [name, parameter] : nn::named_parameters(*module)) {
      others.insert(parameter.get());
    }
  }
  for (const auto& [name, parameter] : nn::named_parameters(root)) {
    require(
        parameter->layout().find(mesh::axis::tp) != nullptr || others.contains(parameter.get()),
        "parameter {}: has no placement on axis tp (parallelism.tensor_parallel_degree = {}); apply a style of "
        "shard/tensor_parallel.h to its module",
        name,
        context.size(mesh::axis::tp));
  }
}

}  // namespace lehr::shard
