// Layers spread over the stages of a pipeline by what they cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr::pipeline {

/// What the parts of a model cost, all in one unit; layers more than nothing.
struct PartCosts {
  double before = 0;           ///< What the first stage has beside its layers: the embeddings.
  std::vector<double> layers;  ///< In order.
  double after = 0;            ///< What the last stage has beside its layers: norm and head.
};

/// How many layers each stage gets, so that the dearest stage is as cheap as it can be, and of all such ways the one
/// with the least sum of squares, earlier stages taking more where that is the same. Every stage gets a layer. Layers
/// that cost the same, with nothing before and after them, are spread as distribute_layers_for_pipeline_stage does.
/// Depends on the arguments alone. Throws a usage error for fewer layers than stages.
std::vector<int64_t> balance_layers(const PartCosts& costs, int64_t num_stages);

/// "7, 14 x 8, 6": equal neighbours together.
std::string describe_layers(const std::vector<int64_t>& layers_by_stage);

}  // namespace lehr::pipeline
