// Choice of the kernels for this CPU.
#include "lehr/ops/kernels/table.h"

#include "lehr/ops/cpu_choice.h"

#ifdef LEHR_X86_KERNELS
#include <cpuid.h>
#endif

namespace lehr::ops {

#define LEHR_DECLARE_TABLES(arch)              \
  namespace arch {                             \
  const KernelTable<float>& float_kernels();   \
  const KernelTable<double>& double_kernels(); \
  const KernelTable<Bf16>& bf16_kernels();     \
  const GemmKernels& gemm_kernels();           \
  const GemmKernels& widening_gemm_kernels();  \
  }
LEHR_DECLARE_TABLES(generic)
#ifdef LEHR_X86_KERNELS
LEHR_DECLARE_TABLES(avx2)
LEHR_DECLARE_TABLES(avx512)
namespace avx512bf16 {
const GemmKernels& gemm_kernels();
void put_pairs(KernelTable<Bf16>& table);
}  // namespace avx512bf16
namespace amx {
bool permitted();
double multiply_adds(int64_t rounds);
}  // namespace amx
#endif

namespace {
thread_local Arch at_most_of_this_thread = Arch::avx512_bf16;
thread_local bool pair_product_of_this_thread = false;

#ifdef LEHR_X86_KERNELS
bool has_amx_bf16() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return may_use_amx() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & (1U << 22)) != 0;
  }();
  return has;
}

// Returns the AVX-512 table with those kernels replaced that AVX512-BF16 has its own of.
const KernelTable<Bf16>& kernels_of_pairs() {
  static const KernelTable<Bf16> table = [] {
    KernelTable<Bf16> all = avx512::bf16_kernels();
    avx512bf16::put_pairs(all);
    return all;
  }();
  return table;
}
#endif
}  // namespace

Arch best_arch() {
#ifdef LEHR_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return __builtin_cpu_supports("avx512bf16") ? Arch::avx512_bf16 : Arch::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return Arch::avx2;
  }
#endif
  return Arch::generic;
}

Arch current_arch() {
  static const Arch best = chosen_arch();
  return at_most_of_this_thread < best ? at_most_of_this_thread : best;
}

ArchScope::ArchScope(Arch at_most) : before_(at_most_of_this_thread) {
  at_most_of_this_thread = at_most;
}
ArchScope::~ArchScope() {
  at_most_of_this_thread = before_;
}

PairProductScope::PairProductScope() : before_(pair_product_of_this_thread) {
  pair_product_of_this_thread = true;
}
PairProductScope::~PairProductScope() {
  pair_product_of_this_thread = before_;
}

double (*tile_multiply_adds(Arch arch))(int64_t rounds) {
#ifdef LEHR_X86_KERNELS
  return arch == Arch::avx512_bf16 && has_amx_bf16() && amx::permitted() ? amx::multiply_adds : nullptr;
#else
  static_cast<void>(arch);
  return nullptr;
#endif
}

bool wants_pair_product(Arch arch) {
#ifdef LEHR_X86_KERNELS
  return arch == Arch::avx512_bf16 && (pair_product_of_this_thread || has_amx_bf16());
#else
  static_cast<void>(arch);
  return false;
#endif
}

#ifdef LEHR_X86_KERNELS
#define LEHR_CHOOSE(table)     \
  switch (arch) {              \
    case Arch::avx512_bf16:    \
    case Arch::avx512:         \
      return avx512::table();  \
    case Arch::avx2:           \
      return avx2::table();    \
    default:                   \
      return generic::table(); \
  }
#else
#define LEHR_CHOOSE(table) \
  static_cast<void>(arch); \
  return generic::table();
#endif

template <>
const KernelTable<float>& kernels<float>(Arch arch) {
  LEHR_CHOOSE(float_kernels)
}
template <>
const KernelTable<double>& kernels<double>(Arch arch) {
  LEHR_CHOOSE(double_kernels)
}
template <>
const KernelTable<Bf16>& kernels<Bf16>(Arch arch) {
#ifdef LEHR_X86_KERNELS
  if (arch == Arch::avx512_bf16) {
    return kernels_of_pairs();
  }
#endif
  LEHR_CHOOSE(bf16_kernels)
}

const GemmKernels& gemm_kernels(Arch arch) {
  LEHR_CHOOSE(gemm_kernels)
}

#ifdef LEHR_X86_KERNELS
namespace {
const GemmKernels& widening_gemm_kernels(Arch arch) {
  LEHR_CHOOSE(widening_gemm_kernels)
}
}  // namespace
#endif

const GemmKernels* bf16_gemm_kernels(Arch arch) {
#ifdef LEHR_X86_KERNELS
  if (arch == Arch::avx512_bf16) {
    return has_amx_bf16() ? nullptr : &avx512bf16::gemm_kernels();
  }
  return &widening_gemm_kernels(arch);
#else
  static_cast<void>(arch);
  return nullptr;
#endif
}

}  // namespace lehr::ops
