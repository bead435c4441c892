#include "lehr/plan/machine.h"

#include <gmock/gmock.h>

#include "lehr/base/config.h"
#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "test/train/support.h"

namespace lehr::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Machine, PresetsAreSound) {
  for (const Machine& one : machine_presets()) {
    Problems problems;
    one.check(problems);
    EXPECT_TRUE(problems.empty()) << one.name;
    EXPECT_EQ(to_toml(load_machine(one.name)), to_toml(one));
  }
}

TEST(Machine, OverridesWin) {
  const Machine machine = load_machine("h200", {{"network_gb_per_second", "12.5"}});
  EXPECT_EQ(machine.network_gb_per_second, 12.5);
  EXPECT_EQ(machine.memory_gb, 141);
}

TEST(Machine, AFileStartsFromThePresetThatItNames) {
  const train::testing::Folder folder;
  const auto file = folder.path() / "cluster.toml";
  write_file_atomically(file, "name = \"a100\"\nmemory_gb = 40\n");
  const Machine machine = load_machine(file.string());
  EXPECT_EQ(machine.memory_gb, 40);
  EXPECT_EQ(machine.tflops_bfloat16, 312);
}

TEST(Machine, PrintedTextReadsBackAsTheSame) {
  const train::testing::Folder folder;
  const auto file = folder.path() / "cluster.toml";
  Machine machine = load_machine("a100");
  machine.name = "ours";
  machine.ranks_per_node = 4;
  write_file_atomically(file, to_toml(machine));
  EXPECT_EQ(to_toml(load_machine(file.string())), to_toml(machine));
}

TEST(Machine, RefusesInvalidInputByName) {
  EXPECT_THAT([] { load_machine("h10"); }, ThrowsMessage<Error>(AllOf(HasSubstr("'h10'"), HasSubstr("'h100'"))));
  EXPECT_THAT(
      [] {
        load_machine("h100", {{"achieved_fraction", "1.5"}});
      },
      ThrowsMessage<Error>(HasSubstr("achieved_fraction")));
  EXPECT_THAT([] { load_machine("h100", {{"reserved_gb", "80"}}); }, ThrowsMessage<Error>(HasSubstr("reserved_gb")));
  EXPECT_THAT([] { load_machine("h100", {{"memory", "80"}}); }, ThrowsMessage<Error>(HasSubstr("memory_gb")));
}

TEST(Machine, CalibrationMeasuresPlausibleFigures) {
  const Machine machine = calibrate_cpu(load_machine("cpu"));
  // Wide bounds: an error of units would be a factor of a thousand.
  EXPECT_GT(machine.tflops_float32, 0.001);
  EXPECT_LT(machine.tflops_float32, 100);
  EXPECT_GT(machine.memory_gb_per_second, 0.5);
  EXPECT_LT(machine.memory_gb_per_second, 5000);
  Problems problems;
  machine.check(problems);
  EXPECT_TRUE(problems.empty());
}

}  // namespace
}  // namespace lehr::plan
