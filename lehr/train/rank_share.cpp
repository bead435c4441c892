#include "lehr/train/rank_share.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/pretrained/weights.h"
#include "lehr/shard/ownership.h"
#include "lehr/state/checkpoint_part.h"
#include "lehr/state/map_stream.h"
#include "lehr/state/weights.h"

namespace lehr::train {

namespace {
using ParametersByName = std::unordered_map<std::string, nn::ParameterPtr>;

ParametersByName by_name(const nn::Module& model) {
  ParametersByName parameters;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    parameters.emplace(name, parameter);
  }
  return parameters;
}

// An entry of an optimizer's state as a shard of a tensor of the checkpoint.
struct StateEntry {
  const nn::Parameter* parameter = nullptr;
  std::vector<int64_t> shape;  // global
  Box box;
};

StateEntry entry_of(const std::string& name, const at::Tensor& tensor, const ParametersByName& parameters) {
  const auto found = parameters.find(name.substr(0, name.rfind('.')));
  if (found == parameters.end()) {  // state of the optimizer as a whole
    return {.parameter = nullptr, .shape = tensor.sizes().vec(), .box = whole_box(tensor.sizes().vec())};
  }
  const nn::Parameter& parameter = *found->second;
  if (tensor.dim() == 0) {
    return {.parameter = &parameter, .shape = {}, .box = {}};
  }
  require(
      tensor.sizes() == at::IntArrayRef(shape_of(parameter.box())),
      "optimizer state: {}: expected [{}], the parameter's shard {}, or a scalar, found [{}]",
      name,
      fmt::join(shape_of(parameter.box()), ", "),
      describe(parameter.box()),
      fmt::join(tensor.sizes(), ", "));
  return {.parameter = &parameter, .shape = parameter.shape(), .box = parameter.box()};
}
}  // namespace

RankShare share_of_parameters(
    const nn::Module& model, const state::StateMap& map, const mesh::DistributedContext* mesh) {
  state::NameSet names;
  state::HeldParts held;
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    names.insert(name);
    if (mesh == nullptr || shard::is_owner(*parameter, *mesh)) {
      held.emplace(name, state::HeldPart{.box = parameter->box(), .tensor = parameter->value().detach()});
    }
  }
  const state::BoundMap bound(map.inverse().from(names), pretrained::parameter_specs(model));
  RankShare share;
  for (const state::StateGroup& group : bound.map().groups()) {
    for (const std::string& name : group.outputs) {
      const state::TensorSpec& spec = bound.spec(bound.output_value(name));
      share.all.push_back({.name = name, .dtype = spec.dtype, .shape = spec.shape});
      for (state::HeldPart& part : state::held_of_output(bound, held, name)) {
        share.parts.push_back({.name = name, .box = std::move(part.box), .tensor = std::move(part.tensor)});
      }
    }
  }
  return share;
}

std::vector<std::string> stored_order(const state::StateMap& map) {
  std::vector<std::string> names;
  for (const state::StateGroup& group : map.inverse().groups()) {
    names.insert(names.end(), group.outputs.begin(), group.outputs.end());
  }
  return names;
}

RankShare share_of_optimizer(
    const optim::Optimizer& optimizer, const nn::Module& model, const mesh::DistributedContext* mesh) {
  const ParametersByName parameters = by_name(model);
  RankShare share;
  for (const auto& [name, tensor] : optimizer.state()) {
    StateEntry entry = entry_of(name, tensor, parameters);
    share.all.push_back({.name = name, .dtype = state::dtype_of(tensor.scalar_type()), .shape = entry.shape});
    const bool mine = mesh == nullptr || (entry.parameter == nullptr ? mesh->is_main_process()
                                          : entry.shape.empty()      ? shard::is_first(*entry.parameter, *mesh)
                                                                     : shard::is_owner(*entry.parameter, *mesh));
    if (mine && tensor.numel() > 0) {
      share.parts.push_back({.name = name, .box = std::move(entry.box), .tensor = tensor});
    }
  }
  return share;
}

std::vector<state::TensorInfo> of_all_stages(
    const std::vector<state::TensorInfo>& mine,
    const std::vector<std::string>& order,
    const mesh::DistributedContext& mesh,
    state::Coordinator& coordinator,
    const std::string& key) {
  if (mesh.size(mesh::axis::pp) == 1) {
    return mine;
  }
  // Ranks are ordered by stage first.
  const bool speaks = mesh.rank() % (mesh.world_size() / mesh.size(mesh::axis::pp)) == 0;
  std::vector<state::TensorInfo> all;
  std::set<std::string> seen;
  for (const std::string& text : coordinator.exchange(key, speaks ? state::pack_infos(mine) : "")) {
    for (state::TensorInfo& info : state::unpack_infos(text)) {
      if (seen.insert(info.name).second) {
        all.push_back(std::move(info));
      }
    }
  }
  std::unordered_map<std::string, size_t> places;
  for (size_t i = 0; i < order.size(); ++i) {
    places.emplace(order[i], i);
  }
  const bool known = std::all_of(all.begin(), all.end(), [&](const auto& info) { return places.contains(info.name); });
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return known ? places.at(a.name) < places.at(b.name) : a.name < b.name;
  });
  return all;
}

