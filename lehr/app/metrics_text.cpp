#include "lehr/app/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lehr/base/log.h"
#include "lehr/base/printable.h"
#include "lehr/draw/plot_scale.h"
#include "lehr/draw/text_plot.h"

namespace lehr::app {

namespace {
using Cells = std::vector<std::string>;

std::string value_text(const std::string& key, double value) {
  if (!std::isfinite(value)) {
    return "nan";
  }
  if (key == "num_tokens" || key.ends_with("_per_second")) {
    return human_count(value);
  }
  if (key.ends_with("_bytes")) {
    return human_bytes(value);
  }
  if (key == "lr") {
    return fmt::format("{:.2e}", value);
  }
  if (value == std::floor(value) && std::abs(value) < 1e5) {
    return fmt::format("{:.0f}", value);
  }
  return std::abs(value) < 1e5 ? fmt::format("{:.4f}", value) : fmt::format("{:.3e}", value);
}

// The metrics of a table's columns. `growing`: also those that may follow.
std::vector<std::string> columns_of(const WatchedRuns& runs, const MetricsLayout& layout, bool growing) {
  std::vector<std::string> columns{"loss", "validation_loss", "grad_norm", "lr", "tokens_per_second"};
  for (const std::string& key : layout.keys) {
    for (const std::string& column : {key, kValidation + key}) {
      if (std::find(columns.begin(), columns.end(), column) == columns.end()) {
        columns.push_back(column);
      }
    }
  }
  std::erase_if(columns, [&](const std::string& column) {
    const bool known =
        std::any_of(runs.begin(), runs.end(), [&](const auto& run) { return run->known_keys().contains(column); });
    const bool shown_anyway = growing && (column == "loss" || column == "validation_loss");
    return !known && !shown_anyway;
  });
  return columns;
}

Cells header_of(const WatchedRuns& runs, const std::vector<std::string>& columns) {
  Cells cells{"step"};
  cells.insert(cells.end(), columns.begin(), columns.end());
  cells.emplace_back("left");
  if (runs.size() > 1) {
    cells.insert(cells.begin(), "run");
  }
  return cells;
}

Cells cells_of(
    const WatchedRuns& runs,
    const std::vector<std::string>& columns,
    const WatchedRun& run,
    const WatchedRun::Row& row) {
  Cells cells{std::to_string(row.metrics.step)};
  for (const std::string& column : columns) {
    const auto value = row.metrics.find(column);
    cells.push_back(value ? value_text(column, *value) : "");
  }
  const auto left = run.seconds_left(row);
  cells.push_back(left && row.metrics.find("loss") ? human_seconds(*left) : "");
  if (runs.size() > 1) {
    cells.insert(cells.begin(), printable(run.name()));
  }
  return cells;
}

// All columns are right-aligned, except for the names of runs.
std::string line_of(const Cells& cells, const std::vector<size_t>& widths, bool named) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    line += named && i == 0 ? fmt::format("{:<{}}", cells[i], widths[i])
                            : fmt::format("{}{:>{}}", i == 0 ? "" : "  ", cells[i], widths[i]);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string table_of(const std::vector<Cells>& rows, bool named) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Cells& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Cells& row : rows) {
    text += line_of(row, widths, named);
  }
  return text;
}

std::string last_rows(const WatchedRuns& runs, const MetricsLayout& layout) {
  const auto columns = columns_of(runs, layout, /*growing=*/false);
  std::vector<Cells> rows{header_of(runs, columns)};
  for (const auto& run : runs) {
    const size_t count = std::min(runs.size() > 1 ? 1 : layout.last, run->rows().size());
    for (size_t i = run->rows().size() - count; i < run->rows().size(); ++i) {
      rows.push_back(cells_of(runs, columns, *run, run->rows()[i]));
    }
  }
  return rows.size() > 1 ? table_of(rows, runs.size() > 1) : "";
}

