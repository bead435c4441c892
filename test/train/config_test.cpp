// Keys of a run's config that nothing uses are refused, unless they have their defaults, as in the config.toml of a
// run.
#include "lehr/train/config.h"

#include <gmock/gmock.h>

#include "lehr/base/error.h"
#include "lehr/config/toml.h"
#include "test/train/support.h"

namespace lehr::train {
namespace {

using testing::Folder;
using ::testing::HasSubstr;
using testing::tiny_run;

std::string error_with(const Overrides& overrides) {
  const Folder folder;
  try {
    tiny_run(folder.path(), overrides);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TrainConfig, RefusesReliabilityKeysThatNothingUses) {
  EXPECT_THAT(
      error_with({{"reliability.on_spike", "stop"}}),
      HasSubstr("reliability.on_spike: has no effect without spike_factor; set that, too, or remove it"));
  EXPECT_THAT(
      error_with({{"reliability.straggler_window", "8"}}),
      HasSubstr("reliability.straggler_window: has no effect without straggler_factor"));
  EXPECT_THAT(
      error_with({{"reliability.on_corruption", "warn"}}),
      HasSubstr("reliability.on_corruption: has no effect without hash_every_n_steps or recompute_every_n_steps"));
  EXPECT_EQ(
      error_with(
          {{"reliability.spike_factor", "2"},
           {"reliability.spike_window", "8"},
           {"reliability.on_spike", "stop"},
           {"reliability.straggler_factor", "2"},
           {"reliability.straggler_window", "8"},
           {"reliability.hash_every_n_steps", "2"},
           {"reliability.on_corruption", "warn"}}),
      "");
}

TEST(TrainConfig, RefusesKeysOfAnotherTask) {
  for (const auto& [key, value] :
       {std::pair("num_labels", "3"), {"classifier_dropout", "0.1"}, {"contrastive_temperature", "0.1"}}) {
    EXPECT_THAT(
        error_with({{std::string("training.") + key, value}}),
        HasSubstr(std::string("training.") + key + ": has no effect while training.task is \"causal_lm\"; remove it"));
  }
}

TEST(TrainConfig, IsAcceptedWithAllKeysWrittenOut) {
  const Folder folder;
  const TrainConfig config = tiny_run(folder.path());
  const std::string text = to_toml(config);
  EXPECT_THAT(text, HasSubstr("on_corruption = "));
  EXPECT_THAT(text, HasSubstr("contrastive_temperature = "));
  EXPECT_EQ(to_toml(from_node<TrainConfig>(parse_toml(text, "config.toml"), "config.toml")), text);
}

}  // namespace
}  // namespace lehr::train