void require_same_trained(const state::WeightReader& then, const std::vector<state::TensorInfo>& now) {
  const auto parameter_of = [](const std::string& entry) { return entry.substr(0, entry.rfind('.')); };
  std::set<std::string> before, wanted;
  for (const std::string& entry : then.names()) {
    before.insert(parameter_of(entry));
  }
  for (const state::TensorInfo& entry : now) {
    wanted.insert(parameter_of(entry.name));
  }
  std::vector<std::string> differ;
  std::set_symmetric_difference(before.begin(), before.end(), wanted.begin(), wanted.end(), std::back_inserter(differ));
  if (differ.empty() || before.empty() || wanted.empty()) {  // an optimizer may have no state
    return;
  }
  const bool trained = before.contains(differ.front());
  fail(
      "peft.method: the run so far {} {} ({}), which this one {}; keep method and patterns of [peft], or choose another "
      "job.dump_folder",
      trained ? "trained" : "did not train",
      differ.front(),
      then.path().string(),
      trained ? "does not" : "does");
}

namespace {
// Refuses state that other keys of [optimizer] have made, by one parameter that has it: a list would have all of them.
void require_same_state(
    const state::WeightReader& then, const std::vector<state::TensorInfo>& now, const std::set<std::string>& fresh) {
  std::map<std::string, std::set<std::string>> before, wanted;  // "momentum_buffer (F32)" by parameter
  const auto add = [](auto& entries, const state::TensorInfo& info) {
    const size_t dot = info.name.rfind('.');
    entries[info.name.substr(0, dot)].insert(
        fmt::format("{} ({})", info.name.substr(dot + 1), state::dtype_name(info.dtype)));
  };
  for (const std::string& name : then.names()) {
    add(before, then.info(name));
  }
  for (const state::TensorInfo& info : now) {
    add(wanted, info);
  }
  for (const auto& [parameter, entries] : wanted) {
    const auto found = before.find(parameter);
    if (found != before.end() && found->second != entries && !fresh.contains(parameter)) {
      fail(
          "[optimizer]: for {} the run so far kept {} ({}), this one keeps {}; keep the keys of [optimizer] (momentum, "
          "muon_exclude, state_dtype), or start a new run",
          parameter,
          fmt::join(found->second, ", "),
          then.path().string(),
          fmt::join(entries, ", "));
    }
  }
}
}  // namespace

void load_optimizer(
    optim::Optimizer& optimizer,
    const nn::Module& model,
    const std::vector<state::TensorInfo>& all,
    const state::WeightReader& reader,
    const std::set<std::string>& fresh,
    bool strict) {
  require_same_state(reader, all, fresh);
  const ParametersByName parameters = by_name(model);
  const state::WeightSource source(reader);
  std::map<std::string, at::Tensor> tensors;
  std::set<std::string> elsewhere;
  for (const state::TensorInfo& info : all) {
    elsewhere.insert(info.name);
  }
  for (const auto& [name, tensor] : optimizer.state()) {
    elsewhere.erase(name);
    if (fresh.contains(name.substr(0, name.rfind('.')))) {
      tensors[name] = tensor;
      continue;
    }
    if (!reader.has(name)) {
      continue;  // require_state reports it
    }
    const StateEntry entry = entry_of(name, tensor, parameters);
    require(
        reader.info(name).shape == entry.shape,
        "optimizer state: {}: expected shape [{}], found [{}] in {}",
        name,
        fmt::join(entry.shape, ", "),
        fmt::join(reader.info(name).shape, ", "),
        reader.path().string());
    tensors[name] = tensor.numel() == 0 ? at::empty_like(tensor) : source.read(name, entry.box);  // a view
  }
  for (const std::string& name : reader.names()) {
    if (strict && !tensors.contains(name) && !elsewhere.contains(name)) {
      tensors[name] = reader.tensor(name);  // require_state rejects it
    }
  }
  optimizer.require_state(tensors);
  auto wanted = optimizer.state();
  std::erase_if(wanted, [&](const auto& named) {
    return named.second.numel() == 0 || fresh.contains(named.first.substr(0, named.first.rfind('.')));
  });
  parallel_io(source.concurrent_reads(), static_cast<int64_t>(wanted.size()), [&](int64_t i) {
    const auto& [name, tensor] = wanted[static_cast<size_t>(i)];
    source.copy(name, entry_of(name, tensor, parameters).box, tensor);
  });
}

}  // namespace lehr::train
