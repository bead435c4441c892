// What a launcher on this machine and the ranks that it starts agree on: the store that it keeps for them, their
// environment, and the files for their last words.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace lehr::mesh {

/// "PID:FILE": where a child of the process PID leaves its last words; not what that child starts in turn.
inline constexpr const char* kLastWordsVariable = "LEHR_LAST_WORDS";

/// The run id of torchrun's variables, by which a rank knows that lehr launch set them.
inline constexpr const char* kLaunchRunId = "lehr-launch";

/// What a rank ended with.
struct LastWords {
  std::string message = "";
  bool consequence = false;  ///< Another rank was the cause.
};
/// False if the file cannot be written.
bool write_last_words(const std::string& path, const LastWords& words);
/// The file that this process's last words belong to; empty if lehr launch did not start it.
std::string last_words_file();
/// Nothing if the rank left none.
std::optional<LastWords> read_last_words(const std::string& path);

/// The store of the ranks, kept by their launcher, so that no rank's death takes it along.
class LaunchedRanks {
 public:
  /// On a free port of this machine. Throws a runtime error if there is none.
  explicit LaunchedRanks(int64_t world_size);
  ~LaunchedRanks();

  /// torchrun's variables for one rank.
  std::map<std::string, std::string> variables(int64_t rank) const;
  /// Lets the collectives of the other ranks fail, with this message about `rank`.
  void tell_failure(int64_t rank, const std::string& message) noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t world_size_;
};

}  // namespace lehr::mesh
