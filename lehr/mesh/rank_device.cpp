#include "lehr/mesh/rank_device.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "lehr/base/error.h"

namespace lehr::mesh {

GpuNumber gpu_of_rank(int64_t local_rank, int64_t local_world_size, int64_t visible) {
  if (visible >= std::max(local_world_size, local_rank + 1)) {
    return {.number = local_rank};
  }
  if (visible == 1) {
    return {.number = 0};
  }
  return {
      .problem = fmt::format(
          "this rank is number {}{} on its machine, where it sees {} usable GPU{}; start as many ranks as there are "
          "GPUs, show each rank its own, or use \"cpu\"",
          local_rank,
          local_world_size > 0 ? fmt::format(" of {}", local_world_size) : "",
          visible,
          visible == 1 ? "" : "s")};
}

std::string DeviceOffer::to_text() const {
  return fmt::format("{}\n{}\n{}\n{}", type, require_device ? 1 : 0, gpu, why_cpu);
}

DeviceOffer DeviceOffer::from_text(const std::string& text) {
  std::istringstream lines(text);
  DeviceOffer offer;
  std::string require_device;
  std::getline(lines, offer.type);
  std::getline(lines, require_device);
  std::getline(lines, offer.gpu);
  std::getline(lines, offer.why_cpu, '\0');
  offer.require_device = require_device == "1";
  return offer;
}

DeviceAgreement agree_on_device(const std::vector<DeviceOffer>& offers) {
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].type == "cuda") {
      continue;
    }
    for (size_t other = 0; other < offers.size(); ++other) {
      require(
          offers[other].type != "cuda" || !offers[other].require_device,
          "training.device: rank {} would compute on {}, rank {} on {}; start all ranks alike",
          rank,
          offers[rank].type,
          other,
          offers[other].type);
    }
    const std::string& why = offers[rank].why_cpu;
    return {.type = "cpu", .why_cpu = why.empty() ? "" : fmt::format("rank {}: {}", rank, why)};
  }
  std::map<std::string, size_t> owners;
  for (size_t rank = 0; rank < offers.size(); ++rank) {
    const auto [owner, free] = owners.emplace(offers[rank].gpu, rank);
    if (free) {
      continue;
    }
    const std::string problem =
        fmt::format("ranks {} and {} see one GPU ({}), and each needs its own", owner->second, rank, offers[rank].gpu);
    require(
        !offers[rank].require_device, "training.device: {}; start fewer ranks on its machine, or use \"cpu\"", problem);
    return {.type = "cpu", .why_cpu = problem};
  }
  return {.type = "cuda", .why_cpu = ""};
}

}  // namespace lehr::mesh
