#include "lehr/shard/expert_all_to_all.h"

#include <numeric>
#include <utility>

#include "lehr/base/autograd_function.h"

namespace lehr::shard {

namespace {
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Holder = c10::intrusive_ptr<torch::CustomClassHolder>;

int64_t sum_of(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// State that the nodes share, in forward and backward. `whole` holds the rows of all parts in the order in which this
// rank's tokens have them; `pieces` are the rows of each part in the order of their experts' ranks.
struct Exchange : torch::CustomClassHolder {
  Exchange(const mesh::Group& group_of_ranks, const std::vector<PartSizes>& parts_of_rows)
      : group(&group_of_ranks), parts(parts_of_rows), pieces(parts.size()), pending(parts.size()) {
    for (const PartSizes& part : parts) {
      begins.push_back(rows);
      rows += sum_of(part.sent);
    }
  }

  at::Tensor of_whole(size_t part) const { return whole.narrow(0, begins[part], sum_of(parts[part].sent)); }
  at::Tensor with_rows(const at::Tensor& like, int64_t count) const {
    auto shape = like.sizes().vec();
    shape[0] = count;
    return at::empty(shape, like.options());
  }

  // Starts to send the parts of `from`, a whole matrix, to the ranks of their experts. Backward needs the last part
  // first.
  void dispatch(const at::Tensor& from, bool last_first) {
    const at::Tensor contiguous = from.contiguous();
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t part = last_first ? parts.size() - 1 - i : i;
      pieces[part] = with_rows(from, sum_of(parts[part].received));
      const at::Tensor rows_of_part = contiguous.narrow(0, begins[part], sum_of(parts[part].sent));
      // Without a graph: `pending` keeps it, and the graph keeps `pending`.
      const at::Tensor received = pieces[part].detach();
      pending[part] = group->start_all_to_all(received, rows_of_part, parts[part].received, parts[part].sent);
    }
  }
  // Starts to send a part's rows back into `whole`.
  void combine(size_t part, const at::Tensor& from) {
    if (!whole.defined()) {
      whole = with_rows(from, rows);
    }
    pending[part] = group->start_all_to_all(of_whole(part), from.contiguous(), parts[part].sent, parts[part].received);
  }
  at::Tensor take_piece(size_t part) {
    pending[part].wait();
    return std::exchange(pieces[part], at::Tensor());
  }
  at::Tensor take_whole() {
    for (mesh::Pending& one : pending) {
      one.wait();
    }
    return std::exchange(whole, at::Tensor());
  }

  const mesh::Group* group;
  std::vector<PartSizes> parts;
  std::vector<int64_t> begins;  // of the parts in `whole`
  int64_t rows = 0;
  at::Tensor whole;
  std::vector<at::Tensor> pieces;
  std::vector<mesh::Pending> pending;
};

void keep(AutogradContext* context, const Holder& holder, size_t part = 0) {
  context->set_materialize_grads(false);
  context->saved_data["exchange"] = c10::IValue::make_capsule(holder);
  context->saved_data["part"] = static_cast<int64_t>(part);
}
c10::intrusive_ptr<Exchange> exchange_of(const Holder& holder) {
  return c10::static_intrusive_pointer_cast<Exchange>(holder);
}
c10::intrusive_ptr<Exchange> exchange_of(const AutogradContext& context) {
  return saved_object<Exchange>(&context, "exchange");
}
size_t part_of(const AutogradContext& context) {
  return static_cast<size_t>(context.saved_data.at("part").toInt());
}

// Gradients go from node to node through Exchange, not through autograd, because they are not filled yet, and have
// other shapes. Autograd gets tensors of the shapes that it expects.

struct StartDispatch : AutogradFunction<StartDispatch> {
  static variable_list forward(AutogradContext* context, const at::Tensor& rows, const Holder& holder) {
    keep(context, holder);
    const auto exchange = exchange_of(holder);
    exchange->dispatch(rows, /*last_first=*/false);
    return exchange->pieces;
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    return {exchange_of(*context)->take_whole(), {}};
  }
};

struct EndDispatch : AutogradFunction<EndDispatch> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& piece, const Holder& holder, int64_t part) {
    keep(context, holder, static_cast<size_t>(part));
    exchange_of(holder)->take_piece(static_cast<size_t>(part));
    return piece.view_as(piece);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    exchange_of(*context)->combine(part_of(*context), gradients[0]);
    return {gradients[0], {}, {}};
  }
};

struct StartCombine : AutogradFunction<StartCombine> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const Holder& holder, int64_t part) {
    keep(context, holder, static_cast<size_t>(part));
    exchange_of(holder)->combine(static_cast<size_t>(part), rows);
    return at::empty({0}, rows.options());
  }
  static variable_list backward(AutogradContext* context, const variable_list& /*gradients*/) {
    return {exchange_of(*context)->take_piece(part_of(*context)), {}, {}};
  }
};

struct EndCombine : AutogradFunction<EndCombine> {
  static at::Tensor forward(AutogradContext* context, at::TensorList sent, const Holder& holder) {
    keep(context, holder, sent.size());
    return exchange_of(holder)->take_whole();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    exchange_of(*context)->dispatch(gradients[0], /*last_first=*/true);
    variable_list links(part_of(*context), at::empty({0}, gradients[0].options()));
    links.emplace_back();
    return links;
  }
};
}  // namespace

DispatchAllToAll::DispatchAllToAll(
    const at::Tensor& rows, const mesh::Group& group, const std::vector<PartSizes>& parts)
    : exchange_(c10::make_intrusive<Exchange>(group, parts)), arriving_(StartDispatch::apply(rows, exchange_)) {}

// If a part was not waited for because of an exception, its rows would own the node that owns them.
DispatchAllToAll::~DispatchAllToAll() {
  static_cast<Exchange&>(*exchange_).pieces.clear();
}

at::Tensor DispatchAllToAll::wait(size_t part) {
  return EndDispatch::apply(std::exchange(arriving_[part], at::Tensor()), exchange_, static_cast<int64_t>(part));
}

CombineAllToAll::CombineAllToAll(const mesh::Group& group, const std::vector<PartSizes>& parts)
    : exchange_(c10::make_intrusive<Exchange>(group, parts)), sent_(parts.size()) {}

void CombineAllToAll::send(size_t part, const at::Tensor& rows) {
  sent_[part] = StartCombine::apply(rows, exchange_, static_cast<int64_t>(part));
}

at::Tensor CombineAllToAll::wait() {
  return EndCombine::apply(at::TensorList(sent_), exchange_);
}

}  // namespace lehr::shard
