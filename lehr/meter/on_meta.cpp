#include "lehr/meter/on_meta.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "lehr/base/call_context.h"
#include "lehr/meter/operator_watch.h"

namespace lehr {

namespace {
const ContextSlot<int64_t> kScopes("runs on meta");  // the number of scopes

using at::Tensor;

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty()) {
    sizes[static_cast<size_t>(c10::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  }
  return at::empty(sizes, self.options());
}

Tensor embedding_dense_backward(
    const Tensor& grad, const Tensor& /*indices*/, int64_t num_weights, int64_t /*padding*/, bool /*scale*/) {
  return at::empty({num_weights, grad.size(-1)}, grad.options());
}

Tensor where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  const auto sizes = at::infer_size(condition.sizes(), at::infer_size(self.sizes(), other.sizes()));
  return at::empty(sizes, condition.options().dtype(at::result_type(self, other)));
}

Tensor& masked_fill_scalar(Tensor& self, const Tensor& /*mask*/, const at::Scalar& /*value*/) {
  return self;
}
Tensor& masked_fill_tensor(Tensor& self, const Tensor& /*mask*/, const Tensor& /*value*/) {
  return self;
}

Tensor& logical_out(const Tensor& self, const Tensor& other, Tensor& out) {
  return const_cast<Tensor&>(out.resize_(at::infer_size(self.sizes(), other.sizes())));
}
Tensor& logical_not_out(const Tensor& self, Tensor& out) {
  return const_cast<Tensor&>(out.resize_(self.sizes()));
}

Tensor& abs_out(const Tensor& self, Tensor& out) {
  return const_cast<Tensor&>(out.resize_(self.sizes()));
}
Tensor& index_fill(Tensor& self, int64_t /*dim*/, const Tensor& /*index*/, const at::Scalar& /*value*/) {
  return self;
}
Tensor rsub(const Tensor& self, const Tensor& other, const at::Scalar& /*alpha*/) {
  return at::sub(other, self);
}
Tensor var(
    const Tensor& self, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>& /*correction*/, bool keep) {
  return self.mean(dims, keep);
}
std::tuple<Tensor, Tensor> var_mean(
    const Tensor& self, at::OptionalIntArrayRef dims, const std::optional<at::Scalar>& /*correction*/, bool keep) {
  return {self.mean(dims, keep), self.mean(dims, keep)};
}
Tensor like_first(const Tensor& self, const Tensor& /*other*/) {
  return at::empty_like(self);
}
Tensor log_sigmoid_backward(const Tensor& grad, const Tensor& /*self*/, const Tensor& /*buffer*/) {
  return at::empty_like(grad);
}
std::tuple<Tensor, Tensor> log_sigmoid_forward(const Tensor& self) {
  return {at::empty_like(self), at::empty_like(self)};
}
Tensor native_dropout_backward(const Tensor& grad, const Tensor& /*mask*/, double /*scale*/) {
  return at::empty_like(grad);
}
Tensor floor_divide(const Tensor& self, const Tensor& other) {
  return at::div(self, other, "floor");
}
Tensor dot(const Tensor& self, const Tensor& /*other*/) {
  return at::empty({}, self.options());
}

Tensor roll(const Tensor& self, at::IntArrayRef /*shifts*/, at::IntArrayRef /*dims*/) {
  return at::empty(self.sizes(), self.options());
}
Tensor flip(const Tensor& self, at::IntArrayRef /*dims*/) {
  return at::empty(self.sizes(), self.options());
}

Tensor& index_put_impl(
    Tensor& self,
    const c10::List<std::optional<Tensor>>& /*indices*/,
    const Tensor& /*values*/,
    bool /*accumulate*/,
    bool /*unsafe*/) {
  return self;
}

Tensor one_number(const Tensor& self) {
  return at::empty({}, self.options());
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double /*p*/, std::optional<bool> /*train*/) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}
Tensor& bernoulli(Tensor& self, double /*p*/, std::optional<at::Generator> /*generator*/) {
  return self;
}

std::tuple<Tensor, Tensor, Tensor> native_layer_norm_backward(
    const Tensor& /*grad*/,
    const Tensor& input,
    at::IntArrayRef /*shape*/,
    const Tensor& /*mean*/,
    const Tensor& /*rstd*/,
    const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias,
    std::array<bool, 3> wanted) {
  const auto like = [](bool want, const std::optional<Tensor>& tensor) {
    return want && tensor && tensor->defined() ? at::empty_like(*tensor) : Tensor();
  };
  return {like(wanted[0], input), like(wanted[1], weight), like(wanted[2], bias)};
}

template <class Kernel>
void add(torch::Library& library, const char* name, const char* overload, Kernel kernel) {
  const auto op = c10::Dispatcher::singleton().findSchema({std::string("aten::") + name, overload});
  if (op && !op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    const std::string full = *overload == '\0' ? name : std::string(name) + "." + overload;
    library.impl(full.c_str(), kernel);
  }
}

// Registers, once per process, the meta functions that LibTorch has for Python only.
void add_missing_shapes() {
  static const auto library = [] {
    auto made =
        std::make_unique<torch::Library>(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    add(*made, "index_select", "", &index_select);
    add(*made, "embedding_dense_backward", "", &embedding_dense_backward);
    add(*made, "where", "self", &where);
    add(*made, "masked_fill_", "Scalar", &masked_fill_scalar);
    add(*made, "masked_fill_", "Tensor", &masked_fill_tensor);
    add(*made, "logical_and", "out", &logical_out);
    add(*made, "logical_or", "out", &logical_out);
    add(*made, "logical_xor", "out", &logical_out);
    add(*made, "logical_not", "out", &logical_not_out);
    add(*made, "abs", "out", &abs_out);
    add(*made, "index_fill_", "int_Scalar", &index_fill);
    add(*made, "rsub", "Tensor", &rsub);
    add(*made, "var", "correction", &var);
    add(*made, "std", "correction", &var);
    add(*made, "var_mean", "correction", &var_mean);
    add(*made, "hardswish_backward", "", &like_first);
    add(*made, "log_sigmoid_forward", "", &log_sigmoid_forward);
    add(*made, "log_sigmoid_backward", "", &log_sigmoid_backward);
    add(*made, "native_dropout_backward", "", &native_dropout_backward);
    add(*made, "floor_divide", "", &floor_divide);
    add(*made, "dot", "", &dot);
    add(*made, "roll", "", &roll);
    add(*made, "flip", "", &flip);
    add(*made, "_index_put_impl_", "", &index_put_impl);
    add(*made, "max", "", &one_number);
    add(*made, "min", "", &one_number);
    add(*made, "native_dropout", "", &native_dropout);
    add(*made, "bernoulli_", "float", &bernoulli);
    add(*made, "native_layer_norm_backward", "", &native_layer_norm_backward);
    return made;
  }();
}
}  // namespace

OnMeta::OnMeta() {
  add_missing_shapes();
  kScopes.set(kScopes.get() + 1);
}

OnMeta::~OnMeta() {
  kScopes.set(kScopes.get() - 1);
}

bool runs_on_meta() {
  return kScopes.get() > 0 && operator_watch() == nullptr;
}

}  // namespace lehr
