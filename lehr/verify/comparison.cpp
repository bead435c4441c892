#include "lehr/verify/comparison.h"

#include "lehr/base/error.h"

namespace lehr::verify {

namespace {
std::filesystem::path file_of(const VerifyOptions& options) {
  const auto file = options.reference.value_or(options.model / "oracle.safetensors");
  require(
      options.reference || std::filesystem::exists(file),
      "{}: no such file; another implementation writes the expected values (example/reference/make_reference.py does "
      "with transformers, docs/verify.md has the format), and --reference names their file",
      file.string());
  return file;
}
}  // namespace

Comparison::Comparison(const VerifyOptions& options)
    : options_(options), folder_(file_of(options).parent_path()), reference_(file_of(options)) {}

void Comparison::compare(const std::string& name, const at::Tensor& computed, const at::Tensor& expected) {
  report_.computed[name] = computed.detach().cpu().contiguous();
  report_.rows.push_back(compare_tensors(name, computed, expected, options_.dtype, options_.atol, options_.rtol));
}

bool Comparison::compare_in(
    ReferenceFile& file, const std::string& name, const at::Tensor& computed, const at::Tensor& visible) {
  const auto shown = [&](const at::Tensor& x) {
    return visible.defined() ? x.masked_fill(~visible.to(x.device()), 0) : x;
  };
  const std::string twin = name + kFloat64Suffix;
  if (file.has(name)) {
    compare(file.prefix() + name, shown(computed), shown(file.tensor(name)));
  }
  if (options_.dtype == at::kDouble && file.has(twin)) {
    compare(file.prefix() + twin, shown(computed), shown(file.tensor(twin)));
  }
  return file.has(name) || file.has(twin);
}

void Comparison::compare_all(ReferenceFile& file, const std::vector<std::pair<std::string, at::Tensor>>& computed) {
  for (const auto& [name, tensor] : computed) {
    require(
        compare_in(file, name, tensor),
        "{}: has no tensor {}, which the model has",
        file.reader().path().string(),
        name);
  }
  note_unread(file);
}

void Comparison::note_unread(const ReferenceFile& file) {
  for (std::string& name : file.unread(options_.dtype == at::kDouble)) {
    report_.left_out.push_back(std::move(name));
  }
}

VerifyReport Comparison::finish() {
  require(
      !report_.rows.empty(),
      "{}: contains no tensor that verify can compare; docs/verify.md lists them",
      (folder_ / "oracle.safetensors").string());
  note_unread(reference_);
  return std::move(report_);
}

}  // namespace lehr::verify
