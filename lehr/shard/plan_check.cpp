#include "lehr/shard/plan_check.h"

#include <algorithm>

#include "lehr/base/error.h"
#include "lehr/shard/follow_types.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {

namespace {
using mesh::DistributedContext;
using Kinds = Placement::Kind;

constexpr const char* kSnapshot = "hidden_states_snapshot";  // between stages, without tokens

// "model.layers.0.mlp.up_proj" for "model.layers.0.mlp.up_proj.weight".
std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "the model" : parameter.substr(0, dot);
}

std::string listed(const std::vector<std::string>& axes) {
  return fmt::format("{}", fmt::join(axes, ", "));
}

// Returns whether the axis shards weights only between uses (FSDP): forward reads them unsharded.
bool is_gathered_for_use(const std::string& axis) {
  return axis == mesh::axis::fsdp || axis == mesh::axis::ep_shard;
}

// Each element has exactly one owner if the layout names every axis of the domain and no other, and if each rank holds
// the chunk of its own index on the axes that shard.
void check_layout(const DistributedContext& context, const std::string& name, const nn::Parameter& parameter) {
  const std::string module = module_of(name);
  const Layout& layout = parameter.layout();
  const auto domain = domain_axes(parameter);
  for (const auto& [axis, placement] : layout.axes()) {
    require(
        context.size(axis) == 1 || std::find(domain.begin(), domain.end(), axis) != domain.end(),
        "plan: {}: parameter {} is laid out on axis {}, which is not in its domain ({}): norms and checkpoints would "
        "count the ranks of both domains; take one of them",
        module,
        name,
        axis,
        listed(domain));
    require(
        placement.kind != Kinds::partial && placement.kind != Kinds::varying,
        "plan: {}: parameter {} is {} on axis {}; a parameter can be replicate, invariant or shard",
        module,
        name,
        describe(placement),
        axis);
  }
  for (const std::string& axis : domain) {
    require(
        context.size(axis) == 1 || layout.find(axis) != nullptr,
        "plan: {}: parameter {}: has no placement on axis {} ({} ranks); apply a parallel style to its module (for tp "
        "one of shard/tensor_parallel.h, for ep shard::parallelize_experts, else shard::fully_shard or "
        "shard::replicate_elsewhere)",
        module,
        name,
        axis,
        context.size(axis));
  }
  Box expected = whole_box(parameter.shape());
  for (const auto& [axis, placement] : layout.axes()) {
    if (placement.kind == Kinds::shard) {
      require(
          placement.dim >= 0 && placement.dim < static_cast<int64_t>(expected.size()),
          "plan: {}: parameter {} is {} on axis {}, but has {} dimensions",
          module,
          name,
          describe(placement),
          axis,
          expected.size());
      Range& range = expected[static_cast<size_t>(placement.dim)];
      range = chunk(range, context.index(axis), context.size(axis));
    }
  }
  require(
      parameter.box() == expected,
      "plan: {}: parameter {} ({}): expected this rank's part {}, found {}: other ranks have it, or none; lay it out "
      "by the index and size of the same axis",
      module,
      name,
      describe(layout),
      describe(expected),
      describe(parameter.box()));
}

// Returns the region of the parameter that forward reads: FSDP's shards are gathered, those of tp and ep are not.
Box box_in_use(const DistributedContext& context, const nn::Parameter& parameter) {
  Box box = whole_box(parameter.shape());
  for (const auto& [axis, placement] : parameter.layout().axes()) {
    if (placement.kind == Kinds::shard && !is_gathered_for_use(axis)) {
      Range& range = box[static_cast<size_t>(placement.dim)];
      range = chunk(range, context.index(axis), context.size(axis));
    }
  }
  return box;
}

// Returns the type of a parameter in forward. One that FSDP unshards is used by different data on each rank, so it is
// replicate: its gradient is partial.
TensorType type_in_use(const TypeChecker& checker, const nn::Parameter& parameter, at::IntArrayRef sizes) {
  TensorType type = constant_type(sizes);
  Kind expert_kinds[2] = {Kind::constant, Kind::constant};
  for (const auto& [axis, placement] : parameter.layout().axes()) {
    const Kind whole = !parameter.trainable()               ? Kind::constant
                       : placement.kind == Kinds::invariant ? Kind::invariant
                                                            : Kind::replicate;
    const AxisSet axes = checker.axes_of(axis);
    for (size_t one = 0; one < kAxes; ++one) {
      if ((axes & set_of(one)) == 0) {
        continue;
      }
      if (placement.kind == Kinds::shard && !is_gathered_for_use(axis)) {
        type.cut(one, static_cast<size_t>(placement.dim));
      } else {
        type.kinds[one] = whole;
      }
      if (one >= kExpertShards) {
        expert_kinds[one - kExpertShards] = type.kinds[one];
      }
    }
  }
  const auto& [shards, experts] = expert_kinds;
  if (shards == Kind::constant && experts == Kind::constant) {
    return type;
  }
  type.expert =
      experts == Kind::shard || (checker.ranks(kExpertShards) > 1 && checker.ranks(kExperts) > 1 && shards != experts);
  if (!type.expert) {  // the same on all ranks of both expert axes, which are also those of the dense axes
    const Kind kind = experts == Kind::constant ? shards : experts;
    type.kinds[kExpertShards] = type.kinds[kExperts] = Kind::constant;
    for (const size_t axis : {kDataShards, kContext, kTensor}) {
      type.kinds[axis] = checker.ranks(axis) > 1 ? kind : Kind::constant;
    }
  }
  return type;
}

