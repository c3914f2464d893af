// A chart as SVG, drawn from its JSON and the state. Colours are custom properties: a change of theme draws nothing.

const margin = { left: 52, right: 14, top: 22, bottom: 40 };
const laneHeight = 17, rowGap = 30, largest = 8e307;
const shades = { rise: 0, stagnation: 0.06, decay: 0.13, collapse: 0.2 };
const dashes = { dash: "7 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "14 4" };

function svg(tag, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  if (text !== undefined) node.textContent = text;
  return node;
}

function paint(node, name, dash) {
  node.style.stroke = "var(--" + name + ")";
  if (dashes[dash]) node.style.strokeDasharray = dashes[dash];
}

// The reward of a single run is drawn above everything else.
function isMain(chart) {
  return chart.id === "reward" && !several;
}

function rowHeight(chart) {
  return chart.rows.length > 1 ? 135 : isMain(chart) ? 230 : 200;
}

function height(chart) {
  return chart.rows.length * rowHeight(chart) + (chart.rows.length - 1) * rowGap;
}

function draw(view) {
  const { plot } = view, width = plot.clientWidth;
  if (width < 120) return; // in something that is closed
  view.dirty = false;
  const chart = (view.shown = shownOf(view.chart));
  const range = chart.x === "step" ? state.range || wholeRange() : [0, 100];
  const inner = width - margin.left - margin.right;
  const pins = several ? [] : lanes(chart.pins, range, inner);
  const top = margin.top + laneHeight * Math.max(0, ...pins.map((pin) => pin.lane + 1));
  const bottom = top + height(chart);
  const tall = bottom + margin.bottom;
  const root = svg("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}` }); // paper scales it
  const x = (step) => margin.left + ((step - range[0]) / (range[1] - range[0])) * inner;
  view.geometry = { range, inner, top, bottom, x, rows: [] };
  const shaded = !several && chart.x === "step" ? phasesIn(range) : [];
  root.append(...shaded.map((phase) => phaseBox(view, phase)), ...stepTicks(view));
  chart.rows.forEach((row, r) => root.append(drawRow(view, row, r)));
  root.append(...pins.map((pin) => pinAbove(view, pin)));
  if (isMain(chart)) root.append(...shaded.map((phase) => phaseName(view, phase)));
  if (several) root.append(...pinsOnCurves(view));
  view.cursor = svg("line", { y1: top, y2: bottom, class: "cursor", visibility: "hidden" });
  root.append(view.cursor);
  if (state.highlighted !== null) dim(root.querySelectorAll("[data-run]"), state.highlighted);
  plot.replaceChildren(root);
  plot.setAttribute("aria-label", spoken(chart));
}

function drawRow(view, row, r) {
  const { shown: chart, geometry } = view, { range, x, inner } = geometry;
  const tall = rowHeight(chart), top = geometry.top + r * (tall + rowGap);
  const shown = row.traces.filter((t) => !state.hidden.has(t.run));
  const scale = scaleOf(row, shown, range, isLogarithmic(row, chart.id), chart.rows.length > 1 ? 4 : 6);
  const y = (value) => top + tall * (1 - scale.share(value));
  geometry.rows.push({ top, bottom: top + tall, y, log: scale.log });
  const group = svg("g", { class: "row" });
  for (const tick of scale.ticks) {
    group.append(across(y(tick), inner, "grid"), label(margin.left - 6, y(tick) + 4, "end", written(tick)));
  }
  if (!isMain(chart) && row.title) group.append(svg("text", { x: margin.left, y: top - 7, class: "title" }, row.title));
  const clip = svg("clipPath", { id: "clip-" + chart.id + "-" + r });
  clip.append(svg("rect", { x: margin.left - 1, y: top - 4, width: inner + 2, height: tall + 8 }));
  const curves = svg("g", { "clip-path": "url(#clip-" + chart.id + "-" + r + ")" });
  if (row.mark !== null && scale.share(row.mark) >= 0 && scale.share(row.mark) <= 1) {
    curves.append(across(y(row.mark), inner, "mark"));
  }
  for (const trace of shown) curves.append(...lines(trace, range, x, y, scale.log, top + tall));
  group.append(clip, curves);
  return group;
}

function across(y, inner, className) {
  return svg("line", { x1: margin.left, x2: margin.left + inner, y1: y, y2: y, class: className });
}

function label(x, y, anchor, text) {
  return svg("text", { x, y, class: "tick", "text-anchor": anchor }, text);
}

function lines(trace, range, x, y, log, floor) {
  const run = data.runs[trace.run], drawn = [];
  const color = several ? run.color : trace.color, dash = several ? run.dash : trace.dash;
  const add = (curve, className) => {
    const line = svg("path", { class: className, d: pathOf(curve, range, x, y, log), "data-run": trace.run });
    paint(line, color, className.includes("faint") ? "" : dash);
    drawn.push(line);
  };
  if (trace.own) return [area(trace, range, x, y, floor)];
  if (trace.raw.x.length && !isLonely(trace)) add(trace.raw, trace.mean && !several ? "line faint" : "line");
  if (trace.mean) add(trace.mean, "line");
  const dots = isLonely(trace) || (trace.points && trace.raw.x.length < 200);
  if (dots) {
    trace.raw.x.forEach((step, i) => {
      if (!canShow(trace.raw.y[i], log)) return;
      if (trace.raw.ends) drawn.push(intervalBar(x(step), ...trace.raw.ends[i].map(y), color, trace.run));
      const dot = svg("circle", { cx: x(step), cy: y(trace.raw.y[i]), r: 3, class: "dot", "data-run": trace.run });
      dot.style.fill = "var(--" + color + ")";
      drawn.push(dot);
    });
  }
  for (const step of trace.raw.bad) {
    const at = `translate(${x(step).toFixed(1)},${floor - 6})`;
    drawn.push(svg("path", { d: "M-4,-4L4,4M4,-4L-4,4", transform: at, class: "bad", "data-run": trace.run }));
  }
  return drawn;
}

// Two points or one, three of what is logged rarely: a line would tell of what is between them.
function isLonely(trace) {
  return trace.raw.x.length < (trace.points ? 4 : 3);
}

function intervalBar(x, low, high, color, run) {
  const bar = svg("line", { x1: x, x2: x, y1: low, y2: high, class: "interval", "data-run": run });
  bar.style.stroke = "var(--" + color + ")";
  return bar;
}

// A part of a stack, down to the floor: those below it are drawn over it.
function area(trace, range, x, y, floor) {
  const points = pathOf(trace.raw, range, x, y, false).slice(1).split("L"), at = (point) => point.split(",")[0];
  const d = `M${at(points[0])},${floor}L${points.join("L")}L${at(points.at(-1))},${floor}Z`;
  const node = svg("path", { d, "data-run": trace.run });
  node.style.fill = "var(--" + trace.color + ")";
  return node;
}

// A scale that the reader turned, where the row has a logarithm.
function isLogarithmic(row, id) {
  return state.logarithmic.has(id) && (row.log || isPositive(row)) ? !row.log : row.log;
}

function isPositive(row) {
  return !row.stacked && row.traces.every((t) => [t.raw, t.mean].every((curve) => !curve || curve.y.every((y) => y === null || y > 0)));
}

function canShow(value, log) {
  return value !== null && (!log || value > 0);
}

// The part of a curve that is seen, and a point more at either side.
function pathOf(curve, range, x, y, log) {
  const from = Math.max(0, lowerBound(curve.x, range[0]) - 1);
  const to = Math.min(curve.x.length, lowerBound(curve.x, range[1]) + 2);
  let text = "", joined = false;
  for (let i = from; i < to; i += 1) {
    const value = curve.y[i];
    if (!canShow(value, log)) {
      joined = false;
      continue;
    }
    text += (joined ? "L" : "M") + x(curve.x[i]).toFixed(1) + "," + y(value).toFixed(1);
    joined = true;
  }
  return text;
}

// The first index whose value is not below `value`.
function lowerBound(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ---- scales

function scaleOf(row, traces, range, log, count) {
  let low = Infinity, high = -Infinity;
  for (const trace of traces) {
    for (const curve of trace.mean ? [trace.raw, trace.mean] : [trace.raw]) {
      const to = Math.min(curve.x.length, lowerBound(curve.x, range[1]) + 1);
      for (let i = Math.max(0, lowerBound(curve.x, range[0]) - 1); i < to; i += 1) {
        for (const seen of [curve.y[i], ...(curve.ends ? curve.ends[i] : [])]) {
          if (!canShow(seen, log)) continue;
          const value = Math.max(-largest, Math.min(largest, seen));
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
  }
  if (low > high) [low, high] = log ? [1, 10] : [0, 1];
  if (row.stacked) low = 0;
  if (row.range && !state.range && !log) [low, high] = row.range;
  return log ? logScale(low, high, count) : linearScale(low, high, row.mark, count);
}

function linearScale(low, high, mark, count) {
  const span = high - low;
  if (mark !== null && mark < low && low - mark <= span) low = mark;
  if (mark !== null && mark > high && mark - high <= span) high = mark;
  const pad = (high - low) * 0.05 || Math.abs(low) * 0.1 || 0.5;
  const from = low - pad, whole = high - low + 2 * pad;
  const share = (value) => (Math.max(-largest, Math.min(largest, value)) - from) / whole;
  return { log: false, share, ticks: ticksOf(from, high + pad, count) };
}

function logScale(low, high, count) {
  const pad = Math.max(0.05 * (Math.log10(high) - Math.log10(low)), 0.005);
  const from = Math.log10(low) - pad, to = Math.log10(high) + pad, decades = to - from;
  const share = (value) => (Math.log10(value) - from) / decades;
  if (decades < 0.7) return { log: true, share, ticks: ticksOf(low, high, count).filter((tick) => tick > 0) };
  const every = Math.ceil(decades / count), ticks = [];
  for (let power = Math.floor(from / every) * every; power <= to; power += every) {
    for (const times of decades < 2.2 ? [1, 2, 5] : [1]) {
      const tick = Number(times + "e" + power);
      if (Math.log10(tick) >= from && Math.log10(tick) <= to) ticks.push(tick);
    }
  }
  return { log: true, share, ticks };
}

// About `count` round numbers from `low` to `high`, at least `least` apart.
function ticksOf(low, high, count, least = 0) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) || 0);
  if (!(step > 0) || !isFinite(step)) return [low];
  const ticks = [];
  for (let k = Math.ceil(low / step); ticks.length <= 2 * count && k * step <= high; k += 1) {
    ticks.push(Number((k * step).toPrecision(12)));
  }
  return ticks;
}

function written(value, digits = 6) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return Number(value.toPrecision(Math.min(digits, 4))).toExponential();
  return String(Number(value.toPrecision(digits)));
}

function stepTicks(view) {
  const { range, x, top, bottom, inner } = view.geometry, steps = view.chart.x === "step";
  const least = steps && state.axis === "step" ? 1 : 0;
  const ticks = ticksOf(range[0], range[1], Math.max(3, Math.min(9, inner / 80)), least);
  const short = range[1] - range[0] >= 3000;
  const drawn = ticks.flatMap((tick) => [
    svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }),
    label(x(tick), bottom + 16, "middle", steps ? stepName(tick, short) : tick),
  ]);
  const title = steps ? axisTitle() : "share of correct rollouts, %";
  return [...drawn, across(bottom, inner, "axis"), label(margin.left + inner / 2, bottom + 34, "middle", title)];
}

