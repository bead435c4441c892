#include "lehr/search/local_distillation.h"

#include "lehr/base/error.h"
#include "lehr/descriptor/model_descriptor.h"
#include "lehr/search/child.h"
#include "test/search/support.h"

namespace lehr::search {

namespace {
using testing::Batches;
using testing::families;
using testing::Teacher;

// The same batch again and again, so that losses can be compared.
class OneBatch : public train::BatchStream {
 public:
  std::optional<train::Batch> next() override { return Batches(1, 2, 3).next(); }
};

std::unique_ptr<train::BatchStream> one_batch(int64_t /*first_step*/) {
  return std::make_unique<OneBatch>();
}

void ignore(const LocalDistillationProgress&) {}

constexpr LocalDistillationConfig kShort{.steps = 12, .lr = 3e-3};

std::vector<LocalDistillationResult> distil(
    Teacher& teacher,
    const std::vector<Place>& places,
    const LocalDistillationConfig& config = kShort,
    const std::filesystem::path& saves = "",
    const std::function<void(const LocalDistillationProgress&)>& progress = ignore) {
  return distil_locally(teacher.library, places, teacher.task, testing::batches_from, config, saves, progress);
}

class LocalDistillation : public prune::testing::ModelsInFolders, public ::testing::WithParamInterface<const char*> {
 protected:
  LocalDistillation() { write("teacher", GetParam(), model::test::layers_of(GetParam())); }
};

class LocalDistillationOfWindows : public prune::testing::ModelsInFolders {};

TEST_P(LocalDistillation, LowersTheErrorOfEveryVariant) {
  Teacher teacher(at("teacher"));
  for (const auto& result : distil_locally(
           teacher.library,
           trainable_variants(teacher.space),
           teacher.task,
           one_batch,
           {.steps = 40, .lr = 1e-3},
           "",
           ignore)) {
    EXPECT_LT(result.last_loss, result.first_loss) << describe(teacher.space, result.place);
  }
}

TEST_P(LocalDistillation, OfAVariantHasTheSameBitsWhicheverOthersAreTrained) {
  Teacher all(at("teacher")), one(at("teacher"));
  const auto places = trainable_variants(all.space);
  distil(all, places);
  const Place chosen = places[places.size() / 2];
  distil(one, {chosen});
  for (const auto& [name, tensor] : *all.library.trained(chosen)) {
    EXPECT_TRUE(at::equal(tensor, one.library.trained(chosen)->at(name))) << name;
  }
}

// One step written out: autograd on the layer, the norm of the sub-block's gradients, AdamW with the first step's
// moments, whose ratio is the sign of the gradient.
TEST_P(LocalDistillation, IsAdamWOnTheNormalisedErrorOfTheLayer) {
  Teacher teacher(at("teacher"));
  const Place place = trainable_variants(teacher.space).front();
  const Piece layer = teacher.library.layer(place);
  const Piece original = teacher.library.layer(place.layer, 0, 0);
  const auto batch = *Batches(1, 2, 3).next();
  const nn::ModelInputs inputs = teacher.task.build_forward_inputs(batch);
  at::Tensor x, target;
  {
    const at::NoGradGuard no_grad;
    x = run_piece(teacher.library.embeddings(), inputs, {});
    for (int64_t before = 0; before < place.layer; ++before) {
      x = run_piece(teacher.library.layer(before, 0, 0), inputs, x);
    }
    target = run_piece(original, inputs, x);
  }
  const at::Tensor loss = (run_piece(layer, inputs, x) - target).square().mean() / target.square().mean();
  loss.backward();
  std::map<std::string, at::Tensor> wanted;
  teacher.pieces.each_parameter(*layer, place.layer, [&](const std::string& name, nn::Parameter& parameter) {
    if (teacher.library.belongs(name, place.layer, place.subblock)) {
      const std::string prefix = teacher.pieces.descriptor().layer_block_name(place.layer) + ".";
      const at::Tensor value = parameter.value().detach(), grad = parameter.value().grad();
      const at::Tensor step = grad.defined() ? 0.01 * grad / (grad.abs() + 1e-8) : at::zeros_like(value);  // a state
      wanted[name.substr(prefix.size())] = value - step;
    }
  });
  // The second loss on the same batch is that of this layer with only the sub-block's weights changed.
  const at::NoGradGuard no_grad;
  teacher.pieces.each_parameter(*layer, place.layer, [&](const std::string& name, nn::Parameter& parameter) {
    if (teacher.library.belongs(name, place.layer, place.subblock)) {
      const at::Tensor value = parameter.value();
      value.copy_(wanted.at(name.substr(teacher.pieces.descriptor().layer_block_name(place.layer).size() + 1)));
    }
  });
  const at::Tensor second = (run_piece(layer, inputs, x) - target).square().mean() / target.square().mean();
  Teacher again(at("teacher"));
  {
    const at::AutoGradMode grad(true);
    const auto results = distil_locally(
        again.library, {place}, again.task, one_batch, {.steps = 2, .lr = 0.01, .max_norm = 0}, "", ignore);
    EXPECT_NEAR(results.front().last_loss / second.item<double>(), 1, 1e-6);  // eps of AdamW
  }
  const at::AutoGradMode grad(true);
  const auto results = distil(teacher, {place}, {.steps = 1, .lr = 0.01, .max_norm = 0});
  EXPECT_NEAR(results.front().first_loss, loss.item<double>(), 1e-14);  // float64, another order of sums
  const SubblockTensors& trained = *teacher.library.trained(place);
  ASSERT_EQ(trained.size(), wanted.size());
  for (const auto& [name, tensor] : trained) {
    // Trained weights are rounded to the float32 of the teacher's file. Where a gradient is about eps, rounding shows.
    EXPECT_TRUE(at::allclose(tensor.to(at::kDouble), wanted.at(name).to(at::kDouble), 1e-6, 1e-8)) << name;
  }
}

// The second of two steps has half of the learning rate: its update is at most half of the first one's bound.
TEST_P(LocalDistillation, FollowsACosineSchedule) {
  const auto weights_after = [&](int64_t steps) {
    Teacher teacher(at("teacher"));
    const Place place = trainable_variants(teacher.space).front();
    const SubblockTensors before =
        teacher.library.tensors_of(*teacher.library.layer(place), place.layer, place.subblock);
    distil(teacher, {place}, {.steps = steps, .lr = 0.01});
    double farthest = 0;
    for (const auto& [name, tensor] : *teacher.library.trained(place)) {
      farthest = std::max(farthest, (tensor - before.at(name)).abs().max().item<double>());
    }
    return farthest;
  };
  EXPECT_NEAR(weights_after(1), 0.01, 1e-6);   // AdamW's first step is lr times the sign of the gradient
  EXPECT_NEAR(weights_after(2), 0.015, 1e-4);  // where both gradients have about the same size
}

// Stopped after some steps, and once more while the variants of a step are saved: some have done more steps than
// others.
TEST_P(LocalDistillation, ContinuesFromItsSavesWithTheSameBits) {
  const auto all = [&](Teacher& teacher) { return trainable_variants(teacher.space); };
  Teacher whole(at("teacher"));
  const auto wanted = distil(whole, all(whole));
  LocalDistillationConfig config = kShort;
  config.save_steps = 3;
  const std::filesystem::path saves = at("saves");
  std::filesystem::create_directories(saves);
  const auto stopped_at = [&](int64_t last) {
    Teacher teacher(at("teacher"));
    EXPECT_THROW(
        distil(
            teacher,
            all(teacher),
            config,
            saves,
            [&](const LocalDistillationProgress& progress) { require(progress.step < last, "stopped"); }),
        Error);
  };
  stopped_at(4);
  std::filesystem::copy(saves, at("early"));
  stopped_at(8);  // steps 7 and 8 are lost
  for (size_t i = 0; i < all(whole).size(); i += 2) {
    std::filesystem::copy_file(
        variant_file(at("early"), whole.space, all(whole)[i]),
        variant_file(saves, whole.space, all(whole)[i]),
        std::filesystem::copy_options::overwrite_existing);
  }
  Teacher resumed(at("teacher"));
  std::vector<int64_t> steps;
  const auto found = distil(resumed, all(resumed), config, saves, [&](const LocalDistillationProgress& progress) {
    steps.push_back(progress.step);
  });
  EXPECT_EQ(steps.front(), 4);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first_loss, wanted[i].first_loss);
    EXPECT_EQ(found[i].last_loss, wanted[i].last_loss);
    for (const auto& [name, tensor] : *whole.library.trained(wanted[i].place)) {
      EXPECT_TRUE(at::equal(resumed.library.trained(wanted[i].place)->at(name), tensor)) << name;
    }
  }
}

