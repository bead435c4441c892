// The main() of every test program: random numbers are the same in every run, whichever tests run. LEHR_TEST_SEED=N
// draws others, to find tests that pass by chance.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "lehr/base/torch.h"

namespace {

class SeedEveryTest : public testing::EmptyTestEventListener {
 public:
  explicit SeedEveryTest(uint64_t seed) : seed_(seed) {}
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(seed_); }

 private:
  uint64_t seed_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Seeding makes ATen look up its accelerator once. If libtorch_cuda.so were loaded later, this process would never
  // see a GPU and every GPU test would skip. Likewise autograd creates its threads, one per device, at the first
  // backward pass, which may be that of a test on the CPU.
  if (std::filesystem::exists("/dev/nvidiactl") || std::filesystem::exists("/dev/dxg")) {
    dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
  }
  uint64_t seed = 0;
  if (const char* const text = std::getenv("LEHR_TEST_SEED")) {
    const std::string_view given(text);
    const auto [end, error] = std::from_chars(given.begin(), given.end(), seed);
    if (error != std::errc() || end != given.end()) {
      std::cerr << "LEHR_TEST_SEED is '" << given << "'; give a whole number\n";
      return 2;
    }
  }
  testing::UnitTest::GetInstance()->listeners().Append(new SeedEveryTest(seed));
  return RUN_ALL_TESTS();
}
