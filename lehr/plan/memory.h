// Memory of a rank over a step, by kind.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lehr/pipeline/simulate.h"
#include "lehr/plan/measure_stage.h"

namespace lehr::plan {

/// Kinds of memory: parameters, gradients and optimizer state at rest; unsharded (all-gathered) parameters;
/// activations; tensors sent between stages; temporaries of an action.
enum class MemoryKind { parameters, gradients, optimizer, gathered, activations, boundary, workspace };
constexpr size_t kMemoryKinds = 7;

/// Returns "parameters", "gradients", "optimizer state", "gathered weights", "activations", "boundary buffers" or
/// "workspace".
std::string_view name_of(MemoryKind kind);

/// Bytes of each kind at one moment.
struct MemoryByKind {
  std::array<double, kMemoryKinds> bytes{};
  double& operator[](MemoryKind kind) { return bytes[static_cast<size_t>(kind)]; }
  double operator[](MemoryKind kind) const { return bytes[static_cast<size_t>(kind)]; }
  double total() const;
};

/// The largest memory that a rank holds from `seconds` to the next moment.
struct MemoryMoment {
  double seconds = 0;
  MemoryByKind held = {};
};

/// A rank's memory over a step.
struct RankMemory {
  std::vector<MemoryMoment> moments;  ///< Ascending in time; during a computation they include its workspace.
  MemoryByKind peak = {};             ///< The moment with the largest total.
};

/// Returns the memory of each rank along pp. `stages` are in the order of the timeline's stages. Gradients of a stage
/// are held from its first backward on; activations of a micro-batch from its forward to its last backward; boundary
/// buffers from the start of their transfer until they are used, or from their computation until they are sent. The
/// rest of an action's peak is gathered weights and workspace.
std::vector<RankMemory> memory_by_rank(
    const pipeline::Timeline& timeline, const std::vector<const StageMeasurement*>& stages, bool splits_backward);

}  // namespace lehr::plan
