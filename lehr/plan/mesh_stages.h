// The stages of a mesh under search, put together from pieces that are measured when first asked for.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "lehr/plan/search_space.h"
#include "lehr/plan/stage_costs.h"
#include "lehr/plan/stage_pieces.h"

namespace lehr::plan {

class MeshStages {
 public:
  /// References must outlive the object.
  MeshStages(const train::TrainConfig& config, const train::TrainSpec& spec, const Machine& machine);
  /// Of the whole model.
  void set_layers(int64_t layers) { num_layers_ = layers; }

  CostContext context(const MeshPoint& point, const Trade& trade) const;
  /// A stage with its cost; nothing where the model cannot be laid out so.
  std::optional<PlannedStage> stage(const MeshPoint& point, const Trade& trade, const StageShape& shape);

  /// No step of this mesh is shorter: all layers, without checkpointing, gathers or a bubble. Taken from the layout
  /// without context and expert parallelism, which only add to it, so that few layouts need be measured. Infinite where
  /// the model cannot be laid out so.
  double least_seconds(const MeshPoint& point);

  /// Measured so far.
  int64_t layouts() const { return static_cast<int64_t>(pieces_.size()); }

  std::string why_not;  ///< Why the last of those that were left out was.

 private:
  const StagePieces* pieces(const LayerLayout& layout, int64_t rows, const std::string& checkpointing);

  const train::TrainConfig& config_;
  const train::TrainSpec& spec_;
  const Machine& machine_;
  at::ScalarType compute_;
  int64_t num_layers_ = 1;
  std::map<std::tuple<LayerLayout, int64_t, std::string>, std::unique_ptr<StagePieces>> pieces_;
};

}  // namespace lehr::plan
