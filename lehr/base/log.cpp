#include "lehr/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "lehr/base/printable.h"

namespace lehr {

struct Logger::State {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> lines;
  bool quiet = false;
  bool terminal = false;
  std::string live;
  std::chrono::steady_clock::time_point drawn;

  void erase() const {
    if (!live.empty()) {
      std::fputs("\r\x1b[K", stderr);
    }
  }
  void draw() const {
    if (!live.empty()) {
      winsize size{};
      const size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1U : 100U;
      std::fputs(live.substr(0, width).c_str(), stderr);
      std::fflush(stderr);
    }
  }
};

Logger::Logger(std::string prefix, bool quiet) : state_(std::make_unique<State>()) {
  state_->quiet = quiet;
  state_->terminal = ::isatty(STDERR_FILENO) != 0;
  const char* const no_color = std::getenv("NO_COLOR");  // https://no-color.org
  const bool colors = no_color == nullptr || *no_color == '\0';
  state_->lines = std::make_shared<spdlog::logger>(
      "lehr",
      std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
          colors ? spdlog::color_mode::automatic : spdlog::color_mode::never));
  state_->lines->set_pattern(fmt::format("%H:%M:%S {}%^%v%$", prefix));
  state_->lines->flush_on(spdlog::level::info);
}

Logger::~Logger() {
  end_live();
}

bool Logger::is_terminal() const {
  return state_->terminal;
}

void Logger::write(Level level, const std::string& text) {
  const std::lock_guard lock(state_->mutex);
  if (state_->quiet && level == Level::info) {
    return;
  }
  state_->erase();
  switch (level) {
    case Level::info:
      state_->lines->info("{}", printable(text));
      break;
    case Level::warn:
      state_->lines->warn("warning: {}", printable(text));
      break;
    case Level::error:
      state_->lines->error("error: {}", printable(text));
      break;
  }
  state_->draw();
}

void Logger::plain(const std::string& text) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->quiet) {
    state_->erase();
    std::fputs((text + "\n").c_str(), stderr);
    state_->draw();
  }
}

void Logger::live(const std::string& text) {
  const std::lock_guard lock(state_->mutex);
  if (!state_->terminal || state_->quiet) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - state_->drawn < std::chrono::milliseconds(100)) {
    return;
  }
  state_->drawn = now;
  state_->erase();
  state_->live = text;
  state_->draw();
}

void Logger::end_live() {
  const std::lock_guard lock(state_->mutex);
  state_->erase();
  state_->live.clear();
}

std::string human_count(double value) {
  static constexpr std::array kSuffixes{"", " K", " M", " G", " T", " P", " E"};
  size_t suffix = 0;
  while (std::abs(value) >= 999.5 && suffix + 1 < kSuffixes.size()) {
    value /= 1000;
    ++suffix;
  }
  return fmt::format("{:.3g}{}", value, kSuffixes.at(suffix));
}

std::string human_bytes(double bytes) {
  static constexpr std::array kSuffixes{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t suffix = 0;
  while (std::abs(bytes) >= 1000 && suffix + 1 < kSuffixes.size()) {
    bytes /= 1024;
    ++suffix;
  }
  return fmt::format("{:.3g} {}", bytes, kSuffixes.at(suffix));
}

std::string human_seconds(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 60) {
    return fmt::format("{}s", whole);
  }
  if (whole < 3600) {
    return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  }
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace lehr
