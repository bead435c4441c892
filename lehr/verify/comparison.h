// Comparison of computed tensors with those of a reference, row by row of a report.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lehr/base/torch.h"
#include "lehr/verify/reference.h"
#include "lehr/verify/report.h"

namespace lehr::verify {

/// The model and the reference of a verification.
struct VerifyOptions {
  std::filesystem::path model;                          ///< Folder with config.json and weights.
  std::optional<std::filesystem::path> reference = {};  ///< Path of oracle.safetensors; default: the one in `model`.
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  std::optional<double> atol = {};  ///< Replaces the absolute tolerance of every row.
  std::optional<double> rtol = {};  ///< Additional tolerance relative to the expected value.
};

/// An opened reference and the report so far. Tensors are compared by name; each is also compared with its twin in
/// float64 when computing in float64.
class Comparison {
 public:
  /// Opens the reference of `options`, which must outlive the object. Throws a usage error if there is none.
  explicit Comparison(const VerifyOptions& options);

  const VerifyOptions& options() const { return options_; }
  const std::filesystem::path& folder() const { return folder_; }
  ReferenceFile& reference() { return reference_; }
  bool has(const std::string& name) const { return reference_.has(name); }

  void compare(const std::string& name, const at::Tensor& computed, const at::Tensor& expected);
  /// Compares with the file's tensor of that name and its twin. If `visible`, a mask, is defined, only elements where
  /// it is true. Returns false if the file has neither.
  bool compare_in(
      ReferenceFile& file, const std::string& name, const at::Tensor& computed, const at::Tensor& visible = {});
  void compare(const std::string& name, const at::Tensor& computed) { compare_in(reference_, name, computed); }
  /// Compares tensors of a checkpoint. Throws a usage error if one is not in the file.
  void compare_all(ReferenceFile& file, const std::vector<std::pair<std::string, at::Tensor>>& computed);

  /// Lists something in the report as not compared.
  void leave_out(const std::string& what) { report_.left_out.push_back(what); }

  /// Returns the report, with the tensors of the reference that were not read. Throws a usage error if nothing was
  /// compared.
  VerifyReport finish();

 private:
  void note_unread(const ReferenceFile& file);

  const VerifyOptions& options_;
  std::filesystem::path folder_;
  ReferenceFile reference_;
  VerifyReport report_;
};

}  // namespace lehr::verify
