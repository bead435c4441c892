// What a rank holds over a step, by kind.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lehr/pipeline/simulate.h"
#include "lehr/plan/measure_stage.h"

namespace lehr::plan {

enum class MemoryKind { parameters, gradients, optimizer, gathered, activations, boundary, workspace };
constexpr size_t kMemoryKinds = 7;

/// "parameters", "gradients", "optimizer state", "gathered weights", "activations", "boundary buffers", "workspace".
std::string_view name_of(MemoryKind kind);

/// Bytes of each kind, at one moment.
struct MemoryByKind {
  std::array<double, kMemoryKinds> bytes{};
  double& operator[](MemoryKind kind) { return bytes[static_cast<size_t>(kind)]; }
  double operator[](MemoryKind kind) const { return bytes[static_cast<size_t>(kind)]; }
  double total() const;
};

/// From `seconds` to the next point, a rank holds this at most.
struct MemoryMoment {
  double seconds = 0;
  MemoryByKind held = {};
};

/// A rank's memory over a step.
struct RankMemory {
  std::vector<MemoryMoment> moments;  ///< In time; during a computation with its workspace.
  MemoryByKind peak = {};             ///< The moment of the largest total.
};

/// By rank along pp. `stages` are in the order of the timeline's. Gradients of a stage are held from its first backward
/// on; activations of a microbatch from its forward to its last backward; boundary buffers from when they begin to
/// arrive until they are used, or from when they are computed until they are sent; what an action needs beyond that is
/// gathered weights and workspace.
std::vector<RankMemory> memory_by_rank(
    const pipeline::Timeline& timeline, const std::vector<const StageMeasurement*>& stages, bool halves);

}  // namespace lehr::plan
