#include "lehr/shard/shard_unit.h"

#include <map>

#include "lehr/base/error.h"
#include "lehr/base/memory_meter.h"
#include "lehr/base/on_meta.h"
#include "lehr/base/side_stream.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

namespace {
// What this rank would hold of the parameter if `axis` did not cut it.
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
    // Where a value is shown in another form only because that is on another device, the types may be the same.
    value.mutable_grad() = gradient.to(value.options().requires_grad(false), /*non_blocking=*/false, /*copy=*/true);
  }
}
}  // namespace

ShardUnit::ShardUnit(
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
  std::vector<std::string> axes;  // of flats_
  std::vector<std::vector<ShardedParameter>> sharded;
  for (const auto& parameter : parameters_) {
    Entry entry{.parameter = parameter, .shape = shape_of(parameter->box())};
    const std::string axis = domain_axes(*parameter)[1];  // fsdp or ep_shard
    const Placement* placement = parameter->layout().find(axis);
    if (context.size(axis) > 1 && placement != nullptr && placement->kind == Placement::Kind::shard) {
      entry.shape = shape_of(box_without(*parameter, axis, context));
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

std::vector<nn::ParameterPtr> ShardUnit::trainable() const {
  std::vector<nn::ParameterPtr> found;
  for (const auto& parameter : parameters_) {
    if (parameter->trainable()) {
      found.push_back(parameter);
    }
  }
  return found;
}

// Types and devices are known once the parameters have memory.
void ShardUnit::prepare() {
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
        "use "
        "shard::materialize_offloaded",
        name_,
        entry.parameter->name(),
        value.device().str());
    device = compute_device_ && !value.is_meta() ? *compute_device_ : value.device();
    if (entry.flat >= 0 || compute_device_ || value.scalar_type() != compute_) {
      entry.memory = static_cast<int64_t>(shapes.size());
      shapes.push_back(entry.shape);
    }
  }
  memory_ = std::make_unique<GatheredMemory>(shapes, at::TensorOptions().device(device).dtype(compute_), count_);
}

bool ShardUnit::has_memory() const {
  return memory_ && memory_->bytes() > 0;
}

void ShardUnit::start_gather() {
  prepare();
  if (gathering_ || gathered() || !has_memory()) {
    return;
  }
  for (const auto& flat : flats_) {
    flat->start_gather();
  }
  gathering_ = true;
}

void ShardUnit::gather() {
  start_gather();
  if (!gathering_) {
    return;
  }
  memory_->allocate();
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

void ShardUnit::release() {
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

at::Tensor ShardUnit::shown(const Entry& entry) const {
  return entry.memory >= 0 ? memory_->tensor(static_cast<size_t>(entry.memory))
                           : entry.parameter->value().variable_data();
}

std::vector<at::Tensor> ShardUnit::trainable_tensors() const {
  std::vector<at::Tensor> tensors;
  for (const Entry& entry : entries_) {
    if (entry.parameter->trainable()) {
      tensors.push_back(shown(entry));
    }
  }
  return tensors;
}

std::vector<at::Tensor> ShardUnit::own_values() const {
  std::vector<at::Tensor> values;
  for (const Entry& entry : entries_) {
    if (entry.parameter->trainable() && entry.memory < 0) {
      values.push_back(entry.parameter->value());
    }
  }
  return values;
}

void ShardUnit::show(const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  for (const Entry& entry : entries_) {
    const bool from_graph = !tensors.empty() && entry.parameter->trainable();
    entry.parameter->show(from_graph ? tensors[next++] : shown(entry));
  }
}

void ShardUnit::show_nothing() {
  // Before the first gather too: what asks for a type must see that of the computation.
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

void ShardUnit::keep(Entry& entry, const at::Tensor& gradient) const {
  if (gradient.defined() && entry.kept.defined()) {
    entry.kept.add_(gradient);
  } else if (gradient.defined()) {
    entry.kept = gradient.to(reduce_, /*non_blocking=*/false, /*copy=*/true);  // autograd's may be read elsewhere
  }
}

void ShardUnit::drop_gradients() {
  for (Entry& entry : entries_) {
    entry.kept.reset();
  }
  keeps_gradients_ = false;
}

std::vector<at::Tensor> ShardUnit::take_own_gradients(std::vector<at::Tensor>& gradients) const {
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

void ShardUnit::start_reduce(const std::vector<at::Tensor>& gradients, bool send) {
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
  for (size_t i = 0; i < flats_.size(); ++i) {
    flats_[i]->start_reduce(sent[i]);
  }
  drop_gradients();
}

void ShardUnit::finish_reduce() {
  for (const auto& flat : flats_) {
    flat->finish_reduce();
  }
}

void ShardUnit::reset() noexcept {
  for (const auto& flat : flats_) {
    flat->reset();
  }
  drop_gradients();
  gathering_ = false;
  if (memory_) {
    memory_->release();
  }
  show_nothing();
}

}  // namespace lehr::shard
