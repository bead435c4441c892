// A profile of a thread's time: each moment belongs to the kind of the operator that runs, or to the program between
// operators.
//
// ATen's operators are classified by name. Lehr's own state their kind by an OperatorScope, which also gives them a
// name in Kineto's traces.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "lehr/base/torch.h"
#include "lehr/meter/operator_costs.h"

namespace at {
struct RecordFunction;
}

namespace lehr {

class ProfileClock;  // profile_clock.h

/// The purpose of an operator.
enum class OperatorKind : uint8_t {
  matmul,         ///< Matmuls, including those of the loss and of experts.
  attention,      ///< Scores, softmax and weighted values.
  norm,           ///< RMSNorm, LayerNorm; QK-norm where it is fused with the rotation.
  rotary,         ///< Rotary position embedding.
  activation,     ///< SwiGLU, GELU, ...
  loss,           ///< Cross-entropy without its matmuls.
  embedding,      ///< Embedding lookups, and the gradient of the table.
  routing,        ///< MoE routing: tokens to experts and back.
  optimizer,      ///< The update, including Muon's matmuls.
  clipping,       ///< Gradient norm and clipping.
  communication,  ///< Collectives and messages, including the wait for them.
  data,           ///< Loading of the next batch.
  copy,           ///< Copies, casts and fills.
  other,          ///< Operators of none of these kinds.
  between,        ///< The program itself and autograd's engine: no operator runs.
};
inline constexpr size_t kOperatorKinds = static_cast<size_t>(OperatorKind::between) + 1;

/// Returns the name of a kind in tables: "matmul".
std::string_view name_of(OperatorKind kind);

/// Returns the kind of an operator of the dispatcher by its name: "aten::mm" is a matmul. Unknown operators are
/// `other`.
OperatorKind kind_of_operator(std::string_view name);

/// Totals of the operators of one kind.
struct OperatorTotals {
  int64_t calls = 0;   ///< Calls from operators of other kinds; calls that an operator makes itself are part of it.
  double seconds = 0;  ///< Without the operators of other kinds that they call.
  double flops = 0;    ///< FLOPs of matmuls and attention; those of other operators are not counted.
  double float8_flops = 0;  ///< The part of these that float8 tensor cores compute.
  double bytes = 0;         ///< Read and written, each tensor once, whether it comes from memory or a cache.
};

/// The time of a thread between start() and stop(), summed over all such intervals. Backward of tensors on the CPU runs
/// on the thread that requests it, and is included. Profiles do not nest.
class OperatorProfile {
 public:
  OperatorProfile();  ///< With the host's clock.
  /// Totals wait for the clock. While the profile runs, backward of tensors on an accelerator runs on the thread that
  /// requests it, too.
  explicit OperatorProfile(std::unique_ptr<ProfileClock> clock);
  /// Stops the profile; must run on the thread that started it.
  ~OperatorProfile();
  OperatorProfile(const OperatorProfile&) = delete;
  OperatorProfile& operator=(const OperatorProfile&) = delete;

  /// Throws a usage error if a profile of this thread is running.
  void start();
  void stop();

  /// Returns the totals by kind. Their seconds add up to all seconds between start() and stop().
  const std::array<OperatorTotals, kOperatorKinds>& kinds() const;
  const OperatorTotals& of(OperatorKind kind) const { return kinds()[static_cast<size_t>(kind)]; }
  /// Returns the totals of all matmuls, ATen's and Lehr's, by size. Seconds include the operators that a matmul calls.
  const std::map<ProductSize, OperatorTotals>& products() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

/// Marks the execution of one of Lehr's operators. Operators that it calls count as its kind, except for scopes inside
/// it, and for matmuls inside the loss. Costs some nanoseconds if nothing is recorded.
class OperatorScope {
 public:
  /// `name` appears in traces ("lehr::rms_norm") and must outlive the scope.
  OperatorScope(OperatorKind kind, const char* name);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  /// States the bytes that the whole operator reads and writes; those of the operators that it calls are then not
  /// counted.
  void moves(int64_t bytes);

 private:
  std::unique_ptr<at::RecordFunction> record_;  // null if nothing is recorded
  OperatorProfile::State* profile_ = nullptr;   // of this thread
};

/// True if a profile of this thread is running.
bool profiles_operators();
/// Adds to the totals of the running operator; does nothing without a profile.
void add_to_profile(double flops, int64_t bytes);

}  // namespace lehr
