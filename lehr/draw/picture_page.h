// An interactive HTML page around an SVG picture: tooltips, highlighting and zoom.
#pragma once

#include <string>
#include <string_view>

namespace lehr {

/// Returns a self-contained HTML page with the SVG element `svg`. Its script and styles are inside, so it opens from a
/// file without a network.
/// Without scripts the page shows the picture with the browser's tooltips.
///
/// The page reads these parts of the picture:
/// - the `<title>` of a shape is shown as soon as the pointer is on it or it is touched;
/// - shapes with a common class `m0`, `m1`, ... belong together: pointing at one makes all others paler;
/// - an inner `<svg class="zoom">` is zoomed along x, by wheel, pinch, buttons or keys;
/// - texts in it keep their width;
/// - a text in it that follows a `<rect>` is hidden while it is wider than the rectangle;
/// - `<g class="ticks">` below it gets the ticks of the part that is shown. Its attributes are
///   `data-left` and `data-right` (pixels), `data-scale` (pixels per unit) and `data-unit`.
std::string picture_page(std::string_view title, std::string_view svg);

}  // namespace lehr
