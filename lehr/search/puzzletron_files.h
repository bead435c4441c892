// A search's library and candidates in the files of ModelOpt's puzzletron, for its solver and its loader.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lehr/search/costs.h"
#include "lehr/search/library.h"
#include "lehr/search/solution.h"

namespace lehr::search {

/// A candidate with the objective that was measured for it, or predicted.
struct PuzzletronSolution {
  Choice choice;
  double value = 0;
  Cost cost;
};

/// Writes to `folder`, which must not exist:
/// - ckpts/teacher and ckpts/SUBBLOCK_N: models in the layout of sub-block checkpoints, whose layers have the N-th
///   variant of that sub-block where they have that many;
/// - replacement_library.json: an entry per layer and pair of variants, whose `weight_paths` refer to those models;
/// - subblock_stats.json: the costs of each variant;
/// - solutions.json: the candidates, each with its `chosen_replacements`, which `lehr convert --replace` reads too.
/// The folder appears under its name only when everything is on disk. Throws the errors of write_child.
void write_puzzletron_files(
    const Library& library,
    const CostTable& costs,
    const descriptor::Workload& work,
    const std::vector<PuzzletronSolution>& solutions,
    const std::filesystem::path& teacher,
    const std::filesystem::path& folder,
    const descriptor::ModelFamilies& families);

}  // namespace lehr::search
