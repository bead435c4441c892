// Typing rules of Lehr's own operators, from the placements that they state (meter/operator_watch.h).
#include "lehr/shard/stated_rules.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lehr/base/error.h"

namespace lehr::shard {

namespace {
using Operands = std::vector<Operand>;

Operand* find(Operands& operands, std::string_view name) {
  const auto found =
      std::find_if(operands.begin(), operands.end(), [&](const Operand& one) { return one.stated == name; });
  return found == operands.end() ? nullptr : &*found;
}

TensorType attention(const TypeChecker& checker, const Statement& statement, Operands& operands) {
  check_attention(operands, checker.axes_of(statement.ranks));
  return type_by_placements(checker, statement, operands);
}

// Each value head has a decay and a strength of its own.
TensorType gated_delta_rule(const TypeChecker& checker, const Statement& statement, Operands& operands) {
  check_attention(operands, checker.axes_of(statement.ranks));
  const Operand& v = *find(operands, "v");
  for (const char* name : {"decay", "beta"}) {
    const Operand& own = *find(operands, name);
    for (size_t axis = 0; axis < kAxes; ++axis) {
      require(
          (v.type.dim_of(axis) == 2) == (own.type.dim_of(axis) == 2),
          "v is {} on axis {}, but {} is {}; shard the heads of both alike",
          describe(v.type, axis),
          name_of(axis),
          own.name,
          describe(own.type, axis));
    }
  }
  return type_by_placements(checker, statement, operands);
}

TensorType linear_cross_entropy(const TypeChecker&, const Statement& statement, Operands& operands) {
  const Operand &hidden = operands[0], &weight = operands[1], &labels = operands[2];
  require(
      weight.type.axes_of(0) == 0,
      "needs all of the vocabulary, but each rank of {} has a part of the rows of {} only; give the head a loss that "
      "sums over the ranks: shard::vocab_parallel",
      names_of(weight.type.axes_of(0)),
      weight.name);
  const TensorType logits = product(hidden, weight, {.contracted = {{1, 1}}, .batch = {}});
  TensorType losses = logits;
  losses.dims.resize(1);
  TensorType type = pointwise({{.type = losses, .name = "hidden"}, labels});
  resize(type, statement.shape);
  return type;
}

TensorType grouped_linear(const TypeChecker&, const Statement&, Operands& operands) {
  const Operand &rows = operands[0], &weight = operands[1];
  const AxisSet spread = weight.type.axes_of(0);
  const AxisSet sorted = rows.type.expert ? rows.type.axes_of(0) : AxisSet{0};
  require(
      spread == sorted || (spread & ~sorted) == 0,
      "each rank of {} has other experts ({} is shard(0)), but the tokens were not sent to them: all_to_all is "
      "missing; apply shard::parallelize_experts to the MoE layer",
      names_of(spread),
      weight.name);
  require(
      spread == sorted,
      "the tokens were sent to the ranks of {} that have their experts, but {} is not shard(0) there",
      names_of(sorted),
      weight.name);
  const auto of_one_expert = [&](Operand expert) {
    require(
        expert.type.axes_of(0) == spread,
        "{} is not shard(0) on the axes of {}, so ranks would add other experts' biases",
        expert.name,
        weight.name);
    expert.type.dims.erase(expert.type.dims.begin());
    for (size_t axis = 0; axis < kAxes; ++axis) {
      if ((spread & set_of(axis)) != 0) {  // each rank has its own experts and their tokens: a local matmul
        expert.type.set(axis, Kind::constant);
      }
    }
    return expert;
  };
  const TensorType type = product(rows, of_one_expert(weight), {.contracted = {{1, 1}}, .batch = {}});
  const Operand* bias = find(operands, "bias");
  // A sum of a partial product and a bias is refused there: the bias would count once per rank.
  return bias == nullptr ? type : pointwise({{.type = type, .name = rows.name}, of_one_expert(*bias)}, Linearity::sum);
}

// One copy of each token per chosen expert, in an order of the rank's own: no longer a shard of the whole.
TensorType permute_tokens(const TypeChecker&, const Statement& statement, Operands& operands) {
  TensorType type = operands[0].type;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if (type.dim_of(axis) == 0) {
      type.set(axis, Kind::varying);
    }
  }
  type.dims[0] = {{.size = statement.shape[0]}};
  return type;
}

TensorType sort_by_expert(const TypeChecker&, const Statement& statement, Operands& operands) {
  TensorType type = constant_type(statement.shape);
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const Kind kind = operands[0].type.kinds[axis];
    type.kinds[axis] = kind == Kind::shard ? Kind::varying : kind;
  }
  return type;
}

// From the rank's own order back to that of the tokens, which is a shard again.
TensorType combine_tokens(const TypeChecker&, const Statement&, Operands& operands) {
  join_domains(operands);
  TensorType type;
  for (size_t axis = 0; axis < kAxes; ++axis) {
    const Kind kind = combine(operands, axis, Linearity::product);
    const bool restored = kind == Kind::varying && operands[1].type.dim_of(axis) == 0;
    type.kinds[axis] = restored ? Kind::shard : kind;
  }
  type.dims = {operands[1].type.dims[0], operands[0].type.dims[1]};
  return type;
}

