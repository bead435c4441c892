#include "lehr/shard/flat_shards.h"

#include <numeric>

#include "lehr/base/value_of.h"

namespace lehr::shard {

namespace {
Range chunk_of_rank(const ShardedParameter& sharded, const mesh::Group& group, int64_t rank) {
  return chunk({0, sharded.shape[static_cast<size_t>(sharded.dim)]}, rank, group.size());
}

int64_t numel_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}
}  // namespace

FlatShards::FlatShards(
    const mesh::Group& group,
    std::vector<ShardedParameter> parameters,
    at::ScalarType compute,
    at::ScalarType reduce,
    ByteCount& count,
    std::optional<at::Device> compute_device)
    : group_(group),
      parameters_(std::move(parameters)),
      compute_(compute),
      reduce_(reduce),
      count_(count),
      compute_device_(compute_device) {
  for (const ShardedParameter& sharded : parameters_) {
    auto shape = sharded.shape;
    shape[static_cast<size_t>(sharded.dim)] = chunk_of_rank(sharded, group_, 0).size();  // rank 0 has the largest
    rooms_.push_back(numel_of(shape));
  }
}

int64_t FlatShards::bytes() const {
  return group_.size() * std::accumulate(rooms_.begin(), rooms_.end(), int64_t{0}) *
         static_cast<int64_t>(c10::elementSize(compute_));
}

void FlatShards::exchange(
    const at::Tensor& buffer, const at::Tensor& whole, size_t index, int64_t offset, Copy copy) const {
  const auto dim = static_cast<size_t>(parameters_[index].dim);
  const int64_t ranks = group_.size();
  if (parameters_[index].shape[dim] % ranks == 0) {
    // All shards at once, (ranks, shape of a shard): with thousands of ranks, one copy each would cost more than the
    // collective.
    auto shape = parameters_[index].shape;
    shape[dim] /= ranks;
    const at::Tensor chunks =
        whole.unflatten(parameters_[index].dim, {ranks, shape[dim]}).movedim(parameters_[index].dim, 0);
    shape.insert(shape.begin(), ranks);
    const at::Tensor places = buffer.narrow(1, offset, numel_of(shape) / ranks).view(shape);
    copy == Copy::to_buffer ? places.copy_(chunks) : chunks.copy_(places);
    return;
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const at::Tensor chunk = chunk_of(whole, index, rank), place = place_of(buffer, index, offset, rank);
    copy == Copy::to_buffer ? place.copy_(chunk) : chunk.copy_(place);
  }
}

at::Tensor FlatShards::chunk_of(const at::Tensor& whole, size_t index, int64_t rank) const {
  const Range range = chunk_of_rank(parameters_[index], group_, rank);
  return whole.narrow(parameters_[index].dim, range.begin, range.size());
}

// Returns a view of that rank's shard in `buffer` (ranks, elements per rank), in the shape of the shard.
at::Tensor FlatShards::place_of(const at::Tensor& buffer, size_t index, int64_t offset, int64_t rank) const {
  auto shape = parameters_[index].shape;
  shape[static_cast<size_t>(parameters_[index].dim)] = chunk_of_rank(parameters_[index], group_, rank).size();
  return buffer.select(0, rank).narrow(0, offset, numel_of(shape)).view(shape);
}

at::TensorOptions FlatShards::options_of(at::ScalarType type) const {
  const at::Tensor& value = parameters_.front().parameter->value();
  const bool elsewhere = compute_device_ && !value.is_meta();
  return at::TensorOptions().dtype(type).device(elsewhere ? *compute_device_ : value.device());
}

void FlatShards::start_gather() {
  const at::NoGradGuard no_grad;
  const int64_t size = std::accumulate(rooms_.begin(), rooms_.end(), int64_t{0});
  const auto options = options_of(compute_);
  gathered_ = at::empty({group_.size(), size}, options);
  count_.add(bytes());
  // Not a view of gathered_: NCCL could gather in place, but the other transports read `mine` while they write there.
  const at::Tensor mine = at::empty({size}, options);  // this rank's row
  const auto send = [&] {
    int64_t offset = 0;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& value = parameters_[i].parameter->value();
      const at::Tensor there = compute_device_ ? to_device_pinned(value, options.device()) : value;
      mine.narrow(0, offset, value.numel()).view(value.sizes()).copy_(there);
      offset += room_for(i);
    }
    gathering_ = group_.start_all_gather(gathered_, mine);
  };
  if (!compute_device_) {
    send();
    return;
  }
  if (!copies_) {
    copies_.emplace(options.device());
  }
  copies_->follow();  // the allocator may have given memory that the current stream still uses
  copies_->run(send);
  copies_->mark();
}

void FlatShards::finish_gather(const std::vector<at::Tensor>& targets) {
  const at::NoGradGuard no_grad;
  gathering_.wait();
  int64_t offset = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    exchange(gathered_, targets[i], i, offset, Copy::from_buffer);
    offset += room_for(i);
  }
  drop_gather();
}

void FlatShards::drop_gather() {
  if (gathering_ && copies_) {
    copies_->wait();  // nothing else waits for the copies from the values, which the optimizer may write next
  }
  gathering_.wait();
  if (gathered_.defined()) {
    gathered_.reset();
    count_.remove(bytes());
  }
}

void FlatShards::start_reduce(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  int64_t size = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    size += parameters_[i].parameter->trainable() ? room_for(i) : 0;
  }
  if (size == 0) {
    return;
  }
  const auto options = options_of(reduce_);
  const at::Tensor buffer = at::zeros({group_.size(), size}, options);
  int64_t offset = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].parameter->trainable()) {
      continue;
    }
    if (gradients[i].defined()) {
      exchange(buffer, gradients[i], i, offset, Copy::to_buffer);
    }
    offset += room_for(i);
  }
  reduced_ = at::empty({size}, options);
  reducing_ = group_.start_reduce_scatter(reduced_, buffer);
}

void FlatShards::finish_reduce() {
  if (!reduced_.defined()) {
    return;
  }
  const at::NoGradGuard no_grad;
  compute_device_ ? copy_back() : reducing_.wait();
  int64_t offset = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].parameter->trainable()) {
      continue;
    }
    at::Tensor value = parameters_[i].parameter->value();
    const at::Tensor part = reduced_.narrow(0, offset, value.numel()).view(value.sizes());
    if (value.grad().defined()) {
      value.mutable_grad().add_(part);
    } else {
      value.mutable_grad() = part.to(value.scalar_type(), /*non_blocking=*/false, /*copy=*/compute_device_.has_value());
    }
    offset += room_for(i);
  }
  reduced_.reset();
}

// Copies the reduced gradients to the host. The host waits for the reduce-scatter and the copy only, not for the
// device's other work: backward of the next unit overlaps.
void FlatShards::copy_back() {
  if (reduced_.is_cpu() || reduced_.is_meta()) {
    reducing_.wait();
    return;
  }
  at::Tensor landed;
  SideStream& copies = value_of(copies_, "FSDP: the stream of copies to the host");
  copies.run([&] {
    reducing_.wait();
    landed = at::empty(reduced_.sizes(), reduced_.options().device(at::kCPU).pinned_memory(true));
    landed.copy_(reduced_, /*non_blocking=*/true);
  });
  copies.mark();
  copies.wait();
  reduced_ = landed;
}

void FlatShards::reset() noexcept {
  gathering_ = {};
  reducing_ = {};
  reduced_.reset();
  if (gathered_.defined()) {
    gathered_.reset();
    count_.remove(bytes());
  }
}

}  // namespace lehr::shard
