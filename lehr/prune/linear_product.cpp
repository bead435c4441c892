#include "lehr/prune/linear_product.h"

#include "lehr/base/error.h"

namespace lehr::prune {

namespace {
// The product of (rows, K) and (k, columns), in float64. With several heads, K is a multiple of k, and consecutive
// blocks of columns of `last` share a block of rows of `first`: they are added up.
at::Tensor product(const at::Tensor& last, const at::Tensor& first, int64_t heads) {
  const int64_t size = first.size(0) / heads, shared = last.size(1) / first.size(0);
  return at::matmul(last.to(at::kDouble).reshape({-1, heads, shared, size}).sum(2).flatten(1), first.to(at::kDouble));
}
}  // namespace

void LinearProduct::add(
    const std::string& last, const std::string& first, const state::TensorSpecs& specs, int64_t heads) {
  const auto of_last = specs.find(subblock_ + last), of_first = specs.find(subblock_ + first);
  require(
      of_last != specs.end() && of_first != specs.end(),
      "{}: a linear layer in its place is made of {} and {}, which it does not have",
      subblock_,
      last,
      first);
  terms_.push_back(
      {.last = of_last->first,
       .first = of_first->first,
       .last_shape = of_last->second.shape,
       .first_shape = of_first->second.shape,
       .heads = heads,
       .alternates = first.find("gate_up_proj") != std::string::npos});
  spec_ = {
      .shape = {*(of_last->second.shape.end() - 2), of_first->second.shape.back()}, .dtype = of_last->second.dtype};
}

LinearProduct LinearProduct::of_attention(
    const std::string& layer, int64_t num_key_value_heads, const state::TensorSpecs& specs) {
  LinearProduct made(layer + "self_attn.", "linear_attn");
  made.add("o_proj.weight", "v_proj.weight", specs, num_key_value_heads);
  return made;
}

LinearProduct LinearProduct::of_ffn(const std::string& layer, const state::TensorSpecs& specs) {
  LinearProduct made(layer + "mlp.", "linear_mlp");
  const std::string experts = "grouped_experts.", shared = "shared_expert.";
  if (!specs.contains(made.subblock_ + experts + "down_proj.weight")) {
    made.add("down_proj.weight", "up_proj.weight", specs);
    return made;
  }
  const bool joined = specs.contains(made.subblock_ + experts + "gate_up_proj.weight");
  made.add(experts + "down_proj.weight", experts + (joined ? "gate_up_proj.weight" : "up_proj.weight"), specs);
  if (specs.contains(made.subblock_ + shared + "down_proj.weight")) {
    made.add(shared + "down_proj.weight", shared + "up_proj.weight", specs);
  }
  return made;
}

at::Tensor LinearProduct::read(
    const Box& box,
    at::ScalarType type,
    const std::function<at::Tensor(const std::string& name, const Box& box)>& read_parent) const {
  at::Tensor sum = at::zeros(shape_of(box), at::kDouble);
  for (const Factors& term : terms_) {
    const bool of_experts = term.last_shape.size() == 3;
    const int64_t count = of_experts ? term.last_shape[0] : 1;
    Box last = whole_box(term.last_shape), first = whole_box(term.first_shape);
    *(last.end() - 2) = box[0];
    first.back() = box[1];
    for (int64_t i = 0; i < count; ++i) {
      if (of_experts) {
        last[0] = first[0] = {i, i + 1};
      }
      const auto matrix = [&](const std::string& name, const Box& region) {
        const at::Tensor found = read_parent(name, region);
        return of_experts ? found.select(0, 0) : found;
      };
      at::Tensor up = matrix(term.first, first);
      up = term.alternates ? up.slice(0, 1, std::nullopt, 2) : up;
      sum += product(matrix(term.last, last), up, term.heads) / static_cast<double>(count);
    }
  }
  return sum.to(type);
}

}  // namespace lehr::prune
