// Connects a program to the other ranks of its run, and reports its end to them.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/transport.h"

namespace lehr::mesh {

/// Device and time limits of the connection to the other ranks.
struct ConnectOptions {
  /// Time limit for all ranks to arrive, at the start and when a group is connected.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// Time limit of a collective; after it, the collective fails with an explanation.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Device of the tensors that ranks exchange: the CPU, over Gloo; or a GPU, by default the one of gpu_of_rank
  /// (mesh/rank_device.h), over NCCL.
  at::Device device = at::kCPU;
  /// True if only this kind of device is acceptable. If false and some rank has no GPU of its own, all ranks use the
  /// CPU.
  bool require_device = true;
  /// The reason why this rank has no GPU, if other ranks may have one.
  std::string why_cpu = "";
  /// Called with the reason if the ranks use the CPU because some rank has no GPU.
  std::function<void(const std::string& why_cpu)> on_cpu_fallback = {};
};

/// Connects this process to the ranks that its launcher started; without a launcher it is the only rank. Throws as
/// read_rank_environment, gloo_transport and nccl_transport do, and a usage error if ranks insist on different kinds of
/// devices, or on the same GPU. With several ranks the process ignores SIGPIPE from now on: see gloo_transport.
std::unique_ptr<Transport> connect_ranks(const ConnectOptions& options = {});
std::unique_ptr<Transport> connect_ranks(const RankEnvironment& environment, const ConnectOptions& options = {});

/// The transport of a world of one rank: it has no connections.
std::unique_ptr<Transport> single_transport();

/// Runs `body` with the transport. If it throws, the other ranks receive the message before the exception is rethrown,
/// so that they end with it, too. All users of the transport should live inside `body`.
void run_connected(Transport& transport, const std::function<void()>& body);

/// Reports the error with which a program ends: on standard error or, if lehr launch started it, in the file for its
/// crash report, which the launcher shows once for all ranks.
void report_failure(const std::exception& problem);

/// Tells the other ranks and the launcher that a signal ends this rank immediately, because it was received before the
/// first step or (`second`) for the second time. For StopSignals::set_exit_callback. `transport` is null if the rank is
/// not connected yet. Takes some seconds at most.
void report_stop(Transport* transport, int signal, bool second);

}  // namespace lehr::mesh
