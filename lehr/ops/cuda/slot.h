// The CUDA kernels of an operator: a struct of functions that launch them, for each element type.
//
// An operator declares the struct in its kernels.h, with its identity `kId`, and fills it in its kernel.cu
// (Registered). All kernel.cu are the module liblehr_cuda.so, whose list of entries the program reads when it opens the
// module. There is no list of operators: each struct that the program uses takes a slot in its tables (cuda.h), which
// is filled by the identity.
//
// Plain types only: neither side needs the other's headers, and tests compile kernel.cu for the host
// (test/ops/host_launch.h), so everything except the launches is tested without a GPU.
#pragma once

#include "lehr/ops/kernels/slot.h"

namespace lehr::ops::cuda {

/// Null if the kernels were launched, else CUDA's message. They run asynchronously on the current device and stream.
using Status = const char*;

/// Identifies a struct of kernels across the program and the module.
struct KernelId {
  const char* name;    ///< Of the operator.
  int64_t element;     ///< Bytes of an element; 0 if there is one struct for all types.
  int64_t version;     ///< Incremented with every change of the meaning of a function.
  int64_t layout = 0;  ///< Usually differs between layouts of the functions' arguments.
};

/// The kernels of an operator, in a list.
struct Entry {
  KernelId id;
  int64_t size;  ///< Bytes of the struct.
  const void* kernels;
  const Entry* next;
};

/// The module's functions. One returns its first entry. The other returns null, or the reason why the current device
/// does not run the kernels, as a text that is valid until this thread's next call.
constexpr const char* kEntriesFunction = "lehr_cuda_entries";
using EntriesFunction = const Entry*();
constexpr const char* kProblemFunction = "lehr_cuda_problem";
using ProblemFunction = Status();

/// The list of the module, or of a test.
extern const Entry* first_entry;

/// Adds structs of kernels to the list, at the start of the program that holds it.
template <class... Kernels>
class Registered {
 public:
  explicit Registered(const Kernels&... kernels)
      : entries_{{Kernels::kId, static_cast<int64_t>(sizeof(Kernels)), &kernels, nullptr}...} {
    for (Entry& entry : entries_) {
      entry.next = first_entry;
      first_entry = &entry;
    }
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  Entry entries_[sizeof...(Kernels)];
};

/// @name The shape of groups of threads, which kernels and the program's choice of them share
/// @{
constexpr int64_t kMostThreads = 512;  ///< Per group.

/// Elements that a thread reads in one access: 16 bytes.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// Returns the smallest power of two that is at least `count`.
constexpr int64_t power_of_two_for(int64_t count) {
  int64_t power = 1;
  while (power < count) {
    power *= 2;
  }
  return power;
}

/// Returns the number of threads for a row of `packs`, of which each thread holds `kept`: part of a warp if that is
/// enough, because its sums need no shared memory.
constexpr int64_t threads_for(int64_t packs, int64_t kept) {
  int64_t threads = power_of_two_for(packs);
  threads = threads < 32 ? threads : 32;
  while (threads * kept < packs) {
    threads *= 2;
  }
  return threads;
}
/// @}

}  // namespace lehr::ops::cuda
