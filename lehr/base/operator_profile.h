// Where a thread's time goes: each moment belongs to the kind of operator that runs then, or to the program between
// operators.
//
// ATen's operators are known by name. Lehr's own say what they are, by an OperatorScope, which also gives them a name
// in Kineto's traces.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "lehr/base/operator_costs.h"
#include "lehr/base/torch.h"

namespace at {
struct RecordFunction;
}

namespace lehr {

/// What operators are for.
enum class OperatorKind : uint8_t {
  product,        ///< Matrix products, those of the loss and of experts included.
  attention,      ///< Scores, softmax and weighted values.
  norm,           ///< RMSNorm, LayerNorm; QK-norm where it is fused with the rotation.
  rotary,         ///< Rotary position embedding.
  activation,     ///< SwiGLU, GELU, ...
  loss,           ///< Cross-entropy without its products.
  embedding,      ///< Look-ups of tokens, and their gradient.
  routing,        ///< Tokens to experts and back.
  optimizer,      ///< The update, Muon's products included.
  clipping,       ///< The gradient's norm.
  communication,  ///< Collectives and messages, waiting for them included.
  data,           ///< The next batch.
  copy,           ///< Copies, casts and fills.
  other,          ///< Operators of none of these kinds.
  between,        ///< The program itself and autograd's engine: no operator runs.
};
inline constexpr size_t kOperatorKinds = static_cast<size_t>(OperatorKind::between) + 1;

/// "matrix products"
std::string_view name_of(OperatorKind kind);

/// The kind of an operator of the dispatcher, by its name: "aten::mm" is a product. Unknown ones are `other`.
OperatorKind kind_of_operator(std::string_view name);

/// What operators of one kind did.
struct OperatorTotals {
  int64_t calls = 0;   ///< From another kind: what an operator calls for itself is part of it.
  double seconds = 0;  ///< Without the operators of other kinds that they call.
  double flops = 0;    ///< Of products and attention; other operators' are not counted.
  double bytes = 0;    ///< Read and written, each tensor once, whether it comes from memory or a cache.
};

/// The time of the thread between start() and stop(), added up over as many stretches as there are. Backward of tensors
/// on the CPU runs on the thread that asks for it, and belongs to it. Profiles do not nest.
class OperatorProfile {
 public:
  OperatorProfile();
  /// Stops; on the thread that started.
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Throws a usage error if this thread has a profile that runs.
  void start();
  void stop();

  /// Their seconds are all seconds between start() and stop().
  const std::array<OperatorTotals, kOperatorKinds>& kinds() const;
  const OperatorTotals& of(OperatorKind kind) const { return kinds()[static_cast<size_t>(kind)]; }
  /// Matrix products, ATen's and Lehr's, whatever they are for, by size. Seconds include what the product calls.
  const std::map<ProductSize, OperatorTotals>& products() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// One of Lehr's operators, while it runs. What it calls is of its kind, but for scopes inside, and for products inside
/// the loss. Costs some nanoseconds where nobody records.
class OperatorScope {
 public:
  /// `name` as traces show it, "lehr::rms_norm"; it must outlive the scope.
  OperatorScope(OperatorKind kind, const char* name);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  /// States the bytes that all of it reads and writes; those of operators that it calls are then not counted.
  void moves(int64_t bytes);

 private:
  std::unique_ptr<at::RecordFunction> record_;  // null where nobody records
  OperatorProfile::State* profile_ = nullptr;   // of this thread
};

/// Whether a profile of this thread runs.
bool profiles_operators();
/// Adds to the operator that runs; does nothing without a profile.
void add_to_profile(double flops, int64_t bytes);

}  // namespace lehr
