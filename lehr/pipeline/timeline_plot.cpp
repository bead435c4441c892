// Timelines as SVG: title, legend, rows of boxes, memory, and the time axis.
#include "lehr/pipeline/timeline_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "lehr/base/error.h"
#include "lehr/draw/picture_page.h"
#include "lehr/draw/plot_scale.h"
#include "lehr/draw/svg_text.h"
#include "lehr/pipeline/svg_elements.h"
#include "lehr/pipeline/timeline_style.h"

namespace lehr::pipeline {
namespace {

constexpr double kLeft = 62, kTop = 62, kBottom = 40;
constexpr double kNameHeight = 26, kRowGap = 3, kMemoryHeight = 12, kGroupGap = 12;
constexpr double kDigit = 6.2;         // generous width of a digit in a box
constexpr double kNarrow = 1.0;        // narrower boxes, in pixels, are drawn together
constexpr size_t kMostBoxes = 20'000;  // of an interactive drawing; above, narrow boxes are drawn together there, too
constexpr double kNumberHeight = 11;

class Drawing {
 public:
  Drawing(const std::vector<NamedTimeline>& timelines, const TimelinePlotOptions& options)
      : timelines_(timelines), options_(options), right_(options.memory ? 84 : 20) {
    for (const NamedTimeline& one : timelines) {
      longest_ = std::max(longest_, one.timeline.makespan);
      for (const double bytes : one.timeline.peak_memory()) {
        most_bytes_ = std::max(most_bytes_, bytes);
      }
    }
    scale_ = (options.width - kLeft - right_) / (longest_ > 0 ? longest_ : 1);
    narrow_ = options.interactive && num_actions() <= kMostBoxes ? 0 : kNarrow;
  }

  std::string svg() {
    std::string body;
    double y = kTop;
    for (const NamedTimeline& one : timelines_) {
      body += timeline(one, y);
    }
    if (options_.interactive) {
      body += fmt::format(
          "<svg class=\"zoom\" x=\"{0}\" y=\"{1}\" width=\"{2}\" height=\"{3}\" viewBox=\"{0} {1} {2} {3}\" "
          "preserveAspectRatio=\"none\">\n{4}</svg>\n",
          pixel(kLeft),
          pixel(kTop),
          pixel(scale_ * longest_),
          pixel(y - kTop),
          rows_);
    }
    const double height = y + kBottom;
    std::string result = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "role=\"img\">\n<title>{2}</title>\n",
        pixel(options_.width),
        pixel(height),
        xml_text(options_.title));
    result += kTimelineStyle;
    result += fmt::format(
        "<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", pixel(options_.width), pixel(height));
    result += text_element(kLeft, 26, " class=\"title\"", options_.title);
    return result + legend() + body + axis(y) + "</svg>\n";
  }

 private:
  size_t num_actions() const {
    size_t sum = 0;
    for (const NamedTimeline& one : timelines_) {
      for (const auto& list : one.timeline.ranks) {
        sum += list.size();
      }
    }
    return sum;
  }
  std::string time_text(double seconds) const {
    return fmt::format("{:.6g}{}{}", seconds, options_.unit.empty() ? "" : " ", options_.unit);
  }
  double x_of(double seconds) const { return kLeft + scale_ * seconds; }

  std::string legend() const {
    std::set<ActionKind> kinds;
    bool paler = false;
    bool update = false;
    for (const auto& [name, timeline] : timelines_) {
      paler = paler || timeline.program.num_stages() > timeline.program.num_ranks();
      update = update || timeline.update > 0;
      for (const auto& list : timeline.ranks) {
        for (const TimedAction& timed : list) {
          kinds.insert(timed.action.kind);
        }
      }
    }
    std::string svg;
    double x = kLeft;
    const auto entry = [&](std::string_view kind, std::string_view text) {
      svg += box_element({x, 39, 12, 12}, fmt::format("{} c0", kind), "");
      svg += text_element(x + 17, 49.5, "", text);
      x += 17 + 6.6 * static_cast<double>(text.size()) + 16;
    };
    const std::array<std::pair<ActionKind, std::string_view>, 4> texts{{
        {ActionKind::forward, "forward"},
        {ActionKind::backward_full, "backward"},
        {ActionKind::backward_input, "backward, inputs"},
        {ActionKind::backward_weight, "backward, weights"},
    }};
    for (const auto& [kind, text] : texts) {
      if (kinds.contains(kind)) {
        entry(name_of(kind), text);
      }
    }
    if (update) {
      entry("U", "update");
    }
    return svg + (paler ? text_element(x, 49.5, "", "paler: later stages of the rank") : "");
  }