// toLocaleString is slow the first time.
function thousands(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, ",");
}

function stepName(step, short) {
  if (!short || Math.abs(step) < 1000) return thousands(step);
  const [size, letter] = Math.abs(step) >= 1e9 ? [1e9, "G"] : Math.abs(step) >= 1e6 ? [1e6, "M"] : [1e3, "k"];
  return Number((step / size).toPrecision(6)) + letter;
}

let whole = null;

function wholeRange() {
  if (whole) return whole;
  let low = Infinity, high = -Infinity;
  for (const chart of [...data.charts, ...data.more]) {
    if (chart.x !== "step") continue;
    for (const trace of shownOf(chart).rows.flatMap((row) => row.traces)) {
      for (const x of [trace.raw.x, trace.raw.bad, trace.mean ? trace.mean.x : []]) {
        if (!x.length) continue;
        low = Math.min(low, x[0]);
        high = Math.max(high, x[x.length - 1]);
      }
    }
  }
  if (low > high) [low, high] = [0, 1];
  const pad = state.axis === "step" ? Math.max((high - low) * 0.015, 0.5) : (high - low) * 0.015;
  return (whole = [low - pad, high + pad]);
}

// ---- what was found

// Labels of findings in lanes above the plot, so that none covers another. The last ones come first in the result, so
// an earlier label is drawn over the line of a later one.
function lanes(pins, range, width) {
  const groups = new Map(); // place on the axis -> codes
  for (const pin of pins) groups.set(pin.x, [...new Set([...(groups.get(pin.x) || []), pin.code])]);
  const taken = [], found = [];
  for (const [at, codes] of [...groups].sort((a, b) => a[0] - b[0])) {
    if (at < range[0] || at > range[1]) continue;
    const x = ((at - range[0]) / (range[1] - range[0] || 1)) * width;
    const all = codes.join(" "), fits = codes.length < 2 || all.length * 7 < width * 0.3;
    const text = fits ? all : codes[0] + " +" + (codes.length - 1);
    const room = text.length * 7 + 8;
    const left = Math.min(Math.max(0, x - room / 2), Math.max(0, width - room));
    let lane = taken.findIndex((end) => end <= left);
    if (lane < 0 && taken.length < 4) lane = taken.length;
    if (lane < 0) {
      found.findLast((pin) => pin.lane >= 0).more += codes.length;
      found.push({ x: at, lane: -1 });
      continue;
    }
    taken[lane] = left + room + 14;
    found.push({ x: at, text, codes, lane, more: 0, center: left + room / 2 });
  }
  return found.reverse();
}

