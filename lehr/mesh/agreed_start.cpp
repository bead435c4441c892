#include "lehr/mesh/agreed_start.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <random>

#include "lehr/base/error.h"
#include "lehr/mesh/exception_text.h"
#include "lehr/mesh/wait_until.h"

namespace lehr::mesh {

namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

const std::string kName = "start/name";

std::string answer_key(const std::string& name, int64_t rank) {
  return fmt::format("start/{}/answer/{}", name, rank);
}

std::string confirmation_key(const std::string& name, int64_t rank) {
  return fmt::format("start/{}/confirmed/{}", name, rank);
}

std::string random_text() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// The ranks but 0 that have not answered to this name.
std::vector<int64_t> without_answer(c10d::Store& store, const std::string& name, int64_t world_size) {
  std::vector<int64_t> absent;
  for (int64_t rank = 1; rank < world_size; ++rank) {
    if (!store.check({answer_key(name, rank)})) {
      absent.push_back(rank);
    }
  }
  return absent;
}
}  // namespace

std::string absent_ranks_text(
    int64_t rank,
    const std::vector<int64_t>& absent,
    int64_t world_size,
    const std::string& place,
    milliseconds limit) {
  return fmt::format(
      "rank {}: rank{} {} of {} did not reach {} within {}",
      rank,
      absent.size() == 1 ? "" : "s",
      fmt::join(absent, ", "),
      world_size,
      place,
      seconds_text(limit));
}

std::string agree_on_start(c10d::Store& store, int64_t rank, int64_t world_size, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  const std::string own = random_text();
  std::string name;
  const auto give_up = [&] {
    std::vector<int64_t> absent = name.empty() ? std::vector<int64_t>{} : without_answer(store, name, world_size);
    if (absent.empty()) {
      absent = {0};  // all others have answered to a name of which rank 0 is gone
    }
    throw Error(ErrorKind::runtime, absent_ranks_text(rank, absent, world_size, "the start", limit));
  };

  if (rank == 0) {
    name = own;
    store.set(kName, name);
    std::vector<std::string> answers;
    for (int64_t other = 1; other < world_size; ++other) {
      answers.push_back(answer_key(name, other));
    }
    if (!wait_until(deadline, [&] { return answers.empty() || store.check(answers); })) {
      give_up();
    }
    for (int64_t other = 1; other < world_size; ++other) {
      store.set(confirmation_key(name, other), store.get_to_str(answer_key(name, other)));
    }
    return name + "/";
  }

  const bool confirmed = wait_until(deadline, [&] {
    if (!store.check({kName})) {
      return false;
    }
    const std::string latest = store.get_to_str(kName);
    if (latest != name) {
      name = latest;
      store.set(answer_key(name, rank), own);
    }
    const std::string key = confirmation_key(name, rank);
    return store.check({key}) && store.get_to_str(key) == own;
  });
  if (!confirmed) {
    give_up();
  }
  return name + "/";
}

}  // namespace lehr::mesh
