// Colours and fonts of all drawings, as a style sheet for light and dark pages.
#pragma once

namespace lehr::draw {

/// Number of series colours: classes s0, s1, ...
inline constexpr int kSeriesColors = 6;

/// A <style> element. Light is the default, for renderers without media queries.
inline constexpr const char* kPlotStyle = R"(<style>
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 12px; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; fill: #1f2328; }
.legend { font-size: 12.5px; fill: #1f2328; }
.page { fill: #ffffff; }
.grid { stroke: #e6e9ed; stroke-width: 1; }
.axis { stroke: #8c959f; stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.raw { fill: none; stroke-width: 1; stroke-linejoin: round; opacity: 0.32; }
.dot { stroke: #ffffff; stroke-width: 1; }
.s0 { stroke: #2166d1; } .s1 { stroke: #d9480f; } .s2 { stroke: #1a8754; }
.s3 { stroke: #8a3ffc; } .s4 { stroke: #b5179e; } .s5 { stroke: #866118; }
.f0 { fill: #2166d1; } .f1 { fill: #d9480f; } .f2 { fill: #1a8754; }
.f3 { fill: #8a3ffc; } .f4 { fill: #b5179e; } .f5 { fill: #866118; }
@media (prefers-color-scheme: dark) {
text { fill: #9da7b3; }
.title, .legend { fill: #e6edf3; }
.page { fill: #0d1117; }
.grid { stroke: #262c36; }
.axis { stroke: #6e7681; }
.dot { stroke: #0d1117; }
.raw { opacity: 0.42; }
.s0 { stroke: #6cb0ff; } .s1 { stroke: #ff9e64; } .s2 { stroke: #56d364; }
.s3 { stroke: #c297ff; } .s4 { stroke: #ff7bd5; } .s5 { stroke: #e3b341; }
.f0 { fill: #6cb0ff; } .f1 { fill: #ff9e64; } .f2 { fill: #56d364; }
.f3 { fill: #c297ff; } .f4 { fill: #ff7bd5; } .f5 { fill: #e3b341; }
}
</style>
)";

}  // namespace lehr::draw