// Replaces the parameters by typed meta tensors while an object exists.
class ParametersInUse {
 public:
  ParametersInUse(const DistributedContext& context, TypeChecker& checker, const nn::Module& root) {
    for (const auto& [name, parameter] : nn::named_parameters(root)) {
      const at::Tensor shown =
          at::empty(shape_of(box_in_use(context, *parameter)), parameter->value().options().requires_grad(false));
      checker.set(shown, type_in_use(checker, *parameter, shown.sizes()), name);
      parameter->show(shown);
      parameters_.push_back(parameter);
    }
  }
  ~ParametersInUse() {
    for (const auto& parameter : parameters_) {
      parameter->show_value();
    }
  }
  ParametersInUse(const ParametersInUse&) = delete;
  ParametersInUse& operator=(const ParametersInUse&) = delete;

 private:
  std::vector<nn::ParameterPtr> parameters_;
};

// Turns dropout off while an object exists: random numbers cannot be drawn on meta tensors.
class WithoutDropout {
 public:
  explicit WithoutDropout(nn::Module& root) : root_(root), training_(root.is_training()) { root_.train(false); }
  ~WithoutDropout() { root_.train(training_); }
  WithoutDropout(const WithoutDropout&) = delete;
  WithoutDropout& operator=(const WithoutDropout&) = delete;

 private:
  nn::Module& root_;
  bool training_;
};

// Returns an input (B, T, ...) whose sequences are sharded over the axes `rows`, and whose positions over cp.
at::Tensor token_input(
    TypeChecker& checker,
    const std::vector<int64_t>& shape,
    at::ScalarType dtype,
    AxisSet rows = set_of(kReplicas) | set_of(kDataShards)) {
  const at::Tensor input = at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype));
  TensorType type = constant_type(shape);
  for (const size_t axis : {kReplicas, kDataShards, kContext}) {
    const bool of_rows = (rows & set_of(axis)) != 0;
    if (checker.ranks(axis) > 1 && (of_rows || axis == kContext)) {
      type.cut(axis, of_rows ? 0 : 1);
    }
  }
  checker.set(input, type);
  return input;
}

// Returns the dimension of a tensor between stages that `axis` shards. On tp it is that of heads if the tensor has all
// `tokens` positions, as keys and values have, else that of positions.
int64_t dim_between_stages(const at::Tensor& tensor, size_t axis, int64_t tokens) {
  const bool of_rows = axis == kReplicas || axis == kDataShards;
  return of_rows ? 0 : axis == kTensor && tensor.size(1) == tokens ? 2 : 1;
}

at::Tensor received_input(TypeChecker& checker, const at::Tensor& spec, int64_t tokens) {
  const at::Tensor input = at::empty_like(spec);
  TensorType type = constant_type(spec.sizes().vec());
  for (const size_t axis : {kReplicas, kDataShards, kContext, kTensor}) {
    if (checker.ranks(axis) > 1) {
      type.cut(axis, dim_between_stages(spec, axis, tokens));
    }
  }
  checker.set(input, type);
  return input;
}

int64_t tokens_of(const TypeChecker& checker, const PlanInputs& sizes) {
  return sizes.tokens > 0 ? sizes.tokens : 4 * checker.ranks(kTensor);
}

nn::ModelInputs typed_inputs(TypeChecker& checker, const nn::Model& model, const PlanInputs& sizes) {
  const int64_t tokens = tokens_of(checker, sizes);
  nn::ModelInputs inputs;
  if (!sizes.received.empty()) {
    std::map<std::string, at::Tensor> received;
    for (const auto& [name, spec] : sizes.received) {
      if (name != kSnapshot) {
        received[name] = received_input(checker, spec, tokens);
      }
    }
    inputs.receive(std::move(received));
  } else {
    inputs.input_ids = token_input(checker, {sizes.rows, tokens}, at::kLong);
  }
  inputs.labels = token_input(checker, {sizes.rows, tokens}, at::kLong);
  if (const int64_t depths = model.num_mtp_modules(); depths > 0) {
    inputs.future_ids = token_input(checker, {sizes.rows, tokens, depths}, at::kLong);
    inputs.future_labels = token_input(checker, {sizes.rows, tokens, depths}, at::kLong);
  }
  inputs.position_ids = token_input(checker, {1, tokens}, at::kLong, /*rows=*/0);
  inputs.hidden_states_agg_mask = token_input(checker, {sizes.rows, tokens}, at::kLong);
  inputs.attention_mask.document_ids = token_input(checker, {sizes.rows, tokens}, at::kLong);
  return inputs;
}

