#include "lehr/app/stop_notice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "lehr/base/printable.h"

namespace lehr::app {

void StopNotice::listen(bool tells) {
  tells_ = tells;
  signals_.emplace();
  signals_->set_exit_callback([this](int signal, bool) { tell(signal); });
}

void StopNotice::set(std::string kept) {
  const std::lock_guard lock(mutex_);
  kept_ = std::move(kept);
}

void StopNotice::defer(bool deferred) {
  if (signals_) {
    signals_->defer(deferred);
  }
}

int StopNotice::received() const {
  return signals_ ? signals_->received() : 0;
}

void StopNotice::stop_if_asked() const {
  if (const int signal = received()) {
    throw Stopped(signal);
  }
}

void StopNotice::tell(int signal) const {
  if (!tells_) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const std::string line = fmt::format(
      "{}lehr {}: stopped by {} {}\n",
      ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "",  // in place of the status line
      command_,
      signal == SIGINT   ? "Ctrl-C"
      : signal == SIGHUP ? "SIGHUP"
                         : "SIGTERM",
      printable(kept_));
  std::fputs(line.c_str(), stderr);  // unlike fmt::print it does not throw if the terminal has gone
}

int write_or_stop(
    const std::string& command,
    const std::string& folder,
    const std::function<void(const std::function<void()>& stop_if_asked)>& write) {
  StopNotice notice(command, fmt::format("for the second time; {} was not written", folder));
  notice.listen();
  notice.defer();
  try {
    write([&] { notice.stop_if_asked(); });
  } catch (const Stopped& stopped) {
    notice.set(fmt::format("before {} was complete; nothing was written", folder));
    notice.tell(stopped.exit_code() - 128);
    return stopped.exit_code();
  }
  return 0;
}

std::string command_line_of(const std::string& command, const std::vector<std::string>& args) {
  std::string line = "lehr " + command;
  for (const std::string& arg : args) {
    const bool plain = !arg.empty() && arg.find_first_not_of(
                                           "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                           "-_=./,:+@%") == std::string::npos;
    std::string word = plain ? arg : "'";
    if (!plain) {
      for (const char c : arg) {
        word += c == '\'' ? std::string("'\\''") : std::string(1, c);
      }
      word += "'";
    }
    line += " " + word;
  }
  return line;
}

}  // namespace lehr::app
