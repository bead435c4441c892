#include "lehr/train/profiler.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

namespace lehr::train {

namespace kineto = torch::autograd::profiler;

namespace {
torch::profiler::impl::ProfilerConfig settings() {
  return torch::profiler::impl::ProfilerConfig(
      torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/true);
}

std::set<torch::profiler::impl::ActivityType> activities(bool cuda) {
  std::set<torch::profiler::impl::ActivityType> kinds{torch::profiler::impl::ActivityType::CPU};
  if (cuda) {
    kinds.insert(torch::profiler::impl::ActivityType::CUDA);
  }
  return kinds;
}
}  // namespace

Profiler::Profiler(const ProfilingConfig& config, const std::filesystem::path& folder, at::Device device)
    : config_(config), folder_(folder / config.save_traces_folder), cuda_(device.is_cuda()) {}

Profiler::~Profiler() {
  if (prepared_ && !recording_) {
    record();  // Kineto ends only what it records
  }
  if (recording_) {
    kineto::disableProfiler();
  }
}

void Profiler::step_begins(int64_t step) {
  // Step s is number (s - 1) mod freq + 1 of its cycle; the last steps of a cycle are traced, after those of warm-up.
  const int64_t in_cycle = (step - 1) % config_.profile_freq;
  const int64_t first = config_.profile_freq - config_.profiler_active;
  if (!config_.enable_profiling || recording_ || in_cycle < first - config_.profiler_warmup || in_cycle > first) {
    return;
  }
  if (!prepared_) {
    prepare();
  }
  if (in_cycle == first) {
    record();
  }
}

void Profiler::prepare() {
  kineto::prepareProfiler(settings(), activities(cuda_));
  prepared_ = true;
}

void Profiler::record() {
  kineto::enableProfiler(
      settings(),
      activities(cuda_),
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  recording_ = true;
}

void Profiler::step_ended(int64_t step) {
  if (!recording_ || step % config_.profile_freq != 0) {
    return;
  }
  prepared_ = recording_ = false;
  const auto result = kineto::disableProfiler();
  const auto folder = folder_ / ("iteration_" + std::to_string(step));
  try {
    std::filesystem::create_directories(folder);
    result->save((folder / "rank0_trace.json").string());
  } catch (const std::exception& error) {
    problem_ = fmt::format("{}: the trace was not written: {}", folder.string(), error.what());
  }
}

}  // namespace lehr::train
