// Plots the losses of several runs in one picture: plot_losses_bench OUT.svg TITLE NAME=FOLDER...
#include <filesystem>

#include "lehr/base/error.h"
#include "lehr/base/file.h"
#include "lehr/draw/plot.h"
#include "lehr/metric/metrics_log.h"

int main(int argc, char** argv) {
  using namespace lehr;
  try {
    require(argc >= 4, "plot_losses_bench: expected OUT.svg TITLE NAME=FOLDER...");
    std::vector<draw::PlotSeries> lines;
    for (int i = 3; i < argc; ++i) {
      const std::string line = argv[i];
      const size_t at = line.find('=');
      require(at != std::string::npos, "plot_losses_bench: {}: expected NAME=FOLDER", line);
      const auto losses = metric::read_metric(std::filesystem::path(line.substr(at + 1)) / "metrics.jsonl", "loss");
      lines.push_back({.name = line.substr(0, at), .x = losses.steps, .y = losses.values, .smoothing = 20});
    }
    write_file_atomically(argv[1], draw::line_plot_svg(lines, {.title = argv[2]}));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  }
}
