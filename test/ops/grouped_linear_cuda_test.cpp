// Grouped matmuls by ATen's at::_grouped_mm, as on a GPU: on the host with a check of the rules of the CUDA kernel, and
// on a GPU if there is one.
#include <ATen/record_function.h>
#include <gmock/gmock.h>

#include "lehr/meter/recorded_inputs.h"
#include "lehr/ops/grouped_linear/grouped_linear.h"
#include "lehr/ops/weight_gradients.h"
#include "test/ops/against_reference.h"
#include "test/ops/kernels_test.h"

namespace lehr::ops::test {
namespace {

// Watches this thread's calls of at::_grouped_mm. Refuses operands on which the CUTLASS kernel of compute capability
// 9.0 and 10.0 asserts on the device. Writes NaN into the gradients of groups without rows, which 10.0 leaves
// undefined.
class GroupedMmRules {
 public:
  GroupedMmRules()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&begin, &end)
                                               .needsInputs(true)
                                               .needsOutputs(true)
                                               .scopes({at::RecordScope::FUNCTION}))) {
    calls() = 0;
  }
  ~GroupedMmRules() { at::removeCallback(handle_); }
  GroupedMmRules(const GroupedMmRules&) = delete;
  GroupedMmRules& operator=(const GroupedMmRules&) = delete;

  static int& calls() {
    thread_local int count = 0;
    return count;
  }

 private:
  struct Ragged : at::ObserverContext {
    at::Tensor ends;
  };

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string(function.name()) != "aten::_grouped_mm") {
      return nullptr;
    }
    ++calls();
    const auto inputs = recorded_inputs(function);
    const at::Tensor a = inputs[0].toTensor(), b = inputs[1].toTensor();
    auto ragged = std::make_unique<Ragged>();
    ragged->ends = a.dim() == 2 && b.dim() == 2 ? inputs[2].toTensor() : at::Tensor();
    for (const at::Tensor& operand : {a, b}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(operand.data_ptr()) % 16, 0U);
      EXPECT_GT(operand.numel(), 0);
      EXPECT_TRUE(operand.stride(-1) == 1 || operand.stride(-2) == 1);
      EXPECT_EQ(operand.stride(operand.stride(-1) == 1 ? -2 : -1) % 8, 0) << operand.sizes();
    }
    if (ragged->ends.defined()) {  // else all groups are multiples of 8 rows and none is empty
      EXPECT_NE(a.stride(-1), 1);
      EXPECT_EQ(b.stride(-1), 1);
    } else {
      EXPECT_EQ(a.stride(-1), 1);
    }
    return ragged;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto* ragged = dynamic_cast<Ragged*>(context);
    if (ragged == nullptr || !ragged->ends.defined()) {
      return;
    }
    const at::Tensor gradient = function.outputs()[0].toTensor();
    for (int64_t group = 0; group < gradient.size(0); ++group) {
      const auto* ends = ragged->ends.const_data_ptr<int32_t>();
      if (ends[group] == (group > 0 ? ends[group - 1] : 0)) {
        std::fill_n(
            gradient[group].mutable_data_ptr<at::BFloat16>(),
            gradient[group].numel(),
            std::numeric_limits<at::BFloat16>::quiet_NaN());
      }
    }
  }

  at::CallbackHandle handle_;
};

class GroupedLinearCuda : public KernelsTest {
 protected:
  void SetUp() override {
    KernelsTest::SetUp();
    if (!GetParam()) {
      rules_.emplace();
    }
  }

  void expect_equal(
      const std::string& what, const Tensors& inputs, const at::Tensor& ends, const std::vector<bool>& frozen = {}) {
    const Operator fast = [&](const Tensors& in) -> Tensors {
      const at::Tensor bias = in.size() > 2 ? there(in[2]) : at::Tensor();
      return {grouped_linear(there(in[0]), there(in[1]), there(ends), bias).cpu()};
    };
    const Operator definition = [&](const Tensors& in) -> Tensors {
      return {grouped_linear_reference(in[0], in[1], ends, in.size() > 2 ? in[2] : at::Tensor())};
    };
    expect_equal_to_definition(what, fast, definition, inputs, frozen);
  }

