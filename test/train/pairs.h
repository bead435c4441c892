// A choice of draws that together have every pair of features.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "test/train/composition.h"

namespace lehr::train::testing {

/// The pairs of features that no run has covered yet. A run that equals one device covers all pairs of its features; a
/// refused run covers those that its reason always refuses.
class Pairs {
 public:
  /// Every `parts`-th of the pairs that can occur, from number `part` (from 0).
  Pairs(const Composition& rules, int64_t part, int64_t parts);

  int64_t left() const;
  std::vector<FeatureSet> uncovered() const;
  /// The numbers of the uncovered pairs that a run with these features is expected to cover.
  std::vector<size_t> expected(const FeatureSet& features) const;
  void cover_by_equal(const FeatureSet& features) { cover(features, nullptr); }
  void cover_by_refusal(const FeatureSet& features, const Reason& reason) { cover(features, &reason); }

 private:
  struct Pair {
    FeatureSet features;
    const Reason* refused_for;  // null if runs with them are equal to one device
    bool covered = false;
  };
  std::vector<size_t> uncovered_of(const FeatureSet& features, const Reason* refused_for) const;
  void cover(const FeatureSet& features, const Reason* refused_for);
  const Composition& rules_;
  std::vector<Pair> pairs_;
  std::map<FeatureSet, size_t> numbers_;
};

/// Numbers of runs, of which pool[number] are the features, that are expected to cover what is left of `pairs`: each
/// time the first of those that cover most. Runs of `used` are left out.
std::vector<int64_t> choose_draws(
    const Pairs& pairs, const std::vector<FeatureSet>& pool, const std::set<int64_t>& used);

/// A share of the pairs that LEHR_DRAWS asks for.
struct Part {
  int64_t number = 1, of = 1;
};

/// "pairs": all of them in one part, "pairs:3/8": the third of eight. None for another text. Throws a usage error for a
/// part that does not exist.
std::vector<Part> part_of_pairs(std::string_view text);

}  // namespace lehr::train::testing
