#include "lehr/shard/context_borders.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/mesh/collectives.h"
#include "lehr/shard/context_chunks.h"

namespace lehr::shard {

namespace {
// Returns the `count` tokens before each chunk, (B, count, ...) each, from the last N of all chunks (chunks, B, N,
// ...). Before the first chunk they are zero.
std::vector<at::Tensor> before_chunks(const at::Tensor& tails, int64_t count) {
  auto shape = tails.sizes().slice(1).vec();
  shape[1] = count;
  // Tails of N < count tokens are whole chunks: one after the other they are the sequence.
  const at::Tensor row = at::cat({at::zeros(shape, tails.options()), tails.movedim(0, 1).flatten(1, 2)}, 1);
  std::vector<at::Tensor> before;
  for (int64_t chunk = 0; chunk < tails.size(0); ++chunk) {
    before.push_back(row.narrow(1, chunk * tails.size(2), count));
  }
  return before;
}
}  // namespace

void check_two_chunks(int64_t positions) {
  require(
      positions % 2 == 0,
      "context parallelism: expected two chunks of a sequence on each rank, found {} positions; shard inputs with "
      "take_context_part",
      positions);
}

at::Tensor rows_of_chunks(const at::Tensor& tensor) {
  return tensor.unflatten(1, {2, tensor.size(1) / 2}).flatten(0, 1);
}

at::Tensor gather_chunks(const at::Tensor& rows, const mesh::Group& group) {
  const at::Tensor halves = rows.unflatten(0, {-1, 2}).transpose(0, 1).contiguous();  // (2, B, ...)
  return in_order_of_positions(mesh::all_gather(halves, group, 0), 0, group.size());
}

at::Tensor own_chunks(const std::vector<at::Tensor>& of_chunks, const mesh::Group& group) {
  const auto own = [&](int64_t half) {
    return of_chunks[static_cast<size_t>(context_chunk(half, group.rank(), group.size()))];
  };
  return at::stack({own(0), own(1)}, 1).flatten(0, 1);
}

at::Tensor continued_tokens(
    const ops::AttentionMask& mask, int64_t tokens, int64_t count, at::Device device, const mesh::Group& group) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor first = at::arange(2 * group.size(), options).mul(tokens).unsqueeze(-1);  // of each chunk
  const at::Tensor exists = (first + at::arange(-count, 0, options) >= 0).unsqueeze(1);      // (chunks, 1, count)
  std::vector<at::Tensor> marks;
  for (const at::Tensor& tensor : {mask.document_ids, mask.key_padding}) {
    if (tensor.defined()) {
      marks.push_back(tensor.to(options));
    }
  }
  if (marks.empty()) {
    return exists;
  }
  const at::Tensor rows = rows_of_chunks(at::stack(at::broadcast_tensors(marks), -1));  // (2 B or 2, C, marks)
  const int64_t size = std::min(count, tokens);
  const at::Tensor edges =  // the first token of each chunk and its last ones: (chunks, B or 1, 1 + N, marks)
      gather_chunks(at::cat({rows.narrow(1, 0, 1), rows.narrow(1, tokens - size, size)}, 1), group);
  const at::Tensor before = at::stack(before_chunks(edges.narrow(2, 1, size), count));
  const at::Tensor same = (before == edges.narrow(2, 0, 1)).all(-1).logical_and(exists);
  return same.to(at::kLong).flip(-1).cumprod(-1).flip(-1).to(at::kBool);  // without a gap up to the border
}

at::Tensor tokens_before(const at::Tensor& tails, const at::Tensor& continued, const mesh::Group& group) {
  const auto before = before_chunks(gather_chunks(tails, group), continued.size(2));
  const auto kept = continued.expand({-1, tails.size(0) / 2, -1}).to(tails.scalar_type()).unbind();
  at::Tensor own = own_chunks(kept, group);  // (2 B, count)
  while (own.dim() < tails.dim()) {
    own = own.unsqueeze(-1);
  }
  return own_chunks(before, group) * own;
}

}  // namespace lehr::shard
