#include "lehr/train/store_coordinator.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <limits>
#include <thread>

#include "lehr/base/error.h"
#include "lehr/mesh/distributed_context.h"
#include "lehr/mesh/watchdog.h"

namespace lehr::train {

namespace {
// The first character distinguishes a decision from a failure.
constexpr char kDecided = '+';
}  // namespace

StoreCoordinator::StoreCoordinator(mesh::Transport& transport, std::string name, std::chrono::milliseconds patience)
    : transport_(transport),
      store_(transport.store()),
      name_(std::move(name)),
      rank_(transport.rank()),
      world_size_(transport.world_size()),
      patience_(patience),
      latest_(std::numeric_limits<Clock::rep>::max()) {
  // All ranks construct theirs in the same order, so they agree on the number.
  const int64_t number = store_->add(fmt::format("{}/made by {}", name_, rank_), 1);
  prefix_ = fmt::format("{}/{}", name_, number);
}

StoreCoordinator::~StoreCoordinator() = default;

void StoreCoordinator::set(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

// Waits for the text of a key and returns it.
std::string StoreCoordinator::get(const std::string& key, const std::string& what, Clock::time_point start) {
  auto pause = std::chrono::milliseconds(1);
  mesh::Watchdog* const watch = transport_.watch();
  const auto limit = watch != nullptr ? watch->timeout() : std::chrono::milliseconds::zero();
  int64_t asked = limit.count() > 0 ? (Clock::now() - start) / limit : 0;  // `start` may be that of earlier answers
  while (!store_->check({key})) {
    transport_.check();
    const auto now = Clock::now();
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - start);
    if (now - start >= patience_ || now.time_since_epoch().count() >= latest_) {
      fail_runtime("{}: no answer from {} within {} s; did the process end?", name_, what, waited.count());
    }
    // A slow disk may take longer than a collective, so a late rank is no failure as long as it answers.
    if (const auto seconds = watch != nullptr ? watch->turn_to_ask(*store_, key, start, asked) : std::nullopt) {
      watch->expect_answers(*store_, fmt::format("{}: no answer from {} within {} s", name_, what, *seconds));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
  const auto bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

std::string StoreCoordinator::decide(const std::string& key, const std::string& mine, const Decision& decision) {
  int64_t call = 0;
  {
    const std::lock_guard lock(mutex_);
    call = calls_[key]++;
  }
  const auto base = [&](int64_t number) { return fmt::format("{}/{}/{}", prefix_, key, number); };
  const auto of_rank = [&](int64_t rank) { return fmt::format("{}/{}", base(call), rank); };
  const auto start = Clock::now();
  if (!is_main()) {
    set(of_rank(rank_), mine);
    const std::string decided = get(base(call), fmt::format("rank 0 ({})", key), start);
    if (decided.front() != kDecided) {
      state::throw_failure(decided);
    }
    return decided.substr(1);
  }
  try {
    std::vector<std::string> texts{mine};
    for (int64_t rank = 1; rank < world_size_; ++rank) {
      texts.push_back(get(of_rank(rank), fmt::format("rank {} ({})", rank, key), start));
    }
    for (int64_t rank = 1; rank < world_size_; ++rank) {
      store_->deleteKey(of_rank(rank));
    }
    if (call > 0) {
      store_->deleteKey(base(call - 1));  // all ranks have read it, otherwise they would not be in this call
    }
    const std::string decided = decision(texts);
    set(base(call), kDecided + decided);
    return decided;
  } catch (const std::exception& error) {
    set(base(call), state::pack_failure(error));
    throw;
  }
}

void StoreCoordinator::hurry(std::chrono::milliseconds patience) noexcept {
  latest_ = (Clock::now() + patience).time_since_epoch().count();
}

std::shared_ptr<state::Coordinator> make_coordinator(mesh::DistributedContext* mesh, const std::string& name) {
  if (mesh == nullptr || !mesh->is_distributed()) {
    return std::make_shared<state::OneRank>();
  }
  return std::make_shared<StoreCoordinator>(mesh->transport(), name);
}

}  // namespace lehr::train
