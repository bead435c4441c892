#include "lehr/nn/activation_checkpoint.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "lehr/base/autograd_function.h"
#include "lehr/base/call_context.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::nn {

namespace {
using Block = std::function<at::Tensor(const at::Tensor&)>;
using Tensors = std::vector<at::Tensor>;

const ContextSlot<bool> kRecomputing("recomputes a block");
const ContextSlot<bool> kRegathers("gathers sequences again");

struct Recomputing {
  const ContextScope<bool> scope{kRecomputing, true};
  const Recomputed counted;
};

struct BlockHolder : torch::CustomClassHolder {
  explicit BlockHolder(TensorsBlock b) : block(std::move(b)) {}
  TensorsBlock block;
  std::vector<bool> inputs_need_grad;
  // The recorder of deferred wgrads at the time of forward; recomputation uses it whatever is current then.
  std::weak_ptr<ops::WeightGradients> weight_gradients = ops::WeightGradients::current();
};

class Checkpoint : public AutogradFunction<Checkpoint> {
 public:
  // `anchor` requires a gradient, so that backward runs even if no input does.
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* context,
      const at::TensorList& inputs,
      const at::Tensor& /*anchor*/,
      const TensorsBlock* block) {
    auto holder = c10::make_intrusive<BlockHolder>(*block);
    for (const at::Tensor& input : inputs) {
      holder->inputs_need_grad.push_back(input.requires_grad());
    }
    context->save_for_backward(inputs.vec());
    context->saved_data["block"] = c10::IValue::make_capsule(holder);
    context->set_materialize_grads(false);  // of outputs that nothing reads
    at::NoGradGuard no_grad;
    return (*block)(inputs.vec());
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list grad_outputs) {
    const auto holder = saved_object<BlockHolder>(context, "block");
    if (std::none_of(grad_outputs.begin(), grad_outputs.end(), [](const auto& grad) { return grad.defined(); })) {
      return Tensors(holder->inputs_need_grad.size() + 2);
    }
    Tensors inputs;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach());
      inputs.back().set_requires_grad(holder->inputs_need_grad[inputs.size() - 1]);
    }
    Tensors outputs;
    {
      const at::AutoGradMode grad(true);
      const Recomputing recomputing;
      const ops::WeightGradients::Scope scope(holder->weight_gradients.lock());
      outputs = holder->block(inputs);
    }
    Tensors differentiable, grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad() && grad_outputs[i].defined()) {
        differentiable.push_back(outputs[i]);
        grads.push_back(grad_outputs[i]);
      }
    }
    if (!differentiable.empty()) {
      torch::autograd::backward(differentiable, grads);
    }
    Tensors of_inputs;
    for (const at::Tensor& input : inputs) {
      of_inputs.push_back(input.grad());
    }
    of_inputs.insert(of_inputs.end(), {at::Tensor(), at::Tensor()});
    return of_inputs;
  }
};

TensorsBlock of_lists(const Block& block) {
  return [block](const Tensors& inputs) { return Tensors{block(inputs.front())}; };
}
}  // namespace

Tensors run_layer(ActivationCheckpointing policy, int64_t layer, const TensorsBlock& block, const Tensors& inputs) {
  const bool applies = policy.applies_to(layer);
  const ops::RecomputeMatmuls recompute(applies && policy.matmuls_only);
  const ContextScope<bool> regather(kRegathers, policy.regather);
  return applies && !policy.matmuls_only ? checkpoint(block, inputs) : block(inputs);
}

at::Tensor run_layer(ActivationCheckpointing policy, int64_t layer, const Block& block, const at::Tensor& input) {
  return run_layer(policy, layer, of_lists(block), Tensors{input}).front();
}

bool regathers() {
  return kRegathers.get();
}

bool is_recomputing() {
  return kRecomputing.get();
}

Tensors checkpoint(const TensorsBlock& block, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) {
    return block(inputs);
  }
  const at::Tensor anchor = at::empty({0}, inputs.front().options().dtype(at::kFloat)).set_requires_grad(true);
  return Checkpoint::apply(at::TensorList(inputs), anchor, &block);
}

at::Tensor checkpoint(const Block& block, const at::Tensor& input) {
  return checkpoint(of_lists(block), Tensors{input}).front();
}

}  // namespace lehr::nn
