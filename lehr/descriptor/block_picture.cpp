#include "lehr/descriptor/block_picture.h"

#include <algorithm>
#include <functional>

#include "lehr/base/log.h"
#include "lehr/draw/svg_text.h"
#include "lehr/pipeline/svg_elements.h"
#include "lehr/pipeline/timeline_style.h"

namespace lehr::descriptor {

namespace {
using pipeline::box_element;
using pipeline::text_element;

constexpr double kWidth = 960, kLeft = 168, kRight = 20, kTop = 92, kBottom = 34, kPanelGap = 16;
constexpr double kLetter = 6.6;  // upper bound of a letter's width
constexpr const char* kNothing = "-";
constexpr const char* kLinear = "lin";

// Page, text and grey styles of the timelines, and the colours of the sub-blocks.
constexpr const char* kStyle = R"(<style>
.attention { fill: #2166d1; } .ffn { fill: #1a8754; } .experts { fill: #c2570c; }
.idle { opacity: 0.35; }
.small { font-size: 11px; } .middle { text-anchor: middle; } .end { text-anchor: end; }
@media (prefers-color-scheme: dark) {
.attention { fill: #6cb0ff; } .ffn { fill: #56d364; } .experts { fill: #ff9e64; }
}
</style>
)";

// A segment of a layer's bar, from bottom to top.
struct Part {
  std::string classes;
  double size = 0;
};

// A row of bars. Its functions take a layer's index.
struct Panel {
  std::string name, unit, below;
  double height = 0;
  std::function<std::vector<Part>(size_t)> parts;
  std::function<std::string(size_t)> label, hover;
  std::function<std::string(double)> size_text;
};

std::string count_text(int64_t count) {
  return human_count(static_cast<double>(count));
}

class Drawing {
 public:
  Drawing(const ModelBlocks& model, const std::string& title) : model_(model), title_(title) {
    column_ = (kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(model.blocks.size(), 1));
  }

  std::string svg() {
    std::string body;
    double y = kTop;
    for (const Panel& panel : panels()) {
      body += draw(panel, y);
    }
    body += layer_numbers(y);
    const double height = y + kBottom;
    std::string result = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "role=\"img\">\n<title>{2}</title>\n",
        pixel(kWidth),
        pixel(height),
        xml_text(title_));
    result += pipeline::kTimelineStyle;
    result += kStyle;
    result += fmt::format("<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", pixel(kWidth), pixel(height));
    return result + heading() + body + "</svg>\n";
  }

 private:
  double x_of(size_t layer) const { return kLeft + column_ * static_cast<double>(layer); }

  std::string heading() const {
    const Account all = model_.account.total();
    const std::string active = all.active_parameters != all.num_parameters
                                   ? fmt::format(", {} active", count_text(all.active_parameters))
                                   : "";
    std::string svg = text_element(20, 28, " class=\"title\"", title_);
    svg += text_element(
        20,
        48,
        "",
        fmt::format(
            "{} parameters{}: embeddings {}, layers {}, head {}{}",
            count_text(all.num_parameters),
            active,
            count_text(model_.account.embeddings.num_parameters),
            count_text(model_.account.all_layers().num_parameters),
            count_text(model_.account.head.num_parameters),
            model_.form.tied_head ? " (tied to the embeddings)" : ""));
    svg += text_element(
        20,
        66,
        "",
        fmt::format(
            "width {}, {} query heads of {}; KV cache of {} x {} tokens: {}; {} FLOPs for {} tokens, {} to decode the "
            "last",
            model_.form.hidden_size,
            model_.form.num_attention_heads,
            model_.form.head_dim,
            model_.work.num_sequences,
            model_.work.num_tokens,
            human_bytes(all.kv_cache_bytes),
            human_count(all.prefill_flops),
            model_.work.num_tokens,
            human_count(all.decode_flops)));
    return svg;
  }

  const char* ffn_class(size_t layer) const { return model_.blocks[layer].is_moe() ? "experts" : "ffn"; }

  std::vector<Panel> panels() const {
    const auto& layers = model_.account.layers;
    const auto number = [](double size) { return human_count(size); };
    const auto tell = [](size_t layer, const std::string& half, const Account& account) {
      return fmt::format(
          "layer {}, {}: {} parameters, {} cached, {} FLOPs per decoded token",
          layer,
          half,
          account.num_parameters,
          human_bytes(account.kv_cache_bytes),
          human_count(account.decode_flops));
    };
    const auto of_attention = [this, tell, &layers](size_t i) {
      return tell(i, "attention: " + attention_text(model_, i), layers[i].attention);
    };
    const auto of_ffn = [this, tell, &layers](size_t i) {
      return tell(i, "feed-forward: " + ffn_text(model_.blocks[i]), layers[i].ffn);
    };
    const auto of_both = [of_attention, of_ffn](size_t i) { return of_attention(i) + "; " + of_ffn(i); };
    const auto none = [](size_t) { return std::string(); };
    return {
        {.name = "attention",
         .unit = "parameters",
         .below = "below: KV heads",
         .height = 84,
         .parts =
             [&layers](size_t i) {
               return std::vector<Part>{{"attention", static_cast<double>(layers[i].attention.num_parameters)}};
             },
         .label =
             [this](size_t i) {
               const auto* attention = std::get_if<AttentionSubblock>(&model_.blocks[i].attention);
               return attention != nullptr ? fmt::format("{}", attention->num_key_value_heads)
                                           : std::string(model_.blocks[i].attention_is_linear() ? kLinear : kNothing);
             },
         .hover = of_attention,
         .size_text = number},
        {.name = "feed-forward",
         .unit = "parameters",
         .below = has_experts() ? "below: experts, width" : "below: width",
         .height = 84,
         .parts =
             [this, &layers](size_t i) {
               const Account& ffn = layers[i].ffn;
               return std::vector<Part>{
                   {ffn_class(i), static_cast<double>(ffn.active_parameters)},
                   {std::string(ffn_class(i)) + " idle",
                    static_cast<double>(ffn.num_parameters - ffn.active_parameters)}};
             },
         .label =
             [this](size_t i) {
               return model_.blocks[i].ffn_is_no_op() ? std::string(kNothing) : ffn_text(model_.blocks[i]);
             },
         .hover = of_ffn,
         .size_text = number},
        {.name = "KV cache",
         .unit = "bytes",
         .below = "",
         .height = 44,
         .parts =
             [&layers](size_t i) {
               return std::vector<Part>{{"attention", layers[i].attention.kv_cache_bytes}};
             },
         .label = none,
         .hover = of_attention,
         .size_text = [](double size) { return human_bytes(size); }},
        {.name = "decoding a token",
         .unit = "FLOPs",
         .below = "",
         .height = 64,
         .parts =
             [this, &layers](size_t i) {
               return std::vector<Part>{
                   {"attention", layers[i].attention.decode_flops}, {ffn_class(i), layers[i].ffn.decode_flops}};
             },
         .label = none,
         .hover = of_both,
         .size_text = number}};
  }

  bool has_experts() const {
    return std::any_of(
        model_.blocks.begin(), model_.blocks.end(), [](const BlockConfig& block) { return block.is_moe(); });
  }

  // Draws one row and advances `y` below it.
  std::string draw(const Panel& panel, double& y) const {
    double largest = 0;
    size_t letters = 0;
    for (size_t i = 0; i < model_.blocks.size(); ++i) {
      double size = 0;
      for (const Part& part : panel.parts(i)) {
        size += part.size;
      }
      largest = std::max(largest, size);
      letters = std::max(letters, panel.label(i).size());
    }
    std::string svg = text_element(20, y + 14, " class=\"name\"", panel.name);
    svg += text_element(20, y + 29, " class=\"small\"", panel.unit + ", full height:");
    svg += text_element(20, y + 43, " class=\"small\"", panel.size_text(largest));
    svg += box_element({kLeft, y, kWidth - kLeft - kRight, panel.height}, "row", "");
    const double bottom = y + panel.height;
    for (size_t i = 0; i < model_.blocks.size(); ++i) {
      svg += bar(panel, i, bottom, largest > 0 ? panel.height / largest : 0);
    }
    y = bottom;
    constexpr double kNarrowest = 11;  // columns that are wide enough for a line of text
    if (letters > 0 && column_ >= kNarrowest) {
      svg += labels(panel, letters, y);
    }
    y += kPanelGap;
    return svg;
  }

  std::string bar(const Panel& panel, size_t layer, double bottom, double scale) const {
    const double gap = std::min(2.0, 0.2 * column_);
    std::string svg;
    double top = bottom;
    for (const Part& part : panel.parts(layer)) {
      if (part.size > 0) {
        const double height = part.size * scale;
        top -= height;
        svg += box_element({x_of(layer) + gap / 2, top, column_ - gap, height}, part.classes, panel.hover(layer));
      }
    }
    return svg;
  }

  // The labels below the bars: horizontal if they fit, vertical otherwise.
  std::string labels(const Panel& panel, size_t letters, double& y) const {
    const double length = kLetter * static_cast<double>(letters);
    constexpr double kBetween = 4;
    const bool across = length + kBetween <= column_;
    std::string svg = text_element(20, y + 13, " class=\"small\"", panel.below);
    for (size_t i = 0; i < model_.blocks.size(); ++i) {
      const double x = x_of(i) + column_ / 2;
      if (across) {
        svg += text_element(x, y + 13, " class=\"small middle\"", panel.label(i));
      } else {
        svg += text_element(
            x + 4,
            y + 5,
            fmt::format(" class=\"small end\" transform=\"rotate(-90 {} {})\"", pixel(x + 4), pixel(y + 5)),
            panel.label(i));
      }
    }
    y += across ? 16 : length + 6;
    return svg;
  }

  std::string layer_numbers(double y) const {
    const auto digits = static_cast<double>(std::to_string(model_.blocks.size()).size());
    size_t step = 1;
    for (const size_t wider : {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}) {
      step = wider;
      if (column_ * static_cast<double>(wider) >= kLetter * digits + 4) {
        break;
      }
    }
    std::string svg = text_element(20, y + 2, " class=\"small\"", "layer");
    for (size_t i = 0; i < model_.blocks.size(); i += step) {
      svg += text_element(x_of(i) + column_ / 2, y + 2, " class=\"small middle\"", fmt::format("{}", i));
    }
    return svg;
  }

  const ModelBlocks& model_;
  const std::string& title_;
  double column_ = 0;  // width of a layer's column
};
}  // namespace

std::string draw_blocks(const ModelBlocks& model, const std::string& title) {
  return Drawing(model, title).svg();
}

}  // namespace lehr::descriptor
