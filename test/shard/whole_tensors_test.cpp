// Whole tensors on a mesh: each is computed once, from the shards of all ranks, and every rank gets its part of the
// result.
#include "lehr/shard/whole_tensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>

#include "lehr/mesh/thread_transport.h"
#include "lehr/shard/ownership.h"

namespace lehr::shard {
namespace {

using mesh::DeviceMeshParameters;
using mesh::DistributedContext;
namespace axis = mesh::axis;

struct Spec {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<std::pair<std::string, int64_t>> shards;  // axis and dimension
};

// Three matrices that are sharded in different ways, one that is not, and experts. 7 and 5 leave uneven and empty
// shards.
const std::vector<Spec> kSpecs{
    {"rows", {7, 5}, {{axis::fsdp, 0}}},
    {"columns", {5, 8}, {{axis::tp, 1}, {axis::fsdp, 0}}},
    {"both_rows", {3, 4}, {{axis::tp, 0}, {axis::fsdp, 0}}},
    {"whole", {3, 3}, {}},
    {"experts", {6, 4, 3}, {{axis::ep, 0}, {axis::ep_shard, 1}}},
    {"whole_experts", {8, 2, 3}, {{axis::ep, 0}, {axis::ep_shard, 0}}}};
constexpr int64_t kMatrices = 4 + 6 + 8;

at::Tensor before(const Spec& spec) {
  int64_t numel = 1;
  for (const int64_t size : spec.shape) {
    numel *= size;
  }
  return (at::arange(numel, at::kDouble) + static_cast<double>(spec.name.size())).view(spec.shape);
}

// Every element depends on the elements before it in its matrix.
at::Tensor after(const at::Tensor& matrices) {
  return matrices.flatten(-2).cumsum(-1).view(matrices.sizes());
}

// Runs `body(whole_tensors, parameters, context)` on all ranks.
template <class Body>
void on_mesh(const DeviceMeshParameters& mesh, int64_t wave_elements, const Body& body) {
  mesh::run_ranks(
      mesh.world_size(),
      [&](mesh::Transport& transport) {
        DistributedContext context(mesh, transport);
        std::vector<nn::NamedParameter> parameters;
        std::vector<at::Tensor> slots(kSpecs.size());
        for (size_t i = 0; i < kSpecs.size(); ++i) {
          const Spec& spec = kSpecs[i];
          const auto parameter = std::make_shared<nn::Parameter>("weight", &slots[i], spec.shape, nn::Init::zeros());
          for (const auto& [name, dim] : spec.shards) {
            parameter->lay_out(name, Placement::shard(dim), context.index(name), context.size(name));
          }
          replicate_elsewhere(*parameter, context);
          parameters.push_back({spec.name, parameter});
        }
        MeshWholeTensors whole_tensors(context, parameters, {}, wave_elements);
        body(whole_tensors, parameters, context);
      },
      std::chrono::seconds(20));
}

const std::vector<DeviceMeshParameters> kMeshes{
    {.data_parallel_shard = 2},
    {.data_parallel_shard = 4},
    {.data_parallel_replicate = 3},
    {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 2},
    {.tensor_parallel = 2},
    {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2},
    {.data_parallel_replicate = 2, .context_parallel = 2, .tensor_parallel = 2, .expert_parallel = 4},
    {.pipeline_parallel = 2, .data_parallel_shard = 2}};

TEST(WholeTensors, AreComputedOnceAndEveryRankGetsItsPart) {
  for (const DeviceMeshParameters& mesh : kMeshes) {
    for (const int64_t wave_elements : {int64_t{10}, int64_t{30}, MeshWholeTensors::kWaveElements}) {
      SCOPED_TRACE(fmt::format("{}, {} elements a wave", mesh.describe(), wave_elements));
      std::atomic<int64_t> computed = 0;
      on_mesh(mesh, wave_elements, [&](MeshWholeTensors& whole_tensors, const auto& parameters, const auto&) {
        for (int call = 0; call < 2; ++call) {  // the second call uses the plan of the first one
          std::vector<optim::TensorPart> parts;
          for (size_t i = 0; i < kSpecs.size(); ++i) {
            const Box& box = parameters[i].parameter->box();
            parts.push_back(
                {.name = kSpecs[i].name,
                 .tensor = narrow_to(before(kSpecs[i]), box).clone(at::MemoryFormat::Contiguous)});
          }
          whole_tensors.apply(
              parts,
              {.dims = 2,
               .cost = [](at::IntArrayRef shape) { return static_cast<double>(shape[0] * shape[1]); },
               .compute =
                   [&](std::vector<at::Tensor>& tensors) {
                     for (at::Tensor& tensor : tensors) {
                       EXPECT_EQ(tensor.dim(), 2);
                       tensor = after(tensor);
                       ++computed;
                     }
                   }});
          for (size_t i = 0; i < kSpecs.size(); ++i) {
            const at::Tensor expected = narrow_to(after(before(kSpecs[i])), parameters[i].parameter->box());
            EXPECT_TRUE(at::equal(parts[i].tensor, expected)) << kSpecs[i].name;
          }
        }
      });
      EXPECT_EQ(computed, 2 * kMatrices * mesh.pipeline_parallel);
    }
  }
}

TEST(WholeTensors, NeedParametersOfTheStage) {
  on_mesh({.data_parallel_shard = 2}, 10, [](MeshWholeTensors& whole_tensors, const auto&, const auto&) {
    const optim::WholeTensorWork work{.cost = [](at::IntArrayRef) { return 1.0; }};
    EXPECT_ANY_THROW(whole_tensors.apply({{.name = "other", .tensor = at::ones({2, 2})}}, work));
  });
}

}  // namespace
}  // namespace lehr::shard
