#include "lehr/shard/fsdp_unit.h"

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"
#include "lehr/meter/memory_meter.h"
#include "lehr/meter/on_meta.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

namespace {
// Returns the region of the parameter that this rank holds when the shards of `axis` are gathered.
Box box_without(const nn::Parameter& parameter, const std::string& axis, const mesh::DistributedContext& context) {
  Box box = whole_box(parameter.shape());
  for (const auto& [name, placement] : parameter.layout().axes()) {
    if (name != axis && placement.kind == Placement::Kind::shard) {
      Range& range = box[static_cast<size_t>(placement.dim)];
      range = chunk(range, context.index(name), context.size(name));
    }
  }
  return box;
}

void add_to_gradient(at::Tensor value, const at::Tensor& gradient) {
  if (value.grad().defined()) {
    value.mutable_grad().add_(gradient.to(value.device()));
  } else {
    // Copies even if the types are equal: the gradient may be a tensor that autograd still uses.
    value.mutable_grad() = gradient.to(value.options().requires_grad(false), /*non_blocking=*/false, /*copy=*/true);
  }
}
}  // namespace

FsdpUnit::FsdpUnit(
    std::string name,
    std::vector<nn::ParameterPtr> parameters,
    mesh::DistributedContext& context,
    at::ScalarType compute,
    at::ScalarType reduce,
    ByteCount& count,
    std::optional<at::Device> compute_device)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      compute_(compute),
      reduce_(reduce),
      count_(count),
      compute_device_(compute_device) {
  std::vector<std::string> axes;  // per entry of flats_: one buffer per axis, as the groups differ
  std::vector<std::vector<ShardedParameter>> sharded;
  for (const auto& parameter : parameters_) {
    Entry entry{.parameter = parameter, .shape = shape_of(parameter->box())};
    const std::string axis = domain_axes(*parameter)[1];  // fsdp or ep_shard
    const Placement* placement = parameter->layout().find(axis);
    if (context.size(axis) > 1 && placement != nullptr && placement->kind == Placement::Kind::shard) {
      entry.shape = shape_of(box_without(*parameter, axis, context));  // tp and ep shards stay shards
      auto found = std::find(axes.begin(), axes.end(), axis);
      if (found == axes.end()) {
        found = axes.insert(found, axis);
        sharded.emplace_back();
      }
      entry.flat = found - axes.begin();
      sharded[static_cast<size_t>(entry.flat)].push_back(
          {.parameter = parameter, .shape = entry.shape, .dim = placement->dim});
    }
    entries_.push_back(std::move(entry));
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    flats_.push_back(
        std::make_unique<FlatShards>(context.group(axes[i]), sharded[i], compute, reduce, count, compute_device));
  }
}

std::vector<nn::ParameterPtr> FsdpUnit::trainable() const {
  std::vector<nn::ParameterPtr> found;
  for (const auto& parameter : parameters_) {
    if (parameter->trainable()) {
      found.push_back(parameter);
    }
  }
  return found;
}

// Not in the constructor, where parameters are on meta: their types and device are known only with memory.
void FsdpUnit::prepare() {
  if (memory_) {
    return;
  }
  std::vector<std::vector<int64_t>> shapes;
  at::Device device(at::kCPU);
  for (Entry& entry : entries_) {
    const at::Tensor& value = entry.parameter->value();
    require(
        !value.is_meta() || runs_on_meta(),
        "fully sharded unit {}: called before its parameters have memory; call nn::materialize first",
        name_);
    require(
        !compute_device_ || value.is_cpu() || value.is_meta(),
        "fully sharded unit {}: with a compute device of their own, parameters stay in host memory; found {} on {}; "
        "use shard::materialize_offloaded",
        name_,
        entry.parameter->name(),
        value.device().str());
    device = compute_device_ && !value.is_meta() ? *compute_device_ : value.device();
    // Needs memory of its own unless the value can be read in place: unsharded, of the right type and device.
    if (entry.flat >= 0 || compute_device_ || value.scalar_type() != compute_) {
      entry.memory = static_cast<int64_t>(shapes.size());
      shapes.push_back(entry.shape);
    }
  }
  memory_ = std::make_unique<GatheredMemory>(shapes, at::TensorOptions().device(device).dtype(compute_), count_);
}

bool FsdpUnit::has_memory() const {
  return memory_ && memory_->bytes() > 0;
}

// Order of collectives: the flats in order of construction (dense or experts first, as the parameters are listed),
// which is the same on all ranks.
void FsdpUnit::start_unshard() {
  prepare();
  if (gathering_ || gathered() || !has_memory()) {
    return;
  }
  for (const auto& flat : flats_) {
    flat->start_gather();
  }
  gathering_ = true;
}

