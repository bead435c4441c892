#include "lehr/shard/sequence_gather.h"

#include <ATen/ops/_unsafe_view.h>

#include "lehr/base/autograd_function.h"
#include "lehr/mesh/collectives.h"
#include "lehr/meter/operator_watch.h"
#include "lehr/ops/autograd.h"
#include "lehr/ops/recompute.h"

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SequenceGather : AutogradFunction<SequenceGather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, const mesh::Group* group) {
    ctx->save_for_backward({ops::save_or_recompute(ctx, "input", input)});
    ctx->saved_data["group"] = reinterpret_cast<int64_t>(group);
    const at::Tensor whole = mesh::StartedAllGather(input, *group, 1).wait();
    return at::_unsafe_view(whole, whole.sizes());  // not a view to autograd: has to be the node's own result
  }

  static const mesh::Group& group_of(AutogradContext* ctx) {
    return *reinterpret_cast<const mesh::Group*>(ctx->saved_data["group"].toInt());
  }

  static ops::Recompute::Make regather(AutogradContext* ctx) {
    const at::Tensor input = ops::saved_or_recomputed(ctx, "input", ctx->get_saved_variables()[0]);
    const auto started = std::make_shared<mesh::StartedAllGather>(input, group_of(ctx), 1);
    return [started] { return started->wait(); };
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {mesh::reduce_scatter(gradients[0], group_of(ctx), 1), {}};
  }
};
}  // namespace

at::Tensor gather_and_regather(const at::Tensor& input, const mesh::Group& group) {
  if (group.size() == 1 || operator_watch() != nullptr || !at::GradMode::is_enabled() || !input.requires_grad()) {
    return mesh::all_gather(input, group, 1);
  }
  return ops::recomputable_in_parts(SequenceGather::apply(input, &group), SequenceGather::regather);
}

}  // namespace lehr::shard
