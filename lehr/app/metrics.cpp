// lehr metrics RUN... [--follow]: shows the metrics of runs in the terminal.
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "lehr/app/command.h"
#include "lehr/app/metrics_text.h"
#include "lehr/base/error.h"
#include "lehr/config/command_line.h"
#include "lehr/config/suggest.h"

namespace lehr::app {

namespace {
namespace fs = std::filesystem;

struct MetricsOptions {
  bool follow = false;
  std::string keys = "loss";
  int64_t last = 10;
  bool plot = true;
  bool ascii = false;
  void fields(FieldVisitor& v) {
    v.optional("follow", follow, "Show new steps until the run has ended, or Ctrl-C.");
    v.optional(
        "keys",
        keys,
        "Metrics to draw, separated by commas: a plot for each, with that of held-out data (validation_...) if there is "
        "one. They are also columns of the table.");
    v.optional(
        "last",
        last,
        "Number of steps in the table, the last ones; 0: no table. Several runs have a row each.",
        between(0, 100'000));
    v.optional("plot", plot, "Draw the plots (--no-plot: only the table).");
    v.optional("ascii", ascii, "Draw with ASCII characters, for a terminal without braille patterns.");
  }
};

// The size of the terminal that standard output is; nullopt if it is a file or a pipe, or cannot move its cursor.
std::optional<winsize> terminal() {
  const char* const kind = std::getenv("TERM");
  winsize size{};
  const bool moves = kind != nullptr && std::string(kind) != "dumb";
  if (!moves || ::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) {
    return std::nullopt;
  }
  return size.ws_col > 0 && size.ws_row > 0 ? size
                                            : winsize{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
}

MetricsLayout layout_of(const MetricsOptions& options) {
  MetricsLayout layout{.plot = options.plot, .last = static_cast<size_t>(options.last), .ascii = options.ascii};
  std::istringstream keys(options.keys);
  for (std::string key; std::getline(keys, key, ',');) {
    if (!key.empty() && std::find(layout.keys.begin(), layout.keys.end(), key) == layout.keys.end()) {
      layout.keys.push_back(key);
    }
  }
  require(!layout.keys.empty(), "lehr metrics: --keys: expected names of metrics, such as loss,grad_norm");
  if (const auto size = terminal()) {
    layout.width = std::clamp<int64_t>(size->ws_col, 30, 160);
    layout.color = std::getenv("NO_COLOR") == nullptr;
  }
  return layout;
}

// The name of a folder beside `folder` that may be meant.
std::string nearest_folder(const fs::path& folder) {
  std::vector<std::string> others;
  std::error_code error;
  const fs::path parent = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (entry.is_directory(error)) {
      others.push_back(entry.path().filename().string());
    }
  }
  const auto nearest = suggest(folder.filename().string(), others);
  return nearest ? fmt::format(", did you mean '{}'?", (folder.parent_path() / *nearest).string()) : "";
}

WatchedRuns runs_of(const std::vector<std::string>& folders, const MetricsLayout& layout) {
  require(!folders.empty(), "lehr metrics: expected the folder of a run (job.dump_folder); see lehr metrics --help");
  WatchedRuns runs;
  for (std::string name : folders) {
    while (name.size() > 1 && name.back() == '/') {
      name.pop_back();
    }
    const fs::path folder = name;
    require(
        !fs::is_regular_file(folder), "lehr metrics: {}: expected the folder of a run, found a file", folder.string());
    require(
        std::none_of(runs.begin(), runs.end(), [&](const auto& run) { return run->name() == name; }),
        "lehr metrics: {}: is given twice",
        name);
    runs.push_back(std::make_unique<WatchedRun>(folder, name, layout.keys, std::max<size_t>(layout.last, 1)));
    runs.back()->update();
  }
  return runs;
}

void require_metrics(const WatchedRun& run) {
  const fs::path& folder = run.folder();
  constexpr const char* kRemedy =
      "name the folder of a run (job.dump_folder), or wait for its first step with --follow";
  if (run.state() == WatchedRun::State::absent) {
    require(
        fs::is_directory(folder),
        "lehr metrics: {}: there is no such folder{}; {}",
        run.name(),
        nearest_folder(folder),
        kRemedy);
    fail("lehr metrics: {}: holds no metrics.jsonl; {}", run.name(), kRemedy);
  }
  require(
      run.state() != WatchedRun::State::no_steps,
      "lehr metrics: {}/metrics.jsonl: {}; {}",
      run.name(),
      run.unreadable() > 0 ? "none of its lines is a JSON object with an integer \"step\"" : "has no step yet",
      kRemedy);
}

// Throws if a key is not a metric of any run. Every run has a loss once it has a step; with `follow`, metrics that may
// be logged in a later step are accepted, too: those of validation, and "skipped".
void require_keys(const WatchedRuns& runs, const MetricsLayout& layout, bool follow) {
  std::set<std::string> known;
  for (const auto& run : runs) {
    known.insert(run->known_keys().begin(), run->known_keys().end());
  }
  if (known.empty() || (follow && !known.contains("loss"))) {
    return;
  }
  for (const std::string& key : layout.keys) {
    const bool may_follow = key == "loss" || (follow && (key.starts_with(kValidation) || key == "skipped"));
    const auto nearest = suggest(key, {known.begin(), known.end()});
    require(
        known.contains(key) || may_follow,
        "lehr metrics: --keys: '{}' is not a metric of {}{}; found {}",
        key,
        runs.size() == 1 ? runs.front()->name() : "these runs",
        nearest ? fmt::format(", did you mean '{}'?", *nearest) : "",
        fmt::join(known, ", "));
  }
}

void write_out(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

bool all_ended(const WatchedRuns& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const auto& run) { return run->ended(); });
}

bool update(const WatchedRuns& runs) {
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  bool changed = false;
  for (const auto& run : runs) {
    changed = run->update() || changed;
  }
  return changed;
}

// The lines of `text` that fit on a terminal, each erased before it is written, and cut to the width.
std::string frame_of(const std::string& text, int64_t rows, int64_t& lines) {
  std::istringstream all(text);
  std::string frame = "\x1b[?7l";
  lines = 0;
  for (std::string line; lines < rows - 1 && std::getline(all, line); ++lines) {
    frame += "\x1b[K" + line + "\n";
  }
  return frame + "\x1b[J\x1b[?7h";
}

void follow_on_terminal(const WatchedRuns& runs, const MetricsOptions& options) {
  int64_t lines = 0;
  for (bool changed = true;; changed = update(runs)) {
    const auto size = terminal();
    MetricsLayout layout = layout_of(options);
    require_keys(runs, layout, /*follow=*/true);
    if (changed) {
      const int64_t rows = size ? size->ws_row : 24;
      const auto plots = static_cast<int64_t>(layout.keys.size());
      const auto table = static_cast<int64_t>(runs.size() > 1 ? runs.size() : layout.last);
      const int64_t others = static_cast<int64_t>(runs.size()) + table + 3;  // states, table with its header, cursor
      layout.plot_height = std::clamp<int64_t>((rows - others) / plots - 4, 4, 20);  // 4: legend, axis, empty line
      const std::string up = lines > 0 ? fmt::format("\x1b[{}A\r", lines) : "";
      write_out(up + frame_of(metrics_text(runs, layout, /*follow=*/true), rows, lines));
    }
    if (all_ended(runs)) {
      return;
    }
  }
}

// Rows on standard output, and changes of state on standard error.
void follow_in_lines(const WatchedRuns& runs, const MetricsLayout& layout) {
  std::optional<GrowingTable> table;
  std::vector<WatchedRun::State> shown(runs.size(), WatchedRun::State::unknown);
  for (bool first = true;; update(runs), first = false) {
    require_keys(runs, layout, /*follow=*/true);
    const bool any = std::any_of(runs.begin(), runs.end(), [](const auto& run) { return !run->rows().empty(); });
    if (!table && any) {
      table.emplace(runs, layout);
      write_out(table->header());
    }
    for (size_t i = 0; i < runs.size(); ++i) {
      const WatchedRun& run = *runs[i];
      if (table) {
        std::string text;
        const size_t known = first ? std::min(run.rows().size(), layout.last) : 0;
        for (size_t row = run.rows().size() - known; row < run.rows().size(); ++row) {
          text += table->row(run, run.rows()[row]);
        }
        for (const WatchedRun::Row& row : run.new_rows()) {
          text += table->row(run, row);
        }
        write_out(text);
      }
      if (run.state() != shown[i]) {
        shown[i] = run.state();
        std::fputs((state_text(run, /*follow=*/true) + "\n").c_str(), stderr);
      }
    }
    if (all_ended(runs)) {
      return;
    }
  }
}
}  // namespace

int metrics(const std::vector<std::string>& args) {
  MetricsOptions options;
  const Arguments arguments = parse_arguments(args, ConfigObject::of(options));
  if (arguments.help) {
    return print_help(
        "lehr metrics RUN... [--follow]\n\n"
        "Shows the metrics of a run, the folder job.dump_folder, whether it is running or not: progress, a plot of the\n"
        "loss, and the last steps. Several runs are drawn in one plot. The folder is only read. With --follow, new\n"
        "steps are shown as they are logged; where standard output is not a terminal, each is a line.\n\n",
        ConfigObject::of(options));
  }
  require(
      arguments.overrides.empty(),
      "lehr metrics: '--{}' is not an option; see --help",
      arguments.overrides.empty() ? "" : arguments.overrides[0].first);
  const MetricsLayout layout = layout_of(options);
  const WatchedRuns runs = runs_of(arguments.positionals, layout);
  if (options.follow) {
    if (terminal()) {
      follow_on_terminal(runs, options);
    } else {
      follow_in_lines(runs, layout);
    }
    return 0;
  }
  for (const auto& run : runs) {
    require_metrics(*run);
  }
  require_keys(runs, layout, /*follow=*/false);
  write_out(metrics_text(runs, layout, /*follow=*/false));
  return 0;
}

}  // namespace lehr::app
