// The device of a run, as far as it can be tested without a GPU.
#include "lehr/train/device.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "test/base/error_of.h"

namespace lehr::train {
namespace {

using ::testing::HasSubstr;

TEST(CublasWorkspace, IsSetUnlessTheUserChoseADeterministicOne) {
  EXPECT_EQ(cublas_workspace(nullptr), ":4096:8");
  EXPECT_EQ(cublas_workspace(""), ":4096:8");
  EXPECT_EQ(cublas_workspace(":4096:8"), std::nullopt);
  EXPECT_EQ(cublas_workspace(":16:8"), std::nullopt);
  for (const char* const other : {":0:0", ":4096:2", ":4096:8:16:8", "4096"}) {
    EXPECT_THAT(
        error_of([&] { cublas_workspace(other); }),
        HasSubstr(fmt::format("debug.deterministic: CUBLAS_WORKSPACE_CONFIG is '{}'", other)));
  }
}

// Restores an environment variable of this process.
class Variable {
 public:
  explicit Variable(const char* name) : name_(name), was_(text()) {}
  ~Variable() { set(was_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  std::optional<std::string> text() const {
    const char* const value = std::getenv(name_);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }
  void set(const std::optional<std::string>& value) const {
    value ? setenv(name_, value->c_str(), 1) : unsetenv(name_);
  }

 private:
  const char* name_;
  std::optional<std::string> was_;
};

TEST(CublasWorkspace, IsSetForDeterministicRunsThatMayComputeOnAGpu) {
  const Variable workspace("CUBLAS_WORKSPACE_CONFIG");
  for (const auto& [device, deterministic, set] :
       {std::tuple("cpu", true, false),
        std::tuple("cuda", false, false),
        std::tuple("auto", true, true),
        std::tuple("cuda", true, true)}) {
    workspace.set(std::nullopt);
    set_library_variables(device, deterministic);
    EXPECT_EQ(workspace.text().has_value(), set) << device;
  }
  workspace.set(":16:8");
  set_library_variables("cuda", true);
  EXPECT_EQ(workspace.text(), ":16:8");
  EXPECT_NO_THROW(require_deterministic_cublas());
  workspace.set(std::nullopt);
  EXPECT_THAT(
      error_of([] { require_deterministic_cublas(); }),
      HasSubstr("CUBLAS_WORKSPACE_CONFIG is not set, so cuBLAS need not give the same bits twice; set it to :4096:8"));
}

TEST(ChooseRankDevice, ReportsWhyARankHasNoGpu) {
  const mesh::RankEnvironment rank{.rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2};
  const auto cpu = choose_rank_device("cpu", rank);
  EXPECT_TRUE(cpu.device.is_cpu() && cpu.require_device && cpu.why_cpu.empty());
  const auto automatic = choose_rank_device("auto", rank);
  EXPECT_FALSE(automatic.require_device);
  if (automatic.device.is_cpu()) {
    EXPECT_NE(automatic.why_cpu, "");
    EXPECT_EQ(
        error_of([&] { choose_rank_device("cuda", rank); }),
        "training.device (--device): a GPU was requested, but " + automatic.why_cpu);
  } else {
    EXPECT_EQ(automatic.why_cpu, "");
  }
}

}  // namespace
}  // namespace lehr::train
