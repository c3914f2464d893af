// The cursor: the values at a step, read with a mouse, a finger or the arrow keys, and zooming.

const tip = element("div", "tip");
tip.id = "tip";
tip.hidden = true;
tip.setAttribute("role", "status");
let reading = []; // the last arguments of `read`: the plot, the step and the height in it

function listen(view) {
  const { plot, chart } = view; // what is drawn of it is another for each choice
  let start = null, box = null;
  const at = (event) => event.clientX - plot.getBoundingClientRect().left;
  plot.addEventListener("pointermove", (event) => {
    if (view.dirty) draw(view);
    if (start !== null) {
      const [from, to] = [start, at(event)].sort((a, b) => a - b);
      box.setAttribute("x", from);
      box.setAttribute("width", to - from);
      return;
    }
    read(view, stepAt(view, at(event)), event.clientY - plot.getBoundingClientRect().top);
  });
  plot.addEventListener("pointerleave", () => start === null && leave());
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => onKey(view, event));
  if (chart.x !== "step") return;
  plot.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0 || event.target.closest("a")) return;
    if (view.dirty) draw(view);
    start = at(event);
    const { top, bottom } = view.geometry;
    box = svg("rect", { x: start, width: 0, y: top, height: bottom - top, class: "selection" });
    plot.firstChild.append(box);
    plot.setPointerCapture(event.pointerId);
    leave();
  });
  plot.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to] = [start, at(event)].sort((a, b) => a - b);
    start = null;
    box.remove();
    if (to - from > 6) zoom([stepAt(view, from), stepAt(view, to)]);
  });
  plot.addEventListener("pointercancel", () => {
    start = null;
    if (box) box.remove();
  });
  plot.addEventListener("dblclick", () => zoom(null));
}

function stepAt(view, pixel) {
  const { range, inner } = view.geometry;
  const share = Math.max(0, Math.min(1, (pixel - margin.left) / inner));
  return range[0] + share * (range[1] - range[0]);
}

// Every step that some visible curve of the chart has, in the range that is drawn.
function stepsOf(view) {
  const [low, high] = view.geometry.range, steps = new Set();
  for (const trace of view.shown.rows.flatMap((row) => row.traces)) {
    if (state.hidden.has(trace.run)) continue;
    for (const step of curveOf(trace).x) if (step >= low && step <= high) steps.add(step);
  }
  return [...steps].sort((a, b) => a - b);
}

function curveOf(trace) {
  return trace.raw.x.length || !trace.mean ? trace.raw : trace.mean;
}

function nearest(values, value) {
  const after = lowerBound(values, value);
  if (after === values.length) return after - 1;
  return after > 0 && value - values[after - 1] < values[after] - value ? after - 1 : after;
}

// Show the values nearest to a step. With `y`, in pixels, the plot of several runs that is meant.
function read(view, wanted, y = null) {
  if (view.dirty) draw(view);
  const { geometry, shown: chart } = view;
  const r = y === null ? 0 : Math.max(0, geometry.rows.findLastIndex((row) => y >= row.top - rowGap / 2));
  const rows = several ? [chart.rows[r]] : chart.rows;
  const shown = rows.flatMap((row) => row.traces).filter((t) => !state.hidden.has(t.run) && curveOf(t).x.length);
  if (!shown.length) return leave();
  const step = shown.map((t) => curveOf(t).x[nearest(curveOf(t).x, wanted)])
    .reduce((best, x) => (Math.abs(x - wanted) < Math.abs(best - wanted) ? x : best));
  const reach = Math.max(state.axis === "step" ? 0.5 : 0, ((geometry.range[1] - geometry.range[0]) / geometry.inner) * (several ? 14 : 5));
  const values = [];
  for (const trace of shown) {
    const curve = curveOf(trace), i = nearest(curve.x, step);
    if (Math.abs(curve.x[i] - step) > reach) continue;
    const mean = trace.mean && curve !== trace.mean ? trace.mean.y[Math.max(0, nearest(trace.mean.x, step))] : null;
    values.push({ trace, value: (trace.own || curve.y)[i], mean, ends: curve.ends?.[i] });
  }
  state.cursor = step;
  reading = [view, step, y];
  showCursor(chart.x, step);
  const near = several && y !== null ? closest(values, geometry.rows[r], y) : null;
  fillTip(view, step, values, near, several && chart.rows.length > 1 ? rows[0].title : "");
}

