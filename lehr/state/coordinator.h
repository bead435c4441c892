// Agreement of the ranks of a run about a checkpoint without collectives, because a save runs in a thread concurrent
// with training, and must not interleave with its collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace lehr::state {

/// Exchanges short texts between the ranks of a run. All ranks call the same functions with the same key. Calls with
/// different keys may overlap, on different threads; calls with one key must have the same order on all ranks.
class Coordinator {
 public:
  /// Computes the main rank's decision from the texts of all ranks, in rank order.
  using Decision = std::function<std::string(const std::vector<std::string>& texts)>;

  virtual ~Coordinator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
  bool is_main() const { return rank() == 0; }

  /// Gathers a text from every rank. The main rank alone calls `decision` on them, and all ranks return its result; an
  /// exception of it is thrown on all ranks. Throws a runtime error that names the ranks that did not call in time.
  virtual std::string decide(const std::string& key, const std::string& mine, const Decision& decision) = 0;

  /// Limits the time that current and later calls wait, because of a failure elsewhere.
  virtual void hurry(std::chrono::milliseconds /*patience*/) noexcept {}

  /// Calls `make` on the main rank and returns its result, or throws its exception, on all ranks.
  std::string from_main(const std::string& key, const std::function<std::string()>& make);
  /// Runs `action` on every rank. If it throws on any rank, all ranks throw one error that names the first failed rank
  /// and counts the others. With a single rank the exception of `action` is thrown unchanged.
  void all_succeed(const std::string& key, const std::function<void()>& action);
  /// Returns the texts of all ranks, in rank order.
  std::vector<std::string> exchange(const std::string& key, const std::string& mine);
};

/// The coordinator of a run of one rank.
class OneRank : public Coordinator {
 public:
  int64_t rank() const override { return 0; }
  int64_t world_size() const override { return 1; }
  std::string decide(const std::string& key, const std::string& mine, const Decision& decision) override;
};

/// Packs a list of texts into one text, and back.
std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(const std::string& packed);

/// Packs an exception into a text for other ranks; its first letter is the kind of error. `throw_failure` throws the
/// error again, with `subject` in front of its message.
std::string pack_failure(const std::exception& error);
[[noreturn]] void throw_failure(const std::string& packed, const std::string& subject = "");
/// Throws like Coordinator::all_succeed if any of the ranks' texts is a packed failure. Texts that begin with '+' are
/// not failures.
void throw_failures(const std::vector<std::string>& texts);

}  // namespace lehr::state
