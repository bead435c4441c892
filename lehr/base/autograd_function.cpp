// Built with NDEBUG, as LibTorch is: without it, the header lays out at::RecordFunction differently.
#include "lehr/base/autograd_function.h"

#include <ATen/record_function.h>
#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "lehr/base/error.h"

namespace lehr {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kCall = "lehr::call";

struct CallHolder : torch::CustomClassHolder {
  const char* name = nullptr;
  AutogradCall::Backward backward = nullptr;
  std::vector<bool> is_tensor;
};

struct SharedFunction : torch::autograd::Function<SharedFunction> {
  using Forward = std::function<variable_list(AutogradContext*)>;

  // Only the inputs are edges of the node, so ctx->needs_input_grad(i) has the same i as in a function of its own.
  static variable_list forward(
      AutogradContext* ctx,
      at::TensorList /*inputs*/,
      const c10::intrusive_ptr<CallHolder>& call,
      const Forward& forward) {
    ctx->saved_data[kCall] = c10::IValue::make_capsule(call);
    return forward(ctx);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto call = saved_object<CallHolder>(ctx, kCall);
    at::RecordFunction record(at::RecordScope::USER_SCOPE);  // in a trace, all nodes have one name
    if (record.isActive()) {
      record.before(call->name);
    }
    variable_list results = call->backward(ctx, grads);
    variable_list of_inputs;
    of_inputs.reserve(results.size() + 2);
    for (size_t i = 0; i < results.size(); ++i) {
      if (i < call->is_tensor.size() && call->is_tensor[i]) {
        of_inputs.push_back(std::move(results[i]));
      } else {
        invariant(!results[i].defined(), "{}: backward returned gradient {}, of no tensor", call->name, i + 1);
      }
    }
    invariant(
        results.size() >= call->is_tensor.size(),
        "{}: backward returned {} gradients for {} arguments",
        call->name,
        results.size(),
        call->is_tensor.size());
    of_inputs.resize(of_inputs.size() + 2);  // call, forward
    return of_inputs;
  }
};
}  // namespace

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : type.name();
}

variable_list apply_autograd_function(AutogradCall call, const SharedFunction::Forward& forward) {
  auto holder = c10::make_intrusive<CallHolder>();
  holder->name = call.name;
  holder->backward = call.backward;
  holder->is_tensor = std::move(call.is_tensor);
  return SharedFunction::apply(at::TensorList(call.inputs), holder, forward);
}

AutogradContext& autograd_context(torch::autograd::Node& node) {
  return static_cast<torch::autograd::CppNode<SharedFunction>&>(node).ctx_;
}

}  // namespace lehr