function closest(values, row, y) {
  const far = (v) => (canShow(v.value, row.log) ? Math.abs(row.y(v.value) - y) : Infinity);
  return values.reduce((best, v) => (!best || far(v) < far(best) ? v : best), null);
}

function atStep(place) {
  if (state.axis === "step") return "step " + thousands(place);
  return state.axis === "tokens" ? thousands(Math.round(place)) + " tokens" : written(place, 4) + " " + clock()[0];
}

function fillTip(view, step, values, near, title) {
  const head = view.chart.x === "step" ? atStep(step) : "share " + written(step, 3) + " %";
  tip.replaceChildren(element("b", "", title ? head + ", " + title : head));
  if (several) values.sort((a, b) => (b.value ?? -Infinity) - (a.value ?? -Infinity));
  for (const v of values) {
    const run = data.runs[v.trace.run], line = element("div", v === near ? "near" : "");
    line.append(several ? key(run.color, run.dash) : key(v.trace.color, v.trace.dash));
    const mean = v.mean === null || v.mean === undefined ? "" : " (mean " + written(v.mean, 4) + ")";
    line.append(element("span", "name", several ? run.name : v.trace.label));
    const ends = v.ends ? ` (${v.ends.map((end) => written(end, 3)).join(" to ")})` : "";
    line.append(element("span", "value", (v.value === null ? "–" : written(v.value, 4)) + mean + ends));
    tip.append(line);
  }
  if (several) highlight(near ? near.trace.run : null);
  tip.hidden = false;
  const box = view.plot.getBoundingClientRect(), x = view.geometry.x(step), width = tip.offsetWidth;
  const right = x + 14 + width < document.documentElement.clientWidth - box.left;
  tip.style.left = scrollX + Math.max(4, box.left + (right ? x + 14 : x - 14 - width)) + "px";
  const below = Math.max(8, Math.min(box.top + view.geometry.top, innerHeight - tip.offsetHeight - 8));
  tip.style.top = scrollY + below + "px";
}

// The same step in every chart that is drawn.
function showCursor(axis, step) {
  for (const view of views.values()) {
    if (!view.cursor || view.dirty) continue;
    const [low, high] = view.geometry.range;
    const hidden = view.chart.x !== axis || step === null || step < low || step > high;
    view.cursor.setAttribute("visibility", hidden ? "hidden" : "visible");
    if (!hidden) {
      view.cursor.setAttribute("x1", view.geometry.x(step));
      view.cursor.setAttribute("x2", view.geometry.x(step));
    }
  }
}

function leave() {
  tip.hidden = true;
  showCursor("", null);
  if (several) highlight(null);
}

// One run in front, the others faint; null for none.
function highlight(run) {
  if (state.highlighted === run) return;
  state.highlighted = run;
  dim(document.querySelectorAll(".plot [data-run]"), run);
  for (const node of document.querySelectorAll("button[data-run]")) {
    node.classList.toggle("front", Number(node.dataset.run) === run);
  }
}

function dim(lines, run) {
  for (const line of lines) {
    const own = Number(line.dataset.run) === run;
    line.classList.toggle("dim", run !== null && !own);
    line.classList.toggle("front", own);
  }
}

const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

function onKey(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (view.dirty) draw(view);
  const steps = stepsOf(view);
  if (event.key in moves && steps.length) {
    const from = tip.hidden ? steps.length - 1 : nearest(steps, state.cursor);
    const to = tip.hidden && Math.abs(moves[event.key]) < 2 ? from : from + moves[event.key];
    read(view, steps[Math.max(0, Math.min(steps.length - 1, to))]);
  } else if ((event.key === "+" || event.key === "=" || event.key === "-") && view.chart.x === "step") {
    const [low, high] = view.geometry.range, middle = tip.hidden ? (low + high) / 2 : state.cursor;
    const times = event.key === "-" ? 2 : 0.5, all = wholeRange();
    const from = Math.max(all[0], middle - (middle - low) * times);
    const to = Math.min(all[1], middle + (high - middle) * times);
    if (to - from >= (state.axis === "step" ? 1 : (all[1] - all[0]) / 1000)) zoom(from <= all[0] && to >= all[1] ? null : [from, to]);
  } else if (event.key === "Escape") {
    if (tip.hidden) zoom(null);
    else leave();
  } else return;
  event.preventDefault();
}
