#include "lehr/train/verify.h"

#include <gtest/gtest.h>

#include "test/train/support.h"

namespace lehr::train {
namespace {

// Tolerances are those of lehr verify, ten times the error that float32 itself was found to have; float64 to 1e-9.
class Reference : public ::testing::TestWithParam<const char*> {};

TEST_P(Reference, EqualsTransformersInFloat32AndFloat64) {
  const std::filesystem::path folder = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference" / GetParam();
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const VerifyReport report = verify({.model = folder, .dtype = dtype}, testing::families());
    EXPECT_GT(report.rows.size(), 30U);
    EXPECT_TRUE(report.ok()) << format_report(report);
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfEveryKind,
    Reference,
    ::testing::Values("qwen3_tied_v4config", "qwen3_seqcls", "qwen3moe_sparse_step2", "llama_rope_llama3"));

TEST(Verify, SaysWhichTensorsAreOverTheirTolerance) {
  const auto folder = std::filesystem::path(LEHR_SOURCE_DIR) / "test/data/reference";
  VerifyOptions options{.model = folder / "qwen3_tied_v4config"};
  options.atol = 0;
  const VerifyReport report = verify(options, testing::families());
  EXPECT_FALSE(report.ok());
  EXPECT_NE(format_report(report).find("OVER"), std::string::npos);
}

}  // namespace
}  // namespace lehr::train
