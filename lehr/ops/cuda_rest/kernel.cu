// The CUDA kernels that are neither norms nor rotations.
#include "lehr/ops/cuda/fill_rest.h"
#include "lehr/ops/cuda/kernel.h"

namespace lehr::ops::cuda {
namespace {
const RestTable<float> kRestF32 = RestKernels<Launch, float>::made();
const RestTable<Bf16> kRestBf16 = RestKernels<Launch, Bf16>::made();
const PlainTable kPlain = {
    .sum = PlainKernels<Launch>::sum,
    .stochastic_round = PlainKernels<Launch>::stochastic_round,
    .known_ids = PlainKernels<Launch>::known_ids};
const Registered kRestEntries(kRestF32, kRestBf16, kPlain);
}  // namespace
}  // namespace lehr::ops::cuda
