#include "lehr/metric/prometheus.h"

#include <fmt/format.h>

#include <cmath>

namespace lehr::metric {

namespace {
std::string name_of(const std::string& metric) {
  std::string name = "lehr_";
  for (const char letter : metric) {
    const bool allowed = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                         (letter >= '0' && letter <= '9') || letter == '_';
    name += allowed ? letter : '_';
  }
  return name;
}

std::string label_of(const std::string& text) {
  std::string label;
  for (const char letter : text) {
    if (letter == '\n') {
      label += "\\n";
      continue;
    }
    if (letter == '\\' || letter == '"') {
      label += '\\';
    }
    label += letter;
  }
  return label;
}

std::string number_of(double value) {
  return std::isnan(value) ? "NaN" : std::isinf(value) ? (value > 0 ? "+Inf" : "-Inf") : fmt::format("{}", value);
}
}  // namespace

std::string prometheus_text(const std::string& job, int64_t step, const std::map<std::string, double>& metrics) {
  std::map<std::string, double> gauges{{name_of("step"), static_cast<double>(step)}};
  for (const auto& [metric, value] : metrics) {
    gauges[name_of(metric)] = value;
  }
  std::string text;
  for (const auto& [name, value] : gauges) {
    text += fmt::format("# TYPE {0} gauge\n{0}{{job=\"{1}\"}} {2}\n", name, label_of(job), number_of(value));
  }
  return text;
}

}  // namespace lehr::metric
