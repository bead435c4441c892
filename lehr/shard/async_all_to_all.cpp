#include "lehr/shard/async_all_to_all.h"

#include <numeric>
#include <utility>

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Holder = c10::intrusive_ptr<torch::CustomClassHolder>;

// State that the two nodes share, in forward and backward.
struct Way : torch::CustomClassHolder {
  // Starts an all-to-all. The returned tensor is filled when `pending` is done.
  at::Tensor send(const at::Tensor& rows, const std::vector<int64_t>& coming, const std::vector<int64_t>& going) {
    auto shape = rows.sizes().vec();
    shape[0] = std::accumulate(coming.begin(), coming.end(), int64_t{0});
    const at::Tensor arriving = at::empty(shape, rows.options());
    pending = group->start_all_to_all(arriving, rows.contiguous(), coming, going);
    return arriving;
  }

  const mesh::Group* group = nullptr;
  std::vector<int64_t> output_sizes;
  std::vector<int64_t> input_sizes;
  mesh::Pending pending;
  at::Tensor gradient;  // of the sent rows, filled when `pending` is done
};

c10::intrusive_ptr<Way> way_of(const AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<Way>(context.saved_data.at("way").toCapsule());
}

// Forward starts the all-to-all of the rows; backward waits for that of their gradients.
struct Start : torch::autograd::Function<Start> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const Holder& holder) {
    context->saved_data["way"] = c10::IValue::make_capsule(holder);
    const auto way = way_of(*context);
    return way->send(rows, way->output_sizes, way->input_sizes);
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    const auto way = way_of(*context);
    way->pending.wait();
    return {std::exchange(way->gradient, at::Tensor()), {}};
  }
};

// Forward waits for the rows; backward starts the all-to-all of their gradients.
struct Wait : torch::autograd::Function<Wait> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const Holder& holder) {
    context->saved_data["way"] = c10::IValue::make_capsule(holder);
    way_of(*context)->pending.wait();
    return rows.view_as(rows);
  }
  // The result is handed to Start through Way, not through autograd: its number of rows differs from that of this
  // node's input, and it is not filled yet. Autograd gets a tensor of the expected shape, which Start ignores.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto way = way_of(*context);
    way->gradient = way->send(gradients[0], way->input_sizes, way->output_sizes);
    return {gradients[0], {}};
  }
};
}  // namespace

AsyncAllToAll::AsyncAllToAll(
    const at::Tensor& rows,
    const mesh::Group& group,
    const std::vector<int64_t>& output_sizes,
    const std::vector<int64_t>& input_sizes) {
  const auto way = c10::make_intrusive<Way>();
  way->group = &group;
  way->output_sizes = output_sizes;
  way->input_sizes = input_sizes;
  way_ = way;
  arriving_ = Start::apply(rows, way_);
}

at::Tensor AsyncAllToAll::wait() {
  return Wait::apply(std::exchange(arriving_, at::Tensor()), way_);
}

}  // namespace lehr::shard
