#include "lehr/mesh/launched_ranks.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "lehr/base/error.h"
#include "lehr/mesh/rank_reports.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::mesh {

bool write_crash_report(const std::string& path, const CrashReport& report) {
  std::ofstream file(path);
  file << (report.consequence ? "consequence" : "cause") << '\n' << report.message;
  file.close();
  return file.good();
}

std::string crash_report_file() {
  const char* const value = std::getenv(kCrashReportVariable);
  const std::string text = value == nullptr ? "" : value;
  const std::string parent = std::to_string(::getppid()) + ":";
  return text.starts_with(parent) ? text.substr(parent.size()) : "";
}

std::optional<CrashReport> read_crash_report(const std::string& path) {
  std::ifstream file(path);
  std::string kind;
  if (!std::getline(file, kind)) {
    return std::nullopt;
  }
  std::ostringstream message;
  message << file.rdbuf();
  return CrashReport{.message = message.str(), .consequence = kind == "consequence"};
}

struct LaunchedRanks::State {
  c10::intrusive_ptr<c10d::TCPStore> server;
  c10::intrusive_ptr<c10d::Store> ranks;  // the ranks' view, with their key prefix
};

LaunchedRanks::LaunchedRanks(int64_t world_size) : state_(std::make_unique<State>()), world_size_(world_size) {
  c10d::TCPStoreOptions options;
  options.port = 0;  // any free port
  options.isServer = true;
  options.waitWorkers = false;
  try {
    state_->server = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& problem) {
    fail_runtime("lehr launch: cannot keep the ranks' store: {}", problem.what());
  }
  state_->ranks = c10::make_intrusive<c10d::PrefixStore>("lehr", state_->server);
}

LaunchedRanks::~LaunchedRanks() = default;

std::map<std::string, std::string> LaunchedRanks::variables(int64_t rank) const {
  return {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(world_size_)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(world_size_)},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(state_->server->getPort())},
      {"TORCHELASTIC_RUN_ID", kLaunchRunId},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

std::vector<std::optional<std::string>> LaunchedRanks::reports() {
  return request_reports(*state_->ranks, world_size_, std::chrono::seconds(3));
}

void LaunchedRanks::tell_failure(int64_t rank, const std::string& message) noexcept {
  try {
    publish_failure(*state_->ranks, rank, message);
  } catch (const std::exception&) {
    // The ranks notice by their broken connections.
  }
}

}  // namespace lehr::mesh
