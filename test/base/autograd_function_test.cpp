// Autograd functions behave as torch::autograd::Function's: gradients by argument, lists, undefined tensors, needs.
#include "lehr/base/autograd_function.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"

namespace lehr {
namespace {
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor leaf(double value) {
  return at::full({2}, value, at::kDouble).set_requires_grad(true);
}

struct Axpy : AutogradFunction<Axpy> {
  static at::Tensor forward(
      AutogradContext* ctx, double a, const at::Tensor& x, const std::optional<at::Tensor>& y, const std::string&) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    ctx->saved_data["a"] = a;
    ctx->saved_data["has_y"] = y.has_value();
    return y ? a * x + *y : a * x;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const bool needs_y = ctx->saved_data["has_y"].toBool() && ctx->needs_input_grad(1);  // the second tensor
    return {
        at::Tensor(),
        ctx->needs_input_grad(0) ? grads[0] * ctx->saved_data["a"].toDouble() : at::Tensor(),
        needs_y ? grads[0] : at::Tensor(),
        at::Tensor()};
  }
};

TEST(AutogradFunction, ReturnsAGradientForEachTensorAmongOtherArguments) {
  const at::Tensor x = leaf(2);
  const at::Tensor y = leaf(3);
  const at::Tensor out = Axpy::apply(5.0, x, std::optional(y), std::string("name"));
  EXPECT_TRUE(at::equal(out, at::full({2}, 13.0, at::kDouble)));
  out.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 5.0, at::kDouble)));
  EXPECT_TRUE(at::equal(y.grad(), at::ones({2}, at::kDouble)));
}

TEST(AutogradFunction, SkipsAbsentAndConstantTensors) {
  const at::Tensor x = leaf(2);
  Axpy::apply(5.0, x, std::optional<at::Tensor>(), std::string()).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 5.0, at::kDouble)));
  const at::Tensor y = leaf(3);
  Axpy::apply(5.0, x.detach(), std::optional(y), std::string()).sum().backward();
  EXPECT_TRUE(at::equal(y.grad(), at::ones({2}, at::kDouble)));
  EXPECT_FALSE(Axpy::apply(5.0, x.detach(), std::optional<at::Tensor>(), std::string()).requires_grad());
}

struct Sums : AutogradFunction<Sums> {
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, int64_t times) {
    ctx->saved_data["times"] = times;
    return {tensors[0] * times, tensors[1] + tensors[2]};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->saved_data["times"].toInt(), grads[1], grads[1], at::Tensor()};
  }
};

TEST(AutogradFunction, TakesListsAndReturnsSeveralOutputs) {
  const std::vector<at::Tensor> inputs = {leaf(1), leaf(2), leaf(3)};
  const variable_list outputs = Sums::apply(at::TensorList(inputs), int64_t{4});
  ASSERT_EQ(outputs.size(), 2u);
  outputs[0].sum().backward();  // the gradient of the unused output is zero
  EXPECT_TRUE(at::equal(inputs[0].grad(), at::full({2}, 4.0, at::kDouble)));
  EXPECT_TRUE(at::equal(inputs[1].grad(), at::zeros({2}, at::kDouble)));
  Sums::apply(at::TensorList(inputs), int64_t{4})[1].sum().backward();
  EXPECT_TRUE(at::equal(inputs[2].grad(), at::ones({2}, at::kDouble)));
}

// Returns its first argument itself, and backward records what it needs and gets.
struct Observer : AutogradFunction<Observer> {
  static variable_list forward(
      AutogradContext* ctx,
      at::TensorList list,
      int64_t /*n*/,
      const std::optional<at::Tensor>& absent,
      const at::Tensor& last) {
    EXPECT_TRUE(absent && !absent->defined());
    ctx->set_materialize_grads(false);
    const at::Tensor constant = at::ones({2}, at::kDouble);
    ctx->mark_non_differentiable({constant});
    return {list[0], last * 2, constant};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    // The tensors of the list, and the last; the absent one is not counted.
    needs = {ctx->needs_input_grad(0), ctx->needs_input_grad(1), ctx->needs_input_grad(2)};
    has_grad = {grads[0].defined(), grads[1].defined()};
    const at::Tensor none;
    return {
        grads[0], none, none, none, grads[1].defined() ? grads[1] * 2 : none, none, none};  // two more than arguments
  }
  static inline std::vector<bool> needs, has_grad;
};

TEST(AutogradFunction, NumbersNeedsByTensorAndKeepsUndefinedGradients) {
  const at::Tensor x = leaf(1);
  const at::Tensor y = leaf(3);
  const std::vector<at::Tensor> list = {x, at::ones({2}, at::kDouble)};
  const variable_list outputs = Observer::apply(at::TensorList(list), int64_t{1}, std::optional(at::Tensor()), y);
  EXPECT_TRUE(outputs[0].requires_grad());
  EXPECT_FALSE(outputs[2].requires_grad());
  outputs[1].sum().backward();
  EXPECT_EQ(Observer::needs, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(Observer::has_grad, (std::vector<bool>{false, true}));
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(at::equal(y.grad(), at::full({2}, 2.0, at::kDouble)));
}

enum class Mistake { of_no_tensor, too_few };

struct Wrong : AutogradFunction<Wrong> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Mistake mistake) {
    ctx->saved_data["mistake"] = static_cast<int64_t>(mistake);
    return x * 2;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto mistake = static_cast<Mistake>(ctx->saved_data["mistake"].toInt());
    return mistake == Mistake::too_few ? variable_list{grads[0]} : variable_list{grads[0], grads[0]};
  }
};

TEST(AutogradFunction, RefusesGradientsThatDoNotFitTheArgumentsByName) {
  const at::Tensor x = leaf(1);
  EXPECT_THAT(
      [&] { Wrong::apply(x, Mistake::of_no_tensor).sum().backward(); },
      ThrowsMessage<Error>(AllOf(HasSubstr("::Wrong"), HasSubstr("returned gradient 2, of no tensor"))));
  EXPECT_THAT(
      [&] { Wrong::apply(x, Mistake::too_few).sum().backward(); },
      ThrowsMessage<Error>(HasSubstr("returned 1 gradients for 2 arguments")));
}

TEST(AutogradFunction, GivesTheContextOfItsNode) {
  const at::Tensor out = Axpy::apply(5.0, leaf(2), std::optional<at::Tensor>(), std::string());
  EXPECT_EQ(autograd_context(*out.grad_fn()).saved_data["a"].toDouble(), 5.0);
}

}  // namespace
}  // namespace lehr
