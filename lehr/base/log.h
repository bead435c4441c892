// Logging for people, on standard error.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace lehr {

/// Writes lines with the time and, in a run with several ranks, the rank. Use one object per rank; it is thread-safe.
/// Messages look the same on a terminal and in a file, except for colour.
class Logger {
 public:
  /// `prefix` is part of every line, such as "[dp_shard 0, tp 1] "; empty for one rank. A quiet logger writes only
  /// warnings and errors; ranks other than the main one are quiet.
  explicit Logger(std::string prefix = "", bool quiet = false);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::info, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    write(Level::error, fmt::format(format, std::forward<Args>(args)...));
  }

  /// Writes the text without time or prefix; does nothing when quiet.
  void plain(const std::string& text);

  /// Shows a status line that is rewritten in place: on a terminal it is redrawn (at most ten times per second, cut to
  /// the width) below the other lines; elsewhere it is not shown.
  void live(const std::string& text);
  /// Removes the status line.
  void end_live();
  bool is_terminal() const;

 private:
  enum class Level { info, warn, error };
  void write(Level level, const std::string& text);
  struct State;
  std::unique_ptr<State> state_;
};

/// "1.23 M", "4.5 G": at most three digits and a decimal suffix.
std::string human_count(double value);
/// "4.5 GiB".
std::string human_bytes(double bytes);
/// "3m12s", "2h05m".
std::string human_seconds(double seconds);

}  // namespace lehr
