#include "lehr/search/local_distillation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>

#include "lehr/base/error.h"
#include "lehr/optim/build_optimizer.h"
#include "lehr/optim/clip.h"
#include "lehr/state/safetensors.h"
#include "lehr/state/safetensors_writer.h"
#include "lehr/train/ranks.h"
#include "lehr/train/task.h"

namespace lehr::search {

namespace {
constexpr const char* kWeights = "weights.";
constexpr const char* kOptimizer = "optimizer.";
constexpr const char* kProgress = "progress";

// One variant in training: its layer, and the optimizer of its sub-block.
class BlockStudent {
 public:
  BlockStudent(const Library& library, const Place& place, const LocalDistillationConfig& config)
      : layer_(library.layer(place)), max_norm_(config.max_norm), result_{.place = place} {
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
    optimizer_->allocate(parameters_);
  }

  // Weights, moments and losses after the last step.
  void save(const std::filesystem::path& file) const {
    state::NamedTensors tensors;
    for (const optim::NamedParameter& parameter : parameters_) {
      tensors.emplace_back(kWeights + parameter.name, parameter.value.detach());
    }
    for (const auto& [name, tensor] : optimizer_->state()) {
      tensors.emplace_back(kOptimizer + name, tensor);
    }
    tensors.emplace_back(
        kProgress, at::tensor({static_cast<double>(steps_done_), result_.first_loss, result_.last_loss}, at::kDouble));
    state::save_safetensors(file, tensors);
  }

  void load(const std::filesystem::path& path) {
    const at::NoGradGuard no_grad;
    const state::SafetensorsFile file(path);
    std::map<std::string, at::Tensor> state;
    for (const auto& info : file.tensors()) {
      if (info.name.starts_with(kOptimizer)) {
        state[info.name.substr(std::string(kOptimizer).size())] = file.tensor(info.name);
      }
    }
    optimizer_->load_state(state);
    for (optim::NamedParameter& parameter : parameters_) {
      parameter.value.copy_(file.tensor(kWeights + parameter.name));
    }
    const at::Tensor progress = file.tensor(kProgress);
    steps_done_ = static_cast<int64_t>(progress[0].item<double>());
    result_.first_loss = progress[1].item<double>();
    result_.last_loss = progress[2].item<double>();
  }

  // `input` (B, T, H) is the input of the teacher's layer, `target` its output.
  void step(const nn::ModelInputs& inputs, const at::Tensor& input, const at::Tensor& target, double lr_factor) {
    const at::Tensor output = run_piece(layer_, inputs, input);
    const at::Tensor loss = (output - target).square().sum() / target.square().sum();
    const double value = loss.item<double>();
    if (!std::isfinite(value)) {
      fail_runtime(
          "local distillation of layer {} {}: the loss is not finite; use a lower local_distillation.lr",
          place().layer,
          pretrained::name_of(place().subblock));
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
    result_.first_loss = steps_done_ == 0 ? value : result_.first_loss;
    result_.last_loss = value;
    ++steps_done_;
  }

  const Place& place() const { return result_.place; }
  const LocalDistillationResult& result() const { return result_; }
  int64_t steps_done() const { return steps_done_; }
  const nn::Model& layer() const { return *layer_; }

 private:
  Piece layer_;
  double max_norm_;
  LocalDistillationResult result_;
  int64_t steps_done_ = 0;
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
  v.optional(
      "save_steps",
      save_steps,
      "Steps after which the variants in training are saved, so that a search that is stopped continues there; 0: "
      "never.",
      at_least(0));
}

std::vector<Place> trainable_variants(const SearchSpace& space) {
  std::vector<Place> places = alternatives(space);
  std::erase_if(places, [&](const Place& place) { return at(space, place).is_no_op; });
  return places;
}

namespace {
// The inputs of these layers of the teacher, and the output of the last.
std::vector<at::Tensor> boundaries_of(
    const Piece& embeddings, const std::vector<Piece>& teacher, const nn::ModelInputs& inputs) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> boundaries{run_piece(embeddings, inputs, {})};
  for (const Piece& layer : teacher) {
    boundaries.push_back(run_piece(layer, inputs, boundaries.back()));
  }
  return boundaries;
}

// The first step that some student has not done.
int64_t first_step(const std::vector<BlockStudent>& students, int64_t steps) {
  int64_t first = steps;
  for (const BlockStudent& student : students) {
    first = std::min(first, student.steps_done());
  }
  return first;
}
}  // namespace

std::vector<LocalDistillationResult> distil_locally(
    Library& library,
    const std::vector<Place>& places,
    const train::TrainTask& task,
    const BatchesFrom& batches,
    const LocalDistillationConfig& config,
    const std::filesystem::path& saves,
    const std::function<void(const LocalDistillationProgress&)>& progress) {
  const Piece embeddings = library.embeddings();
  int64_t layers = 0;  // up to the last one with a variant
  for (const Place& place : places) {
    layers = std::max(layers, place.layer + 1);
  }
  std::vector<Piece> teacher;
  for (int64_t layer = 0; layer < layers; ++layer) {
    teacher.push_back(library.layer(layer, 0, 0));
  }
  const auto save_of = [&](const Place& place) { return variant_file(saves, library.space(), place); };
  std::vector<BlockStudent> students;
  for (const Place& place : places) {
    students.emplace_back(library, place, config);
    if (!saves.empty() && std::filesystem::exists(save_of(place))) {
      students.back().load(save_of(place));
    }
  }
  int64_t step = first_step(students, config.steps);
  for (const auto stream = batches(step); step < config.steps; ++step) {
    const std::optional<train::Batch> batch = stream->next();
    if (!batch) {
      fail("local_distillation.steps: the data ended after {} batches; use fewer steps or data.repeat = true", step);
    }
    const train::Batch local = train::to_device(train::Ranks().positions_of(*batch), library.pieces().device());
    const nn::ModelInputs inputs = task.build_forward_inputs(local);
    const std::vector<at::Tensor> boundaries = boundaries_of(embeddings, teacher, inputs);
    const bool saved = !saves.empty() && config.save_steps > 0 && (step + 1) % config.save_steps == 0;
    double sum = 0;
    for (BlockStudent& student : students) {
      const auto layer = static_cast<size_t>(student.place().layer);
      if (student.steps_done() == step) {  // others were saved later than the rest
        student.step(inputs, boundaries[layer], boundaries[layer + 1], cosine(step, config.steps));
        if (saved) {
          student.save(save_of(student.place()));
        }
      }
      sum += student.result().last_loss;
    }
    progress({.step = step + 1, .steps = config.steps, .loss = sum / static_cast<double>(students.size())});
  }
  std::vector<LocalDistillationResult> results;
  for (const BlockStudent& student : students) {
    const Place& place = student.place();
    library.set_trained(
        place, library.as_stored(place, library.tensors_of(student.layer(), place.layer, place.subblock)));
    results.push_back(student.result());
  }
  return results;
}

}  // namespace lehr::search
