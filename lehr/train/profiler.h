// Chrome traces of chosen steps, by LibTorch's Kineto.
#pragma once

#include <filesystem>

#include "lehr/base/torch.h"
#include "lehr/train/config.h"

namespace lehr::train {

/// Records the last `profiler_active` steps of every `profile_freq`, with Kineto prepared `profiler_warmup` steps
/// earlier (a GPU sets its tracing up in the first of them, which slows it), and writes each cycle as
/// <folder>/<save_traces_folder>/iteration_<step>/rank0_trace.json, which chrome://tracing and Perfetto open.
class Profiler {
 public:
  Profiler(const ProfilingConfig& config, const std::filesystem::path& folder, at::Device device);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void step_begins(int64_t step);
  void step_ended(int64_t step);

  /// Returns the reason why the last trace was not written; empty if all were.
  const std::string& problem() const { return problem_; }

 private:
  void prepare();
  void record();

  std::string problem_;
  ProfilingConfig config_;
  std::filesystem::path folder_;
  bool cuda_;
  bool prepared_ = false;  // until the trace is written
  bool recording_ = false;
};

}  // namespace lehr::train
