#include "lehr/train/rank_findings.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cstring>

namespace lehr::train {

void gather_bytes(const void* here, int64_t size, void* all, const Ranks& ranks) {
  const at::Tensor mine = at::empty({size}, at::kByte), found = at::zeros({size * ranks.world_size()}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), here, mine.nbytes());
  ranks.context()->world().all_gather(found, mine);
  std::memcpy(all, found.const_data_ptr(), found.nbytes());
}

std::string place_of(const Ranks& ranks, int64_t rank) {
  if (ranks.context() == nullptr) {
    return "this device";
  }
  return fmt::format("rank {} ({})", rank, ranks.context()->parameters().coordinates(rank));
}

}  // namespace lehr::train
