#include "lehr/pretrained/mtp_weights.h"

#include <algorithm>
#include <map>

#include "lehr/pretrained/weights.h"
#include "lehr/state/weights.h"

namespace lehr::pretrained {

state::StateMap written_map(const descriptor::ModelArgs& args, descriptor::ExpertLayout layout) {
  const state::StateMap copies = args.stored_copies();
  const state::StateMap map = args.state_map(layout);
  return copies.empty() ? map : state::sequential({copies, map});
}

namespace {
// The stored tensors of each module for multi-token prediction, by the beginning of its parameters' names ("mtp.0.").
std::map<std::string, std::set<std::string>> mtp_modules(const state::StateMap& map) {
  const std::string prefix = "mtp.";
  std::map<std::string, std::set<std::string>> modules;
  for (const state::StateGroup& group : map.groups()) {
    const std::string& parameter = group.outputs.front();
    if (parameter.starts_with(prefix)) {
      modules[parameter.substr(0, parameter.find('.', prefix.size()) + 1)].insert(
          group.inputs.begin(), group.inputs.end());
    }
  }
  return modules;
}
}  // namespace

std::set<std::string> lacked_mtp_modules(const state::StateMap& map, const state::WeightReader& reader) {
  std::set<std::string> lacked;
  for (const auto& [module, names] : mtp_modules(map)) {
    if (std::none_of(names.begin(), names.end(), [&](const std::string& name) { return reader.has(name); })) {
      lacked.insert(names.begin(), names.end());
    }
  }
  return lacked;
}

void keep_stored_mtp_modules(descriptor::ModelArgs& args, const state::WeightReader& reader) {
  if (args.is_heterogeneous()) {
    return;
  }
  args.keep_mtp_modules(true);
  const auto modules = mtp_modules(checkpoint_map(args, reader));
  const bool has_all = std::all_of(modules.begin(), modules.end(), [&](const auto& module) {
    return std::all_of(
        module.second.begin(), module.second.end(), [&](const std::string& name) { return reader.has(name); });
  });
  args.keep_mtp_modules(has_all);
}

}  // namespace lehr::pretrained
