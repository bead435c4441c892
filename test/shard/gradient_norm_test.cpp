// The gradient norm over a mesh equals that of one device, for sharded and replicated parameters alike.
#include "lehr/shard/gradient_norm.h"

#include <gtest/gtest.h>

#include "lehr/shard/ownership.h"
#include "tiny_stack.h"

namespace lehr::shard {
namespace {

class PiecesImpl : public nn::Module {
 public:
  PiecesImpl() {
    declare_parameter("cut", cut, {5, 2}, nn::Init::zeros());
    declare_parameter("cut_twice", cut_twice, {6, 3}, nn::Init::zeros());
    declare_parameter("whole", whole, {4}, nn::Init::zeros());
    declare_parameter("expert", expert, {4, 3, 2}, nn::Init::zeros());
    declare_parameter("idle", idle, {3}, nn::Init::zeros());
  }
  at::Tensor cut, cut_twice, whole, expert, idle;
};

at::Tensor gradient_of(const nn::Parameter& parameter) {
  const at::Tensor whole = at::arange(parameter.numel(), at::kDouble).view(parameter.shape()) + 0.3;
  return narrow_to(whole, parameter.box()).clone();
}

TEST(GradientNorm, CountsEveryElementOnceOnEveryMesh) {
  double expected = 0;
  {
    PiecesImpl pieces;
    for (const auto& parameter : pieces.own_parameters()) {
      expected += parameter->name() == "idle" ? 0 : gradient_of(*parameter).square().sum().item<double>();
    }
  }
  const std::vector<mesh::DeviceMeshParameters> meshes{
      {},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2},
      {.data_parallel_shard = 2, .tensor_parallel = 2},
      {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}};
  for (const auto& mesh : meshes) {
    SCOPED_TRACE(mesh.describe());
    std::vector<double> norms(static_cast<size_t>(mesh.world_size()));
    on_mesh(mesh, [&](mesh::DistributedContext& context) {
      PiecesImpl pieces;
      const auto lay_out = [&](const char* name, const char* axis, int64_t dim) {
        pieces.own_parameter(name)->lay_out(axis, Placement::shard(dim), context.index(axis), context.size(axis));
      };
      lay_out("cut", "fsdp", 0);
      lay_out("cut_twice", "tp", 0);
      lay_out("cut_twice", "fsdp", 0);
      lay_out("expert", "ep", 0);
      lay_out("expert", "ep_shard", 1);
      for (const auto& parameter : pieces.own_parameters()) {
        replicate_elsewhere(*parameter, context);
      }
      nn::materialize(pieces, at::kCPU, at::kDouble);
      for (const auto& parameter : pieces.own_parameters()) {
        at::Tensor value = parameter->value();
        if (parameter->name() != "idle") {
          value.mutable_grad() = gradient_of(*parameter);
        }
      }
      norms[static_cast<size_t>(context.rank())] = gradient_norm(nn::named_parameters(pieces), context).item<double>();
    });
    for (const double norm : norms) {
      EXPECT_EQ(norm, norms.front());                            // the same bits
      EXPECT_NEAR(norm, std::sqrt(expected), 1e-14 * expected);  // another order of float64 sums
    }
  }
}

}  // namespace
}  // namespace lehr::shard
