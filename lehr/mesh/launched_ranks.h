// Conventions between a launcher on this machine and the ranks that it starts: the store that it keeps for them, their
// environment, and the files for their crash reports.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lehr::mesh {

/// "PID:FILE": the file where a child of process PID leaves its crash report. It does not apply to that child's own
/// children.
inline constexpr const char* kCrashReportVariable = "LEHR_CRASH_REPORT";

/// The run id of torchrun's variables by which a rank recognizes that lehr launch set them.
inline constexpr const char* kLaunchRunId = "lehr-launch";

/// The error with which a rank ended.
struct CrashReport {
  std::string message = "";
  bool consequence = false;  ///< Another rank was the cause.
};
/// Returns false if the file cannot be written.
bool write_crash_report(const std::string& path, const CrashReport& report);
/// The file that this process's crash report belongs to; empty if lehr launch did not start it.
std::string crash_report_file();
/// Returns nullopt if the rank left none.
std::optional<CrashReport> read_crash_report(const std::string& path);

/// The ranks' store, kept by their launcher, so that it survives the death of any rank.
class LaunchedRanks {
 public:
  /// Opens the store on a free port of this machine. Throws a runtime error if there is none.
  explicit LaunchedRanks(int64_t world_size);
  ~LaunchedRanks();

  /// torchrun's variables for one rank.
  std::map<std::string, std::string> variables(int64_t rank) const;
  /// Makes the collectives of the other ranks fail, with this message about `rank`.
  void tell_failure(int64_t rank, const std::string& message) noexcept;
  /// Returns what each rank does right now, by rank; nullopt for a rank that does not answer within three seconds.
  std::vector<std::optional<std::string>> reports();

 private:
  struct State;
  std::unique_ptr<State> state_;
  int64_t world_size_;
};

}  // namespace lehr::mesh
