// The one error that explains a failed or hung collective, from the reports of all ranks.
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <numeric>
#include <sstream>

#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/rank_reports.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::mesh {

namespace {
using Clock = CollectiveRecord::Clock;
using std::chrono::milliseconds;

const std::string kSilent = " is silent: dead or hung";
constexpr size_t kMostNamed = 8;  // ranks in one message

std::vector<std::string> shortened(std::vector<std::string> ranks) {
  if (ranks.size() > kMostNamed) {
    const size_t more = ranks.size() - kMostNamed;
    ranks.resize(kMostNamed);
    ranks.push_back(fmt::format("and {} more", more));
  }
  return ranks;
}
}  // namespace

// Returns what a rank did instead of joining a collective, from its report; nullopt if it joined.
std::optional<std::string> Watchdog::absence(
    const std::string& word, const std::string& group_key, const CollectiveRecord& missed) const {
  std::istringstream lines(word);
  std::string where;
  std::getline(lines, where);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    std::string key, last;
    int64_t started = 0, bytes = 0;
    parts >> key >> started >> last >> bytes;
    if (key != group_key || started < missed.number) {
      continue;
    }
    const bool uneven = last == "all_to_all";
    if (started == missed.number && (last != missed.name || (!uneven && bytes != missed.bytes))) {
      return fmt::format("called {} of {} bytes, not of {}, as this number", last, bytes, missed.bytes);
    }
    return std::nullopt;
  }
  return fmt::format("did not enter the collective; it {}", where);
}

// Returns the ranks of the world that are not among `ranks`; none in a large world, which would keep the store busy.
std::vector<int64_t> Watchdog::ranks_beside(const std::vector<int64_t>& ranks) const {
  constexpr int64_t kMostAsked = 512;
  std::vector<int64_t> others(static_cast<size_t>(options_.world_size <= kMostAsked ? options_.world_size : 0));
  std::iota(others.begin(), others.end(), int64_t{0});
  std::erase_if(others, [&](int64_t rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); });
  return others;
}

void Watchdog::explain(int64_t ticket, const std::vector<int64_t>& ranks, const std::string& problem) {
  explain(record_of(ticket), ranks, problem, /*of_device=*/false);
}

void Watchdog::explain(
    const CollectiveRecord& record, const std::vector<int64_t>& ranks, const std::string& problem, bool of_device) {
  const bool late = options_.timeout.count() > 0 && Clock::now() - record.start >= options_.timeout * 9 / 10;
  const std::string what = fmt::format(
      "{} (ranks {}) {}",
      record.describe(),
      fmt::join(ranks, ", "),
      late ? fmt::format("was not finished within {}", seconds_text(options_.timeout)) : "failed");
  std::string report;
  try {
    publish_where();
    store_.add(kAlarm, 1);
    const auto has_word = [&](int64_t rank) { return rank == options_.rank || store_.check(where_key(rank)); };
    // Absent ranks may wait for a rank of another group.
    const std::vector<int64_t> others = late ? ranks_beside(ranks) : std::vector<int64_t>();
    const auto all_have = [&](const std::vector<int64_t>& of) { return std::all_of(of.begin(), of.end(), has_word); };
    // A broken connection means that a rank is ending: its own message may follow.
    const auto deadline = Clock::now() + options_.patience;
    while (Clock::now() < deadline) {
      look_for_failure();
      check();
      if (late && all_have(ranks) && all_have(others)) {
        break;
      }
      std::this_thread::sleep_for(milliseconds(50));
    }
    std::vector<std::string> absent;
    for (const int64_t rank : others) {
      if (!has_word(rank)) {
        absent.push_back(called(rank) + kSilent);
      }
    }
    const std::string key = log_.groups().empty() ? "" : log_.groups()[record.group].key;
    for (const int64_t rank : ranks) {
      if (!has_word(rank)) {
        absent.push_back(called(rank) + kSilent);
      } else if (rank != options_.rank && record.number > 0) {
        if (const auto instead = absence(store_.get(where_key(rank)), key, record)) {
          absent.push_back(called(rank) + " " + *instead);
        }
      }
    }
    absent = shortened(std::move(absent));
    // A missing rank is a better explanation than a broken connection, but not than a device that failed.
    if (absent.empty() || (of_device && !late)) {
      absent.insert(absent.begin(), problem);
      report = fmt::format("{} on {}: {}", what, called(options_.rank), fmt::join(absent, "; "));
    } else {
      report = fmt::format("{}: {}", what, fmt::join(absent, "; "));
    }
    store_.run([report](c10d::Store& store) { publish_failure(store, -1, report); });
    look_for_failure();  // All ranks report the same failure: the first one.
  } catch (const PeerFailure&) {
    throw;
  } catch (const StoreTimeout& silence) {
    report = fmt::format("{}: {} (and {})", what, problem, silence.what());
  } catch (const std::exception&) {
    report = fmt::format("{}: {} (and {})", what, problem, kStoreGone);
  }
  check();
  {
    const std::lock_guard lock(mutex_);
    failure_.emplace(report, -1);  // set before a device that waits lets the host continue
  }
  options_.disconnect();
  throw PeerFailure(report, -1);
}

void Watchdog::expect_answers(c10d::Store& store, const std::string& what) {
  const auto reports = request_reports(store, options_.world_size, 2 * options_.patience + 4 * interval());
  std::vector<std::string> silent;
  for (int64_t rank = 0; rank < options_.world_size; ++rank) {
    if (!reports[static_cast<size_t>(rank)]) {
      silent.push_back(called(rank) + kSilent);
    }
  }
  if (silent.empty()) {
    return;
  }
  const std::string report = fmt::format("{}: {}", what, fmt::join(shortened(std::move(silent)), "; "));
  publish_failure(store, -1, report);
  throw PeerFailure(report, -1);
}

std::optional<int64_t> Watchdog::turn_to_ask(
    c10d::Store& store, const std::string& key, std::chrono::steady_clock::time_point start, int64_t& asked) const {
  const auto waited = std::chrono::steady_clock::now() - start;
  if (options_.timeout.count() == 0 || waited < (asked + 1) * options_.timeout ||
      store.add(fmt::format("{}/asked {}", key, ++asked), 1) != 1) {
    return std::nullopt;
  }
  return std::chrono::duration_cast<std::chrono::seconds>(waited).count();
}

}  // namespace lehr::mesh