// The trainer sums losses over the data and cp ranks, and takes those of one tp rank.
void check_losses(const TypeChecker& checker, const char* name, const at::Tensor& output) {
  const TensorType type = checker.type_of(output);
  for (const size_t axis : {kReplicas, kDataShards, kContext}) {
    const Kind kind = type.kinds[axis];
    require(
        checker.ranks(axis) == 1 || kind == Kind::shard || kind == Kind::varying,
        "plan: the model: {} is {} on axis {}: the sum over its {} ranks would count each token {} times; a gather "
        "before it is superfluous",
        name,
        describe(type, axis),
        name_of(axis),
        checker.ranks(axis),
        checker.ranks(axis));
  }
  const Kind kind = type.kinds[kTensor];
  const char* missing = kind == Kind::replicate
                            ? "every rank would start backward from it, and gradients would count several "
                              "times; use gather_invariant instead of all_gather"
                        : kind == Kind::partial ? "all_reduce is missing after it"
                                                : "gather_invariant is missing before it";
  require(
      kind == Kind::invariant || kind == Kind::constant,
      "plan: the model: {} is {} on axis {}, where it must be invariant: {}",
      name,
      describe(type, kTensor),
      name_of(kTensor),
      missing);
}

void check_outputs(const TypeChecker& checker, const nn::ModelOutputs& outputs, const PlanInputs& sizes) {
  const std::pair<const char*, at::Tensor> losses[] = {
      {"logps", outputs.logps},
      {"future_nll", outputs.future_nll},
      {"scores", outputs.scores},
      {"embeddings", outputs.embeddings}};
  bool any = false;
  for (const auto& [name, output] : losses) {
    if (output.defined()) {
      any = true;
      check_losses(checker, name, output);
    }
  }
  if (any) {
    return;
  }
  auto tensors = outputs.cross_layer;  // not the last stage: sent to the next one
  tensors["hidden_states"] = outputs.hidden_states;
  for (const auto& [name, spec] : sizes.sent) {
    if (name == kSnapshot) {
      continue;
    }
    const auto found = tensors.find(name);
    invariant(found != tensors.end(), "plan: the model: does not send {}, which the next stage takes", name);
    const TensorType type = checker.type_of(found->second);
    for (const size_t axis : {kReplicas, kDataShards, kContext, kTensor}) {
      const int64_t dim = dim_between_stages(spec, axis, tokens_of(checker, sizes));
      require(
          checker.ranks(axis) == 1 || type.dim_of(axis) == dim,
          "plan: the model: {} are {} on axis {}, but the next stage takes them as shard({})",
          name,
          describe(type, axis),
          name_of(axis),
          dim);
    }
  }
}
}  // namespace

void check_plan(const DistributedContext& context, nn::Model& model, const PlanInputs& inputs) {
  if (!context.is_distributed()) {
    return;
  }
  for (const auto& [name, parameter] : nn::named_parameters(model)) {
    require(parameter->value().is_meta(), "plan: parameter {} has memory; check plans before it is allocated", name);
    check_layout(context, name, *parameter);
  }
  const int64_t parts_of_rows = context.size(mesh::axis::cp) * context.size(mesh::axis::tp);
  const nn::RouterLosses* losses = model.router_losses();
  require(
      parts_of_rows == 1 || losses == nullptr || losses->sums_over_ranks(),
      "plan: the model: router losses would be computed over a part of each sequence: cp and tp have {} ranks, and "
      "nothing sums over them; apply shard::share_router_losses",
      parts_of_rows);
  TypeChecker checker(context, model);
  const ParametersInUse parameters(context, checker, model);
  const WithoutDropout eval(model);
  const nn::ModelInputs typed = typed_inputs(checker, model, inputs);
  nn::ModelOutputs outputs;
  try {
    const FollowTypes follow(checker);
    outputs = model.forward(typed);
  } catch (const Error& error) {
    const std::string message = error.what();
    fail("{}", message.starts_with("plan: ") ? message : fmt::format("plan: {}: {}", checker.where(), message));
  } catch (const c10::Error& error) {
    fail("plan: {}: {}", checker.where(), error.what_without_backtrace());
  }
  check_outputs(checker, outputs, inputs);
}

}  // namespace lehr::shard
