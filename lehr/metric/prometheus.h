// Metrics in the text format of Prometheus.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lehr::metric {

/// Returns the metrics as gauges "lehr_NAME", with lehr_step and the job's name as a label; characters that the format
/// does not allow in names become '_'. https://prometheus.io/docs/instrumenting/exposition_formats/
std::string prometheus_text(const std::string& job, int64_t step, const std::map<std::string, double>& metrics);

}  // namespace lehr::metric
