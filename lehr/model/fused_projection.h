// State maps of fused projections, whose rows tensor parallelism splits by groups of heads.
#pragma once

#include <string>
#include <vector>

#include "lehr/state/state_map.h"

namespace lehr::model {

/// A stored tensor that has the rows of one projection after those of another, each of all groups of heads.
struct StoredProjections {
  std::string name;
  std::vector<int64_t> rows_of_group;  ///< Number of rows that a group has in each projection.
};

/// Maps the stored tensors to the parameter `name`, which has the same rows in another order: group by group, each with
/// its rows of all projections.
state::StateMap fused_projection(
    const std::vector<StoredProjections>& stored, const std::string& name, int64_t num_groups);

}  // namespace lehr::model
