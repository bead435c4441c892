// The environment variable LEHR_CPU, which limits the instruction set to that of an older CPU.
#pragma once

#include <string>

#include "lehr/base/torch.h"
#include "lehr/ops/kernels/slot.h"

namespace lehr::ops {

/// Returns the instruction set of the program's kernels: the fastest of this CPU, or the one that LEHR_CPU names
/// (generic, avx2, avx512, avx512_bf16 or amx). The variable is read once. Throws a usage error if it names another, or
/// one that this CPU lacks.
Arch chosen_arch();

/// Returns the instruction set in which kernels are fastest on a CPU that has `best`: AVX-512 without BF16 on Intel's
/// CPUs without AMX, whose products of bfloat16 pairs are half as fast as float32.
Arch fastest_arch(Arch best, bool is_intel);

/// Returns the instruction set for a value of LEHR_CPU (null or empty: `best`) on a CPU that has `best`. Throws as
/// chosen_arch does.
Arch parse_arch(const char* value, Arch best);

/// Restricts ATen, oneDNN and MKL to chosen_arch() too, if LEHR_CPU is set. They read environment variables of their
/// own when they are first used, so call it at the start of a program, before it has a second thread: setenv concurrent
/// with another thread's getenv is undefined behaviour. Variables that the user has set stay. Throws as chosen_arch
/// does, and if ATen has chosen its instruction set already.
void restrict_cpu_libraries();

/// Returns the instruction set of kernels in `dtype`, for people: "AVX2 (LEHR_CPU)", "AVX-512 with BF16".
std::string describe_kernels(at::ScalarType dtype);

}  // namespace lehr::ops
