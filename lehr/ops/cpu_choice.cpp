#include "lehr/ops/cpu_choice.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "lehr/base/error.h"

namespace lehr::ops {

namespace {
constexpr const char* kVariable = "LEHR_CPU";

// An instruction set, and its names in Lehr, for people, and in the libraries' environment variables.
struct Names {
  Arch arch;
  const char* name;
  const char* title;
  const char* aten;
  const char* capability;  // at::get_cpu_capability() with `aten`
  const char* onednn;
  const char* mkl;
};
constexpr std::array<Names, 5> kNames{{
    {Arch::generic, "generic", "plain x86-64", "default", "DEFAULT", "SSE41", "SSE4_2"},
    {Arch::avx2, "avx2", "AVX2", "avx2", "AVX2", "AVX2", "AVX2"},
    {Arch::avx512, "avx512", "AVX-512", "avx512", "AVX512", "AVX512_CORE", "AVX512"},
    {Arch::avx512_bf16, "avx512_bf16", "AVX-512 with BF16", "avx512", "AVX512", "AVX512_CORE_BF16", "AVX512"},
    {Arch::amx, "amx", "AMX", "avx512", "AVX512", "AVX512_CORE_AMX", "AVX512"},
}};

const Names& names_of(Arch arch) {
  return kNames[static_cast<size_t>(arch)];
}

bool is_set(const char* value) {
  return value != nullptr && *value != '\0';
}

bool is_intel_cpu() {
#ifdef __x86_64__
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}
}  // namespace

Arch parse_arch(const char* value, Arch best) {
  if (!is_set(value)) {
    return best;
  }
  std::vector<std::string_view> supported;
  for (const Names& names : kNames) {
    if (names.arch <= best) {
      supported.emplace_back(names.name);
    }
  }
  for (const Names& names : kNames) {
    if (std::string_view(value) == names.name) {
      require(
          names.arch <= best,
          "{}: this CPU has no {}; expected one of {}, or none, for the best",
          kVariable,
          names.title,
          fmt::join(supported, ", "));
      return names.arch;
    }
  }
  fail("{}: expected one of {}, or none, for the best; found '{}'", kVariable, fmt::join(supported, ", "), value);
}

Arch fastest_arch(Arch best, bool is_intel) {
  // Intel's CPUs multiply bfloat16 in tiles, and its pairs at half the rate of float32. Some virtual machines hide the
  // tiles.
  return best == Arch::avx512_bf16 && is_intel ? Arch::avx512 : best;
}

Arch chosen_arch() {
  static const Arch chosen = [] {
    const char* const value = std::getenv(kVariable);
    return is_set(value) ? parse_arch(value, best_arch()) : fastest_arch(best_arch(), is_intel_cpu());
  }();
  return chosen;
}

void restrict_cpu_libraries() {
  const Names& names = names_of(chosen_arch());
  if (!is_set(std::getenv(kVariable))) {
    return;
  }
  constexpr const char* kAten = "ATEN_CPU_CAPABILITY";
  constexpr int kKeep = 0;
  if (!is_set(std::getenv(kAten))) {
    setenv(kAten, names.aten, 1);
    require(
        names.capability == at::get_cpu_capability(),
        "{}: ATen has chosen its kernels before, those for {}; set {}={} too",
        kVariable,
        at::get_cpu_capability(),
        kAten,
        names.aten);
  }
  setenv("ONEDNN_MAX_CPU_ISA", names.onednn, kKeep);
  setenv("MKL_ENABLE_INSTRUCTIONS", names.mkl, kKeep);
  if (names.arch < Arch::avx512) {
    // ATen asks the CPU, not oneDNN, whether oneDNN supports bfloat16.
    at::globalContext().setUserEnabledMkldnn(false);
  }
}

std::string describe_kernels(at::ScalarType dtype) {
  const Arch without_tiles = std::min(current_arch(), Arch::avx512_bf16);  // AMX multiplies bfloat16 only
  const std::string title = names_of(dtype == at::kBFloat16 ? current_arch() : without_tiles).title;
  return title + (is_set(std::getenv(kVariable)) ? fmt::format(" ({})", kVariable) : "");
}

}  // namespace lehr::ops