TEST_P(LocalDistillation, IsStoredAndReadAgain) {
  Teacher teacher(at("teacher"), {}, at::kFloat), again(at("teacher"), {}, at::kFloat);
  const auto places = trainable_variants(teacher.space);
  distil(teacher, places);
  EXPECT_FALSE(read_trained(at("library"), again.library, places));
  write_trained(at("library"), teacher.library, places);
  ASSERT_TRUE(read_trained(at("library"), again.library, places));
  Choice choice = teacher_choice(teacher.space);
  for (const Place& place : places) {
    choice.of(place) = place.variant;
  }
  EXPECT_EQ(measure(teacher.library, teacher.data(), choice), measure(again.library, teacher.data(), choice));
  // And the folder of the child is what was measured.
  write_child(again.library, choice, at("teacher"), at("child"), families());
  EXPECT_EQ(
      measure_folder(again.library, teacher.data(), at("child"), families()),
      measure(again.library, teacher.data(), choice));
  EXPECT_EQ(prune::testing::blocks_of(at("child")), blocks_of(teacher.space, choice));
}

// Gemma 3's sliding layers shrink their windows, the others get one.
TEST_F(LocalDistillationOfWindows, LowersTheirErrorAndTheChildIsWhatWasMeasured) {
  for (const char* type : {"llama", "gemma3_text", "gpt_oss"}) {
    const std::string name = std::string("teacher_") + type;
    write(name, type, type == std::string("gpt_oss") ? model::test::kOnlyMixtures : model::test::kMixed);
    SpaceConfig config;
    config.windows = {2};
    Teacher teacher(at(name), config, at::kFloat);
    std::vector<Place> windows;
    for (const Place& place : trainable_variants(teacher.space)) {
      if (search::at(teacher.space, place).keeps.window > 0) {
        windows.push_back(place);
      }
    }
    ASSERT_GE(windows.size(), 4U);
    const auto results =
        distil_locally(teacher.library, windows, teacher.task, one_batch, {.steps = 40, .lr = 1e-3}, "", ignore);
    Choice choice = teacher_choice(teacher.space);
    for (const LocalDistillationResult& result : results) {
      EXPECT_LT(result.last_loss, result.first_loss) << describe(teacher.space, result.place);
      choice.of(result.place) = result.place.variant;
    }
    const std::string child = std::string("child_") + type;
    write_child(teacher.library, choice, at(name), at(child), families());
    EXPECT_EQ(
        measure_folder(teacher.library, teacher.data(), at(child), families()),
        measure(teacher.library, teacher.data(), choice));
    EXPECT_EQ(prune::testing::blocks_of(at(child)), blocks_of(teacher.space, choice));
  }
}

// Every second one unless LEHR_ALL_MESHES=1.
INSTANTIATE_TEST_SUITE_P(
    Families,
    LocalDistillation,
    ::testing::ValuesIn(test::every_nth<const char*>(
        2, {"qwen3_next", "qwen3", "deepseek_v3", "glm4_moe", "llama", "gemma3_text", "qwen3_moe"})));
}  // namespace

}  // namespace lehr::search
