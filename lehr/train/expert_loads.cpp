#include "lehr/train/expert_loads.h"

#include <fstream>
#include <utility>

#include "lehr/base/file.h"
#include "lehr/draw/plot.h"
#include "lehr/metric/metrics_reader.h"

namespace lehr::train {

namespace {
constexpr const char* kFile = "expert_load.jsonl";
constexpr size_t kMaxRows = 64;

// Returns each expert's load relative to an even one, averaged over MoE layers after sorting, so that the picture shows
// the imbalance within layers and not which expert is loaded. Layers with fewer experts are stretched to the largest E.
std::vector<double> sorted_loads(const at::Tensor& tokens_per_expert) {
  const at::Tensor counts = tokens_per_expert.cpu().to(at::kDouble);
  const int64_t columns = counts.size(-1);
  std::vector<at::Tensor> loads;
  for (const at::Tensor& of_moe_layer : counts.unbind()) {
    const at::Tensor own = of_moe_layer.masked_select(of_moe_layer.ge(0));  // negative: no such expert
    const at::Tensor load = std::get<0>((own / own.mean().clamp_min(1)).sort());
    const at::Tensor places = at::floor_divide(at::arange(columns, at::kLong) * own.size(0), columns);
    loads.push_back(load.index_select(0, places));
  }
  const at::Tensor row = at::stack(loads).mean(0).contiguous();  // (E)
  const auto* values = row.const_data_ptr<double>();
  return {values, values + row.numel()};
}
}  // namespace

ExpertLoads::ExpertLoads(std::filesystem::path folder, int64_t step, int64_t log_freq)
    : folder_(std::move(folder)), every_(log_freq), file_(folder_ / kFile, step) {
  std::ifstream file(folder_ / kFile);
  for (std::string line; std::getline(file, line);) {
    if (const auto read = metric::parse_metrics_line(line)) {
      Row row{.step = read->step};
      for (const auto& [expert, load] : read->values) {
        row.loads.push_back(load);
      }
      keep(std::move(row));
    }
  }
}

// A resumed run keeps the rows of its file one after the other, so that it has those of a run that was never stopped.
void ExpertLoads::keep(Row row) {
  rows_.push_back(std::move(row));
  if (rows_.size() > kMaxRows) {  // keep every second one, so that the picture covers the whole run
    for (size_t i = 1; 2 * i < rows_.size(); ++i) {
      rows_[i] = std::move(rows_[2 * i]);
    }
    rows_.resize((rows_.size() + 1) / 2);
    every_ *= 2;
  }
}

void ExpertLoads::add(int64_t step, const at::Tensor& tokens_per_expert) {
  if (step != 1 && step % every_ != 0) {
    return;
  }
  Row row{.step = step, .loads = sorted_loads(tokens_per_expert)};
  std::vector<std::pair<std::string, metric::MetricValue>> line;
  for (size_t i = 0; i < row.loads.size(); ++i) {
    line.emplace_back(std::to_string(i), row.loads[i]);
  }
  file_.write(step, line);
  keep(std::move(row));
}

void ExpertLoads::draw() const {
  if (rows_.empty()) {
    return;
  }
  draw::HeatMap map{
      .title = "load of the experts, sorted in ascending order (1: an even share)",
      .x_label = "expert",
      .y_label = "step",
      .rows = rows_.size(),
      .columns = rows_.front().loads.size()};
  for (const Row& row : rows_) {
    map.row_names.push_back(std::to_string(row.step));
    map.values.insert(map.values.end(), row.loads.begin(), row.loads.end());
  }
  write_file_atomically(folder_ / "expert_load.svg", draw::heat_map_svg(map));
}

}  // namespace lehr::train
