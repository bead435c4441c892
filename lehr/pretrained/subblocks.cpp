#include "lehr/pretrained/subblocks.h"

#include <unordered_map>

namespace lehr::pretrained {

descriptor::WeightGroups subblock_groups(
    const descriptor::ModelArgs& args,
    const descriptor::ModelDescriptor& descriptor,
    const std::vector<std::string>& names) {
  const auto num_layers = static_cast<int64_t>(args.block_configs().size());
  if (args.head() != descriptor::Head::embedding) {
    return descriptor.get_weight_groups(names, num_layers);
  }
  // A bare backbone is stored without the prefix that descriptors expect.
  const std::string prefix = args.backbone_prefix();
  std::vector<std::string> full;
  for (const std::string& name : names) {
    full.push_back(prefix + name);
  }
  descriptor::WeightGroups groups = descriptor.get_weight_groups(full, num_layers);
  for (auto& [group, members] : groups) {
    for (std::string& name : members) {
      name.erase(0, prefix.size());
    }
  }
  return groups;
}

state::FilePlan plan_subblock_files(
    const descriptor::ModelArgs& args,
    const descriptor::ModelDescriptor& descriptor,
    const std::vector<state::TensorInfo>& tensors) {
  std::vector<std::string> names;
  for (const state::TensorInfo& tensor : tensors) {
    names.push_back(tensor.name);
  }
  std::unordered_map<std::string, std::string> group_of;
  for (const auto& [group, members] : subblock_groups(args, descriptor, names)) {
    for (const std::string& name : members) {
      group_of[name] = group;
    }
  }
  std::vector<state::FileContents> files;
  std::unordered_map<std::string, size_t> file_of;  // by group
  for (const state::TensorInfo& tensor : tensors) {
    const std::string& group = group_of.at(tensor.name);
    const auto [place, is_new] = file_of.emplace(group, files.size());
    if (is_new) {
      files.push_back({.name = std::string(kSubblocksFolder) + "/" + group + ".safetensors", .tensors = {}});
    }
    files[place->second].tensors.push_back(tensor);
  }
  return state::plan_named_files("model", files);
}

}  // namespace lehr::pretrained
