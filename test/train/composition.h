// The rules of the composition matrix (docs/composition.md): features of a run, pairs that can occur, and reasons to
// refuse a run.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lehr::train::testing {

using FeatureSet = std::set<std::string>;

/// Something that a user turns on, of those that test/train/composition.json lists.
struct Feature {
  std::string name;
  std::string one_of;                   ///< A run has at most one feature of each such group. Empty: of no group.
  std::vector<std::string> needs;       ///< Features without which it cannot occur.
  std::vector<std::string> never_with;  ///< Features with which it cannot occur.
};

/// A reason for which a run may be refused.
struct Reason {
  std::string message;                             ///< A part of the error.
  std::vector<std::vector<std::string>> features;  ///< A refused run has one feature of each list.
  bool always = false;                             ///< Every run with these features is refused.
};

class Composition {
 public:
  /// Reads a JSON file. Throws a usage error for a wrong one.
  explicit Composition(const std::string& json, const std::string& name);
  /// Those of test/train/composition.json, which script/composition.py reads as well.
  static const Composition& rules();

  const std::vector<Feature>& features() const { return features_; }
  const std::vector<Reason>& reasons() const { return reasons_; }

  /// Returns the features and those that they need.
  FeatureSet with_needs(const FeatureSet& features) const;
  /// Whether a run can have all of them at once.
  bool can_meet(const FeatureSet& features) const;
  /// The reason for which every run with these features is refused, or null.
  const Reason* refuses(const FeatureSet& features) const;
  /// The reason that the error of a refused run gives, or null.
  const Reason* reason_of(std::string_view error) const;

 private:
  const Feature& find(const std::string& name) const;
  std::vector<Feature> features_;
  std::vector<Reason> reasons_;
};

/// Whether `features` has one of each list of the reason's features.
bool has_features_of(const FeatureSet& features, const Reason& reason);

}  // namespace lehr::train::testing
