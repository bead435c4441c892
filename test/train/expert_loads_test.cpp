#include "lehr/train/expert_loads.h"

#include <gtest/gtest.h>

#include "lehr/base/file.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;

// Two MoE layers, of which the second has three experts.
at::Tensor counts_of(int64_t step) {
  return at::tensor({step, int64_t{3}, 2 * step, int64_t{7}, int64_t{1}, step, int64_t{5}, int64_t{-1}}).view({2, 4});
}

void add(ExpertLoads& loads, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) {
    loads.add(step, counts_of(step));
  }
}

TEST(ExpertLoads, AResumedRunDrawsTheStepsOfAllItsStarts) {
  const Folder whole, parts;
  ExpertLoads once(whole.path(), 0, 1);
  add(once, 1, 300);
  once.draw();
  {
    ExpertLoads killed(parts.path(), 0, 1);
    add(killed, 1, 150);
  }
  ExpertLoads resumed(parts.path(), 130, 1);
  add(resumed, 131, 300);
  resumed.draw();
  for (const char* file : {"expert_load.jsonl", "expert_load.svg"}) {
    EXPECT_EQ(read_file(parts.path() / file), read_file(whole.path() / file)) << file;
  }
}

TEST(ExpertLoads, TheFileStaysSmallAndTheStepsEvenlySpaced) {
  const Folder folder;
  ExpertLoads loads(folder.path(), 0, 1);
  add(loads, 1, 1000);
  const auto steps = metric::read_metric(folder.path() / "expert_load.jsonl", "0").steps;
  EXPECT_LT(steps.size(), 200U);
  EXPECT_EQ(steps.back() - steps[steps.size() - 2], 16);
}

}  // namespace
}  // namespace lehr::train
