#include "lehr/metric/prometheus.h"

#include <gtest/gtest.h>

#include <limits>

namespace lehr::metric {
namespace {

TEST(Prometheus, EachMetricIsAGaugeWithTheJobAsLabel) {
  EXPECT_EQ(
      prometheus_text("a run", 7, {{"loss", 2.5}, {"grad_norm", 0.125}}),
      "# TYPE lehr_grad_norm gauge\nlehr_grad_norm{job=\"a run\"} 0.125\n"
      "# TYPE lehr_loss gauge\nlehr_loss{job=\"a run\"} 2.5\n"
      "# TYPE lehr_step gauge\nlehr_step{job=\"a run\"} 7\n");
}

TEST(Prometheus, NamesLabelsAndNumbersAreEscaped) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(
      prometheus_text("a \"b\"\\\n", 1, {{"load/max-1", infinity}, {"x", -infinity}, {"y", infinity - infinity}}),
      "# TYPE lehr_load_max_1 gauge\nlehr_load_max_1{job=\"a \\\"b\\\"\\\\\\n\"} +Inf\n"
      "# TYPE lehr_step gauge\nlehr_step{job=\"a \\\"b\\\"\\\\\\n\"} 1\n"
      "# TYPE lehr_x gauge\nlehr_x{job=\"a \\\"b\\\"\\\\\\n\"} -Inf\n"
      "# TYPE lehr_y gauge\nlehr_y{job=\"a \\\"b\\\"\\\\\\n\"} NaN\n");
}

}  // namespace
}  // namespace lehr::metric
