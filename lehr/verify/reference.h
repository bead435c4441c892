// A reference file of lehr verify, with a record of the tensors that were read.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "lehr/state/weights.h"

namespace lehr::verify {

/// Suffix of a tensor that a float64 implementation computed.
inline constexpr const char* kFloat64Suffix = "_f64";

/// Reads tensors, and remembers which.
class ReferenceFile {
 public:
  /// Names of its tensors begin with `prefix` in reports, such as "grad:". Throws as WeightReader does.
  explicit ReferenceFile(const std::filesystem::path& file, std::string prefix = "")
      : reader_(file), prefix_(std::move(prefix)) {}

  bool has(const std::string& name) const { return reader_.has(name); }
  /// Returns a tensor and marks it as read. Throws a usage error if there is none.
  at::Tensor tensor(const std::string& name);
  const std::string& prefix() const { return prefix_; }
  const state::WeightReader& reader() const { return reader_; }
  /// Returns the tensors that were not read, with the prefix. Twins in float64 of tensors that were read count only if
  /// `in_float64`.
  std::vector<std::string> unread(bool in_float64) const;

 private:
  state::WeightReader reader_;
  std::string prefix_;
  std::set<std::string> read_;
};

}  // namespace lehr::verify
