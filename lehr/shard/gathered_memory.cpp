#include "lehr/shard/gathered_memory.h"

#include <numeric>

namespace lehr::shard {

GatheredMemory::GatheredMemory(
    std::vector<std::vector<int64_t>> shapes, const at::TensorOptions& options, ByteCount& count)
    : shapes_(std::move(shapes)),
      options_(options),
      count_(count),
      storage_(at::empty({0}, options).storage()) {  // an empty tensor's storage has the device and its allocator
  constexpr int64_t kAlignment = 64;                 // elements: as aligned as a tensor with storage of its own
  int64_t size = 0;
  for (const auto& shape : shapes_) {
    offsets_.push_back(size);
    const int64_t count_of = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    size += (count_of + kAlignment - 1) / kAlignment * kAlignment;
  }
  bytes_ = size * static_cast<int64_t>(c10::elementSize(c10::typeMetaToScalarType(options_.dtype())));
}

void GatheredMemory::allocate() {
  if (allocated_) {
    return;
  }
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(static_cast<size_t>(bytes_)));
  storage->set_nbytes(static_cast<size_t>(bytes_));
  count_.add(bytes_);
  allocated_ = true;
}

void GatheredMemory::release() {
  if (!allocated_) {
    return;
  }
  c10::StorageImpl* storage = storage_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, options_.device()));
  storage->set_nbytes(0);
  count_.remove(bytes_);
  allocated_ = false;
}

at::Tensor GatheredMemory::tensor(size_t index) const {
  const auto& shape = shapes_[index];
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * std::max<int64_t>(shape[dim], 1);
  }
  const at::NoGradGuard no_grad;
  at::Tensor tensor = at::empty({0}, options_);
  return tensor.set_(storage_, offsets_[index], shape, strides);
}

}  // namespace lehr::shard
