#include "lehr/shard/unit_graph.h"

#include "lehr/base/error.h"
#include "lehr/shard/unit_schedule.h"

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct PassHolder : torch::CustomClassHolder {
  explicit PassHolder(std::shared_ptr<UnitPass> p) : pass(std::move(p)) {}
  std::shared_ptr<UnitPass> pass;
};

void keep(AutogradContext* context, const std::shared_ptr<UnitPass>& pass) {
  context->saved_data["pass"] = c10::IValue::make_capsule(c10::make_intrusive<PassHolder>(pass));
}

// The pass, and the schedule, which must be the one of the forward pass.
std::pair<std::shared_ptr<UnitPass>, std::shared_ptr<UnitSchedule>> kept(AutogradContext* context) {
  auto pass = c10::static_intrusive_pointer_cast<PassHolder>(context->saved_data["pass"].toCapsule())->pass;
  auto schedule = pass->schedule.lock();
  require(schedule != nullptr, "fully sharded model: backward after its end");
  return {pass, schedule};
}

// Where a unit begins: gives the trainable parameters; in backward, all their gradients are there.
struct Begin : torch::autograd::Function<Begin> {
  static variable_list forward(
      AutogradContext* context,
      const at::Tensor& /*anchor*/,
      at::TensorList /*own_values*/,
      const std::shared_ptr<UnitPass>& pass,
      const ShardUnit* shards) {
    keep(context, pass);
    context->set_materialize_grads(false);
    return shards->trainable_tensors();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto [pass, schedule] = kept(context);
    variable_list own = schedule->leave_backward(pass, std::move(gradients));
    own.insert(own.begin(), at::Tensor());  // the anchor's
    own.insert(own.end(), {at::Tensor(), at::Tensor()});
    return own;
  }
};

// Where a unit without trainable parameters begins.
struct BeginFrozen : torch::autograd::Function<BeginFrozen> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const std::shared_ptr<UnitPass>& pass) {
    keep(context, pass);
    return input.view_as(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto [pass, schedule] = kept(context);
    schedule->leave_backward(pass, {});
    return {gradients[0], {}};
  }
};

// Where the call of a module ends: backward comes here before it reads the weights. `begin` ties the output to the
// unit's parameters.
struct End : torch::autograd::Function<End> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& output,
      const at::Tensor& /*begin*/,
      const std::shared_ptr<UnitPass>& pass) {
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

void UnitPass::add(const std::vector<at::Tensor>& more) {
  gradients.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    if (more[i].defined()) {
      gradients[i] = gradients[i].defined() ? gradients[i] + more[i] : more[i];
    }
  }
}

std::vector<at::Tensor> begin_graph(const ShardUnit& shards, const std::shared_ptr<UnitPass>& pass, at::Device device) {
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  const at::Tensor anchor = at::empty({0}, options).set_requires_grad(true);
  const auto own = shards.own_values();
  auto tensors = Begin::apply(anchor, at::TensorList(own), pass, &shards);
  if (const auto weight_gradients = pass->weight_gradients.lock()) {
    weight_gradients->allow(tensors.front().grad_fn());
  }
  return tensors;
}

at::Tensor begin_frozen(const at::Tensor& input, const std::shared_ptr<UnitPass>& pass) {
  return BeginFrozen::apply(input, pass);
}

at::Tensor end_call(const at::Tensor& output, const std::shared_ptr<UnitPass>& pass) {
  return End::apply(output, pass->begin.defined() ? pass->begin : output, pass);
}

}  // namespace lehr::shard
