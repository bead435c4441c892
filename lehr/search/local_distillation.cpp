#include "lehr/search/local_distillation.h"

#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "lehr/base/error.h"
#include "lehr/optim/build_optimizer.h"
#include "lehr/optim/clip.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::search {

namespace {
// One variant in training: its layer, and the optimizer of its sub-block.
class BlockStudent {
 public:
  BlockStudent(const Library& library, const Place& place, const LocalDistillationConfig& config)
      : place_(place), layer_(library.layer(place)), max_norm_(config.max_norm) {
    optim::OptimizerContext context;
    library.pieces().each_parameter(*layer_, place.layer, [&](const std::string& name, nn::Parameter& parameter) {
      const bool own = library.belongs(name, place.layer, place.subblock) && !parameter.is_state();
      parameter.set_trainable(own);
      if (own) {
        parameters_.push_back({.name = name, .value = parameter.value()});
        context.parameters.push_back({.name = name, .shape = parameter.shape()});
      }
    });
    optim::OptimizerConfig adamw;
    adamw.lr = config.lr;
    adamw.weight_decay = config.weight_decay;
    optimizer_ = optim::build_optimizer(adamw, context);
  }

  // `input` (B, T, H) is the input of the teacher's layer, `target` its output.
  double step(const nn::ModelInputs& inputs, const at::Tensor& input, const at::Tensor& target, double lr_factor) {
    const at::Tensor output = run_piece(layer_, inputs, input);
    const at::Tensor loss = (output - target).square().sum() / target.square().sum();
    const double value = loss.item<double>();
    if (!std::isfinite(value)) {
      fail_runtime(
          "local distillation of layer {} {}: the loss is not finite; use a lower local_distillation.lr",
          place_.layer,
          train::name_of(place_.subblock));
    }
    loss.backward();
    std::vector<at::Tensor> gradients;
    for (optim::NamedParameter& parameter : parameters_) {
      parameter.grad = parameter.value.grad();
      gradients.push_back(parameter.grad);
    }
    optim::StepOptions options{.lr_factor = lr_factor};
    if (max_norm_ > 0) {
      options.grad_divisor = optim::clip_divisor(optim::global_norm(gradients), max_norm_);
    }
    optimizer_->step(parameters_, options);
    for (optim::NamedParameter& parameter : parameters_) {
      parameter.grad.reset();
      parameter.value.mutable_grad().reset();
    }
    return value;
  }

  const Place& place() const { return place_; }
  const nn::Model& layer() const { return *layer_; }

 private:
  Place place_;
  Piece layer_;
  double max_norm_;
  std::vector<optim::NamedParameter> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

double cosine(int64_t step, int64_t steps) {
  return 0.5 * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps)));
}
}  // namespace

void LocalDistillationConfig::fields(FieldVisitor& v) {
  v.optional("steps", steps, "Batches on which each variant is trained to reproduce its layer; 0: none.", at_least(0));
  v.optional("lr", lr, "Learning rate of AdamW, at the start of its cosine schedule.", positive());
  v.optional("weight_decay", weight_decay, "Weight decay of AdamW.", at_least(0));
  v.optional(
      "max_norm", max_norm, "Maximum gradient norm of a variant, for gradient clipping; 0: no clipping.", at_least(0));
}

std::vector<Place> trainable_variants(const SearchSpace& space) {
  std::vector<Place> places = alternatives(space);
  std::erase_if(places, [&](const Place& place) { return at(space, place).is_no_op; });
  return places;
}

std::vector<LocalDistillationResult> distil_locally(
    Library& library,
    const std::vector<Place>& places,
    const train::TrainTask& task,
    train::BatchStream& batches,
    const LocalDistillationConfig& config,
    const std::function<void(const LocalDistillationProgress&)>& progress) {
  const Piece embeddings = library.embeddings();
  std::vector<Piece> teacher;
  for (int64_t layer = 0; layer < library.pieces().num_layers(); ++layer) {
    teacher.push_back(library.layer(layer, 0, 0));
  }
  std::vector<BlockStudent> students;
  std::vector<LocalDistillationResult> results;
  for (const Place& place : places) {
    students.emplace_back(library, place, config);
    results.push_back({.place = place});
  }
  for (int64_t step = 0; step < config.steps; ++step) {
    const std::optional<train::Batch> batch = batches.next();
    if (!batch) {
      fail("local_distillation.steps: the data ended after {} batches; use fewer steps or data.repeat = true", step);
    }
    const train::Batch local = train::to_device(train::Ranks().positions_of(*batch), library.pieces().device());
    const nn::ModelInputs inputs = task.build_forward_inputs(local);
    std::vector<at::Tensor> boundaries;  // inputs of the layers, and the output of the last
    {
      const at::NoGradGuard no_grad;
      boundaries.push_back(run_piece(embeddings, inputs, {}));
      for (const Piece& layer : teacher) {
        boundaries.push_back(run_piece(layer, inputs, boundaries.back()));
      }
    }
    double sum = 0;
    for (size_t i = 0; i < students.size(); ++i) {
      const auto layer = static_cast<size_t>(places[i].layer);
      const double loss =
          students[i].step(inputs, boundaries[layer], boundaries[layer + 1], cosine(step, config.steps));
      sum += loss;
      results[i].first_loss = step == 0 ? loss : results[i].first_loss;
      results[i].last_loss = loss;
    }
    progress({.step = step + 1, .steps = config.steps, .loss = sum / static_cast<double>(students.size())});
  }
  for (const BlockStudent& student : students) {
    const Place& place = student.place();
    library.set_trained(
        place, library.as_stored(place, library.tensors_of(student.layer(), place.layer, place.subblock)));
  }
  return results;
}

}  // namespace lehr::search
