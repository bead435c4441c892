#include "lehr/app/child_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "lehr/app/child_output.h"
#include "lehr/app/launch_places.h"
#include "lehr/app/process_group.h"
#include "lehr/app/start_program.h"
#include "lehr/base/error.h"
#include "lehr/base/stop_signals.h"
#include "lehr/base/usable_cores.h"
#include "lehr/base/value_of.h"
#include "lehr/memory/granted_memory.h"
#include "lehr/mesh/launched_ranks.h"
#include "lehr/mesh/rank_environment.h"

namespace lehr::app {

namespace {
// Writes to stderr. Unlike fmt::print it does not throw if the terminal has gone, while ranks still save.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  std::fputs(fmt::format(format, std::forward<Args>(args)...).c_str(), stderr);
}

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// After the first failure: the time for the others to write their crash reports, and between SIGTERM and SIGKILL.
constexpr seconds kCrashReportTime{4};
constexpr seconds kTermTime{2};
// After a rank stopped because of a signal to it alone: the time for the others to save and stop.
constexpr seconds kStopTime{120};
// After a signal ended a script: the time for what it started to save.
constexpr seconds kSaveTime{600};

struct Child {
  pid_t pid = 0;
  std::optional<int> leader;  // from waitpid, once the process has ended
  std::optional<int> status;  // the same, once nothing that it started saves any more
  ChildOutput out, err;
};

bool is_stop(int status) {
  const int signal = WIFEXITED(status) ? WEXITSTATUS(status) - 128 : 0;
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const char* const name = sigabbrev_np(WTERMSIG(status));
    return fmt::format("was killed by signal {} (SIG{})", WTERMSIG(status), name == nullptr ? "?" : name);
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

class ChildRanks {
 public:
  ChildRanks(
      const ChildRanksOptions& options,
      const LaunchPlaces& places,
      const sigset_t& signals,
      const sigset_t& childrens_mask)
      : options_(options),
        places_(places),
        childrens_mask_(childrens_mask),
        signals_(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC)),
        launched_(options.ranks),
        children_(static_cast<size_t>(options.ranks)) {
    std::string folder = (std::filesystem::temp_directory_path() / "lehr-launch-XXXXXX").string();
    if (signals_ < 0 || ::mkdtemp(folder.data()) == nullptr) {
      fail_runtime("lehr launch: {}: {}", folder, std::strerror(errno));
    }
    folder_ = folder;
  }

  ~ChildRanks() {
    end_all(SIGKILL);
    for (Child& child : children_) {
      if (child.pid > 0 && !child.leader) {
        ::waitpid(child.pid, nullptr, 0);
      }
    }
    ::close(signals_);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  int run() {
    for (int64_t rank = 0; rank < options_.ranks; ++rank) {
      start(rank);
    }
    while (std::any_of(children_.begin(), children_.end(), [](const Child& child) { return !child.status; })) {
      wait_for_news();
      answer_signals();
      for (Child& child : children_) {
        child.out.forward();
        child.err.forward();
      }
      if (deadline_ && Clock::now() > *deadline_) {
        end_all(termed_ ? SIGKILL : SIGTERM);
        termed_ = true;
        deadline_ = Clock::now() + kTermTime;
      }
    }
    for (Child& child : children_) {
      child.out.finish();
      child.err.finish();
    }
    if (failed_ && !cause_) {
      report(*failed_);  // All ranks blame another one: report the first failure.
    }
    const auto status = decisive_status();
    return status ? exit_code_of(*status) : stopped_;
  }

  // The rank that failed without blaming another one.
  std::optional<int64_t> cause() const { return cause_ ? std::optional(static_cast<int64_t>(*cause_)) : std::nullopt; }

  // True after a failure that a restart may not repeat: not after a stop by a signal, nor if the program says that its
  // input is wrong or that it has a bug.
  bool may_restart() const {
    const auto status = decisive_status();
    if (!status || !passed_on_.empty()) {
      return false;
    }
    const int code = exit_code_of(*status);
    return code != Error(ErrorKind::usage, "").exit_code() && code != Error(ErrorKind::bug, "").exit_code();
  }

 private:
  // The wait status of the rank whose failure counts for all: the cause if it is known, else the first that failed.
  std::optional<int> decisive_status() const {
    const auto decisive = cause_ ? cause_ : failed_;
    return decisive ? children_[*decisive].status : std::nullopt;
  }

  std::string words_file(size_t rank) const { return fmt::format("{}/rank-{}", folder_.string(), rank); }

  std::vector<std::string> environment_of(int64_t rank) const {
    mesh::Variables variables = mesh::environment_variables();
    for (const auto& [name, value] : launched_.variables(rank)) {
      variables[name] = value;
    }
    variables[mesh::kCrashReportVariable] = fmt::format("{}:{}", ::getpid(), words_file(static_cast<size_t>(rank)));
    constexpr const char* kDevices = "CUDA_VISIBLE_DEVICES";
    const auto present = variables.find(kDevices);
    const auto* const list = present == variables.end() ? nullptr : &present->second;
    if (const std::string devices = places_.visible_devices(options_.ranks, list); !devices.empty()) {
      variables[kDevices] = devices;
    }
    const auto threads = static_cast<int64_t>(usable_cores() / static_cast<double>(options_.ranks));
    variables.try_emplace("OMP_NUM_THREADS", std::to_string(std::max<int64_t>(threads, 1)));
    std::vector<std::string> result;
    for (const auto& [name, value] : variables) {
      result.push_back(name + "=" + value);
    }
    return result;
  }

  void start(int64_t rank) {
    Child& child = children_[static_cast<size_t>(rank)];
    const std::string prefix = options_.all_output ? fmt::format("[rank {}] ", rank) : "";
    if (options_.all_output) {
      child.out.open_for(STDOUT_FILENO, prefix);
      child.err.open_for(STDERR_FILENO, prefix);
    } else if (rank > 0) {
      child.err.open_to_keep();
    }
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    const int out = options_.all_output ? child.out.write_end() : rank > 0 ? nothing : STDOUT_FILENO;
    const int err = options_.all_output || rank > 0 ? child.err.write_end() : STDERR_FILENO;
    child.pid = start_program(
        {.path = options_.program,
         .args = options_.args,
         .variables = environment_of(rank),
         .in = nothing,
         .out = out,
         .err = err,
         .mask = childrens_mask_});
    ::close(nothing);
    child.out.close_write_end();
    child.err.close_write_end();
  }

  void wait_for_news() const {
    std::vector<pollfd> files{{.fd = signals_, .events = POLLIN, .revents = 0}};
    for (const Child& child : children_) {
      for (const ChildOutput* const output : {&child.out, &child.err}) {
        if (output->read_end() >= 0) {
          files.push_back({.fd = output->read_end(), .events = POLLIN, .revents = 0});
        }
      }
    }
    ::poll(files.data(), files.size(), 200);
  }

  void answer_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGUSR1) {
        tell_where_ranks_are();
      } else if (signal != SIGCHLD) {
        stopped_ = 128 + signal;
        hurried_ = !passed_on_.empty();
        passed_on_.insert(signal);
        end_all(signal);
      }
    }
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      if (!child.leader && ::waitpid(child.pid, &status, WNOHANG) > 0) {
        child.leader = status;
      }
      if (!child.leader || child.status) {
        continue;
      }
      // A shell script ends by the signal at once, while the program that it runs still saves.
      if (!passed_on_.empty() && !hurried_ && may_still_save(child.pid, *passed_on_.begin())) {
        deadline_ = deadline_.value_or(Clock::now() + kSaveTime);
        continue;
      }
      child.status = child.leader;
      ended(rank, *child.status);
    }
  }

  void tell_where_ranks_are() {
    try {
      const auto reports = launched_.reports();
      for (size_t rank = 0; rank < reports.size(); ++rank) {
        const std::string silent = children_[rank].status ? "has ended" : "is silent: stopped, hung, or not connected";
        say("lehr launch: rank {} {}\n", rank, reports[rank].value_or(silent));
      }
    } catch (const std::exception& problem) {
      say("lehr launch: cannot ask the ranks: {}\n", problem.what());
    }
  }

  void ended(size_t rank, int status) {
    children_[rank].err.forward();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      return;
    }
    const auto words = mesh::read_crash_report(words_file(rank));
    // The rank was stopped before it could save: the others cannot continue.
    const bool at_once = is_stop(status) && words && !words->consequence;
    // A rank that ends by the forwarded signal has not failed.
    if (!passed_on_.empty() && (is_stop(status) || (WIFSIGNALED(status) && passed_on_.contains(WTERMSIG(status))))) {
      stopped_at_once_ = stopped_at_once_ || at_once;
      return;
    }
    // It ends only because another rank was stopped before that one could save.
    if (stopped_at_once_ && words && words->consequence) {
      return;
    }
    // It has saved after a signal to it alone; the other ranks do so too.
    if (is_stop(status) && !at_once && !failed_) {
      stopped_ = WEXITSTATUS(status);
      deadline_ = deadline_.value_or(Clock::now() + kStopTime);
      return;
    }
    if (!failed_) {
      failed_ = rank;
      deadline_ = Clock::now() + kCrashReportTime;
    }
    // The first failure that is not the consequence of another one is the cause; the store passes it to all ranks.
    if (!cause_ && !termed_ && !(words && words->consequence)) {
      cause_ = rank;
      launched_.tell_failure(static_cast<int64_t>(rank), words ? words->message : how_it_ended(status));
      report(rank);
    }
  }

  // Prints how a rank ended, with its crash report, or the end of its output if it left none.
  void report(size_t rank) const {
    const Child& child = children_[rank];
    const auto words = mesh::read_crash_report(words_file(rank));
    std::string text = words ? words->message + "\n" : child.err.kept();
    if (words && !words->consequence) {
      text = fmt::format("rank {}: {}", rank, text);
    } else if (!text.empty() && !words) {
      text = fmt::format("end of the output of rank {}:\n{}", rank, text);
    }
    const int status = value_of(child.status, "status");
    say("{}lehr launch: rank {} {}\n", text, rank, how_it_ended(status));
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && memory_kills() > memory_kills_before_) {
      say("lehr launch: the kernel of this machine (OOM killer) has killed a process for lack of memory, possibly this rank "
          "(dmesg shows which): use fewer ranks per machine, a smaller training.local_batch_size, or activation "
          "checkpointing; lehr plan says what fits\n");
    }
  }

  void end_all(int signal) {
    for (const Child& child : children_) {
      if (child.pid > 0 && !child.status) {
        ::kill(-child.pid, signal);
      }
    }
  }

  const ChildRanksOptions& options_;
  const LaunchPlaces& places_;
  sigset_t childrens_mask_;
  int signals_ = -1;
  int64_t memory_kills_before_ = memory_kills();
  mesh::LaunchedRanks launched_;
  std::vector<Child> children_;
  std::filesystem::path folder_;
  std::optional<Clock::time_point> deadline_;  // then the remaining ranks get SIGTERM, and later SIGKILL
  std::optional<size_t> failed_;               // the first rank that ended with a failure
  std::optional<size_t> cause_;                // the first that did so without blaming another
  bool termed_ = false;                        // SIGTERM was sent at the deadline
  std::set<int> passed_on_;                    // the signals that were forwarded
  bool hurried_ = false;                       // more than one was
  int stopped_ = 0;                            // 128 + the signal that stopped the ranks
  bool stopped_at_once_ = false;               // a rank was stopped before it could save
};

