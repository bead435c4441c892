// The error of a step whose numbers are not finite names the tensor, and the rank that has it.
#include "lehr/train/non_finite.h"

#include <gmock/gmock.h>

#include <array>
#include <limits>

#include "test/train/mesh_support.h"
#include "test/train/probe_model.h"

namespace lehr::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Three layers with a weight each, all finite, with finite gradients.
class NonFinite : public ::testing::Test {
 protected:
  NonFinite() {
    for (size_t i = 0; i < models_.size(); ++i) {
      testing::LinearLossModel& model = models_[i];
      nn::materialize(model, at::kCPU, at::kDouble);
      model.set_weight(at::ones({4}, at::kDouble));
      at::Tensor value = model.weight()->value();
      value.mutable_grad() = at::ones({4}, at::kDouble);
      parameters_.push_back({.name = fmt::format("layers.{}.weight", i), .parameter = model.weight()});
    }
  }
  at::Tensor weight(size_t layer) const { return parameters_[layer].parameter->value().detach(); }
  at::Tensor gradient(size_t layer) const { return parameters_[layer].parameter->value().grad(); }
  std::string described() const { return describe_non_finite(parameters_, Ranks()); }

  std::array<testing::LinearLossModel, 3> models_{
      testing::LinearLossModel(4), testing::LinearLossModel(4), testing::LinearLossModel(4)};
  std::vector<nn::NamedParameter> parameters_;
};

TEST_F(NonFinite, NothingIsSaidIfAllIsFinite) {
  EXPECT_EQ(described(), "");
  EXPECT_EQ(non_finite_parameter(models_[0]), "");
}

TEST_F(NonFinite, TheFirstWeightIsNamedWhateverTheGradientsAre) {
  weight(1)[3] = kNaN;
  weight(2)[0] = kNaN;
  gradient(0)[0] = kNaN;
  EXPECT_EQ(described(), "The weight layers.1.weight was not finite before this step.");
  EXPECT_EQ(non_finite_parameter(models_[1]), "product.weight");
}

// Backward computes the gradients of the last layer first; all after it inherit what is not finite.
TEST_F(NonFinite, TheGradientThatBackwardComputedFirstIsNamed) {
  gradient(0)[2] = kNaN;
  gradient(1)[1] = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(described(), "All weights are finite; the first gradient that is not is that of layers.1.weight.");
}

TEST_F(NonFinite, GradientsThatDoNotExistAreLeftOut) {
  parameters_[2].parameter->value().mutable_grad().reset();
  EXPECT_EQ(described(), "");
}

struct Planted {
  testing::Mesh mesh;
  int64_t rank;
  std::string place;
};

class NonFiniteOnMeshes : public ::testing::TestWithParam<Planted> {};

// One element of one rank's shard of one weight becomes NaN before the third step.
TEST_P(NonFiniteOnMeshes, TheErrorNamesWeightRankAndStep) {
  const Planted& planted = GetParam();
  const testing::Mesh& mesh = planted.mesh;
  const testing::Folder folder;
  auto config = testing::tiny_run(folder.path(), {{"validation.enable", "false"}, {"training.global_batch_size", "4"}});
  config.parallelism.data_parallel_shard_degree = mesh.dp_shard;
  config.parallelism.tensor_parallel_degree = mesh.tp;
  config.parallelism.pipeline_parallel_degree = mesh.pp;
  std::vector<std::string> messages(static_cast<size_t>(mesh.world()), planted.place);  // by rank
  const auto train = [&] {
    mesh::run_ranks(
        mesh.world(),
        [&](mesh::Transport& transport) {
          Logger quiet("", true);
          const auto list = testing::specs();
          Trainer trainer(config, {.specs = list, .log = quiet, .transport = &transport});
          trainer.events().subscribe(Event::step_begin, [&](const EventContext& context) {
            if (context.step == 3 && transport.rank() == planted.rank) {
              nn::named_parameters(trainer.model()).back().parameter->value().detach().view({-1})[0] = kNaN;
            }
          });
          try {
            trainer.run();
          } catch (const Error& error) {
            messages[static_cast<size_t>(transport.rank())] = error.what();
            throw;
          }
        },
        std::chrono::seconds(60));
  };
  EXPECT_THAT(
      train, ThrowsMessage<Error>(AllOf(HasSubstr("step 3: "), HasSubstr(planted.place), HasSubstr("was not finite"))));
  EXPECT_THAT(messages, ::testing::Each(HasSubstr(planted.place)));
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    NonFiniteOnMeshes,
    ::testing::Values(
        Planted{{.dp_shard = 2}, 1, "on rank 1 (dp_shard 1)"},
        Planted{{.dp_shard = 2, .tp = 2}, 2, "on rank 2 (dp_shard 1, tp 0)"},
        Planted{{.dp_shard = 2, .pp = 2}, 3, "on rank 3 (pp 1, dp_shard 1)"}));

}  // namespace
}  // namespace lehr::train
