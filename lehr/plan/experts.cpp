#include "lehr/plan/experts.h"

#include "lehr/nn/moe.h"

namespace lehr::plan {

double expert_visits(nn::Model& model) {
  const auto layers = nn::moe_layers(model);
  return layers.empty() ? 0
                        : static_cast<double>(layers.front()->router->top_k()) /
                              static_cast<double>(layers.front()->num_experts());
}

double expert_tokens(double expert_visits, int64_t tokens, const mesh::DeviceMeshParameters& mesh) {
  const auto of_ranks = static_cast<double>(tokens * mesh.expert_parallel);
  return expert_visits * of_ranks / static_cast<double>(mesh.context_parallel * mesh.tensor_parallel);
}

}  // namespace lehr::plan