// Leaves a rank out of the next start if it is the cause of two failures. Returns false if the launch cannot continue.
bool leave_out(std::optional<int64_t> cause, const ChildRanksOptions& options, LaunchPlaces& places, FewerRanks& next) {
  if (!options.fewer_ranks || !cause || !places.failed(*cause)) {
    return true;
  }
  try {
    next = options.fewer_ranks(places.left());
  } catch (const Error& error) {
    say("lehr launch: rank {} failed twice and is left out; {}\n", *cause, error.what());
    return false;
  }
  say("lehr launch: rank {} failed twice and is left out; the run continues with {} ranks\n", *cause, next.ranks);
  return true;
}
}  // namespace

int run_child_ranks(const ChildRanksOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // ranks save even if the reader of their output has gone
  std::signal(SIGCHLD, SIG_DFL);  // ignored, it would hide how the ranks end
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
    sigaddset(&signals, signal);
  }
  if (!is_ignored(SIGHUP)) {  // as after nohup
    sigaddset(&signals, SIGHUP);
  }
  // Blocked before the store starts its threads, because they inherit the mask.
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  LaunchPlaces places(options.ranks);
  FewerRanks current{.ranks = options.ranks};
  for (int64_t restart = 1;; ++restart) {
    ChildRanksOptions start = options;
    start.ranks = current.ranks;
    start.args.insert(start.args.end(), current.args.begin(), current.args.end());
    ChildRanks ranks(start, places, signals, before);
    const int code = ranks.run();
    if (code == 0 || restart > options.restarts || !ranks.may_restart() ||
        !leave_out(ranks.cause(), options, places, current)) {
      return code;
    }
    say("lehr launch: starting all ranks again, restart {} of {}\n", restart, options.restarts);
  }
}

}  // namespace lehr::app
