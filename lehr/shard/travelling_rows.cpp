#include "lehr/shard/travelling_rows.h"

#include <numeric>
#include <utility>

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Holder = c10::intrusive_ptr<torch::CustomClassHolder>;

// What the two halves share, in forward and backward.
struct Way : torch::CustomClassHolder {
  // Sends rows one way or the other; what it gives is filled when `pending` is done.
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
  at::Tensor gradient;  // on its way back
};

c10::intrusive_ptr<Way> way_of(const AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<Way>(context.saved_data.at("way").toCapsule());
}

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

struct Wait : torch::autograd::Function<Wait> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const Holder& holder) {
    context->saved_data["way"] = c10::IValue::make_capsule(holder);
    way_of(*context)->pending.wait();
    return rows.view_as(rows);
  }
  // The gradient itself travels beside autograd: it has as many rows as were sent, and is not there yet.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto way = way_of(*context);
    way->gradient = way->send(gradients[0], way->input_sizes, way->output_sizes);
    return {gradients[0], {}};
  }
};
}  // namespace

TravellingRows::TravellingRows(
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

at::Tensor TravellingRows::wait() {
  return Wait::apply(std::exchange(arriving_, at::Tensor()), way_);
}

}  // namespace lehr::shard
