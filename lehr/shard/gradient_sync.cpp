#include "lehr/shard/gradient_sync.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/memory/side_stream.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

struct GradientSync::Bucket {
  const mesh::Group* group;
  std::vector<nn::ParameterPtr> parameters;
  std::vector<bool> ready;
  int64_t bytes = 0;
  at::Tensor flat = {};
  mesh::Pending pending = {};

  bool all_ready() const {
    return std::all_of(ready.begin(), ready.end(), [](bool one) { return one; });
  }
};

namespace {
// Returns the axes over which the parameter's gradient is summed: those that replicate it.
std::vector<std::string> axes_of_sum(const nn::NamedParameter& named, const mesh::DistributedContext& context) {
  std::vector<std::string> axes;
  for (const std::string& axis : domain_axes(*named.parameter)) {
    if (context.size(axis) == 1) {
      continue;
    }
    const Placement* placement = named.parameter->layout().find(axis);
    invariant(placement != nullptr, "parameter {}: has no placement on axis {}", named.name, axis);
    if (placement->kind == Placement::Kind::replicate) {
      axes.push_back(axis);
    }
  }
  return axes;
}
}  // namespace

GradientSync::GradientSync(
    mesh::DistributedContext& context,
    const std::vector<nn::NamedParameter>& parameters,
    int64_t bucket_bytes,
    std::optional<at::Device> device)
    : bucket_bytes_(bucket_bytes), device_(device) {
  using namespace mesh::axis;
  holders_ = &context.group({dp_replicate, dp_shard, cp, mesh::axis::tp});
  for (auto named = parameters.rbegin(); named != parameters.rend(); ++named) {
    if (named->parameter->trainable()) {
      members_.push_back({named->parameter, &context.group(axes_of_sum(*named, context))});
    }
  }
}

GradientSync::~GradientSync() = default;

void GradientSync::make_buckets() {
  if (!buckets_.empty()) {
    return;
  }
  std::map<std::pair<const mesh::Group*, at::ScalarType>, std::unique_ptr<Bucket>> open;
  std::vector<std::pair<const mesh::Group*, at::ScalarType>> order;  // of first use: addresses differ between ranks
  for (const auto& [parameter, group] : members_) {
    if (group->size() == 1) {
      continue;
    }
    const std::pair key{group, parameter->value().scalar_type()};
    if (std::find(order.begin(), order.end(), key) == order.end()) {
      order.push_back(key);
    }
    auto& bucket = open[key];
    if (!bucket) {
      bucket = std::make_unique<Bucket>(Bucket{.group = group, .parameters = {}, .ready = {}});
    }
    places_[parameter.get()] = {bucket.get(), bucket->parameters.size()};
    bucket->parameters.push_back(parameter);
    bucket->ready.push_back(false);
    bucket->bytes += static_cast<int64_t>(parameter->value().nbytes());
    if (bucket->bytes >= bucket_bytes_) {
      buckets_.push_back(std::move(bucket));
      open.erase(key);
    }
  }
  for (const auto& key : order) {
    if (open.contains(key)) {
      buckets_.push_back(std::move(open[key]));
    }
  }
}

void GradientSync::ready(const nn::Parameter& parameter) {
  make_buckets();
  const auto place = places_.find(&parameter);
  if (place == places_.end()) {
    return;  // not replicated on any axis
  }
  const auto [bucket, number] = place->second;
  bucket->ready[number] = true;
  while (sent_ < buckets_.size() && buckets_[sent_]->all_ready()) {
    send(*buckets_[sent_++]);
  }
}

// Starts the all-reduce of one bucket. Undefined gradients count as zeros: another rank may have a value.
void GradientSync::send(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto& parameter : bucket.parameters) {
    const at::Tensor& value = parameter->value();
    const at::Tensor gradient = value.grad().defined() ? value.grad() : at::zeros_like(value);
    parts.push_back(gradient.reshape(-1));
  }
  bucket.flat = at::cat(parts);
  if (device_) {
    bucket.flat = to_device_pinned(bucket.flat, *device_);
  }
  if (bucket.flat.numel() > 0) {  // if all shards are empty, they are so on all ranks of the group
    bucket.pending = bucket.group->start_all_reduce(bucket.flat);
  }
}

void GradientSync::finish(const std::function<bool(const nn::Parameter&)>& had_gradient) {
  make_buckets();
  const at::NoGradGuard no_grad;
  std::vector<bool> had;
  for (const Member& member : members_) {
    had.push_back(had_gradient ? had_gradient(*member.parameter) : member.parameter->value().grad().defined());
  }
  while (sent_ < buckets_.size()) {
    send(*buckets_[sent_++]);
  }
  for (auto& bucket : buckets_) {
    bucket->pending.wait();
    if (device_ && !bucket->flat.is_meta()) {
      bucket->flat = bucket->flat.cpu();
    }
    int64_t first = 0;
    for (const auto& parameter : bucket->parameters) {
      at::Tensor value = parameter->value();
      const at::Tensor sum = bucket->flat.narrow(0, first, value.numel()).view(value.sizes());
      first += value.numel();
      if (value.grad().defined()) {
        value.mutable_grad().copy_(sum);
      } else {
        value.mutable_grad() = sum.clone();
      }
    }
  }
  agree(had);
  reset();
}

// Makes all ranks agree on the parameters that have a gradient. On one device an unused parameter has none, and
// optimizers skip it; so must all ranks if none used it. If some ranks used it, all of them must update it.
void GradientSync::agree(const std::vector<bool>& had) {
  if (members_.empty()) {
    return;
  }
  at::Tensor users = at::zeros({static_cast<int64_t>(had.size())}, at::kFloat);
  for (size_t i = 0; i < had.size(); ++i) {
    users.data_ptr<float>()[i] = had[i] ? 1.0F : 0.0F;
  }
  const bool on_meta = members_.front().parameter->value().is_meta();
  if (on_meta && holders_->size() > 1) {
    holders_->all_reduce(users.to(at::kMeta));
    return;
  }
  holders_->all_reduce(users);  // in host memory: does not wait for the device
  for (size_t i = 0; i < had.size(); ++i) {
    at::Tensor value = members_[i].parameter->value();
    if (users.data_ptr<float>()[i] == 0) {
      value.mutable_grad().reset();
    } else if (!value.grad().defined()) {
      value.mutable_grad() = at::zeros_like(value);
    }
  }
}

void GradientSync::reset() noexcept {
  for (auto& bucket : buckets_) {
    bucket->pending = {};
    bucket->flat.reset();
    std::fill(bucket->ready.begin(), bucket->ready.end(), false);
  }
  sent_ = 0;
}

}  // namespace lehr::shard