  std::string timeline(const NamedTimeline& one, double& y) {
    const Timeline& timeline = one.timeline;
    std::string svg = text_element(kLeft, y + 17, " class=\"name\"", one.name);
    svg += text_element(
        options_.width - right_,
        y + 17,
        " text-anchor=\"end\"",
        fmt::format(
            "{}, bubble {:.1f} %; {:.1f} % if no rank waited at the end",
            time_text(timeline.makespan),
            100 * timeline.bubble_share(),
            100 * timeline.bubble_share_without_barrier()));
    y += kNameHeight;
    const std::vector<double> peaks = timeline.peak_memory();
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      svg += text_element(
          kLeft - 8, y + options_.row_height / 2 + 4, " text-anchor=\"end\"", fmt::format("rank {}", rank));
      // Interactive pages collect the rows, which are zoomed together; otherwise each row follows its name.
      std::string& rows = options_.interactive ? rows_ : svg;
      rows += box_element({kLeft, y, scale_ * longest_, options_.row_height}, "row", "");
      rows += row(timeline, rank, y);
      y += options_.row_height;
      if (options_.memory) {
        rows += memory(timeline, rank, y + 1);
        svg += text_element(options_.width - right_ + 6, y + kMemoryHeight, "", bytes_text(peaks[rank]));
        y += kMemoryHeight + 1;
      }
      y += kRowGap;
    }
    y += kGroupGap;
    return svg;
  }

  // Actions too narrow for their own boxes, collected until they are wide enough together.
  struct Narrow {
    double start = 0, end = 0;
    std::array<double, 4> seconds{};
    bool empty = true;
  };

  std::string row(const Timeline& timeline, size_t rank, double y) const {
    const std::vector<int64_t> stages = timeline.program.stages_of(static_cast<int64_t>(rank));
    std::string boxes;
    std::string frames;
    Narrow narrow;
    const auto flush = [&] {
      if (!narrow.empty) {
        const auto most = std::max_element(narrow.seconds.begin(), narrow.seconds.end()) - narrow.seconds.begin();
        const Box box{x_of(narrow.start), y, scale_ * (narrow.end - narrow.start), options_.row_height};
        boxes += box_element(box, fmt::format("{} c0", name_of(static_cast<ActionKind>(most))), "");
        narrow = {};
      }
    };
    for (const TimedAction& timed : timeline.ranks[rank]) {
      if (!timed.action.is_compute()) {
        continue;
      }
      const double seconds = timed.end - timed.start;
      if (scale_ * seconds < narrow_) {
        const bool apart = scale_ * (timed.start - narrow.end) > kNarrow / 2;
        if (!narrow.empty && (apart || scale_ * (narrow.end - narrow.start) >= kNarrow)) {
          flush();
        }
        narrow.start = narrow.empty ? timed.start : narrow.start;
        narrow.end = timed.end;
        narrow.seconds[static_cast<size_t>(timed.action.kind)] += seconds;
        narrow.empty = false;
        continue;
      }
      flush();
      boxes += action_box(timed, rank, stages, y);
      const Actions& entry = timeline.program.ranks[rank][static_cast<size_t>(timed.entry)];
      if (entry.size() > 1 && timed.action == entry.front()) {
        frames += frame(timeline, rank, timed, y);
      }
    }
    flush();
    if (timeline.update > 0) {
      const double start = timeline.makespan - timeline.update;
      boxes += box_element(
          {x_of(start), y, scale_ * timeline.update, options_.row_height},
          "U c0",
          options_.interactive ? fmt::format("rank {}: update, {}", rank, time_text(timeline.update)) : "");
    }
    return boxes + frames;
  }

  std::string action_box(const TimedAction& timed, size_t rank, const std::vector<int64_t>& stages, double y) const {
    const auto local = std::find(stages.begin(), stages.end(), timed.action.stage) - stages.begin();
    const int64_t shade = std::min<int64_t>(local, 2);
    const double height = options_.row_height / static_cast<double>(timed.lanes);
    const double width = scale_ * (timed.end - timed.start);
    const Box box{
        x_of(timed.start), y + height * static_cast<double>(timed.lane), width - std::min(1.0, width / 8), height};
    std::string hover;
    std::string classes = fmt::format("{} c{}", name_of(timed.action.kind), shade);
    if (options_.interactive) {
      classes += fmt::format(" m{}", timed.action.microbatch);
      hover = fmt::format(
          "rank {}: {}, stage {}, micro-batch {}, {:.6g} to {}",
          rank,
          to_string(timed.action),
          timed.action.stage,
          timed.action.microbatch,
          timed.start,
          time_text(timed.end));
    }
    std::string svg = box_element(box, classes, hover);
    const std::string number = std::to_string(timed.action.microbatch);
    const bool fits = box.width >= kDigit * static_cast<double>(number.size()) + 1;
    if (height >= kNumberHeight &&
        (fits || options_.interactive)) {  // a page hides what does not fit until it is zoomed
      svg +=
          text_element(box.x + box.width / 2, box.y + height / 2 + 3.7, fmt::format(" class=\"n{}\"", shade), number);
    }
    return svg;
  }

