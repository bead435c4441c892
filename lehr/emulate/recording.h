// The record of one rank in a step: computation, collectives and waits, in the order of its program.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lehr/meter/operation_meter.h"
#include "lehr/pipeline/action.h"

namespace lehr::emulate {

/// A queue of transfers that are carried out one after the other: the collectives of a group, or the messages from one
/// rank to another in it. On GPUs, an NCCL communicator and its stream.
struct Channel {
  std::string axes;            ///< Of the group, mesh::Group::name(): "tp".
  std::vector<int64_t> ranks;  ///< Of the world. Of messages: the sender, then the receiver.
  bool message = false;
  auto operator<=>(const Channel&) const = default;
};

/// A collective or a message that a rank started.
struct Call {
  size_t channel = 0;      ///< Index in Recording::channels.
  std::string collective;  ///< "all_gather", "send"; the names of mesh::FakeCollective.
  int64_t bytes = 0;       ///< This rank's input; of a message, the tensor.
};

/// Kinds of events of a recording.
enum class EventKind {
  compute,  ///< The operators since the previous event.
  start,    ///< A call was started.
  wait,     ///< The operators that follow use the result of a call.
  action,   ///< An action of the pipeline's program has ended.
};

/// An event of a recording.
struct Event {
  EventKind kind = EventKind::compute;
  OperationCounts work = {};     ///< Of compute.
  size_t call = 0;               ///< Of start and wait: index in Recording::calls.
  pipeline::Action action = {};  ///< Of action.
};

/// One step of one rank.
struct Recording {
  std::vector<Channel> channels = {};
  std::vector<Call> calls = {};
  std::vector<Event> events = {};
};

/// Records the work of its thread from begin() to end().
class Recorder {
 public:
  /// The number of a call that was started while nothing was recorded.
  static constexpr size_t kNotRecorded = std::numeric_limits<size_t>::max();

  Recorder();
  ~Recorder();
  void begin();
  Recording end();

  /// Returns the number of the call.
  size_t start(const Channel& channel, const std::string& collective, int64_t bytes);
  void wait(size_t call);
  void action_ended(const pipeline::Action& action);

 private:
  void add(const Event& event);

  std::unique_ptr<OperationMeter> meter_;  // while recording
  Recording recording_;
};

}  // namespace lehr::emulate
