#include "lehr/shard/fully_shard.h"

#include <algorithm>
#include <unordered_map>

#include "lehr/base/error.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/nn/embedding.h"
#include "lehr/shard/fsdp_schedule.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

namespace {
class UnitHook : public nn::CallHook {
 public:
  UnitHook(std::shared_ptr<FsdpSchedule> schedule, size_t unit, size_t module)
      : schedule_(std::move(schedule)), unit_(unit), module_(module) {}
  at::Tensor call(const at::Tensor& input, const Forward& forward) override {
    // An operator watch (plan check, meters) sees the unsharded weights, and no collectives of FSDP.
    return operator_watch() != nullptr ? forward(input) : schedule_->call(unit_, module_, input, forward);
  }

 private:
  std::shared_ptr<FsdpSchedule> schedule_;
  size_t unit_, module_;
};

// Shards the parameter on fsdp or ep_shard, unless it is sharded there already.
void cut(nn::Parameter& parameter, const mesh::DistributedContext& context) {
  const std::string axis = domain_axes(parameter)[1];
  const int64_t ranks = context.size(axis);
  if (ranks == 1 || parameter.layout().find(axis) != nullptr || parameter.box().empty()) {
    return;
  }
  // (E, out, in) with E < ranks: sharding dimension 0 would leave some ranks without any expert's weights.
  const bool few_matrices = parameter.box().size() == 3 && parameter.box()[0].size() < ranks;
  parameter.lay_out(axis, Placement::shard(few_matrices ? 1 : 0), context.index(axis), ranks);
}

using UnitOf = std::unordered_map<const nn::Parameter*, const UnitModules*>;

std::vector<nn::ParameterPtr> parameters_of(const UnitModules& unit, UnitOf& unit_of) {
  std::vector<nn::ParameterPtr> parameters;
  auto modules = unit.modules;
  modules.insert(modules.end(), unit.read.begin(), unit.read.end());
  for (const auto& module : modules) {
    for (const auto& [name, parameter] : nn::named_parameters(*module)) {
      if (parameter->is_state()) {
        continue;
      }
      const auto [other, is_new] = unit_of.emplace(parameter.get(), &unit);
      require(
          is_new,
          "fully sharded unit {}: parameter {} is in unit {} already; units must not share modules",
          unit.name,
          name,
          other->second->name);
      parameters.push_back(parameter);
    }
  }
  require(!parameters.empty(), "fully sharded unit {}: has no parameters", unit.name);
  return parameters;
}

void require_complete(torch::nn::Module& root, const std::vector<UnitModules>& units, const UnitOf& unit_of) {
  for (const auto& [name, parameter] : nn::named_parameters(root)) {
    require(
        parameter->is_state() || unit_of.contains(parameter.get()),
        "parameter {}: is in none of the fully sharded units; name its module in one",
        name);
  }
  for (const UnitModules& unit : units) {
    for (const auto& module : unit.modules) {
      for (const auto& part : module->modules()) {
        const auto* linear = dynamic_cast<const nn::LinearImpl*>(part.get());
        const auto tied = linear != nullptr && linear->tied() ? unit_of.find(linear->tied().get()) : unit_of.end();
        require(
            tied == unit_of.end() || tied->second == &unit,
            "fully sharded unit {}: reads a weight of unit {}; put tied weights into one unit",
            unit.name,
            tied != unit_of.end() ? tied->second->name : "");
      }
    }
  }
}

// Backward of an embedding reads the ids only, not the table.
bool is_embedding(const nn::Module& module) {
  return dynamic_cast<const nn::EmbeddingImpl*>(&module) != nullptr ||
         dynamic_cast<const nn::SplitTokenEmbeddingsImpl*>(&module) != nullptr;
}
}  // namespace

