#include "lehr/shard/context_chunks.h"

#include "lehr/base/error.h"

namespace lehr::shard {

void check_context_parts(int64_t tokens, int64_t ranks) {
  require(
      ranks == 1 || tokens % (2 * ranks) == 0,
      "training.seq_len: a sequence of {} tokens cannot be split over parallelism.context_parallel_degree = {} ranks; "
      "expected a multiple of {}",
      tokens,
      ranks,
      2 * ranks);
}

at::Tensor take_context_part(const at::Tensor& tensor, int64_t dim, int64_t index, int64_t size) {
  if (size == 1) {
    return tensor;
  }
  check_context_parts(tensor.size(dim), size);
  const int64_t chunk = tensor.size(dim) / (2 * size);
  return at::cat(
      {tensor.narrow(dim, context_chunk(0, index, size) * chunk, chunk),
       tensor.narrow(dim, context_chunk(1, index, size) * chunk, chunk)},
      dim);
}

at::Tensor in_order_of_positions(const at::Tensor& gathered, int64_t dim, int64_t ranks) {
  // Rank r holds chunks r and 2 R - 1 - r: first halves are in order of ranks, second halves in reverse.
  const auto halves = gathered.unflatten(dim, {ranks, 2, gathered.size(dim) / (2 * ranks)}).unbind(dim + 1);
  return at::cat({halves[0], halves[1].flip(dim)}, dim).flatten(dim, dim + 1);
}

}  // namespace lehr::shard
