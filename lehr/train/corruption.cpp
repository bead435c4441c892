#include "lehr/train/corruption.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "lehr/base/error.h"
#include "lehr/base/log.h"
#include "lehr/shard/replica_hashes.h"
#include "lehr/train/rank_findings.h"

namespace lehr::train {

namespace {
bool due(int64_t every, int64_t step) {
  return every > 0 && step % every == 0;
}

std::string places_of(const Ranks& ranks, const std::vector<int64_t>& members) {
  std::vector<std::string> places;
  for (const int64_t rank : members) {
    places.push_back(place_of(ranks, rank));
  }
  return fmt::format("{}", fmt::join(places, " and "));
}

void report(const Run& run, const std::string& text) {
  if (run.config.reliability.on_corruption == OnCorruption::warn) {
    if (run.ranks.is_main()) {  // the others found the same
      run.logger.warn("{}", text);
    }
    return;
  }
  fail_runtime("{}; the update was not applied", text);
}

// The differences between two runs on one rank. They have a fixed size, and are sent to all others.
struct Difference {
  int64_t in_loss = 0;
  int64_t in_gradients = 0;  // the number of parameters
  int64_t lasting = 0;       // the third run agrees with neither
  char name[256] = {};       // the first of these parameters
};

Difference difference_of(const MicrobatchBits& one, const MicrobatchBits& other) {
  Difference difference{.in_loss = one.loss == other.loss ? 0 : 1};
  for (const auto& [name, hash] : one.gradients) {
    if (other.gradients.at(name) != hash && difference.in_gradients++ == 0) {
      std::strncpy(difference.name, name.c_str(), sizeof difference.name - 1);
    }
  }
  return difference;
}

std::string where_it_differs(const std::vector<Difference>& all, const Ranks& ranks) {
  std::vector<int64_t> losses, gradients;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].in_loss != 0) {
      losses.push_back(static_cast<int64_t>(rank));
    }
    if (all[rank].in_gradients != 0) {
      gradients.push_back(static_cast<int64_t>(rank));
    }
  }
  if (!losses.empty()) {
    const bool staged = ranks.context() != nullptr && ranks.context()->size(mesh::axis::pp) > 1;
    return fmt::format("in the loss on {}{}", places_of(ranks, losses), staged ? ", or in a stage before it" : "");
  }
  return fmt::format(
      "in the gradient of {} on {}, but not in the loss, so backward of a rank that contributes to it is wrong",
      all[static_cast<size_t>(gradients.front())].name,
      places_of(ranks, gradients));
}
}  // namespace

void check_replicas(const Run& run, int64_t step) {
  if (run.ranks.context() == nullptr || !due(run.config.reliability.hash_every_n_steps, step)) {
    return;
  }
  const auto found = shard::compare_replicas(nn::named_parameters(*run.model), *run.ranks.context());
  if (found.empty()) {
    return;
  }
  std::vector<std::string> parts;
  for (const shard::ReplicaDifference& one : found) {
    parts.push_back(fmt::format(
        "the {} {}{} on {}",
        one.gradient ? "gradient of" : "weight",
        one.parameter,
        one.majority ? " is not that of the other replicas" : " differs",
        places_of(run.ranks, one.ranks)));
  }
  report(run, fmt::format("step {}: silent corruption: {}", step, fmt::join(parts, "; ")));
}

void check_arithmetic(const Run& run, const Batch& batch, int64_t first_row, int64_t step) {
  if (!due(run.config.reliability.recompute_every_n_steps, step)) {
    return;
  }
  const MicrobatchBits first = run.step->bits_of_microbatch(batch, first_row, step);
  const MicrobatchBits second = run.step->bits_of_microbatch(batch, first_row, step);
  if (!run.ranks.any(first != second)) {
    return;
  }
  const MicrobatchBits third = run.step->bits_of_microbatch(batch, first_row, step);
  Difference here = difference_of(first, second);
  here.lasting = third != first && third != second ? 1 : 0;
  const std::vector<Difference> all = findings_of_all(here, run.ranks);
  const bool lasting = std::any_of(all.begin(), all.end(), [](const Difference& one) { return one.lasting != 0; });
  report(
      run,
      fmt::format(
          "step {}: silent corruption: two runs of the same micro-batch differ {}; a third run {}",
          step,
          where_it_differs(all, run.ranks),
          lasting ? "agrees with neither: the error lasts, or the arithmetic is not deterministic"
                  : "agrees with one of them: the error is transient"));
}

}  // namespace lehr::train