std::string plot_of(const WatchedRuns& runs, const std::string& key, const MetricsLayout& layout) {
  std::vector<draw::PlotSeries> series;
  for (const auto& run : runs) {
    for (const std::string& one : {key, kValidation + key}) {
      const metric::DownsampledSeries& values = run->series().at(one);
      series.push_back(
          {.name = printable(runs.size() > 1 ? run->name() + " " + one : one),
           .x = values.steps(),
           .y = values.values(),
           .markers = one != key});
    }
  }
  // Curves before the points on them, so that colours and characters follow the order of the runs.
  std::stable_partition(series.begin(), series.end(), [](const auto& one) { return !one.markers; });
  return draw::text_plot(
      series, {.width = layout.width, .height = layout.plot_height, .ascii = layout.ascii, .color = layout.color});
}

}  // namespace

std::string state_text(const WatchedRun& run, bool follow) {
  using State = WatchedRun::State;
  std::string text = run.name() + ": ";
  if (run.state() == State::absent || run.state() == State::no_steps) {
    text += run.state() == State::absent ? "has no metrics.jsonl" : "has no step";
    return printable(text + (follow ? " yet; waiting (Ctrl-C ends this command)" : ""));
  }
  const WatchedRun::Row& last = run.rows().back();
  const std::string step = run.steps() ? fmt::format("step {} of {}", last.metrics.step, *run.steps())
                                       : fmt::format("step {}", last.metrics.step);
  const auto left = run.seconds_left(last);
  switch (run.state()) {
    case State::complete:
      text += fmt::format("complete, {}", step);
      break;
    case State::stopped:
      text += fmt::format("stopped after {}", step);
      text += follow && !run.ended() ? "; waiting for it to resume (Ctrl-C ends this command)" : "";
      break;
    case State::running:
      text += fmt::format("running, {}", step);
      text += left ? fmt::format(", {} left", human_seconds(*left)) : "";
      break;
    default:
      text += step;
      break;
  }
  for (const auto& [key, series] : run.series()) {
    if (const int64_t count = series.not_finite(); count > 0) {
      text += fmt::format("; {} was not finite at {} {}", key, count, count == 1 ? "step" : "steps");
    }
  }
  if (run.unreadable() > 0) {
    text += fmt::format(
        "; {} {} of metrics.jsonl {} no metrics",
        run.unreadable(),
        run.unreadable() == 1 ? "line" : "lines",
        run.unreadable() == 1 ? "is" : "are");
  }
  return printable(text);
}

std::string metrics_text(const WatchedRuns& runs, const MetricsLayout& layout, bool follow) {
  std::string text;
  for (const auto& run : runs) {
    text += state_text(*run, follow) + "\n";
  }
  for (const std::string& key : layout.keys) {
    const std::string plot = layout.plot ? plot_of(runs, key, layout) : "";
    text += plot.empty() ? "" : "\n" + plot;
  }
  const std::string table = layout.last > 0 ? last_rows(runs, layout) : "";
  return text + (table.empty() ? "" : "\n" + table);
}

GrowingTable::GrowingTable(const WatchedRuns& runs, const MetricsLayout& layout)
    : runs_(runs), columns_(columns_of(runs, layout, /*growing=*/true)) {
  for (const std::string& name : header_of(runs, columns_)) {
    constexpr size_t kUsualWidth = 8;
    widths_.push_back(std::max(name.size(), kUsualWidth));
  }
  for (const auto& run : runs) {
    widths_[0] = runs.size() > 1 ? std::max(widths_[0], run->name().size()) : widths_[0];
  }
}

std::string GrowingTable::header() const {
  return line_of(header_of(runs_, columns_), widths_, runs_.size() > 1);
}

std::string GrowingTable::row(const WatchedRun& run, const WatchedRun::Row& row) const {
  return line_of(cells_of(runs_, columns_, run, row), widths_, runs_.size() > 1);
}

}  // namespace lehr::app
