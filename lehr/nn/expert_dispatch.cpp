#include "lehr/nn/expert_dispatch.h"

#include <utility>

#include "lehr/nn/experts.h"

namespace lehr::nn {

ops::TokenPermutation ExpertDispatcher::sort(const at::Tensor& selected_experts, int64_t num_experts) const {
  return ops::sort_by_expert(selected_experts, num_experts);
}

namespace {
class LocalDispatch : public ExpertDispatch {
 public:
  LocalDispatch(const at::Tensor& tokens, const ops::TokenPermutation& permutation)
      : permutation_(permutation), rows_(ops::permute_tokens(tokens, permutation)) {}

  at::Tensor run(const GroupedExperts& experts, const at::Tensor& probabilities) override {
    const at::Tensor results = experts(std::exchange(rows_, at::Tensor()), permutation_.ends);  // (N*k, H)
    return ops::combine_tokens(results, probabilities.to(results.scalar_type()), permutation_);
  }

 private:
  ops::TokenPermutation permutation_;
  at::Tensor rows_;
};

class LocalDispatcher : public ExpertDispatcher {
 public:
  std::unique_ptr<ExpertDispatch> start(
      const at::Tensor& tokens, const ops::TokenPermutation& permutation) const override {
    return std::make_unique<LocalDispatch>(tokens, permutation);
  }
};
}  // namespace

std::shared_ptr<const ExpertDispatcher> local_expert_dispatcher() {
  return std::make_shared<LocalDispatcher>();
}

}  // namespace lehr::nn
