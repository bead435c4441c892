// Whether a test can use a GPU.
#pragma once

#include <ATen/Context.h>
#include <dlfcn.h>

#include <filesystem>
#include <string>

namespace lehr {

/// Returns "" once LibTorch's CUDA libraries are loaded and there is a GPU; else the reason.
inline std::string why_no_gpu() {
  if (!std::filesystem::exists("/dev/nvidiactl") && !std::filesystem::exists("/dev/dxg")) {
    return "there is no NVIDIA driver";
  }
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return dlerror();
  }
  return at::globalContext().hasCUDA() ? "" : "LibTorch finds no GPU";
}

}  // namespace lehr
