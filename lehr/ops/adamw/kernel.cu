// AdamW on a GPU: one pass over values, gradients and moments, as in kernel.inl, but with quotients and roots that may
// differ in the last bits. With exact ones, arithmetic takes longer than the accesses to memory.
#include "lehr/ops/adamw/kernels.h"
#include "lehr/ops/cuda/kernel.h"

namespace lehr::ops::cuda {

LEHR_HOST_DEVICE float quick_root(float x) {
#ifdef __CUDA_ARCH__
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
#else
  return sqrtf(x);
#endif
}
LEHR_HOST_DEVICE float quick_quotient(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

/// Updates one piece of a list of tensors.
template <class T>
struct AdamWPiece {
  AdamWList<T> list;

  template <class Group>
  LEHR_HOST_DEVICE void operator()(Group& group, int64_t index) const {
    if (list.found_inf != nullptr && *list.found_inf != 0) {
      return;
    }
    int64_t tensor = 0;
    for (int64_t jump = AdamWList<T>::kMost / 2; jump > 0; jump /= 2) {
      if (tensor + jump < list.tensors && list.of[tensor + jump].first_piece <= index) {
        tensor += jump;
      }
    }
    const auto& c = list.of[tensor];
    const int64_t first = (index - c.first_piece) * kAdamWPiece;
    const int64_t last = c.count - first < kAdamWPiece ? c.count : first + kAdamWPiece;
    const bool packed = is_packed(c.value) && is_packed(c.grad) && is_packed(c.exp_avg) && is_packed(c.exp_avg_sq);
    const Numbers numbers = {
        list.grad_divisor != nullptr ? 1 / *list.grad_divisor : 1,
        list.negative_step_size[c.number],
        1 / list.root_divisor[c.number]};
    for (int64_t begin = first; begin < last; begin += kAhead * kWidth * group.size()) {
      // Several packs of each tensor in flight hide the latency of memory.
      Values<kWidth> p[kAhead], g[kAhead], m[kAhead], v[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t i = begin + (u * group.size() + group.rank()) * kWidth;
        p[u] = read_any<kWidth>(c.value, i, last, packed);
        g[u] = read_any<kWidth>(c.grad, i, last, packed);
        m[u] = read_any<kWidth>(c.exp_avg, i, last, packed);
        v[u] = read_any<kWidth>(c.exp_avg_sq, i, last, packed);
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t i = begin + (u * group.size() + group.rank()) * kWidth;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          step(numbers, p[u].at[j], g[u].at[j], m[u].at[j], v[u].at[j]);
        }
        write_any(c.value, i, last, packed, p[u]);
        write_any(c.exp_avg, i, last, packed, m[u]);
        write_any(c.exp_avg_sq, i, last, packed, v[u]);
      }
    }
  }

 private:
  static constexpr int kWidth = kPack<T>;
  static constexpr int kAhead = 8 / kWidth;

  struct Numbers {
    float grad_factor, negative_step_size, root_factor;
  };

  static LEHR_HOST_DEVICE bool is_packed(const T* pointer) {
    return (reinterpret_cast<uintptr_t>(pointer) & 15) == 0;
  }

  LEHR_HOST_DEVICE void step(const Numbers& n, float& p, float g, float& m, float& v) const {
    const AdamWConstants& c = list.constants;
    g *= n.grad_factor;
    m = (c.lerp_from_grad ? g : m) + c.lerp * (g - m);
    v = v * c.beta2 + c.one_minus_beta2 * g * g;
    p = p * c.decay + quick_quotient(n.negative_step_size * m, quick_root(v) * n.root_factor + c.eps);
  }
};

namespace {
constexpr int64_t kThreads = 256;  // small blocks, of which some compute while others wait for memory

template <class T>
Status adamw(const AdamWList<T>& list) {
  return Launch::blocks(AdamWPiece<T>{list}, list.pieces, kThreads);
}

template <class T>
constexpr AdamWLaunches<T> kAdamW = {.adamw = adamw<T>};
const Registered kAdamWEntries(kAdamW<float>, kAdamW<Bf16>);
}  // namespace

}  // namespace lehr::ops::cuda
