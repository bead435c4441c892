// An HTML page around an SVG picture, in which one can point at shapes and zoom.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// Returns a self-contained HTML page with the SVG element `svg`; its script and styles are inside, so it opens from a
/// file without a network. Without scripts the page shows the picture with the browser's tooltips.
///
/// The page reads these parts of the picture:
/// - the `<title>` of a shape is shown as soon as one points at it or touches it;
/// - shapes with a common class `m` and a number belong together: pointing at one makes the others paler;
/// - an inner `<svg class="zoom">` is zoomed along x, by wheel, pinch, buttons or keys. Texts in it keep their width,
/// and one
///   that follows a `<rect>` is hidden while it is wider than that;
/// - `<g class="ticks">` below it, with `data-left`, `data-right` (pixels), `data-scale` (pixels per unit) and
/// `data-unit`, gets
///   the ticks of the part that is shown.
std::string picture_page(std::string_view title, std::string_view svg);

}  // namespace lehr
