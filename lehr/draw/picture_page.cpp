// The page around a picture: its style and script.
#include "lehr/draw/picture_page.h"

#include <fmt/format.h>

#include "lehr/draw/svg_text.h"

namespace lehr {
namespace {

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light dark; }
body { margin: 1rem; background: #f6f8fa; color: #1f2328; font: 14px system-ui, sans-serif; }
p { margin: 0 0 .6rem; min-height: 2rem; display: flex; gap: .4rem; align-items: center; flex-wrap: wrap; }
button { font: inherit; min-width: 2rem; height: 2rem; border: 1px solid #8c959f; border-radius: 6px; background: none; color: inherit; }
main { overflow-x: auto; }
main > svg { width: 100%; min-width: 640px; max-width: 1500px; height: auto; display: block; }
.zoom { cursor: grab; touch-action: pan-y; }
.zoom rect, .zoom path { vector-effect: non-scaling-stroke; }
main [data-tip]:hover { stroke: #1f2328; stroke-width: 1.5; }
.others [data-tip]:not(.same) { opacity: .25; }
#tip { position: fixed; max-width: 24rem; padding: .4rem .6rem; border-radius: 6px; background: #1f2328; color: #fff; pointer-events: none; }
@media (prefers-color-scheme: dark) {
body { background: #010409; color: #e6edf3; }
main [data-tip]:hover { stroke: #fff; }
#tip { background: #e6edf3; color: #10151c; }
}
</style>
)";

constexpr const char* kScript = R"(<script>
'use strict';
const picture = document.querySelector('main > svg'), tip = document.getElementById('tip');
for (const title of picture.querySelectorAll(':scope * > title')) {
  title.parentNode.dataset.tip = title.textContent;  // else the browser shows it, too, a second later
  title.remove();
}
function point(event) {
  const shape = event.target.closest('[data-tip]');
  tip.hidden = !shape;
  for (const other of picture.querySelectorAll('.same')) other.classList.remove('same');
  const key = shape && [...shape.classList].find(name => /^m\d+$/.test(name));
  picture.classList.toggle('others', Boolean(key));
  if (key) for (const other of picture.getElementsByClassName(key)) other.classList.add('same');
  if (!shape) return;
  tip.textContent = shape.dataset.tip;
  tip.style.left = Math.max(0, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + 'px';
  tip.style.top = Math.max(0, Math.min(event.clientY + 18, innerHeight - tip.offsetHeight - 8)) + 'px';
}
picture.addEventListener('pointermove', point);
picture.addEventListener('pointerdown', point);
picture.addEventListener('pointerleave', () => { tip.hidden = true; picture.classList.remove('others'); });

const zoom = picture.querySelector('.zoom'), bar = document.querySelector('p');
if (zoom) {
  const whole = zoom.viewBox.baseVal, left = whole.x, width = whole.width;
  const texts = [...zoom.querySelectorAll('text')].map(text => {
    const box = text.previousElementSibling;
    return {text, x: Number(text.getAttribute('x')), room: box && box.tagName === 'rect' ? Number(box.getAttribute('width')) : Infinity,
            needs: 7 * text.textContent.length};
  });
  const ticks = picture.querySelector('.ticks');
  let x = left, shown = width;
  const show = () => {
    shown = Math.min(width, Math.max(width / 100, shown));
    x = Math.min(left + width - shown, Math.max(left, x));
    zoom.setAttribute('viewBox', `${x} ${whole.y} ${shown} ${whole.height}`);
    const factor = width / shown;
    for (const one of texts) {
      const seen = one.room * factor >= one.needs && one.x > x && one.x < x + shown;
      one.text.style.display = seen ? '' : 'none';
      if (seen) one.text.setAttribute('transform', `matrix(${1 / factor} 0 0 1 ${one.x * (1 - 1 / factor)} 0)`);
    }
    if (ticks) drawTicks(factor);
  };
  const drawTicks = factor => {
    const {left: from, right: to, scale, unit} = ticks.dataset, y = Number(ticks.querySelector('line').getAttribute('y1'));
    const perUnit = scale * factor, rough = 100 / perUnit, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find(digit => digit * power >= rough) * power, digits = Math.max(0, -Math.floor(Math.log10(step)));
    const first = (x - left) / scale, elements = [];
    for (let i = Math.ceil(first / step); i * step <= first + (to - from) / perUnit + 1e-9; ++i) {
      const at = Number(from) + (i * step - first) * perUnit;
      elements.push(`<line class="axis" x1="${at}" y1="${y}" x2="${at}" y2="${y + 4}"/><text x="${at}" y="${y + 18}" ` +
                    `text-anchor="middle">${(i * step).toFixed(digits)}${unit && ' ' + unit}</text>`);
    }
    if (elements.length) ticks.innerHTML = elements.join('');
  };
  // Zooms by `factor`, so that the place at the share `at` of the width stays.
  const by = (factor, at = 0.5) => { const next = Math.min(width, shown / factor); x += at * (shown - next); shown = next; show(); };
  const move = share => { x += share * shown; show(); };
  const place = clientX => { const box = zoom.getBoundingClientRect(); return (clientX - box.left) / box.width; };
  const all = () => { x = left; shown = width; show(); };
  zoom.addEventListener('wheel', event => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 1000); else by(Math.exp(-event.deltaY / 300), place(event.clientX));
  }, {passive: false});
  const fingers = new Map();
  zoom.addEventListener('pointerdown', event => { fingers.set(event.pointerId, place(event.clientX)); });
  zoom.addEventListener('pointermove', event => {
    const before = fingers.get(event.pointerId), now = place(event.clientX);
    if (before === undefined) return;
    const other = [...fingers].find(([id]) => id !== event.pointerId);
    fingers.set(event.pointerId, now);
    if (!other) move(before - now);
    else if (Math.abs(before - other[1]) > 0.01) by(Math.max(0.5, Math.min(2, Math.abs(now - other[1]) / Math.abs(before - other[1]))), other[1]);
  });
  for (const name of ['pointerup', 'pointercancel', 'pointerleave']) zoom.addEventListener(name, event => fingers.delete(event.pointerId));
  zoom.addEventListener('dblclick', all);
  const verbs = {'+': () => by(2), '-': () => by(0.5), '\u2190': () => move(-0.25), '\u2192': () => move(0.25), 'all': all};
  for (const [name, verb] of Object.entries(verbs)) {
    const button = document.createElement('button');
    button.textContent = name;
    button.addEventListener('click', verb);
    bar.append(button);
  }
  const keys = {ArrowLeft: '\u2190', ArrowRight: '\u2192', '=': '+', '0': 'all'};
  addEventListener('keydown', event => { const verb = verbs[keys[event.key] || event.key]; if (verb && !event.ctrlKey && !event.metaKey) verb(); });
  bar.append('Wheel or pinch to zoom, drag to move, point at a box for its times.');
  show();
} else {
  bar.append('Point at a shape for its numbers.');
}
</script>
)";

}  // namespace

std::string picture_page(std::string_view title, std::string_view svg) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, "
      "initial-scale=1\">\n<title>{}</title>\n{}</head>\n<body>\n<p></p>\n<main>\n{}</main>\n<div "
      "id=\"tip\" hidden></div>\n{}</body>\n</html>\n",
      xml_text(title),
      kStyle,
      svg,
      kScript);
}

}  // namespace lehr