function pinAbove(view, pin) {
  const { x, top, bottom } = view.geometry, lift = pin.lane < 0 ? 0 : 18 + pin.lane * laneHeight;
  const line = svg("line", { x1: x(pin.x), x2: x(pin.x), y1: top - lift, y2: bottom, class: "pin" });
  if (pin.lane < 0) return line;
  const text = pin.text + (pin.more ? " +" + pin.more : ""), center = margin.left + pin.center;
  const link = svg("a", { href: "#finding-" + pin.codes[0], class: "pin-label" });
  link.append(
    svg("rect", { x: center - text.length * 3.5 - 2, y: top - lift - 14, width: text.length * 7 + 4, height: 15 }),
    svg("text", { x: center, y: top - lift - 3, "text-anchor": "middle" }, text),
  );
  const group = svg("g");
  group.append(line, link);
  return group;
}

function pinsOnCurves(view) {
  const { shown: chart, geometry } = view, row = geometry.rows[0], drawn = [];
  for (const pin of chart.pins) {
    const trace = chart.rows[0].traces.find((t) => t.run === pin.run);
    if (!trace || state.hidden.has(pin.run) || pin.x < geometry.range[0] || pin.x > geometry.range[1]) continue;
    const curve = trace.mean || trace.raw;
    const value = curve.y[Math.max(0, lowerBound(curve.x, pin.x * (1 + 1e-9)) - 1)];
    if (!canShow(value ?? null, row.log)) continue;
    const at = `translate(${geometry.x(pin.x).toFixed(1)},${(row.y(value) - 3).toFixed(1)})`;
    const mark = svg("path", { d: "M-6,-9L6,-9L0,2Z", transform: at, class: "pin-mark", "data-run": pin.run });
    mark.style.fill = "var(--" + data.runs[pin.run].color + ")";
    mark.append(svg("title", {}, `${pin.code} at step ${thousands(pin.step)}, ${data.runs[pin.run].name}`));
    drawn.push(mark);
  }
  return drawn;
}

