// The CUDA kernels of norms and rotations.
#include "lehr/ops/cuda/fill_norms.h"
#include "lehr/ops/cuda/kernel.h"

namespace lehr::ops::cuda {
namespace {
const NormTable<float> kNormsF32 = NormKernels<Launch, float>::made();
const NormTable<Bf16> kNormsBf16 = NormKernels<Launch, Bf16>::made();
const Registered kNormEntries(kNormsF32, kNormsBf16);
}  // namespace
}  // namespace lehr::ops::cuda
