#include "lehr/train/step_profile.h"

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/config/json.h"
#include "lehr/metric/throughput.h"
#include "lehr/state/dtype.h"
#include "lehr/train/gpu_card.h"
#include "lehr/train/precision.h"

namespace lehr::train {

void StepProfile::check_device(const TrainConfig& config, at::Device device) {
  require(
      !config.profiling.operator_table || device.is_cpu() || !config.training.cuda_graphs,
      "profiling.operator_table: the steps of this run are recorded as a graph (training.cuda_graphs), in which "
      "operators cannot be distinguished; remove one of the two");
}

StepProfile::StepProfile(
    const TrainConfig& config, at::Device device, int64_t ranks, int64_t done, std::unique_ptr<ProfileClock> clock)
    : folder_(std::filesystem::path(config.job.dump_folder) / config.profiling.save_traces_folder),
      first_(done + config.profiling.operator_table_warmup + 1),
      steps_(config.profiling.operator_table_steps),
      measure_seconds_(config.profiling.operator_table_measure_seconds),
      dtype_(compute_type(config.training)),
      device_(device),
      profile_(clock ? std::move(clock) : profile_clock(device)) {
  report_.first_step = first_;
  report_.ranks = ranks;
  report_.threads = at::get_num_threads();
  report_.dtype = state::torch_name(dtype_);
}

void StepProfile::step_begins(int64_t step) {
  if (step < first_ || step > last_step()) {
    return;
  }
  if (measures_machine_before(step)) {
    const DeviceLimits found = limits_of(device_, dtype_, measure_seconds_);
    report_.limits = found.limits;
    report_.source = found.source;
  }
  began_ = metric::ThroughputMeter::steady_seconds();
  profile_.start();
}

void StepProfile::step_ended(int64_t step) {
  if (step < first_ || step > last_step()) {
    return;
  }
  profile_.stop();
  report_.seconds += metric::ThroughputMeter::steady_seconds() - began_;
  ++report_.steps;
  if (!is_done()) {
    return;
  }
  report_.kinds = profile_.kinds();
  report_.products = profile_.products();
  table_ = to_text(report_);
  try {
    std::filesystem::create_directories(folder_);
    write_file_atomically(folder_ / "operators.txt", *table_);
    write_file_atomically(folder_ / "operators.json", to_json(to_node(report_)) + "\n");
  } catch (const std::exception& error) {
    problem_ = fmt::format("{}: the table of operators was not written: {}", folder_.string(), error.what());
  }
}

std::optional<std::string> StepProfile::take_table() {
  return std::exchange(table_, std::nullopt);
}

}  // namespace lehr::train