function phasesIn(range) {
  if (state.axis !== "step" && !data.runs[0].axes[state.axis]) return [];
  const ends = ({ start, end }) => [Math.max(placed(0, start), range[0]), Math.min(placed(0, end), range[1])];
  const cut = (phase) => ({ ...phase, start: ends(phase)[0], end: ends(phase)[1] });
  return data.runs[0].phases.map(cut).filter((phase) => phase.end > phase.start);
}

function phaseBox(view, phase) {
  const { x, top, bottom } = view.geometry;
  const place = { x: x(phase.start), y: top, width: x(phase.end) - x(phase.start), height: bottom - top };
  const box = svg("rect", { ...place, class: "phase" });
  box.style.fill = `rgba(var(--phase), ${shades[phase.name]})`;
  return box;
}

function phaseName(view, phase) {
  const { x, top } = view.geometry, room = x(phase.end) - x(phase.start), middle = (x(phase.start) + x(phase.end)) / 2;
  const text = room > phase.name.length * 7 ? phase.name : "";
  return svg("text", { x: middle, y: top - 5, class: "phase-name", "text-anchor": "middle" }, text);
}

// What a screen reader says of a chart.
function spoken(chart) {
  const traces = chart.rows.flatMap((row) => row.traces).filter((t) => !state.hidden.has(t.run)).slice(0, 6);
  const ends = traces.map((t) => {
    const last = (t.own || (t.mean || t.raw).y).at(-1);
    const name = several ? data.runs[t.run].name : t.label;
    return `${name} ends at ${last === undefined ? "no number" : written(last, 3)}`;
  });
  return `${chart.title}. ${ends.join("; ")}. Left and right arrows read values, plus and minus zoom.`;
}