void FsdpUnit::unshard() {
  start_unshard();
  if (!gathering_) {
    return;
  }
  memory_->allocate();  // only now: while the all-gather runs, the previous unit may still be unsharded
  std::vector<std::vector<at::Tensor>> targets(flats_.size());
  const at::NoGradGuard no_grad;
  for (const Entry& entry : entries_) {
    if (entry.memory >= 0) {
      const at::Tensor target = shown(entry);
      if (entry.flat >= 0) {
        targets[static_cast<size_t>(entry.flat)].push_back(target);
      } else {
        const at::Tensor& value = entry.parameter->value();
        target.copy_(compute_device_ ? to_device_pinned(value, target.device()) : value);
      }
    }
  }
  for (size_t i = 0; i < flats_.size(); ++i) {
    flats_[i]->finish_gather(targets[i]);
  }
  gathering_ = false;
}

void FsdpUnit::reshard() {
  if (gathering_) {
    for (const auto& flat : flats_) {
      flat->drop_gather();
    }
    gathering_ = false;
  }
  if (memory_) {
    memory_->release();
  }
}

at::Tensor FsdpUnit::shown(const Entry& entry) const {
  return entry.memory >= 0 ? memory_->tensor(static_cast<size_t>(entry.memory))
                           : entry.parameter->value().variable_data();
}

std::vector<at::Tensor> FsdpUnit::trainable_tensors() const {
  std::vector<at::Tensor> tensors;
  for (const Entry& entry : entries_) {
    if (entry.parameter->trainable()) {
      tensors.push_back(shown(entry));
    }
  }
  return tensors;
}

std::vector<at::Tensor> FsdpUnit::own_values() const {
  std::vector<at::Tensor> values;
  for (const Entry& entry : entries_) {
    if (entry.parameter->trainable() && entry.memory < 0) {
      values.push_back(entry.parameter->value());
    }
  }
  return values;
}

void FsdpUnit::set_slots(const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for (const Entry& entry : entries_) {
    const bool from_graph = !tensors.empty() && entry.parameter->trainable();
    entry.parameter->show(from_graph ? tensors[next++] : shown(entry));
  }
}

void FsdpUnit::set_slots_to_meta() {
  // Needed before the first unshard too: code that asks a slot for its type must see the compute type.
  if (runs_on_meta() || !parameters_.front()->value().is_meta()) {
    prepare();
  }
  const NotCounted shapes;
  for (const Entry& entry : entries_) {
    if (entry.memory >= 0) {
      entry.parameter->show(at::empty(entry.shape, at::TensorOptions().device(at::kMeta).dtype(compute_)));
    } else {
      entry.parameter->show_value();
    }
  }
}

void FsdpUnit::keep(Entry& entry, const at::Tensor& gradient) const {
  if (gradient.defined() && entry.kept.defined()) {
    entry.kept.add_(gradient);
  } else if (gradient.defined()) {
    entry.kept = gradient.to(reduce_, /*non_blocking=*/false, /*copy=*/true);  // autograd may share its tensor
  }
}

void FsdpUnit::drop_gradients() {
  for (Entry& entry : entries_) {
    entry.kept.reset();
  }
  keeps_gradients_ = false;
}

std::vector<at::Tensor> FsdpUnit::take_own_gradients(std::vector<at::Tensor>& gradients) const {
  std::vector<at::Tensor> own;
  size_t next = 0;
  for (const Entry& entry : entries_) {
    if (entry.parameter->trainable()) {
      if (entry.memory < 0) {
        own.push_back(std::exchange(gradients[next], {}));
      }
      ++next;
    }
  }
  return own;
}

// Per parameter: a sharded one is kept or reduce-scattered; a cast one is added to its value's gradient immediately,
// since this rank holds the whole of it; one shown in place was handled by take_own_gradients().
void FsdpUnit::start_reduce(const std::vector<at::Tensor>& gradients, bool send) {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> sent(flats_.size());
  size_t next = 0;
  for (Entry& entry : entries_) {
    at::Tensor gradient = entry.parameter->trainable() ? gradients[next++] : at::Tensor();
    if (entry.flat >= 0 && (keeps_gradients_ || !send)) {
      keep(entry, gradient);
      gradient = send ? entry.kept : at::Tensor();
    }
    if (entry.flat >= 0) {
      sent[static_cast<size_t>(entry.flat)].push_back(gradient);
    } else if (entry.memory >= 0 && gradient.defined()) {
      add_to_gradient(entry.parameter->value(), gradient);
    }
  }
  if (!send) {
    keeps_gradients_ = true;
    return;
  }
  // Sent even if this rank has no gradient at all (undefined counts as zeros): other ranks may have some.
  for (size_t i = 0; i < flats_.size(); ++i) {
    flats_[i]->start_reduce(sent[i]);
  }
  drop_gradients();
}

void FsdpUnit::finish_reduce() {
  for (const auto& flat : flats_) {
    flat->finish_reduce();
  }
}

void FsdpUnit::reset() noexcept {
  for (const auto& flat : flats_) {
    flat->reset();
  }
  drop_gradients();
  gathering_ = false;
  if (memory_) {
    memory_->release();
  }
  set_slots_to_meta();
}

}  // namespace lehr::shard
