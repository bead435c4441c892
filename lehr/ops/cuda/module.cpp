// The door of the module liblehr_cuda.so: the table of kernels, and the stream that they are launched on. The one file
// of the module that knows LibTorch.
#include "lehr/ops/cuda/module.h"

#include <c10/cuda/CUDAStream.h>

namespace lehr::ops::cuda {

cudaStream_t current_stream();

cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

}  // namespace lehr::ops::cuda

extern "C" __attribute__((visibility("default"))) const lehr::ops::cuda::Table* lehr_cuda_table();

extern "C" const lehr::ops::cuda::Table* lehr_cuda_table() {
  static const lehr::ops::cuda::Table table = [] {
    using namespace lehr::ops::cuda;
    Table made = {
        .version = kTableVersion, .layout = kTableLayout, .f32 = {}, .bf16 = {}, .sum = {}, .stochastic_round = {}};
    fill_norms(made);
    fill_rest(made);
    return made;
  }();
  return &table;
}