  std::optional<GroupedMmRules> rules_;
};

TEST_P(GroupedLinearCuda, EqualsItsDefinition) {
  const at::Tensor ends = at::tensor({0, 3, 3, 12, 13, 13}, at::kInt);  // no multiples of 8, three empty groups
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{16, 24}, {8, 4}, {4, 8}, {6, 5}, {1, 1}}) {
    const Tensors inputs = {random_tensor({13, in}, at::kBFloat16), random_tensor({6, out, in}, at::kBFloat16)};
    const std::string what = std::to_string(in) + " to " + std::to_string(out);
    expect_equal(what, inputs, ends);
    expect_equal("frozen rows " + what, inputs, ends, {true, false});
    expect_equal("frozen weight " + what, inputs, ends, {false, true});
    expect_equal("biases " + what, {inputs[0], inputs[1], random_tensor({6, out}, at::kBFloat16)}, ends);
  }
  // The incoming gradient is not one block of memory.
  expect_equal(
      "large",
      {random_tensor({2, 264}, at::kBFloat16), random_tensor({3, 256, 264}, at::kBFloat16)},
      at::tensor({0, 2, 2}, at::kInt));
  if (!GetParam()) {
    EXPECT_EQ(GroupedMmRules::calls(), 5 * (4 + 3 + 3 + 5) + 4);
  }
}

TEST_P(GroupedLinearCuda, AcceptsUnalignedTensors) {
  const auto shifted = [&](at::IntArrayRef sizes) {
    const int64_t count = c10::multiply_integers(sizes);
    return there(random_tensor({count + 1}, at::kBFloat16)).narrow(0, 1, count).view(sizes);
  };
  const at::Tensor rows = shifted({5, 8}).requires_grad_(true), weight = shifted({2, 16, 8}).requires_grad_(true);
  const at::Tensor ends = at::tensor({4, 5}, at::kInt);
  const at::Tensor output = grouped_linear(rows, weight, there(ends));
  const at::Tensor wide = there(random_tensor({5, 32}, at::kBFloat16));
  output.backward(wide.slice(1, 0, 32, 2));  // not contiguous
  const at::Tensor rows_ref = rows.detach().cpu().to(at::kDouble).requires_grad_(true);
  const at::Tensor weight_ref = weight.detach().cpu().to(at::kDouble).requires_grad_(true);
  const at::Tensor expected = grouped_linear_reference(rows_ref, weight_ref, ends);
  expected.backward(wide.cpu().to(at::kDouble).slice(1, 0, 32, 2));
  EXPECT_LE(worst_error(output.detach().cpu(), expected.detach()), tolerance(at::kBFloat16));
  EXPECT_LE(worst_error(rows.grad().cpu(), rows_ref.grad()), tolerance(at::kBFloat16));
  EXPECT_LE(worst_error(weight.grad().cpu(), weight_ref.grad()), tolerance(at::kBFloat16));
}

TEST_P(GroupedLinearCuda, AcceptsZeroRows) {
  at::Tensor rows = there(at::empty({0, 16}, at::kBFloat16)).requires_grad_(true);
  at::Tensor weight = there(random_tensor({2, 8, 16}, at::kBFloat16)).requires_grad_(true);
  const at::Tensor output = grouped_linear(rows, weight, there(at::zeros({2}, at::kInt)));
  EXPECT_EQ(output.sizes(), (std::vector<int64_t>{0, 8}));
  output.sum().backward();
  EXPECT_EQ(rows.grad().sizes(), rows.sizes());
  EXPECT_TRUE(at::equal(weight.grad().cpu(), at::zeros({2, 8, 16}, at::kBFloat16)));
}

INSTANTIATE_TEST_SUITE_P(, GroupedLinearCuda, testing::Bool(), place_name);

}  // namespace
}  // namespace lehr::ops::test
