// What a child process writes: passed on line by line with a prefix, or kept until it is wanted.
#pragma once

#include <string>

namespace lehr::app {

/// A pipe from a child; nothing until it is opened.
class ChildOutput {
 public:
  ChildOutput() = default;
  ~ChildOutput();
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;

  /// Lines go to the file `target`, each behind `prefix`. Throws a runtime error if there is no pipe.
  void open_for(int target, const std::string& prefix);
  /// The last 16 KiB are kept.
  void open_to_keep();

  /// For the child; -1 if not open.
  int write_end() const { return write_end_; }
  int read_end() const { return read_end_; }
  void close_write_end();

  /// Takes what is there, without waiting.
  void forward();
  /// As forward, and the last line, though it has no end.
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
