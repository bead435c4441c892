#include "lehr/nn/expert_dispatch.h"

namespace lehr::nn {

namespace {
class LocalDispatch : public ExpertDispatch {
 public:
  LocalDispatch(const at::Tensor& tokens, const ops::TokenPermutation& permutation)
      : permutation_(permutation), rows_(ops::permute_tokens(tokens, permutation)) {}

  ExpertRows receive() override { return {.rows = std::move(rows_), .ends = permutation_.ends}; }
  at::Tensor combine(const at::Tensor& results, const at::Tensor& weights) override {
    return ops::combine_tokens(results, weights, permutation_);
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
