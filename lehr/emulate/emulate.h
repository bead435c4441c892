// Emulation of a planned step: all ranks run its program on meta tensors, and their devices and links are replayed in
// virtual time.
#pragma once

#include <filesystem>
#include <string>

#include "lehr/emulate/replay.h"
#include "lehr/plan/plan.h"
#include "lehr/train/train_spec.h"

namespace lehr::emulate {

/// The largest number of emulated ranks.
inline constexpr int64_t kMostRanks = 256;

/// The result of an emulation.
struct Emulation {
  Replay step;
  double mfu = 0;  ///< With causal attention counted, as plan::Plan::mfu.
};

/// Throws usage errors for plans that cannot be emulated: more than kMostRanks ranks, another system's design, Muon,
/// and machines with rank_deviation.
void check_emulation(const plan::ResolvedRun& run, const plan::Machine& machine, const plan::PeerDesign& peer);

/// Emulates a step of `plan`, whose machine describes devices and links. Ranks are threads of this process; neither
/// their number of cores nor the load of the host changes the result. Throws as check_emulation does.
Emulation emulate(const plan::Plan& plan, const train::TrainSpec& spec);

/// Returns the emulated and the planned step time, the time of each rank, and of each kind of communication.
std::string report_text(const Emulation& emulation, const plan::Plan& plan);

/// Returns the emulated timeline of the first rank of each rank along pp. As in a plan, exposed communication is not a
/// bubble. Has no memory.
pipeline::Timeline emulated_timeline(const Emulation& emulation, const plan::Plan& plan);

/// Writes emulation.txt, emulation.json (seconds), emulation_trace.json (for chrome://tracing and Perfetto),
/// emulation_timeline.svg and .html into `folder`, which is created if needed.
void write_emulation(const Emulation& emulation, const plan::Plan& plan, const std::filesystem::path& folder);

}  // namespace lehr::emulate
