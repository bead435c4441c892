// metrics.jsonl of a run that resumes, and its readers.
#include "lehr/metric/metrics_log.h"
#include "lehr/metric/metrics_reader.h"
#include "test/fuzz/harness.h"

void lehr::fuzz::read_input(std::string_view input) {
  const auto path = as_file("metrics.jsonl", input);
  accepts([&] { metric::read_metric(path, "loss"); });
  accepts([&] { metric::MetricsReader(path).read([](const metric::MetricsLine&) {}, [] {}); });
  accepts([&] { metric::MetricsLog log(path, /*resume_step=*/3); });
}
