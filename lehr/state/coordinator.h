// How the ranks of a run agree about a checkpoint without collectives: a save goes on in a thread beside training,
// whose collectives it must not come between.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lehr::state {

/// Short texts between the ranks of a run. All ranks call the same functions with the same key; calls with different
/// keys may overlap, on different threads. Calls with one key must be in the same order on all ranks.
class Coordinator {
 public:
  /// What the main rank makes of the texts of all ranks, in their order.
  using Decision = std::function<std::string(const std::vector<std::string>& texts)>;

  virtual ~Coordinator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  bool is_main() const { return rank() == 0; }

  /// Every rank brings a text; all get what `decision`, which only the main rank calls, makes of them. What it throws
  /// is thrown on all ranks. Throws a runtime error that names the ranks that did not come in time.
  virtual std::string decide(const std::string& key, const std::string& mine, const Decision& decision) = 0;

  /// Lets calls that are under way or come later wait no longer than this: something else has gone wrong.
  virtual void hurry(std::chrono::milliseconds /*patience*/) noexcept {}

  /// All get what `make` gives on the main rank, or throw what it throws.
  std::string from_main(const std::string& key, const std::function<std::string()>& make);
  /// Runs `action` on every rank. If it throws on some, all throw one error: the first of these ranks is named, the
  /// others are counted. A rank that is alone throws what `action` threw.
  void all_succeed(const std::string& key, const std::function<void()>& action);
  /// The texts of all ranks, in their order.
  std::vector<std::string> exchange(const std::string& key, const std::string& mine);
};

/// A run of one rank: it agrees with itself.
class OneRank : public Coordinator {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string decide(const std::string& key, const std::string& mine, const Decision& decision) override;
};

/// A list of texts as one, and back.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& packed);

/// What a failure is to other ranks: a text that begins with one letter for its kind. `throw_failure` makes an error of
/// it again, with `subject` before its message.
std::string pack_failure(const std::exception& error);
[[noreturn]] void throw_failure(const std::string& packed, const std::string& subject = "");
/// Throws as Coordinator::all_succeed if some of the ranks' texts are packed failures; a text that begins with '+' is
/// none.
void throw_failures(const std::vector<std::string>& texts);

}  // namespace lehr::state
