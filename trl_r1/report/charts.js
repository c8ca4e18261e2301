"use strict";
// Line charts: axes, legends that hide lines, a read-out under the pointer or by arrow keys.
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 4", "14 3 4 3"];

function node(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function tickText(value, all) {
  const step = all.length > 1 ? Math.abs(all[1] - all[0]) : 1;
  const size = Math.max(...all.map(Math.abs));
  if (value === 0) return "0";
  if (size < 1e-3 || size >= 1e6) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  let digits = 0;
  while (digits < 6 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits++;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return x - xs[low] < xs[high] - x ? low : high;
}

// panel: {title, unit}; lines: [{label, x, y, colour, dash}]; bands: [{x, low, high, colour}].
function chart(panel, lines, bands, marks) {
  const figure = node("figure");
  const caption = node("figcaption", { text: panel.title }, node("small", { text: panel.unit }));
  const svg = shape("svg", { role: "img", tabindex: "0", "aria-label": `${panel.title}, ${panel.unit}, over steps. ${lines.map(summary).join("; ")}. Arrow keys read values.` });
  const box = node("div", { class: "tip-box", hidden: "" });
  const said = node("span", { class: "unseen", "aria-live": "polite" });
  const hidden = new Set();
  let place = null;
  const legend = node("div", { class: "legend" });
  // Several runs with several lines each: a button a run (by colour) and a button a line (by dash).
  const isGrid = new Set(lines.map((line) => line.run)).size > 1 && new Set(lines.map((line) => line.name)).size > 1;
  const keys = isGrid ? [
    ...[...new Set(lines.map((line) => line.run))].map((run) => [run, (line) => line.run === run, { dash: 0 }]),
    ...[...new Set(lines.map((line) => line.name))].map((name) => [name, (line) => line.name === name, { colour: null }]),
  ] : lines.map((line) => [line.label, (other) => other === line, {}]);
  const off = new Set();
  keys.forEach(([label, covers, look], i) => {
    const line = { ...lines.find(covers), ...look };
    const swatch = shape("svg", { "aria-hidden": "true", class: line.colour === null ? "plain" : `c${line.colour}`, viewBox: "0 0 22 8" });
    if (line.low) swatch.append(...points([11], [4], [0], [8], line));
    else swatch.append(shape("path", { class: "curve", d: "M0 4H22", "stroke-dasharray": DASHES[line.dash] }));
    const button = node("button", { type: "button", "aria-pressed": "true" }, swatch, node("bdi", { text: label }));
    button.addEventListener("click", () => {
      if (off.has(i)) off.delete(i); else off.add(i);
      button.setAttribute("aria-pressed", String(!off.has(i)));
      hidden.clear();
      lines.forEach((own, place) => { if (keys.some(([, has], key) => off.has(key) && has(own))) hidden.add(place); });
      draw();
    });
    legend.append(button);
  });
  legend.hidden = lines.length < 2;
  figure.append(caption, svg, legend, box, said);

  let scale = null;
  function draw() {
    const width = Math.max(figure.clientWidth - 26, 200), height = Math.round(Math.min(Math.max(width * 0.55, 175), 290));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.replaceChildren();
    const shown = lines.filter((_, i) => !hidden.has(i));
    const areas = bands.filter((band) => shown.some((line) => line.colour === band.colour));
    const xs = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    const ys = (shown.length ? shown : lines).flatMap((line) => line.y.concat(line.low || [], line.high || [])).filter((y) => y !== null).concat(areas.flatMap((band) => band.low.concat(band.high)));
    let left = Math.min(...xs), right = Math.max(...xs);
    if (left > 0 && left < 0.12 * right) left = 0;
    if (left === right) { left -= 1; right += 1; }
    let low = ys.reduce((a, b) => Math.min(a, b)), high = ys.reduce((a, b) => Math.max(a, b));
    if (low >= 0 && low < 0.6 * high) low = 0;
    if (panel.unit.startsWith("share") && high <= 1 && high > 0.5) high = 1;
    if (low === high) { const room = Math.abs(low) * 0.5 || 0.1; if (low !== 0) low -= room; high += room; }
    const rows = ticks(low, high, 5);
    const step = rows.length > 1 ? rows[1] - rows[0] : high - low;
    low = Math.min(low, Math.floor(low / step + 1e-9) * step);
    high = Math.max(high, Math.ceil(high / step - 1e-9) * step);
    const lines_y = ticks(low, high, 5);
    const texts = lines_y.map((value) => tickText(value, lines_y));
    // Room for the whiskers of a point that stands on the axis.
    const room = shown.some((line) => line.low) ? 6 : 0;
    const pad = { left: 14 + room + 7 * Math.max(...texts.map((t) => t.length)), right: 20, top: 10, bottom: 36 };
    const w = width - pad.left - pad.right, h = height - pad.top - pad.bottom;
    const X = (x) => pad.left + (x - left) / (right - left) * w;
    const Y = (y) => pad.top + (1 - (y - low) / (high - low)) * h;
    scale = { X, Y, left, right, pad, w, h, width, height, shown };
    lines_y.forEach((value, i) => {
      svg.append(shape("line", { class: "grid", x1: pad.left, x2: pad.left + w, y1: Y(value), y2: Y(value) }));
      svg.append(shape("text", { class: "tick", x: pad.left - 6 - room, y: Y(value) + 4, "text-anchor": "end" }, texts[i]));
    });
    const columns = ticks(left, right, Math.max(2, Math.floor(w / 52))).filter((x) => Number.isInteger(x));
    for (const x of columns) {
      svg.append(shape("line", { class: "axis", x1: X(x), x2: X(x), y1: pad.top + h, y2: pad.top + h + 4 }));
      svg.append(shape("text", { class: "tick", x: X(x), y: pad.top + h + 16, "text-anchor": "middle" }, x.toLocaleString("en")));
    }
    svg.append(shape("line", { class: "axis", x1: pad.left, x2: pad.left + w, y1: pad.top + h, y2: pad.top + h }));
    svg.append(shape("text", { class: "label", x: pad.left + w / 2, y: height - 4, "text-anchor": "middle" }, "step"));
    for (const band of areas) {
      const up = band.x.map((x, i) => `${X(x).toFixed(1)} ${Y(band.high[i]).toFixed(1)}`);
      const down = band.x.map((x, i) => `${X(x).toFixed(1)} ${Y(band.low[i]).toFixed(1)}`).reverse();
      const area = shape("path", { class: `area c${band.colour}`, d: `M${up.concat(down).join("L")}z` });
      area.append(shape("title", {}, band.label));
      svg.append(area);
    }
    for (const mark of marks) {
      if (mark.step === null || mark.step < left || mark.step > right) continue;
      const line = shape("path", { class: "mark", d: `M${X(mark.step)} ${pad.top}V${pad.top + h}` });
      const head = shape("path", { class: "mark-head", d: `M${X(mark.step) - 5} ${pad.top - 8}h10l-5 8z` });
      head.append(shape("title", {}, `${mark.monitor || mark.action}: ${mark.seen}`));
      svg.append(line, head);
    }
    for (const line of shown) {
      const way = line.x.map((x, i) => `${X(x).toFixed(1)} ${Y(line.y[i]).toFixed(1)}`);
      if (line.low) svg.append(...points(line.x.map(X), line.y.map(Y), line.high.map((y) => y === null ? null : Y(y)), line.low.map((y) => y === null ? null : Y(y)), line));
      else if (way.length === 1) svg.append(shape("circle", { class: `spot c${line.colour}`, cx: X(line.x[0]), cy: Y(line.y[0]), r: 4 }));
      else svg.append(shape("path", { class: `curve c${line.colour}`, d: `M${way.join("L")}`, "stroke-dasharray": DASHES[line.dash] }));
    }
    if (place !== null) point(place);
  }

  function point(x) {
    svg.querySelectorAll(".hover").forEach((old) => old.remove());
    const all = [...new Set(scale.shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    if (!all.length) { leave(); return; }
    const step = all[nearest(all, x)];
    place = step;
    const left = scale.X(step);
    svg.append(shape("line", { class: "hair hover", x1: left, x2: left, y1: scale.pad.top, y2: scale.pad.top + scale.h }));
    const rows = [];
    for (const line of scale.shown) {
      const i = nearest(line.x, step), y = line.y[i];
      if (line.low && line.x[i] !== step) continue;
      if (step < line.x[0] || step > line.x[line.x.length - 1]) continue;
      svg.append(shape("circle", { class: `spot hover c${line.colour}`, cx: scale.X(line.x[i]), cy: scale.Y(y), r: 4 }));
      rows.push([line.x[i] === step ? line.label : `${line.label} (step ${line.x[i].toLocaleString("en")})`, line.low && line.low[i] !== null ? `${short(y)} (${short(line.low[i])} to ${short(line.high[i])})` : short(y)]);
    }
    box.replaceChildren(node("b", { text: `step ${step.toLocaleString("en")}` }), ...rows.map(([name, value]) => node("div", {}, node("bdi", { text: name }), node("span", { text: value }))));
    said.textContent = `step ${step}: ${rows.map((row) => row.join(" ")).join(", ")}`;
    box.hidden = false;
    box.style.left = "0";
    // On the wider side of the line, and never beyond the figure's edges.
    const at = 13 + left * svg.clientWidth / scale.width, wide = box.offsetWidth;
    const wanted = left > scale.width / 2 ? at - wide - 12 : at + 12;
    box.style.left = `${Math.max(4, Math.min(wanted, figure.clientWidth - wide - 4))}px`;
    box.style.top = `${caption.offsetHeight + 24}px`;
  }
  function leave() {
    place = null;
    box.hidden = true;
    svg.querySelectorAll(".hover").forEach((old) => old.remove());
  }
  svg.addEventListener("pointermove", (event) => {
    const area = svg.getBoundingClientRect();
    const x = (event.clientX - area.left) * scale.width / area.width;
    point(scale.left + (x - scale.pad.left) / scale.w * (scale.right - scale.left));
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const turn = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") leave();
    if (turn === undefined) return;
    event.preventDefault();
    const all = [...new Set(scale.shown.flatMap((line) => line.x))].sort((a, b) => a - b);
    const now = place === null ? (turn < 0 ? all.length : -1) : nearest(all, place);
    point(all[Math.min(Math.max(now + turn, 0), all.length - 1)]);
  });
  new ResizeObserver(() => { if (!scale || Math.abs(scale.width - Math.max(figure.clientWidth - 26, 200)) > 1) draw(); }).observe(figure);
  return figure;
}

// Spots with the ends of their intervals, in pixels; no ends where there is no interval.
function points(xs, ys, tops, bottoms, line) {
  return xs.flatMap((x, i) => [
    ...(tops[i] === null ? [] : [shape("path", { class: `whisker c${line.colour}`, d: `M${x - 5} ${tops[i]}h10M${x - 5} ${bottoms[i]}h10M${x} ${tops[i]}V${bottoms[i]}` })]),
    shape("circle", { class: `spot c${line.colour}`, cx: x, cy: ys[i], r: 3 }),
  ]);
}

function summary(line) {
  return `${line.label} from ${short(line.y[0])} to ${short(line.y[line.y.length - 1])}`;
}
