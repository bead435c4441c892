// How a program becomes one of several ranks, and how it ends as one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "lehr/mesh/rank_environment.h"
#include "lehr/mesh/transport.h"

namespace lehr::mesh {

struct ConnectOptions {
  /// How long all ranks may take to come, at the start and when a group is connected.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// How long a collective may take before it is given up and explained.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Where the tensors are that ranks exchange: host memory, carried by Gloo; or a GPU, by default the one that the
  /// rank's number on its machine names, carried by NCCL.
  at::Device device = at::kCPU;
};

/// Connects this process to the ranks that its launcher started; alone where nobody started it. Throws as
/// read_rank_environment, gloo_transport and nccl_transport do, and a usage error if the ranks want different kinds of
/// devices. Among several ranks the process ignores SIGPIPE from now on, as gloo_transport says.
std::unique_ptr<Transport> connect_ranks(const ConnectOptions& options = {});
std::unique_ptr<Transport> connect_ranks(const RankEnvironment& environment, const ConnectOptions& options = {});

/// The transport of a world of one: it connects nobody.
std::unique_ptr<Transport> single_transport();

/// Runs `body` with the transport. If it throws, the other ranks are told why before the exception goes on, so that
/// they end with this message, too. Everything that uses the transport should live inside of `body`.
void run_connected(Transport& transport, const std::function<void()>& body);

/// What a program says that ends with an error: on standard error, or, where lehr launch started it, in the file for
/// its last words, which the launcher shows once for all ranks.
void report_failure(const std::exception& problem);

/// Tells the other ranks and the launcher that a signal ends this rank at once, because it came before the first step
/// or (`second`) for the second time. For StopSignals::set_last_act; null: not connected yet. Takes some seconds at
/// most.
void report_stop(Transport* transport, int signal, bool second);

}  // namespace lehr::mesh
