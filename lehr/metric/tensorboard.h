// Writes event files that TensorBoard reads: scalars, text and images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lehr::metric {

/// One event file in a folder. Every call is one write, so that a TensorBoard that looks on sees whole events.
class TensorBoardWriter {
 public:
  /// Makes `folder` and a new event file in it. A run that resumes gives the first step that it will write again:
  /// TensorBoard then drops what earlier files hold from that step on. Throws a runtime error when it cannot write.
  explicit TensorBoardWriter(const std::filesystem::path& folder, std::optional<int64_t> purge_from_step = {});
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  void scalar(int64_t step, std::string_view tag, double value);
  /// Several scalars as one event. TensorBoard keeps float32 of them.
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values);
  /// Shown as Markdown.
  void text(int64_t step, std::string_view tag, std::string_view markdown);
  /// `png` is a whole PNG file; its size is read from its header. Throws a usage error when it is none.
  void image(int64_t step, std::string_view tag, std::string_view png);

  const std::filesystem::path& path() const { return path_; }
  /// Why the last record that could not be written was not; empty when all were.
  const std::string& problem() const { return problem_; }

 private:
  void write_summary(int64_t step, const std::string& summary);
  void write_record(const std::string& encoded);

  std::string problem_;
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace lehr::metric