  // Returns a frame around the members of one entry; `first` is the first of them.
  std::string frame(const Timeline& timeline, size_t rank, const TimedAction& first, double y) const {
    double end = first.end;
    for (const TimedAction* timed = &first; timed != timeline.ranks[rank].data() + timeline.ranks[rank].size();
         ++timed) {
      if (timed->entry != first.entry) {
        break;
      }
      end = timed->end;
    }
    return box_element(
        {x_of(first.start) + 0.5, y + 0.5, scale_ * (end - first.start) - 2, options_.row_height - 1}, "pair", "");
  }

  std::string memory(const Timeline& timeline, size_t rank, double y) const {
    const auto& points = timeline.memory[rank];
    if (most_bytes_ <= 0 || points.empty()) {
      return "";
    }
    const double base = y + kMemoryHeight;
    const auto height = [&](double bytes) { return kMemoryHeight * bytes / most_bytes_; };
    std::string data = fmt::format("M{} {}", pixel(x_of(points.front().seconds)), pixel(base));
    double column = -1;  // half-pixel column of the last points
    double highest = 0;  // most bytes in this column
    double last = 0;
    const auto draw_column = [&] {
      data += fmt::format("H{}V{}", pixel(column), pixel(base - height(highest)));
      data += last == highest ? "" : fmt::format("V{}", pixel(base - height(last)));
    };
    for (const MemoryPoint& point : points) {
      const double x = std::floor(x_of(point.seconds) * 2) / 2;
      if (x != column && column >= 0) {
        draw_column();
        highest = 0;
      }
      column = x;
      highest = std::max(highest, point.bytes);
      last = point.bytes;
    }
    draw_column();
    data += fmt::format("H{}V{}Z", pixel(x_of(points.back().seconds)), pixel(base));
    return fmt::format("<path class=\"memory\" d=\"{}\"/>\n", data);
  }

  std::string axis(double y) const {
    const double height = std::floor(y) + 0.5;  // half pixels keep lines of one pixel sharp
    std::string svg = line_element("axis", kLeft, height, options_.width - right_, height);
    if (options_.interactive) {
      svg += fmt::format(
          "<g class=\"ticks\" data-left=\"{}\" data-right=\"{}\" data-scale=\"{:.6g}\" data-unit=\"{}\">\n",
          pixel(kLeft),
          pixel(kLeft + scale_ * longest_),
          scale_,
          xml_text(options_.unit));
    }
    const double step = draw::tick_step(longest_ > 0 ? longest_ : 1, 10);
    for (int64_t i = 0; static_cast<double>(i) * step <= longest_ * (1 + 1e-9); ++i) {
      const double seconds = static_cast<double>(i) * step;
      svg += line_element("axis", x_of(seconds), height, x_of(seconds), height + 4);
      svg += text_element(x_of(seconds), height + 18, " text-anchor=\"middle\"", time_text(seconds));
    }
    return svg + (options_.interactive ? "</g>\n" : "");
  }

  const std::vector<NamedTimeline>& timelines_;
  const TimelinePlotOptions& options_;
  double right_;
  double longest_ = 0;
  double most_bytes_ = 0;
  double scale_ = 1;  // pixels per second
  double narrow_ = kNarrow;
  std::string rows_;  // of an interactive drawing
};

}  // namespace

std::string timeline_svg(const std::vector<NamedTimeline>& timelines, const TimelinePlotOptions& options) {
  require(!timelines.empty(), "timeline plot: expected at least 1 timeline, found none");
  require(options.width >= 300, "timeline plot: expected a width of at least 300 pixels, found {}", options.width);
  require(options.row_height >= 4, "timeline plot: expected rows of at least 4 pixels, found {}", options.row_height);
  return Drawing(timelines, options).svg();
}

std::string timeline_html(const std::vector<NamedTimeline>& timelines, TimelinePlotOptions options) {
  options.interactive = true;
  return picture_page(options.title, timeline_svg(timelines, options));
}

}  // namespace lehr::pipeline
