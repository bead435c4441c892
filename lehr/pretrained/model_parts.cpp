#include "lehr/pretrained/model_parts.h"

#include <set>
#include <tuple>

#include "lehr/base/error.h"
#include "lehr/base/value_of.h"
#include "lehr/pretrained/declared_shape.h"
#include "lehr/pretrained/mtp_weights.h"
#include "lehr/pretrained/replacement_rules.h"
#include "lehr/pretrained/subblocks.h"
#include "lehr/pretrained/weights.h"

namespace lehr::pretrained {

namespace {
namespace fs = std::filesystem;
using descriptor::BlockConfig;

// A folder whose weights match its config.json.
struct Opened {
  std::unique_ptr<descriptor::ModelArgs> args;
  std::shared_ptr<const state::WeightReader> reader;
  state::StateMap map;              // from its tensors to its parameters
  descriptor::WeightGroups groups;  // of its tensors
  std::vector<std::string> left_out;
};

Opened open_model(const fs::path& folder, const descriptor::ModelFamilies& families, bool keep_mtp_modules = false) {
  Opened opened{
      .args = families.from_hf_folder(folder),
      .reader = std::make_shared<const state::WeightReader>(folder),
      .map = {},
      .groups = {},
      .left_out = {}};
  if (keep_mtp_modules) {
    keep_stored_mtp_modules(*opened.args, *opened.reader);
  }
  opened.map = checkpoint_map(*opened.args, *opened.reader);
  const auto model = opened.args->build({});
  opened.left_out =
      check_declared_shape(folder / "config.json", *opened.args, *model, opened.map, *opened.reader).left_out;
  return opened;
}

std::string group_name(int64_t layer, Subblock subblock) {
  return fmt::format("block_{}_{}", layer, name_of(subblock));
}

// The map from the stored tensors of one sub-block to the parameters of layer `layer`; empty if it is a no-op there.
state::StateMap take_subblock(
    const Opened& opened,
    const descriptor::ModelDescriptor& descriptor,
    const SubblockOrigin& origin,
    Subblock subblock,
    int64_t layer) {
  const auto names = opened.groups.find(group_name(origin.layer, subblock));
  if (names == opened.groups.end()) {
    return {};
  }
  const state::StateMap map = opened.map.from(state::NameSet(names->second.begin(), names->second.end()));
  const std::string there = descriptor.layer_block_name(origin.layer) + ".";
  const std::string here = descriptor.layer_block_name(layer) + ".";
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const std::string& name : map.output_names()) {
    require(name.starts_with(there), "{}: expected a parameter of {}", name, there);
    renamed.emplace_back(name, here + name.substr(there.size()));
  }
  return state::sequential({map, state::rename(renamed)});
}

state::StateMap all_but(const Opened& opened, const std::set<std::string>& groups) {
  state::NameSet kept;
  for (const auto& [group, names] : opened.groups) {
    if (!groups.contains(group)) {
      kept.insert(names.begin(), names.end());
    }
  }
  return opened.map.from(kept);
}

void set_subblock(BlockConfig& block, Subblock subblock, const BlockConfig& from) {
  if (subblock == Subblock::attention) {
    block.attention = from.attention;
  } else {
    block.ffn = from.ffn;
  }
}

// Prefix of the tensors of other folders than the first. Maps use a tensor once, so a sub-block that is used again has
// other names.
std::string prefix_of(const Replacement& replacement, bool again) {
  const std::string& folder = value_of(replacement.origin, "a replacement from another model").model.string();
  return again ? fmt::format("{} (for layer {}): ", folder, replacement.layer) : folder + ": ";
}
}  // namespace

