// Shared code of the tests of parallel styles: ranks as threads, and comparison with one device.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/thread_transport.h"
#include "lehr/nn/module.h"

namespace lehr::shard::test {

/// Runs the body on every rank of a mesh.
inline void on_mesh(
    const mesh::DeviceMeshParameters& mesh, const std::function<void(mesh::DistributedContext&)>& body) {
  mesh::run_ranks(
      mesh.world_size(),
      [&](mesh::Transport& transport) {
        mesh::DistributedContext context(mesh, transport);
        body(context);
      },
      std::chrono::seconds(60));
}

/// The message of the error that the body ends with on a mesh; empty if there is none.
inline std::string problem_on(
    const mesh::DeviceMeshParameters& mesh, const std::function<void(mesh::DistributedContext&)>& body) {
  try {
    on_mesh(mesh, body);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// Allocates float64 and initializes every parameter, including those that start as constants, with numbers large
/// enough that softmax and silu leave their linear range.
inline void make_real(nn::Module& module) {
  for (const auto& [name, parameter] : nn::named_parameters(module)) {
    if (!parameter->is_state()) {
      parameter->set_init(nn::Init::normal(0.5));
    }
  }
  nn::materialize(module, at::kCPU, at::kDouble);
  module.reset_parameters({.seed = 11});
}

/// This tp rank's chunk of dimension 1.
inline at::Tensor sequence_part(const at::Tensor& whole, const mesh::DistributedContext& context) {
  return whole.chunk(context.size(mesh::axis::tp), 1)[static_cast<size_t>(context.index(mesh::axis::tp))];
}

/// Rounding of sums in another order, relative to the largest number of the whole tensor.
constexpr double kTolerance = 1e-11;

inline void expect_near(
    const std::string& what, const at::Tensor& part, const at::Tensor& expected, const at::Tensor& whole) {
  ASSERT_TRUE(part.defined()) << what;
  ASSERT_EQ(part.sizes(), expected.sizes()) << what;
  const at::NoGradGuard no_grad;
  if (part.numel() > 0) {
    const double scale = whole.abs().max().item<double>();
    EXPECT_GT(scale, 0) << what << ": a tensor of zeros shows nothing";
    EXPECT_LE((part - expected).abs().max().item<double>(), kTolerance * scale) << what;
  }
}

/// Expects this rank's values to be bit-identical to the same part of one device's.
inline void expect_same_values(const nn::Module& part, const nn::Module& whole) {
  const auto expected = nn::named_parameters(whole), found = nn::named_parameters(part);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].name, expected[i].name);
    const nn::Parameter& parameter = *found[i].parameter;
    EXPECT_TRUE(at::equal(parameter.value(), narrow_to(expected[i].parameter->value(), parameter.box())))
        << found[i].name;
  }
}

/// Expects this rank's gradients to equal the same part of one device's, after partial gradients are summed over tp.
inline void expect_same_gradients(const nn::Module& part, const nn::Module& whole, mesh::DistributedContext& context) {
  const auto expected = nn::named_parameters(whole), found = nn::named_parameters(part);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const nn::Parameter& parameter = *found[i].parameter;
    const at::Tensor gradient = expected[i].parameter->value().grad();
    at::Tensor own = parameter.value().grad();
    if (!gradient.defined()) {
      EXPECT_FALSE(own.defined()) << found[i].name;
      continue;
    }
    const Placement* placement = parameter.layout().find(mesh::axis::tp);
    if (placement == nullptr || placement->kind == Placement::Kind::replicate) {
      // A rank has no gradient if its tokens went to no expert of an MoE layer.
      own = own.defined() ? own.clone() : at::zeros_like(parameter.value());
      context.group(mesh::axis::tp).all_reduce(own);
    }
    expect_near(found[i].name, own, narrow_to(gradient, parameter.box()), gradient);
  }
}

}  // namespace lehr::shard::test
