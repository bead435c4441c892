// mesh_ranks DO [RANK]: a program for launchers to start, whose ranks add numbers and, at step 20, perform DO:
//   run    nothing; the last line of each rank is the sum over all ranks
//   work   like run, for a minute; on SIGTERM to any rank, all stop together and exit with 143
//   early  like work, but the first step never begins: a signal ends a rank immediately
//   throw, usage, exit, kill, hang, leave   the action of RANK instead of its next collective
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/base/stop_signals.h"
#include "lehr/mesh/connect.h"
#include "lehr/mesh/distributed_context.h"

namespace {
using lehr::mesh::axis::dp_shard;

void misbehave(const std::string& what) {
  if (what == "throw") {
    lehr::fail_runtime("step 20: the disk is full");
  } else if (what == "usage") {
    lehr::fail("run.toml:3:1: training.steps: expected a positive number");
  } else if (what == "exit") {
    std::fputs("mesh_ranks: out of ideas\n", stderr);
    std::_Exit(7);
  } else if (what == "kill") {
    ::kill(::getpid(), SIGKILL);
  } else if (what == "hang") {
    std::this_thread::sleep_for(std::chrono::minutes(5));
  }
}

int run(const std::string& what, int64_t culprit) {
  lehr::StopSignals signals;
  at::set_num_threads(1);
  const bool hangs = what == "hang";
  const bool lasts = what == "work" || what == "early";
  const auto transport = lehr::mesh::connect_ranks({.timeout = std::chrono::seconds(hangs ? 2 : 60)});
  const lehr::ExitCallback telling(
      signals, [&](int signal, bool second) { lehr::mesh::report_stop(transport.get(), signal, second); });
  int stopped = 0;
  lehr::mesh::run_connected(*transport, [&] {
    lehr::mesh::DistributedContext context({.data_parallel_shard = transport->world_size()}, *transport);
    const auto& group = context.group(dp_shard);
    if (what != "early") {
      signals.defer();
    }
    at::Tensor sum;
    for (int64_t step = 0; step < (lasts ? 6000 : 40) && stopped == 0; ++step) {
      if (step == 20) {
        std::printf("rank %d at step 20\n", static_cast<int>(context.rank()));
        std::fflush(stdout);
        if (context.rank() == culprit) {
          if (what == "leave") {
            return;
          }
          misbehave(what);
        }
      }
      sum = at::full({1000}, 1.0 + static_cast<double>(context.rank()));
      group.all_reduce(sum);
      at::Tensor signal = at::full({1}, signals.received(), at::kLong);
      group.all_reduce_max(signal);
      stopped = static_cast<int>(signal.item<int64_t>());
      if (lasts) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    if (stopped != 0) {
      std::printf("rank %d saved\n", static_cast<int>(context.rank()));
    } else {
      std::printf(
          "rank %d of %d: sum %g\n",
          static_cast<int>(context.rank()),
          static_cast<int>(context.world_size()),
          sum[0].item<double>());
    }
    std::fflush(stdout);
  });
  return stopped == 0 ? 0 : 128 + stopped;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "run", argc > 2 ? std::stoll(argv[2]) : -1);
  } catch (const lehr::Error& error) {
    lehr::mesh::report_failure(error);
    return error.exit_code();
  } catch (const std::exception& error) {
    lehr::mesh::report_failure(error);
    return 1;
  }
}
