// All kernel.cu, compiled for the host.
#include "test/ops/host_launch.h"

namespace lehr::ops::cuda {
using Launch = test::HostLaunch;
constinit const Entry* first_entry = nullptr;
}  // namespace lehr::ops::cuda

#include "lehr/ops/cuda/kernels.inl"  // written by test/CMakeLists.txt

namespace lehr::ops::test {

const cuda::Table& host_table() {
  static const cuda::Table table(cuda::first_entry);
  return table;
}

}  // namespace lehr::ops::test
