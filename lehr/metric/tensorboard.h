// Writer of TensorBoard event files: scalars, text and images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lehr::metric {

/// One event file in a folder. Every event is a single write, so that a concurrent TensorBoard sees whole events.
class TensorBoardWriter {
 public:
  /// Creates `folder` and a new event file in it. A run that resumes passes the first step that it will write again:
  /// TensorBoard then drops events of earlier files from that step on. Throws a runtime error if the file cannot be
  /// written.
  explicit TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> purge_from_step = {});
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  void scalar(int64_t step, std::string_view tag, double value);
  /// Writes several scalars as one event. TensorBoard stores them as float32.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  /// Writes text, which TensorBoard renders as Markdown.
  void text(int64_t step, std::string_view tag, std::string_view markdown);
  /// Writes an image. `png` is a whole PNG file; its size is read from its header. Throws a usage error if it is not a
  /// PNG.
  void image(int64_t step, std::string_view tag, std::string_view png);

  const std::filesystem::path& path() const { return path_; }
  /// Returns the reason of the last failed write; empty if all succeeded.
  const std::string& problem() const { return problem_; }

 private:
  void write_summary(int64_t step, const std::string& summary);
  void write_record(const std::string& encoded);

  std::string problem_;
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace lehr::metric
