#include "lehr/nn/activation_checkpoint.h"

#include <utility>

#include "lehr/base/autograd_function.h"
#include "lehr/base/call_context.h"
#include "lehr/meter/operation_meter.h"
#include "lehr/ops/recompute.h"
#include "lehr/ops/weight_gradients.h"

namespace lehr::nn {

namespace {
using Block = std::function<at::Tensor(const at::Tensor&)>;

const ContextSlot<bool> kRecomputing("recomputes a block");
const ContextSlot<bool> kRegathers("gathers sequences again");

struct Recomputing {
  const ContextScope<bool> scope{kRecomputing, true};
  const Recomputed counted;
};

struct BlockHolder : torch::CustomClassHolder {
  explicit BlockHolder(Block b) : block(std::move(b)) {}
  Block block;
  // The recorder of deferred wgrads at the time of forward; recomputation uses it whatever is current then.
  std::weak_ptr<ops::WeightGradients> weight_gradients = ops::WeightGradients::current();
};

class Checkpoint : public AutogradFunction<Checkpoint> {
 public:
  // `anchor` requires a gradient, so that backward runs even if the input does not.
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& input,
      const at::Tensor& /*anchor*/,
      const Block* block) {
    context->save_for_backward({input});
    context->saved_data["block"] = c10::IValue::make_capsule(c10::make_intrusive<BlockHolder>(*block));
    context->saved_data["input_needs_grad"] = input.requires_grad();
    at::NoGradGuard no_grad;
    return (*block)(input);
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context, torch::autograd::variable_list grad_outputs) {
    const auto holder = saved_object<BlockHolder>(context, "block");
    at::Tensor input = context->get_saved_variables().front().detach();
    input.set_requires_grad(context->saved_data["input_needs_grad"].toBool());
    at::Tensor output;
    {
      const at::AutoGradMode grad(true);
      const Recomputing recomputing;
      const ops::WeightGradients::Scope scope(holder->weight_gradients.lock());
      output = holder->block(input);
    }
    if (output.requires_grad()) {
      output.backward(grad_outputs.front());
    }
    return {input.grad(), at::Tensor(), at::Tensor()};
  }
};
}  // namespace

at::Tensor run_layer(ActivationCheckpointing policy, int64_t layer, const Block& block, const at::Tensor& input) {
  const bool applies = policy.applies_to(layer);
  const ops::RecomputeMatmuls recompute(applies && policy.matmuls_only);
  const ContextScope<bool> regather(kRegathers, policy.regather);
  return applies && !policy.matmuls_only ? checkpoint(block, input) : block(input);
}

bool regathers() {
  return kRegathers.get();
}

bool is_recomputing() {
  return kRecomputing.get();
}

at::Tensor checkpoint(const Block& block, const at::Tensor& input) {
  if (!at::GradMode::is_enabled()) {
    return block(input);
  }
  const at::Tensor anchor = at::empty({0}, input.options().dtype(at::kFloat)).set_requires_grad(true);
  return Checkpoint::apply(input, anchor, &block);
}

}  // namespace lehr::nn
