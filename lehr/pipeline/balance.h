// Distribution of a model's layers over pipeline stages by their cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lehr::pipeline {

/// Costs of the parts of a model, all in one unit. Layers must cost more than zero.
struct PartCosts {
  double before = 0;           ///< Cost of the first stage in addition to its layers: the embeddings.
  std::vector<double> layers;  ///< Cost of each layer, in order.
  double after = 0;            ///< Cost of the last stage in addition to its layers: norm and head.
};

/// Returns the number of layers of each stage. The result minimizes the cost of the most expensive stage. Among such
/// distributions it minimizes the sum of the squared stage costs; on ties, earlier stages get more layers. Every stage
/// gets at least one layer. Layers of equal cost, with nothing before and after them, are spread as
/// distribute_layers_for_pipeline_stage does. The result depends on the arguments alone. Throws a usage error if there
/// are fewer layers than stages.
std::vector<int64_t> balance_layers(const PartCosts& costs, int64_t num_stages);

/// Formats the numbers of layers as "7, 14 x 8, 6"; equal neighbours are grouped.
std::string describe_layers(const std::vector<int64_t>& layers_by_stage);

}  // namespace lehr::pipeline
