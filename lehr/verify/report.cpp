#include "lehr/verify/report.h"

#include <algorithm>
#include <limits>

#include "lehr/base/error.h"
#include "lehr/base/printable.h"

namespace lehr::verify {

bool VerifyReport::ok() const {
  return std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.ok; });
}

namespace {
/// The tolerance of gradients, and the share of their largest element that is allowed at least: float32 rounds both.
constexpr double kOfGradients = 6e-6, kOfLargest = 2e-5;

/// Default absolute tolerances by the kind of a tensor; for float32 references about ten times the error of float32
/// itself.
double default_tolerance(const std::string& name, at::ScalarType dtype) {
  const bool exact = name.ends_with("_f64");
  if (exact && dtype == at::kDouble) {
    return 1e-9;
  }
  if (name.starts_with("grad:") || name.starts_with("grad_with_aux:")) {
    return kOfGradients;
  }
  if (name.starts_with("final_param:")) {
    return 2e-4;
  }
  if (name.starts_with("gen_tokens") || name.starts_with("topk_index")) {
    return 0;
  }
  if (name.find("grad_norms") != std::string::npos) {
    return 5e-5;
  }
  if (name.find("loss") != std::string::npos || name == "logps") {
    return name == "loss_sum" ? 1e-3 : 2e-5;
  }
  return name == "inv_freq" || name == "rope_attention_scaling" ? 1e-6 : 5e-5;
}
}  // namespace

VerifyRow compare_tensors(
    const std::string& name,
    const at::Tensor& computed,
    const at::Tensor& expected,
    at::ScalarType dtype,
    std::optional<double> atol,
    std::optional<double> rtol) {
  VerifyRow row{.name = name, .tolerance = atol.value_or(default_tolerance(name, dtype))};
  const at::Tensor got = computed.detach().cpu().to(at::kDouble);
  const at::Tensor want = expected.cpu().to(at::kDouble);
  if (got.sizes() != want.sizes()) {
    row.max_abs = row.max_rel = std::numeric_limits<double>::infinity();
  } else if (got.numel() > 0) {
    if (!atol && row.tolerance == kOfGradients) {
      row.tolerance = std::max(kOfGradients, kOfLargest * want.abs().max().item<double>());
    }
    const at::Tensor error = (got - want).abs().nan_to_num(std::numeric_limits<double>::infinity());
    row.max_abs = error.max().item<double>();
    row.max_rel = (error / want.abs().clamp_min(1e-6)).max().item<double>();
    const at::Tensor allowed = row.tolerance + rtol.value_or(0) * want.abs();
    row.ok = error.le(allowed).all().item<bool>();
  } else {
    row.ok = true;
  }
  return row;
}

std::string format_report(const VerifyReport& report) {
  size_t width = 6;
  for (const auto& row : report.rows) {
    width = std::max(width, printable(row.name).size());
  }
  std::string text =
      fmt::format("{:<{}}  {:>10}  {:>10}  {:>10}\n", "tensor", width, "abs error", "rel error", "allowed");
  for (const auto& row : report.rows) {
    text += fmt::format(
        "{:<{}}  {:>10.2e}  {:>10.2e}  {:>10.2e}  {}\n",
        printable(row.name),
        width,
        row.max_abs,
        row.max_rel,
        row.tolerance,
        row.ok ? "ok" : "OVER");
  }
  const auto over = std::count_if(report.rows.begin(), report.rows.end(), [](const VerifyRow& row) { return !row.ok; });
  for (const std::string& name : report.left_out) {
    text += printable(name) + ": not compared\n";
  }
  return text + fmt::format("{} tensors compared, {} over their tolerance\n", report.rows.size(), over);
}

}  // namespace lehr::verify
