#include "test/ops/against_reference.h"

namespace lehr::ops::test {

std::vector<Arch> supported_archs() {
  std::vector<Arch> archs{Arch::generic, Arch::avx2, Arch::avx512, Arch::avx512_bf16, Arch::amx};
  std::erase_if(archs, [](Arch arch) { return arch > current_arch(); });
  return archs;
}

std::vector<at::ScalarType> all_types() {
  return {at::kFloat, at::kDouble, at::kBFloat16};
}

at::Tensor random_tensor(at::IntArrayRef sizes, at::ScalarType type, double spread) {
  return (at::randn(sizes, at::kDouble) * spread).to(type);
}

double worst_error(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) {
    return std::numeric_limits<double>::infinity();
  }
  if (expected.numel() == 0) {
    return 0;
  }
  const at::Tensor e = expected.detach().to(at::kDouble);
  const double difference = (actual.detach().to(at::kDouble) - e).abs().max().item<double>();
  return difference / std::max(e.abs().max().item<double>(), 1e-30);
}

double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : type == at::kFloat ? 4e-6 : 1.0 / 128;
}

Outcome run(const Operator& op, const Tensors& inputs, const std::vector<bool>& frozen, const Tensors& incoming) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    leaves.back().set_requires_grad(!frozen[i]);
  }
  Outcome outcome{.values = op(leaves), .gradients = {}};
  at::Tensor total = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < outcome.values.size(); ++i) {
    total = total + (outcome.values[i].to(at::kDouble) * incoming[i]).sum();
  }
  if (total.requires_grad()) {
    total.backward();
  }
  for (const at::Tensor& leaf : leaves) {
    outcome.gradients.push_back(leaf.grad());
  }
  return outcome;
}

void expect_equal_to_definition(
    const std::string& what,
    const Operator& fast,
    const Operator& definition,
    const Tensors& inputs,
    std::vector<bool> frozen,
    double tolerances) {
  frozen.resize(inputs.size());
  const at::ScalarType type = inputs[0].scalar_type();
  const double allowed = tolerances * tolerance(type);
  Tensors wide;
  for (const at::Tensor& input : inputs) {
    wide.push_back(input.to(at::kDouble));
  }
  Tensors incoming;
  {
    at::NoGradGuard no_grad;
    for (const at::Tensor& value : definition(wide)) {
      incoming.push_back(at::randn(value.sizes(), at::kDouble).to(type).to(at::kDouble));
    }
  }
  const Outcome expected = run(definition, wide, frozen, incoming);
  const Outcome actual = run(fast, inputs, frozen, incoming);
  ASSERT_EQ(actual.values.size(), expected.values.size()) << what;
  for (size_t i = 0; i < actual.values.size(); ++i) {
    EXPECT_LE(worst_error(actual.values[i], expected.values[i]), allowed) << what << ", value " << i;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(actual.gradients[i].defined(), !frozen[i]) << what << ", gradient " << i;
    if (!frozen[i]) {
      EXPECT_EQ(actual.gradients[i].scalar_type(), type) << what << ", gradient " << i;
      EXPECT_LE(worst_error(actual.gradients[i], expected.gradients[i]), allowed) << what << ", gradient " << i;
    }
  }
  at::NoGradGuard no_grad;
  const Tensors without_gradients = fast(inputs);
  for (size_t i = 0; i < without_gradients.size(); ++i) {
    EXPECT_LE(worst_error(without_gradients[i], actual.values[i]), allowed) << what << " without gradients";
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace lehr::ops::test
