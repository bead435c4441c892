// The output of a child process: forwarded line by line with a prefix, or kept for a report.
#pragma once

#include <string>

namespace lehr::app {

/// A pipe from a child process, which is closed until one of the open functions is called.
class ChildOutput {
 public:
  ChildOutput() = default;
  ~ChildOutput();
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;

  /// Lines are written to the file descriptor `target`, each after `prefix`. Throws a runtime error if the pipe cannot
  /// be created.
  void open_for(int target, const std::string& prefix);
  /// At least the last 16 KiB are kept for kept(). Throws as open_for.
  void open_to_keep();

  /// The end for the child; -1 if not open.
  int write_end() const { return write_end_; }
  int read_end() const { return read_end_; }
  void close_write_end();

  /// Reads the available output without waiting, and writes its complete lines.
  void forward();
  /// As forward, and writes an incomplete last line.
  void finish();
  std::string kept() const { return target_ < 0 ? text_ : ""; }

 private:
  void open_pipe();
  void close_read_end();

  int target_ = -1;
  int read_end_ = -1, write_end_ = -1;
  std::string prefix_;
  std::string text_;
};

}  // namespace lehr::app
