#include "lehr/train/pipeline.h"

#include "lehr/base/error.h"
#include "lehr/pipeline/progress.h"

namespace lehr::train {

namespace {
std::vector<std::pair<int64_t, nn::Model*>> models_of(const StagedModel& model) {
  std::vector<std::pair<int64_t, nn::Model*>> models;
  for (const auto& stage : model.stages()) {
    models.emplace_back(stage.number, stage.model.get());
  }
  return models;
}
}  // namespace

const mesh::Group& Pipeline::pp() const {
  return parts_.ranks.context()->group(mesh::axis::pp);
}

Pipeline::Pipeline(const StageLayout& layout, const Parts& parts)
    : parts_(parts),
      program_(parts.program),
      bound_sends_(pipeline::sends_may_wait(program_)),
      mixtures_(layout.mixtures),
      num_experts_(layout.num_experts),
      copies_(layout, models_of(parts.model), pp()) {
  size_t place = 0;
  for (const auto& [number, model] : parts_.model.stages()) {
    stages_[number] = std::make_unique<ModelStage>(ModelStage::Parts{
        .model = *model,
        .info = {.current_stage = number, .num_stages = layout.num_stages()},
        .task = parts_.task,
        .sharded = &parts_.sharded[place++],
        .num_experts = num_experts_,
        .mesh = parts_.ranks.context()});
  }
}

void Pipeline::run(const Batch& batch, int64_t first_row, at::Device device, StageStep& step) {
  const int64_t rows = batch.begin()->second.size(0);
  const int64_t together = parts_.microbatch_rows;
  for (int64_t first = 0; first < rows; first += together) {
    const Batch part = rows_of(batch, first, std::min(together, rows - first));
    step.microbatches.push_back(
        {.batch = to_device(parts_.ranks.positions_of(part), device),
         .first_row = first_row + first,
         .share = static_cast<double>(parts_.task.count_valid(part)) / static_cast<double>(step.valid)});
  }
  std::map<int64_t, pipeline::StageRunner*> runners;
  for (const auto& [number, stage] : stages_) {
    stage->begin(step);
    runners[number] = stage.get();
  }
  require(
      static_cast<int64_t>(step.microbatches.size()) == program_.num_microbatches,
      "pipeline: the program is for {} microbatches of {} rows, and the step has {} rows here",
      program_.num_microbatches,
      together,
      rows);
  pipeline::run_program(program_, pp().rank(), &pp(), runners, {.device = device, .bound_sends = bound_sends_});
  for (shard::FullySharded& sharded : parts_.sharded) {
    sharded.finish_backward();
  }
  copies_.collect_gradients();
}

void Pipeline::share(std::map<std::string, double>& numbers) const {
  // Names first: only the last stage's rank knows them.
  const int64_t last = program_.rank_of_stage.back();
  std::string names;
  std::vector<double> values;
  for (const auto& [name, value] : numbers) {
    names += name + '\n';
    values.push_back(value);
  }
  at::Tensor sizes = at::tensor({static_cast<int64_t>(names.size()), static_cast<int64_t>(values.size())}, at::kLong);
  pp().broadcast(sizes, last);
  names.resize(static_cast<size_t>(sizes[0].item<int64_t>()));
  values.resize(static_cast<size_t>(sizes[1].item<int64_t>()));
  pp().broadcast(at::from_blob(names.data(), {static_cast<int64_t>(names.size())}, at::kChar), last);
  pp().broadcast(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble), last);
  numbers.clear();
  size_t begin = 0;
  for (const double value : values) {
    const size_t end = names.find('\n', begin);
    numbers[names.substr(begin, end - begin)] = value;
    begin = end + 1;
  }
}

at::Tensor Pipeline::all_mixtures(const at::Tensor& tokens_per_expert) const {
  if (num_experts_ == 0) {
    return {};
  }
  int64_t total = 0;
  for (const int64_t count : mixtures_) {
    total += count;
  }
  // Negative, whatever is added up, where a mixture has no such expert.
  at::Tensor all = at::zeros({total, num_experts_}, at::kLong);
  int64_t row = 0;
  int64_t mine = 0;
  for (size_t stage = 0; stage < mixtures_.size(); ++stage) {
    if (program_.rank_of_stage[stage] == pp().rank() && mixtures_[stage] > 0) {
      const int64_t here = tokens_per_expert.size(1);
      const at::Tensor rows = all.narrow(0, row, mixtures_[stage]);
      rows.narrow(1, 0, here).copy_(tokens_per_expert.narrow(0, mine, mixtures_[stage]));
      rows.narrow(1, here, num_experts_ - here).fill_(-1);
      mine += mixtures_[stage];
    }
    row += mixtures_[stage];
  }
  pp().all_reduce(all);
  return all;
}

}  // namespace lehr::train
