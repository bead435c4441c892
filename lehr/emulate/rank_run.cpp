#include "lehr/emulate/rank_run.h"

#include <set>
#include <utility>

#include "lehr/emulate/recording_transport.h"
#include "lehr/emulate/update_stand_in.h"
#include "lehr/meter/on_meta.h"
#include "lehr/nn/module.h"
#include "lehr/peft/inject.h"
#include "lehr/train/build_stage.h"
#include "lehr/train/pipeline.h"
#include "lehr/train/precision.h"
#include "lehr/train/step.h"

namespace lehr::emulate {

namespace {
// Reports the actions of a step that has no pipeline: forward ends with the loss, and backward before the next forward.
class ReportingTask : public train::TrainTask {
 public:
  ReportingTask(const train::TrainTask& task, Recorder& recorder) : task_(task), recorder_(recorder) {}

  nn::ModelInputs build_forward_inputs(const train::Batch& batch) const override {
    end_backward();
    return task_.build_forward_inputs(batch);
  }
  int64_t count_valid(const train::Batch& batch) const override { return task_.count_valid(batch); }
  at::Tensor compute_loss(const nn::ModelOutputs& outputs, const train::Batch& batch) const override {
    at::Tensor loss = task_.compute_loss(outputs, batch);
    recorder_.action_ended({.kind = pipeline::ActionKind::forward, .stage = 0, .microbatch = forwards_++});
    return loss;
  }
  std::map<std::string, at::Tensor> compute_metrics(
      const nn::ModelOutputs& outputs, const train::Batch& batch) const override {
    return task_.compute_metrics(outputs, batch);
  }

  void end_backward() const {
    if (forwards_ > backwards_) {
      recorder_.action_ended({.kind = pipeline::ActionKind::backward_full, .stage = 0, .microbatch = backwards_++});
    }
  }
  void begin_step() { forwards_ = backwards_ = 0; }

 private:
  const train::TrainTask& task_;
  Recorder& recorder_;
  mutable int64_t forwards_ = 0;
  mutable int64_t backwards_ = 0;
};

class RankRun {
 public:
  RankRun(const plan::Plan& plan, const train::TrainSpec& spec, mesh::Transport& transport, Recorder& recorder)
      : config_(plan.run.config),
        spec_(spec),
        args_(*plan.run.args),
        recorder_(recorder),
        ranks_(config_.parallelism, &transport),
        task_(spec.build.task(config_)),
        reporting_(*task_, recorder) {
    if (ranks_.context() != nullptr) {
      task_->use_mesh(*ranks_.context());
    }
    if (plan.run.mesh.pipeline_parallel > 1) {
      build_stages(plan);
    } else {
      model_ = train::build_whole_model(config_, args_, spec_.build);
      add_trained(*model_);
      if (ranks_.context() != nullptr) {
        sharded_.push_back(train::lay_out_stage(config_, spec_, *ranks_.context(), *model_, {}));
      }
    }
    nn::materialize(*model_, at::kMeta, train::parameter_type(config_.training));
    if (config_.peft.has_adapters()) {
      peft::materialize_frozen(*model_, at::kMeta, train::compute_type(config_.training));
    }
    optimizer_ = update_stand_in(spec_.build.optimizer(
        config_.optimizer, {.parameters = trained_, .seed = static_cast<uint64_t>(config_.debug.seed)}));
    build_step();
  }

  // Calls the same train::TrainStep as train::Trainer: forward_backward, clip and update.
  void step(const train::Batch& batch, int64_t number) {
    reporting_.begin_step();
    train::StepGradients gradients =
        step_->forward_backward(batch, ranks_.share(config_.training.rows_per_step()).first, number);
    reporting_.end_backward();
    step_->clip(gradients);
    step_->update(std::move(gradients), /*lr_factor=*/1, /*deferred=*/true);
  }

 private:
  void add_trained(const nn::Model& model) {
    for (const auto& [name, parameter] : nn::named_parameters(model)) {
      if (parameter->trainable() && names_.insert(name).second) {  // a tied table is in two stages
        trained_.push_back({.name = name, .shape = parameter->shape()});
      }
    }
  }

  void build_stages(const plan::Plan& plan) {
    const pipeline::Program program = plan::program_of(plan.run);
    const train::StageLayout layout = train::lay_out_stages(config_, args_, spec_.build, program.rank_of_stage);
    mesh::DistributedContext& context = *ranks_.context();
    const mesh::Group& pp = context.group(mesh::axis::pp);
    for (const auto& model : layout.models) {
      add_trained(*model);
    }
    std::vector<train::StagedModel::Stage> stages;
    for (const int64_t number : program.stages_of(pp.rank())) {
      stages.push_back({.number = number, .model = layout.models[static_cast<size_t>(number)]});
      sharded_.push_back(train::lay_out_stage(
          config_, spec_, context, *stages.back().model, {.current_stage = number, .num_stages = layout.num_stages()}));
    }
    const auto model = std::make_shared<train::StagedModel>(std::move(stages), layout.rank_of_stage, pp);
    pipeline_ = std::make_unique<train::Pipeline>(
        layout,
        train::Pipeline::Parts{
            .program = program,
            .task = *task_,
            .ranks = ranks_,
            .model = *model,
            .sharded = sharded_,
            .on_action = [this](const pipeline::Action& action, double /*start*/, double /*end*/) {
              recorder_.action_ended(action);
            }});
    model_ = model;
  }

  void build_step() {
    const train::TrainingConfig& training = config_.training;
    step_ = std::make_unique<train::TrainStep>(
        *model_,
        pipeline_ ? *task_ : static_cast<const train::TrainTask&>(reporting_),
        *optimizer_,
        train::TrainStep::Options{
            .local_batch_size = pipeline_ ? train::microbatch_rows(config_) : training.local_batch_size,
            .max_norm = training.max_norm,
            .non_finite = optim::NonFinitePolicy::stop,
            .compute = train::compute_type(training),
            .seed = static_cast<uint64_t>(config_.debug.seed),
            .router_aux_loss_coef = training.router_aux_loss_coef,
            .router_z_loss_coef = training.router_z_loss_coef,
            .load_balance_coeff = config_.peft.has_adapters() ? 0 : training.load_balance_coeff,
            .ranks = &ranks_,
            .sharded = sharded_.empty() ? nullptr : &sharded_,
            .device = at::kMeta,
            .pipeline = pipeline_.get()});
    step_->refresh();
  }

  const train::TrainConfig& config_;
  const train::TrainSpec& spec_;
  const descriptor::ModelArgs& args_;
  Recorder& recorder_;
  train::Ranks ranks_;
  std::unique_ptr<train::TrainTask> task_;
  ReportingTask reporting_;
  std::shared_ptr<nn::Model> model_;
  std::vector<shard::FullySharded> sharded_;
  std::unique_ptr<train::Pipeline> pipeline_;
  std::set<std::string> names_;
  std::vector<optim::ParameterInfo> trained_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<train::TrainStep> step_;
};
}  // namespace

Recording record_step(
    const plan::Plan& plan, const train::TrainSpec& spec, const train::Batch& batch, mesh::Transport& hosts) {
  const OnMeta on_meta;
  Recorder recorder;
  const auto transport = recording_transport(hosts, recorder);
  RankRun run(plan, spec, *transport, recorder);
  run.step(batch, 1);
  recorder.begin();
  run.step(batch, 2);
  return recorder.end();
}

}  // namespace lehr::emulate
