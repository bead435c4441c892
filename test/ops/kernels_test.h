// The device on which tests run the CUDA kernels: loops on the host everywhere, and a GPU if there is one.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "lehr/ops/cuda.h"
#include "test/base/why_no_gpu.h"
#include "test/ops/against_reference.h"
#include "test/ops/host_launch.h"

namespace lehr::ops::test {

/// The parameter is the place of the kernels: true for a GPU.
class KernelsTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    if (GetParam()) {
      std::string reason = why_no_gpu();
      reason = reason.empty() ? cuda::open_kernels() : reason;
      if (!reason.empty()) {
        GTEST_SKIP() << reason;
      }
    } else {
      scope_.emplace(host_table(), at::kCPU);
    }
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      ASSERT_TRUE(cuda::supports(at::empty({1}, at::TensorOptions(device()).dtype(type))));
    }
  }

  at::Device device() const { return GetParam() ? at::kCUDA : at::kCPU; }

  at::Tensor there(const at::Tensor& tensor) const { return tensor.defined() ? tensor.to(device()) : tensor; }

  /// Calls body, which must start kernels if `by_kernels` is true, else none. On the host the kernels themselves are
  /// counted.
  template <class Body>
  void expect_kernels(bool wanted, const Body& body) const {
    const int64_t uses = cuda::table_uses();
    const int64_t launches = HostLaunch::launches();
    body();
    EXPECT_EQ(cuda::table_uses() > uses, wanted);
    EXPECT_EQ(HostLaunch::launches() > launches, wanted && !GetParam());
  }

 private:
  std::optional<cuda::TableScope> scope_;
};

/// Compares an operator with its definition.
class OperatorKernelsTest : public KernelsTest {
 protected:
  /// The operator on the kernels' device. It must start kernels if `by_kernels` is true, else none.
  Operator here(const Operator& op, bool by_kernels = true) const {
    return [this, op, by_kernels](const Tensors& in) {
      Tensors moved;
      for (const at::Tensor& tensor : in) {
        moved.push_back(there(tensor));
      }
      Tensors out;
      expect_kernels(by_kernels, [&] { out = op(moved); });
      for (at::Tensor& tensor : out) {
        tensor = tensor.defined() ? tensor.cpu() : tensor;
      }
      return out;
    };
  }

  void expect_equal(
      const std::string& what,
      const Operator& fast,
      const Operator& definition,
      const Tensors& inputs,
      const std::vector<bool>& frozen = {},
      double tolerances = 1) const {
    const std::string type = c10::toString(inputs[0].scalar_type());
    expect_equal_to_definition(type + " " + what, here(fast), definition, inputs, frozen, tolerances);
  }
};

/// The types of the kernels.
inline const std::vector<at::ScalarType> kKernelTypes = {at::kFloat, at::kBFloat16};

inline std::string place_name(const testing::TestParamInfo<bool>& on_gpu) {
  return on_gpu.param ? "OnTheGpu" : "OnTheHost";
}

}  // namespace lehr::ops::test