ModelParts::ModelParts(
    const fs::path& folder,
    const std::vector<Replacement>& replacements,
    const descriptor::ModelFamilies& families,
    bool keep_mtp_modules) {
  Opened own = open_model(folder, families, keep_mtp_modules);
  map_ = own.map;
  if (!replacements.empty()) {
    const descriptor::ModelDescriptor& descriptor = families.descriptor_of_hf_folder(folder);
    const auto open_with_groups = [&](const fs::path& path) {
      Opened opened = open_model(path, families);
      opened.groups = subblock_groups(*opened.args, descriptor, opened.map.input_names());
      return opened;
    };
    own.groups = subblock_groups(*own.args, descriptor, own.map.input_names());
    std::map<fs::path, Opened> others;
    std::map<std::string, fs::path> prefixes;
    std::set<std::tuple<fs::path, int64_t, Subblock>> taken;
    std::set<std::string> replaced;
    std::vector<BlockConfig> blocks = own.args->block_configs();
    std::vector<state::StateMap> pieces;
    for (const Replacement& one : replacements) {
      require_layer(one, one.layer, blocks.size(), folder.string());
      replaced.insert(group_name(one.layer, one.subblock));
      BlockConfig& block = blocks[static_cast<size_t>(one.layer)];
      if (!one.origin) {
        set_subblock(block, one.subblock, {.attention = descriptor::NoOpSubblock{}, .ffn = descriptor::NoOpSubblock{}});
        continue;
      }
      const fs::path& path = one.origin->model;
      if (!others.contains(path)) {
        others.emplace(path, open_with_groups(path));
      }
      const Opened& other = others.at(path);
      require_same_computation(one, *other.args, *own.args);
      const auto there = other.args->block_configs();
      require_layer(one, one.origin->layer, there.size(), path.string());
      require_same_kind_of_layer(one, *other.args, *own.args);
      const BlockConfig& from = there[static_cast<size_t>(one.origin->layer)];
      require_stated_block(one, from, own.args->decoder_form().value_or(descriptor::DecoderForm{}));
      set_subblock(block, one.subblock, from);
      const std::string prefix = prefix_of(one, !taken.emplace(path, one.origin->layer, one.subblock).second);
      prefixes.emplace(prefix, path);
      pieces.push_back(take_subblock(other, descriptor, *one.origin, one.subblock, one.layer).scope(prefix, ""));
    }
    pieces.push_back(all_but(own, replaced));
    map_ = state::parallel(pieces);
    own.args->set_block_configs(std::move(blocks));
    own.args->check(folder.string() + ": after replacements: ");
    for (const auto& [prefix, path] : prefixes) {
      readers_.emplace(prefix, others.at(path).reader);
    }
  }
  left_out_ = std::move(own.left_out);
  args_ = std::move(own.args);
  readers_.emplace("", own.reader);
  for (const std::string& name : map_.input_names()) {
    const Stored one = stored(name);
    const state::TensorInfo& info = one.reader.info(one.name);
    specs_[name] = {.shape = info.shape, .dtype = info.dtype};
  }
}

ModelParts::Stored ModelParts::stored(const std::string& name) const {
  for (const auto& [prefix, reader] : readers_) {
    if (!prefix.empty() && name.starts_with(prefix)) {
      return {.reader = *reader, .name = name.substr(prefix.size())};
    }
  }
  return {.reader = *readers_.at(""), .name = name};
}

descriptor::ExpertLayout ModelParts::layout() const {
  return descriptor::expert_layout_of(readers_.at("")->names());
}

void ModelParts::require_own_types() const {
  const state::WeightReader& own = *readers_.at("");
  std::set<state::DType> types;
  for (const std::string& name : own.names()) {
    types.insert(own.info(name).dtype);
  }
  for (const std::string& name : map_.input_names()) {
    const state::DType type = specs_.at(name).dtype;
    require(
        types.contains(type),
        "{}: has dtype {}, which no tensor of {} has; choose one dtype for all (--dtype)",
        name,
        state::dtype_name(type),
        own.path().string());
  }
}

at::Tensor ModelParts::read(const std::string& name, const Box& box) const {
  const Stored one = stored(name);
  return state::WeightSource(one.reader).read(one.name, box);
}

void ModelParts::copy(const std::string& name, const Box& box, const at::Tensor& target) const {
  const Stored one = stored(name);
  state::WeightSource(one.reader).copy(one.name, box, target);
}

void ModelParts::load(nn::Module& model) const {
  state::NameSet wanted;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    wanted.insert(name);
  }
  // Dtypes are those of the parameters, to which the values are cast, independent of the files.
  state::TensorSpecs stored = specs_;
  for (auto& [name, spec] : stored) {
    spec.dtype = state::DType::kF32;
  }
  read_parameters(model, state::BoundMap(map_.to(wanted), stored), *this);
}

}  // namespace lehr::pretrained
