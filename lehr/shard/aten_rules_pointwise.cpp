// Typing rules of ATen's elementwise operators.
#include "lehr/base/error.h"
#include "lehr/shard/aten_call.h"

namespace lehr::shard {

namespace {
void elementwise(AtenCall& call) {
  const TensorType type = pointwise(call.operands());
  call.run();
  call.give(type);
}

void logical(AtenCall& call) {
  const TensorType type = pointwise(call.operands());
  if (call.arg(0).toTensor().is_meta()) {
    return call.replace_by(at::kBool, type);
  }
  call.run();
  call.give(type);
}

// a x + b y: partial operands may be added to each other.
void sum_of_operands(AtenCall& call) {
  const TensorType type = pointwise(call.operands(), Linearity::sum);
  require(
      call.arg("other").isTensor() || call.arg("other").isNone() || call.operands().size() != 1 ||
          std::find(type.kinds.begin(), type.kinds.end(), Kind::partial) == type.kinds.end(),
      "adds a number to a partial tensor: it would count once per rank; reduce_scatter or all_reduce is missing before "
      "it");
  call.run();
  call.give(type);
}

void product_of_two(AtenCall& call) {
  const TensorType type = pointwise(call.operands(), Linearity::product);
  call.run();
  call.give(type);
}

// Linear in the first operand only.
void quotient(AtenCall& call) {
  std::vector<Operand> below(call.operands().begin() + 1, call.operands().end());
  if (!below.empty()) {
    pointwise(below);
  }
  product_of_two(call);
}

// Filling with zeros commutes with the sum over ranks; other values need the sum first.
void masked_fill(AtenCall& call) {
  const c10::IValue& value = call.arg("value");
  const bool zero = value.isScalar() ? value.toScalar().toDouble() == 0
                                     : value.isTensor() && value.toTensor().is_cpu() && value.toTensor().numel() == 1 &&
                                           value.toTensor().item<double>() == 0;
  std::vector<Operand> operands{call.operand(0), call.operand(1)};
  const TensorType type = pointwise(operands, zero ? Linearity::product : Linearity::none);
  call.run();
  call.give(type);
}

void copy_into(AtenCall& call) {
  const TensorType type = pointwise(
      {{.type = constant_type(call.arg(0).toTensor().sizes()), .name = "its target"}, call.operand(1)},
      Linearity::product);
  call.run();
  call.give(type);
}

// The result has the operand's type.
void unchanged(AtenCall& call) {
  const TensorType type = call.operand(0).type;
  call.run();
  call.give(type);
}

void detach(AtenCall& call) {
  TensorType type = call.operand(0).type;
  for (Kind& kind : type.kinds) {
    kind = kind == Kind::replicate || kind == Kind::invariant ? Kind::constant : kind;
  }
  call.run();
  call.give(type);
}

// New constant values in the sizes of another tensor.
void fresh(AtenCall& call) {
  call.run();
  call.give(constant_type(call.result_sizes()));
}
}  // namespace

void add_pointwise_rules(AtenRules& rules) {
  for (const char* name :
       {"abs",        "acos",      "atan",      "bitwise_and", "bitwise_not",  "bitwise_or", "ceil",
        "clamp",      "clamp_max", "clamp_min", "cos",         "elu",          "eq",         "erf",
        "exp",        "exp2",      "expm1",     "floor",       "floor_divide", "fmod",       "ge",
        "gelu",       "gt",        "hardtanh",  "isfinite",    "isinf",        "isnan",      "le",
        "leaky_relu", "log",       "log1p",     "log2",        "log_sigmoid",  "logaddexp",  "lt",
        "maximum",    "minimum",   "mish",      "nan_to_num",  "ne",           "pow",        "reciprocal",
        "relu",       "remainder", "round",     "rsqrt",       "rsub",         "sigmoid",    "sign",
        "silu",       "sin",       "softplus",  "sqrt",        "tan",          "tanh",       "threshold",
        "trunc",      "where"}) {
    rules[name] = elementwise;
  }
  for (const char* name : {"logical_and", "logical_not", "logical_or", "logical_xor"}) {
    rules[name] = logical;
  }
  rules["add"] = rules["sub"] = sum_of_operands;
  rules["mul"] = product_of_two;
  rules["div"] = quotient;
  rules["masked_fill"] = masked_fill;
  rules["copy"] = copy_into;
  for (const char* name : {"_to_copy", "clone", "contiguous", "neg", "positive", "lift_fresh", "alias"}) {
    rules[name] = unchanged;
  }
  rules["detach"] = detach;
  for (const char* name :
       {"zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "new_empty",
        "new_zeros",
        "new_ones",
        "new_full",
        "zero",
        "fill",
        "rand_like"}) {
    rules[name] = fresh;
  }
}

}  // namespace lehr::shard
