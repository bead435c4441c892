// Typing rules of Lehr's own operators.
#pragma once

#include "lehr/meter/operator_watch.h"
#include "lehr/shard/type_checker.h"

namespace lehr::shard {

/// Returns the type of the operator's result. Throws a usage error that names the missing or superfluous collective.
TensorType stated_type(const TypeChecker& checker, const Statement& statement);

/// Returns the type of a result by the stated placements. On the axes of the statement's ranks, inputs must have the
/// stated placements, and the result has its own. On other axes the operator acts as on one device.
TensorType type_by_placements(const TypeChecker& checker, const Statement& statement, std::vector<Operand>& operands);
/// Sets the sizes of `type`; keeps its factors where that is possible.
void resize(TensorType& type, const std::vector<int64_t>& shape);

/// Throws a usage error unless queries meet all keys of their sequences, of their own heads. Operands are named as
/// ops::attention states them. `stated` are the axes over which the attention core itself communicates.
void check_attention(std::vector<Operand>& operands, AxisSet stated = 0);

}  // namespace lehr::shard
