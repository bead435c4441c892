// Types of Lehr's own operators.
#pragma once

#include "lehr/base/operator_watch.h"
#include "lehr/shard/type_checker.h"

namespace lehr::shard {

/// The type of what the operator gives. Throws a usage error that says what is missing or too much.
TensorType stated_type(const TypeChecker& checker, const Statement& statement);

/// On the operator's axes inputs must lie as stated, and the result does; elsewhere it acts as on one device.
TensorType type_by_placements(const TypeChecker& checker, const Statement& statement, std::vector<Operand>& operands);
/// Gives `type` the sizes of a result; its factors stay where that is possible.
void resize(TensorType& type, const std::vector<int64_t>& shape);

/// Throws a usage error unless queries see all keys of their rows, and those of their own heads. Operands are named as
/// ops::attention states them; `stated` are axes that the core itself looks after.
void check_attention(std::vector<Operand>& operands, AxisSet stated = 0);

}  // namespace lehr::shard
