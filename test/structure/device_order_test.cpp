// LibTorch's CUDA libraries are loaded before anything asks for an accelerator.
//
// ATen creates its CUDA hooks when it is first asked for an accelerator (at::manual_seed, at::hasCUDA), and autograd
// creates its threads, one per device, at the first backward pass of the process, on the CPU, too. Neither sees a
// libtorch_cuda.so that is loaded later, for the lifetime of the process. Programs load it in train::choose_device,
// before they build a model; tests load it in their main(). So nothing else may ask.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tree.h"

namespace {

// The position of the first call of one of these functions.
size_t first_call(const std::string& text, const std::vector<std::string>& functions) {
  size_t first = std::string::npos;
  for (const std::string& function : functions) {
    first = std::min(first, text.find(function + "("));
  }
  return first;
}

size_t first_question(const std::string& text) {
  return first_call(
      text,
      {"manual_seed",
       "hasCUDA",
       "getAccelerator",
       "getCUDAHooks",
       "lazyInitDevice",
       "cuda::is_available",
       "getNumGPUs",
       "globalContext().defaultGenerator"});
}

TEST(DeviceOrder, OnlyTheChoiceOfTheDeviceAndTheEndOfAProgramAskForAccelerators) {
  std::vector<std::string> asking;
  for (const std::string& file : files_below({"app", "lehr"})) {
    if (first_question(read(kRoot / file)) != std::string::npos) {
      asking.push_back(file);
    }
  }
  EXPECT_THAT(asking, ::testing::UnorderedElementsAre("lehr/base/fast_exit.cpp", "lehr/train/device.cpp"));
}

TEST(DeviceOrder, TheyOpenLibTorchsCudaLibrariesBeforeTheyAsk) {
  for (const char* file : {"lehr/train/device.cpp", "test/main.cpp"}) {
    std::string text = read(kRoot / file);
    // The seed of a test is in a function that is called later.
    const size_t start = text.find("int main(") == std::string::npos ? 0 : text.find("int main(");
    const size_t opens = text.find("dlopen(\"libtorch_cuda.so\"", start);
    ASSERT_NE(opens, std::string::npos) << file;
    EXPECT_LT(opens, std::min(first_question(text.substr(start)), text.find("RUN_ALL_TESTS", start) - start) + start)
        << file;
  }
}

// Backward passes run only in functions that are called with a chosen device.
TEST(DeviceOrder, ProgramsChooseTheDeviceBeforeTheyRunAModel) {
  for (const char* file : {"lehr/app/eval.cpp", "lehr/app/generate.cpp", "lehr/app/score.cpp", "lehr/app/verify.cpp"}) {
    const std::string text = read(kRoot / file);
    const size_t chosen = text.find("train::choose_device(");
    ASSERT_NE(chosen, std::string::npos) << file;
    const size_t runs = first_call(
        text, {"train::validate", "train::generate", "verify::verify_on_ranks", ".load", "open_model_and_data"});
    ASSERT_NE(runs, std::string::npos) << file;
    EXPECT_LT(chosen, runs) << file;
  }
  // The members of a run are constructed in the order of its header.
  const std::string run = read(kRoot / "lehr/train/run.h");
  const size_t device = run.find("at::Device device;");
  ASSERT_NE(device, std::string::npos);
  EXPECT_LT(device, run.find("std::unique_ptr<data::Tokenizer> tokenizer;"));
  EXPECT_LT(device, run.find("std::shared_ptr<nn::Model> model;"));
}

}  // namespace
