// TEMP
#include "lehr/shard/context_parallel.h"
namespace lehr::shard {
at::Tensor take_context_part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t size) {
  const int64_t chunk = tensor.size(dim) / (2 * size);
  return at::cat(
      {tensor.narrow(dim, index * chunk, chunk), tensor.narrow(dim, (2 * size - 1 - index) * chunk, chunk)}, dim);
}
}  // namespace lehr::shard
