#include "lehr/plan/measure_stage.h"

#include "test/train/support.h"

namespace lehr::plan {
namespace {

using train::testing::Folder;
using train::testing::specs;
using train::testing::tiny_run;

TEST(MeasureStage, Smoke) {
  const Folder folder;
  const auto config = tiny_run(folder.path());
  const auto list = specs();
  const auto& spec = list.at(config.model);
  const auto tokenizer = spec.build.tokenizer(config);
  const auto args = spec.build.model_args(config, spec.family, *tokenizer);
  const auto m = measure_stage(config, spec, *args);
  EXPECT_GT(m.forward.kept, 0);
}

}  // namespace
}  // namespace lehr::plan
