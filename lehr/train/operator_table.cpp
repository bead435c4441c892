#include "lehr/train/operator_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace lehr::train {

namespace {
constexpr size_t kMostProducts = 12;  // lines; operators.json has all

struct Row {
  OperatorKind kind;
  OperatorTotals totals;
};

// Returns rows by descending time; the time between operators is last.
std::vector<Row> rows_of(const OperatorReport& report) {
  std::vector<Row> rows;
  for (size_t i = 0; i < kOperatorKinds; ++i) {
    if (report.kinds[i].seconds > 0) {
      rows.push_back({static_cast<OperatorKind>(i), report.kinds[i]});
    }
  }
  const auto last =
      std::stable_partition(rows.begin(), rows.end(), [](const Row& row) { return row.kind != OperatorKind::between; });
  std::stable_sort(rows.begin(), last, [](const Row& a, const Row& b) { return a.totals.seconds > b.totals.seconds; });
  return rows;
}

std::string rate(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? fmt::format("{:.1f}", amount / seconds / 1e9) : "-";
}

std::string percent(double share) {
  return share > 0 ? fmt::format("{:.0f} %", 100 * share) : "-";
}

// Returns the time of all FLOPs at the peaks of their dtypes.
double least_compute_seconds(const OperatorTotals& totals, const MachineLimits& limits) {
  const double float8_peak = limits.float8_flops > 0 ? limits.float8_flops : limits.flops;
  return limits.flops > 0 ? (totals.flops - totals.float8_flops) / limits.flops + totals.float8_flops / float8_peak : 0;
}
}  // namespace

double share_of_limit(const OperatorTotals& totals, const MachineLimits& limits) {
  const double compute = least_compute_seconds(totals, limits);
  const double memory = limits.bytes_per_second > 0 ? totals.bytes / limits.bytes_per_second : 0;
  return totals.seconds > 0 ? std::max(compute, memory) / totals.seconds : 0;
}

const char* limit_of(OperatorKind kind, const OperatorTotals& totals, const MachineLimits& limits) {
  if (kind == OperatorKind::communication || kind == OperatorKind::data) {
    return "waiting";
  }
  constexpr double kExplains = 0.5;
  if (share_of_limit(totals, limits) < kExplains) {
    return "overhead";
  }
  return least_compute_seconds(totals, limits) > totals.bytes / limits.bytes_per_second ? "compute" : "memory";
}

std::string to_text(const OperatorReport& report) {
  const auto steps = static_cast<double>(report.steps);
  std::string text = fmt::format(
      "steps {} to {}: {:.1f} ms each, {} threads{}\n"
      "at best {} computes {:.1f} GFLOP/s in {} matmuls{} and moves {:.1f} GB/s\n\n",
      report.first_step,
      report.first_step + report.steps - 1,
      1e3 * report.seconds / steps,
      report.threads,
      report.ranks > 1 ? fmt::format(", rank 0 of {}", report.ranks) : "",
      !report.source.empty() ? report.source
      : report.ranks > 1     ? "rank 0 alone, while the others wait,"
                             : "this machine",
      report.limits.flops / 1e9,
      report.dtype,
      report.limits.float8_flops > 0 ? fmt::format(" and {:.1f} in float8", report.limits.float8_flops / 1e9) : "",
      report.limits.bytes_per_second / 1e9);
  constexpr auto kLine = "{:<22}{:>10}{:>9}{:>8}{:>10}{:>8}{:>10}  {}\n";
  text += fmt::format(kLine, "kind", "ms/step", "share", "calls", "GFLOP/s", "GB/s", "of limit", "limited by");
  double sum = 0;
  for (const Row& row : rows_of(report)) {
    sum += row.totals.seconds;
    text += fmt::format(
        kLine,
        name_of(row.kind),
        fmt::format("{:.2f}", 1e3 * row.totals.seconds / steps),
        fmt::format("{:.1f} %", 100 * row.totals.seconds / report.seconds),
        fmt::format("{:.0f}", static_cast<double>(row.totals.calls) / steps),
        rate(row.totals.flops, row.totals.seconds),
        rate(row.totals.bytes, row.totals.seconds),
        percent(share_of_limit(row.totals, report.limits)),
        limit_of(row.kind, row.totals, report.limits));
  }
  text += fmt::format(
      "{:<22}{:>10.2f}{:>9}\n", "sum", 1e3 * sum / steps, fmt::format("{:.1f} %", 100 * sum / report.seconds));
  std::vector<std::pair<ProductSize, OperatorTotals>> products(report.products.begin(), report.products.end());
  std::stable_sort(products.begin(), products.end(), [](const auto& a, const auto& b) {
    return a.second.seconds > b.second.seconds;
  });
  if (!products.empty()) {
    text +=
        fmt::format("\n{:<32}{:>9}{:>8}{:>10}{:>10}\n", "matmuls, m x k x n", "ms/step", "calls", "GFLOP/s", "of peak");
  }
  for (size_t i = 0; i < std::min(kMostProducts, products.size()); ++i) {
    const auto& [size, totals] = products[i];
    text += fmt::format(
        "{:<32}{:>9.2f}{:>8.0f}{:>10}{:>10}\n",
        fmt::format("{}{} x {} x {}", size.batch > 1 ? fmt::format("{} of ", size.batch) : "", size.m, size.k, size.n),
        1e3 * totals.seconds / steps,
        static_cast<double>(totals.calls) / steps,
        rate(totals.flops, totals.seconds),
        percent(least_compute_seconds(totals, report.limits) / totals.seconds));
  }
  if (products.size() > kMostProducts) {
    text += fmt::format("... and {} more sizes\n", products.size() - kMostProducts);
  }
  return text;
}

Node to_node(const OperatorReport& report) {
  const auto steps = static_cast<double>(report.steps);
  const auto figures = [&](Node& node, const OperatorTotals& totals) {
    node.set("seconds", Node(totals.seconds / steps));
    node.set("calls", Node(static_cast<double>(totals.calls) / steps));
    node.set("flops", Node(totals.flops / steps));
    node.set("float8_flops", Node(totals.float8_flops / steps));
    node.set("bytes", Node(totals.bytes / steps));
  };
  Node kinds = Node::make_list();
  for (const Row& row : rows_of(report)) {
    Node node = Node::make_table();
    node.set("kind", Node(std::string(name_of(row.kind))));
    figures(node, row.totals);
    node.set("share_of_limit", Node(share_of_limit(row.totals, report.limits)));
    node.set("limited_by", Node(std::string(limit_of(row.kind, row.totals, report.limits))));
    kinds.push_back(node);
  }
  Node products = Node::make_list();
  for (const auto& [size, totals] : report.products) {
    Node node = Node::make_table();
    node.set("batch", Node(size.batch));
    node.set("m", Node(size.m));
    node.set("k", Node(size.k));
    node.set("n", Node(size.n));
    figures(node, totals);
    products.push_back(node);
  }
  Node node = Node::make_table();
  node.set("first_step", Node(report.first_step));
  node.set("steps", Node(report.steps));
  node.set("seconds", Node(report.seconds / steps));
  node.set("threads", Node(report.threads));
  node.set("ranks", Node(report.ranks));
  node.set("dtype", Node(report.dtype));
  node.set("limits_of", Node(report.source.empty() ? "this machine" : report.source));
  node.set("peak_flops_per_second", Node(report.limits.flops));
  node.set("peak_float8_flops_per_second", Node(report.limits.float8_flops));
  node.set("peak_bytes_per_second", Node(report.limits.bytes_per_second));
  node.set("kinds", kinds);
  node.set("products", products);
  return node;
}

}  // namespace lehr::train
