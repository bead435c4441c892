// The costs of each variant: parameters, memory and FLOPs in closed form, and time measured on this machine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lehr/descriptor/block_account.h"
#include "lehr/search/library.h"

namespace lehr::search {

/// The costs that a budget can limit.
enum class CostKind {
  parameters,
  active_parameters,
  memory,
  kv_cache,
  prefill_flops,
  decode_flops,
  prefill_seconds,
  decode_seconds
};

/// All kinds, in order.
inline constexpr CostKind kCostKinds[] = {
    CostKind::parameters,
    CostKind::active_parameters,
    CostKind::memory,
    CostKind::kv_cache,
    CostKind::prefill_flops,
    CostKind::decode_flops,
    CostKind::prefill_seconds,
    CostKind::decode_seconds};

/// True for costs that are measured on this machine, and not counted in closed form.
bool is_measured(CostKind kind);
/// Returns the key in [budget]: "parameters", "memory", ...
const char* name_of(CostKind kind);
/// Returns the value with its unit: "1.2 M", "340 MiB", "12.5 ms".
std::string with_unit(CostKind kind, double value);

/// Costs of a part of a model.
struct Cost {
  descriptor::Account account;
  double prefill_seconds = 0;  ///< Of one sequence of Workload::num_tokens tokens; 0 if it was not measured.
  double decode_seconds = 0;   ///< Of the last token of each of num_sequences sequences; the others are cached.

  double of(CostKind kind) const;
  Cost& operator+=(const Cost& other);
};

/// Times of a part of a model.
struct PartSeconds {
  double prefill = 0;
  double decode = 0;
};

/// The costs of all variants of a space. Costs add up: the cost of a child is the sum over its parts.
struct CostTable {
  Cost fixed;                                     ///< Embeddings, final norm and head.
  std::vector<std::vector<Cost>> attention, ffn;  ///< By layer and variant.
  PartSeconds reference;                          ///< Of the work that measured times are relative to.

  const Cost& of(const Place& place) const;
  Cost of(const Choice& choice) const;
};

/// Returns the closed-form costs. Throws a usage error for a family without them.
CostTable count_costs(const DecoderPieces& pieces, const SearchSpace& space, const descriptor::Workload& work);

/// Adds measured times. A sub-block's time is that of as many layers as the model has (16 at most), which have no other
/// sub-block and run one after another, divided by their number. Each of `rounds` measurements is taken between two of
/// a reference, a layer of the teacher, since other work on the machine slows both. The median of the ratios counts,
/// and the shortest time of the reference makes seconds of it. Sub-blocks of one shape in layers with one window are
/// measured once; `progress` is told of each shape.
void measure_times(
    CostTable& table,
    const Library& library,
    const descriptor::Workload& work,
    int64_t rounds,
    const std::function<void(int64_t done, int64_t all)>& progress);

/// Measures the times of a whole child, each a run from the token ids to the logits of the last token, relative to the
/// reference whose times are CostTable::reference.
PartSeconds measure_child_seconds(
    const Library& library,
    const Choice& choice,
    const descriptor::Workload& work,
    int64_t rounds,
    const PartSeconds& reference);

}  // namespace lehr::search
