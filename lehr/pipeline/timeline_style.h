// Colours and fonts of timelines, as a style sheet for light and dark pages.
#pragma once

namespace lehr::pipeline {

/// A <style> element. The classes of a box are its kind (F B I W U) and the index of its stage on the rank (c0, c1, c2
/// for the third and later stages); the number in it has the class n0, n1 or n2 likewise. Light is the default, for
/// renderers without media queries.
inline constexpr const char* kTimelineStyle = R"(<style>
text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 12px; fill: #57606a; }
.title { font-size: 15px; font-weight: 600; fill: #1f2328; }
.name { font-size: 13px; font-weight: 600; fill: #1f2328; }
.page { fill: #ffffff; }
.row { fill: #eff1f4; }
.axis { stroke: #8c959f; stroke-width: 1; }
.grid { stroke: #d5dae0; stroke-width: 1; }
.pair { fill: none; stroke: #1f2328; stroke-width: 1.2; }
.memory { fill: #8c959f; opacity: 0.75; }
.F { fill: #2166d1; } .B { fill: #1a8754; } .I { fill: #0b8ba0; } .W { fill: #c2570c; } .U { fill: #6e7781; }
.c1 { opacity: 0.55; } .c2 { opacity: 0.35; }
.n0, .n1, .n2 { font-size: 10.5px; text-anchor: middle; pointer-events: none; }
.n0 { fill: #ffffff; } .n1, .n2 { fill: #10151c; }
@media (prefers-color-scheme: dark) {
text { fill: #9da7b3; }
.title, .name { fill: #e6edf3; }
.page { fill: #0d1117; }
.row { fill: #1b212a; }
.grid { stroke: #3a424d; }
.axis { stroke: #6e7681; }
.pair { stroke: #e6edf3; }
.F { fill: #6cb0ff; } .B { fill: #56d364; } .I { fill: #5fd4e3; } .W { fill: #ff9e64; } .U { fill: #9da7b3; }
.n0 { fill: #0d1117; } .n1, .n2 { fill: #ffffff; }
}
</style>
)";

}  // namespace lehr::pipeline
