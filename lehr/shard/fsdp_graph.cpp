#include "lehr/shard/fsdp_graph.h"

#include "lehr/base/autograd_function.h"
#include "lehr/base/error.h"
#include "lehr/shard/fsdp_unit.h"

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PassHolder : torch::CustomClassHolder {
  explicit PassHolder(std::shared_ptr<FsdpPass> p) : pass(std::move(p)) {}
  std::shared_ptr<FsdpPass> pass;
};

void keep(AutogradContext* context, const std::shared_ptr<FsdpPass>& pass) {
  context->saved_data["pass"] = c10::IValue::make_capsule(c10::make_intrusive<PassHolder>(pass));
}

// Returns the pass that forward saved, and its schedule, which must still exist.
std::pair<std::shared_ptr<FsdpPass>, std::shared_ptr<FsdpBackward>> kept(AutogradContext* context) {
  auto pass = saved_object<PassHolder>(context, "pass")->pass;
  auto schedule = pass->schedule.lock();
  require(schedule != nullptr, "fully sharded model: backward after the model was destroyed");
  return {pass, schedule};
}

// Start of a unit's graph. Forward returns the trainable parameters; backward receives all their gradients together.
//
// Invariant: autograd runs a node when all its outputs have their gradients, and runs ready nodes in the reverse order
// of creation. Since each unit has one Begin node per pass and all ranks create them in the same order, all ranks
// reduce-scatter their units in the same order.
struct Begin : AutogradFunction<Begin> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& /*anchor*/,
      at::TensorList /*own_values*/,
      const std::shared_ptr<FsdpPass>& pass,
      const FsdpUnit* shards) {
    keep(context, pass);
    context->set_materialize_grads(false);  // an unused parameter costs no zeros
    return shards->trainable_tensors();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto [pass, schedule] = kept(context);
    variable_list own = schedule->leave_backward(pass, std::move(gradients));
    own.insert(own.begin(), at::Tensor());                // anchor
    own.insert(own.end(), {at::Tensor(), at::Tensor()});  // pass, shards
    return own;
  }
};

// Start of the graph of a unit without trainable parameters.
struct BeginFrozen : AutogradFunction<BeginFrozen> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::shared_ptr<FsdpPass>& pass) {
    keep(context, pass);
    return input.view_as(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [pass, schedule] = kept(context);
    schedule->leave_backward(pass, {});
    return {gradients[0], {}};
  }
};

// End of a call of a module: its backward runs before that of the module's operators, which read the weights. `begin`
// makes the output depend on the unit's parameters; without it, a rank whose operators used none of them would issue
// fewer collectives than the others.
struct End : AutogradFunction<End> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& output,
      const at::Tensor& /*begin*/,
      const std::shared_ptr<FsdpPass>& pass) {
    keep(context, pass);
    return output.view_as(output);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [pass, schedule] = kept(context);
    schedule->enter_backward(*pass);
    return {gradients[0], {}, {}};
  }
};
}  // namespace

void FsdpPass::add(const std::vector<at::Tensor>& more) {
  gradients.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    if (more[i].defined()) {
      gradients[i] = gradients[i].defined() ? gradients[i] + more[i] : more[i];
    }
  }
}

std::vector<at::Tensor> begin_graph(const FsdpUnit& shards, const std::shared_ptr<FsdpPass>& pass, at::Device device) {
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  // Begin needs an input that requires a gradient, or autograd would not record it; own values may be none.
  const at::Tensor anchor = at::empty({0}, options).set_requires_grad(true);
  const auto own = shards.own_values();
  auto tensors = Begin::apply(anchor, at::TensorList(own), pass, &shards);
  if (const auto weight_gradients = pass->weight_gradients.lock()) {
    weight_gradients->allow(tensors.front().grad_fn());  // may be visited twice: after dgrad and after wgrad
  }
  return tensors;
}

at::Tensor begin_frozen(const at::Tensor& input, const std::shared_ptr<FsdpPass>& pass) {
  return BeginFrozen::apply(input, pass);
}

at::Tensor end_call(const at::Tensor& output, const std::shared_ptr<FsdpPass>& pass) {
  return End::apply(output, pass->begin.defined() ? pass->begin : output, pass);
}

}  // namespace lehr::shard
