#include "lehr/pipeline/stage.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "lehr/base/error.h"

namespace lehr::pipeline {

std::pair<int64_t, int64_t> distribute_layers_for_pipeline_stage(
    int64_t num_layers,
    int64_t num_virtual_layers_pre,
    int64_t num_virtual_layers_post,
    const PipelineStageInfo& stage) {
  require(
      stage.num_stages >= 1 && stage.current_stage >= 0 && stage.current_stage < stage.num_stages,
      "pipeline stage: expected 0 <= stage < {}, found {}",
      stage.num_stages,
      stage.current_stage);
  if (const auto& chosen = stage.layers_by_stage; !chosen.empty()) {
    const auto first = chosen.begin();
    require(
        static_cast<int64_t>(chosen.size()) == stage.num_stages &&
            std::all_of(first, chosen.end(), [](int64_t count) { return count > 0; }) &&
            std::accumulate(first, chosen.end(), int64_t{0}) == num_layers,
        "pipeline stage: expected {} layers on {} stages with at least one layer each, found {}",
        num_layers,
        stage.num_stages,
        fmt::join(chosen, ", "));
    const int64_t begin = std::accumulate(first, first + stage.current_stage, int64_t{0});
    return {begin, begin + chosen[static_cast<size_t>(stage.current_stage)]};
  }
  const int64_t total = num_layers + num_virtual_layers_pre + num_virtual_layers_post;
  int64_t begin = 0;
  std::pair<int64_t, int64_t> mine;
  for (int64_t s = 0; s < stage.num_stages; ++s) {
    int64_t count = total / stage.num_stages + (s < total % stage.num_stages ? 1 : 0);
    count -= s == 0 ? num_virtual_layers_pre : 0;
    count -= s == stage.num_stages - 1 ? num_virtual_layers_post : 0;
    require(
        count > 0,
        "pipeline stage {}: {} layers (with {} virtual ones before and {} after) over {} stages would leave it no "
        "layer; use fewer stages",
        s,
        num_layers,
        num_virtual_layers_pre,
        num_virtual_layers_post,
        stage.num_stages);
    if (s == stage.current_stage) {
      mine = {begin, begin + count};
    }
    begin += count;
  }
  return mine;
}

}  // namespace lehr::pipeline
