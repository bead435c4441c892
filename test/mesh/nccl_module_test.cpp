// NCCL itself, as far as one GPU can test it: a communicator of one rank that communicates. In a run, groups of one
// rank never reach NCCL (group.cpp), so the test calls the module directly.
#include "lehr/mesh/nccl_module.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <filesystem>

#include "lehr/mesh/nccl_transport.h"
#include "test/base/why_no_gpu.h"

namespace lehr::mesh {
namespace {

constexpr int64_t kTimeoutMilliseconds = 30'000;

template <class Function>
Function* function_of_module(const char* name) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& place : {folder, folder.parent_path()}) {
    if (void* const module = dlopen((place / "liblehr_nccl.so").c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return reinterpret_cast<Function*>(dlsym(module, name));
    }
  }
  return nullptr;
}

// Each collective of one rank copies the values without changing them.
TEST(NcclModule, CopiesDataInTheMemoryOfOneGpu) {
  if (const std::string reason = why_no_gpu(); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  ASSERT_TRUE(built_with_nccl());
  auto* const count = function_of_module<NcclDeviceCount>("lehr_nccl_device_count");
  auto* const connect = function_of_module<NcclConnect>("lehr_nccl_connect");
  ASSERT_NE(count, nullptr);
  ASSERT_NE(connect, nullptr);
  ASSERT_GE(count(), 1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto backend = c10::intrusive_ptr<c10d::Backend>::reclaim(
      connect(store.get(), /*rank=*/0, /*size=*/1, /*device=*/0, kTimeoutMilliseconds, "one"));

  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    const auto on_gpu = at::TensorOptions(dtype).device(at::Device(at::kCUDA, 0));
    const at::Tensor wanted = at::arange(5, dtype);
    std::vector<at::Tensor> values{wanted.to(on_gpu.device())};
    backend->allreduce(values)->wait();
    EXPECT_TRUE(values[0].cpu().equal(wanted)) << "all_reduce in " << dtype;
    backend->broadcast(values)->wait();
    EXPECT_TRUE(values[0].cpu().equal(wanted)) << "broadcast in " << dtype;
    at::Tensor gathered = at::zeros({5}, on_gpu), scattered = at::zeros({5}, on_gpu);
    backend->_allgather_base(gathered, values[0])->wait();
    EXPECT_TRUE(gathered.cpu().equal(wanted)) << "all_gather in " << dtype;
    backend->_reduce_scatter_base(scattered, values[0])->wait();
    EXPECT_TRUE(scattered.cpu().equal(wanted)) << "reduce_scatter in " << dtype;
  }
}

}  // namespace
}  // namespace lehr::mesh