TensorType expert_dispatch(const TypeChecker& checker, const Statement& statement, Operands& operands) {
  const Operand& tokens = operands[0];
  const int64_t experts = checker.ranks(kExperts), first = statement.ranks.front();
  require(
      static_cast<int64_t>(statement.ranks.size()) == experts && first % experts == 0 &&
          statement.ranks.back() == first + experts - 1,
      "sends {} over ranks {}, which are not those of axis ep",
      tokens.name,
      fmt::join(statement.ranks, ", "));
  for (const size_t axis : {kDataShards, kContext, kTensor}) {
    const Kind kind = tokens.type.kinds[axis];
    require(
        checker.ranks(axis) == 1 || kind == Kind::shard || kind == Kind::varying,
        "sends {}, which is {} on axis {}: experts would get each token from all of its {} ranks, and count it {} "
        "times; give the MoE layer shards of the sequence, without all_gather before it",
        tokens.name,
        describe(tokens.type, axis),
        name_of(axis),
        checker.ranks(axis),
        checker.ranks(axis));
  }
  TensorType type = constant_type(statement.shape);
  type.expert = true;
  const bool replicas = checker.ranks(kReplicas) > 1;
  require(
      !replicas || tokens.type.kinds[kReplicas] == Kind::shard || tokens.type.kinds[kReplicas] == Kind::varying,
      "sends {}, which is {} on axis {}; each replica must have tokens of its own",
      tokens.name,
      describe(tokens.type, kReplicas),
      name_of(kReplicas));
  type.kinds[kReplicas] = replicas ? Kind::varying : Kind::constant;
  type.kinds[kExpertShards] = checker.ranks(kExpertShards) > 1 ? Kind::varying : Kind::constant;
  type.cut(kExperts, 0);
  return type;
}

TensorType expert_combine(const TypeChecker&, const Statement&, Operands& operands) {
  const Operand &results = operands[0], &weights = operands[1];
  require(
      results.type.expert && results.type.dim_of(kExperts) == 0,
      "takes {} as shard(0) on axis ep, found {}: they do not come from the experts' ranks",
      results.name,
      describe(results.type, kExperts));
  for (const size_t axis : {kReplicas, kExpertShards}) {
    require(
        results.type.kinds[axis] != Kind::partial,
        "takes {}, which is partial on axis {}; a sum is missing before it",
        results.name,
        name_of(axis));
  }
  TensorType type = weights.type;
  type.dims = {weights.type.dims[0], results.type.dims[1]};
  return type;
}

using StatedRule = TensorType (*)(const TypeChecker&, const Statement&, Operands&);

StatedRule rule_for(std::string_view name) {
  static constexpr std::pair<std::string_view, StatedRule> kRules[] = {
      {"attention", attention},
      {"all_gather_attention", attention},
      {"ring_attention", attention},
      {"gated_delta_rule", gated_delta_rule},
      {"context_gated_delta", gated_delta_rule},
      {"linear_cross_entropy", linear_cross_entropy},
      {"grouped_linear", grouped_linear},
      {"permute_tokens", permute_tokens},
      {"sort_by_expert", sort_by_expert},
      {"combine_tokens", combine_tokens},
      {"expert_dispatch", expert_dispatch},
      {"expert_combine", expert_combine}};
  for (const auto& [known, rule] : kRules) {
    if (known == name) {
      return rule;
    }
  }
  return type_by_placements;
}
}  // namespace

void check_attention(std::vector<Operand>& operands, AxisSet stated) {
  const Operand &q = *find(operands, "q"), &k = *find(operands, "k"), &v = *find(operands, "v");
  for (size_t axis = 0; axis < kAxes; ++axis) {
    if ((stated & set_of(axis)) != 0) {
      continue;
    }
    for (const char* name : {"k", "v", "document_ids", "key_padding"}) {
      const Operand* row = find(operands, name);
      require(
          row == nullptr || row->type.dim_of(axis) != 1,
          "needs whole sequences, but each rank of {} has a part of their positions only ({} is shard(1)); {}",
          name_of(axis),
          row != nullptr ? row->name : "",
          axis == kContext ? "apply context parallelism: shard::parallelize_context gives the module an attention core "
                             "over the keys of all ranks"
                           : "all_gather is missing at the entry of the block: shard::gather_sequence");
    }
    const bool heads = q.type.dim_of(axis) == 2;
    require(
        heads == (k.type.dim_of(axis) == 2) && heads == (v.type.dim_of(axis) == 2),
        "q is {} on axis {}, k {} and v {}: queries would meet the keys of other heads; shard the heads of all three "
        "alike",
        describe(q.type, axis),
        name_of(axis),
        describe(k.type, axis),
        describe(v.type, axis));
    const Operand* sinks = find(operands, "sinks");
    require(
        sinks == nullptr || heads == (sinks->type.dim_of(axis) == 0),
        "q is {} on axis {}, but its sinks are {}; there must be one sink per head",
        describe(q.type, axis),
        name_of(axis),
        sinks != nullptr ? describe(sinks->type, axis) : "");
  }
}

TensorType stated_type(const TypeChecker& checker, const Statement& statement) {
  Operands operands;
  for (const StatedInput& input : statement.inputs) {
    if (input.tensor.defined()) {
      Operand operand = checker.operand(input.tensor, input.name);
      operand.stated = input.name;
      operand.takes = input.placement;
      operands.push_back(std::move(operand));
    }
  }
  return rule_for(statement.name)(checker, statement, operands);
}

}  // namespace lehr::shard