FullySharded fully_shard(
    mesh::DistributedContext& context,
    torch::nn::Module& root,
    const std::vector<UnitModules>& units,
    const FullyShardOptions& options) {
  UnitOf unit_of;
  std::vector<std::vector<nn::ParameterPtr>> parameters;
  for (const UnitModules& unit : units) {
    parameters.push_back(parameters_of(unit, unit_of));
  }
  require_complete(root, units, unit_of);
  const auto all = nn::named_parameters(root);
  for (const auto& [name, parameter] : all) {
    if (!parameter->is_state()) {
      cut(*parameter, context);
    }
    replicate_elsewhere(*parameter, context);
  }

  auto count = std::make_shared<ByteCount>();
  std::vector<FsdpSchedule::Unit> scheduled;
  for (size_t i = 0; i < units.size(); ++i) {
    const bool reads = !std::all_of(
        units[i].modules.begin(), units[i].modules.end(), [](const auto& module) { return is_embedding(*module); });
    scheduled.push_back(
        {.shards = std::make_unique<FsdpUnit>(
             units[i].name, parameters[i], context, options.compute, options.reduce, *count, options.compute_device),
         .modules = units[i].modules.size(),
         .reshard = options.reshard_after_forward != ReshardPolicy::never,
         .stays_at_end = options.reshard_after_forward == ReshardPolicy::all_but_last,
         .keep = options.reshard_after_forward == ReshardPolicy::never,
         .backward_reads_weights = reads});
  }
  auto schedule = std::make_shared<FsdpSchedule>(
      std::move(scheduled),
      std::make_unique<GradientSync>(context, all, options.bucket_bytes, options.compute_device),
      count,
      FsdpSchedule::Reductions{
          .each_microbatch = options.reduce_each_microbatch,
          .wait_at_end = !options.reduce_each_microbatch && context.size(mesh::axis::dp_replicate) == 1 &&
                         !options.compute_device && !context.transport().copies_reductions()});
  for (size_t i = 0; i < units.size(); ++i) {
    for (size_t module = 0; module < units[i].modules.size(); ++module) {
      units[i].modules[module]->add_call_hook(std::make_shared<UnitHook>(schedule, i, module));
    }
  }
  return FullySharded(std::move(schedule), std::move(count));
}

void materialize_offloaded(torch::nn::Module& root, at::Device compute_device, at::ScalarType dtype) {
  const bool pinned = !compute_device.is_cpu();
  auto parameters = nn::named_parameters(root);
  const auto copies = nn::named_copies(root);
  parameters.insert(parameters.end(), copies.begin(), copies.end());
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor& value = parameter->value();
    if (parameter->is_state()) {
      continue;
    }
    if (value.is_meta()) {
      const auto options = at::TensorOptions().dtype(parameter->dtype_in(dtype)).device(at::kCPU);
      parameter->set_value(at::empty(shape_of(parameter->box()), options.pinned_memory(pinned)));
    } else if (pinned && value.is_cpu() && !value.is_pinned()) {
      parameter->set_value(value.detach().pin_memory());
    }
  }
  nn::materialize(root, compute_device, dtype);
}

FullySharded::FullySharded(std::shared_ptr<FsdpSchedule> schedule, std::shared_ptr<ByteCount> count)
    : count_(std::move(count)), schedule_(std::move(schedule)) {}
FullySharded::~FullySharded() = default;
FullySharded::FullySharded(FullySharded&&) noexcept = default;

void FullySharded::begin_step() {
  schedule_->begin_step();
}
void FullySharded::set_last_microbatch(bool last) {
  schedule_->set_last_microbatch(last);
}
bool FullySharded::reductions_end_step() const {
  return schedule_->reductions_end_step();
}
void FullySharded::finish_backward() {
  schedule_->finish_backward();
}
void FullySharded::reset() noexcept {
  schedule_->reset();
}
void FullySharded::unshard_all() {
  schedule_->unshard_all();
}

std::vector<int64_t> FullySharded::unit_bytes() const {
  std::vector<int64_t> bytes;
  for (const auto& unit : schedule_->units()) {
    bytes.push_back(unit.shards->bytes());
  }
  return bytes;
}

}  // namespace lehr::shard
