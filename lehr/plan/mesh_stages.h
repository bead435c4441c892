// Stages of a mesh in a search, assembled from pieces that are measured on first use.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lehr/plan/search_space.h"
#include "lehr/plan/stage_costs.h"
#include "lehr/plan/stage_pieces.h"

namespace lehr::plan {

/// The step time of a configuration that is impossible.
inline constexpr double kNever = std::numeric_limits<double>::infinity();

/// The stages of any mesh of a run, with their costs. Pieces of one layout are measured once.
class MeshStages {
 public:
  /// References must outlive the object.
  MeshStages(const train::TrainConfig& config, const train::TrainSpec& spec, const Machine& machine);
  /// Sets the number of layers of the whole model.
  void set_layers(int64_t layers) { num_layers_ = layers; }

  CostContext context(const MeshPoint& point, const Trade& trade) const;
  /// Returns a stage with its cost; nothing if the model cannot be laid out in this way.
  std::optional<PlannedStage> stage(const MeshPoint& point, const Trade& trade, const StageShape& shape);

  /// Returns a lower bound of a step's seconds on this mesh: all layers, without checkpointing, all-gathers or a
  /// bubble, and with one reduction of the gradients. It uses the layout without context parallelism, which only adds
  /// time, so few layouts are measured. (Expert parallelism also saves time: a rank adds up the gradients of its
  /// experts only.) Infinite if the model cannot be laid out so.
  double least_seconds(const MeshPoint& point);

  /// Returns the number of layouts measured so far.
  int64_t layouts() const { return static_cast<int64_t>(pieces_.size()); }

  std::string why_not;  ///< The reason for the last rejection of a layout.

 private:
  // `reduce_each`: Trade::reduce_each.
  const StagePieces* pieces(
      const LayerLayout& layout, int64_t rows, const std::string& checkpointing, bool reduce_each);
  double tokens_of_experts(const StagePieces& from, const MeshPoint& point) const;

  const train::TrainConfig& config_;
  const train::TrainSpec& spec_;
  const Machine& machine_;
  at::ScalarType compute_;
  int64_t num_layers_ = 1;
  std::map<std::tuple<LayerLayout, int64_t, std::string, bool>, std::unique_ptr<StagePieces>> pieces_;
};

}  // namespace lehr::plan
