// The page: what is where, the bar at its top, tables that sort. The last part of the script, which starts everything.

const views = new Map();

function place(chart, where) {
  const figure = element("figure"), main = isMain(chart);
  figure.id = "chart-" + chart.id;
  const head = element("div", "head");
  head.append(element("h3", "", chart.title));
  if (chart.x === "step" && chart.rows.some((row) => row.log || isPositive(row))) head.append(scaleButton(chart));
  const table = button("csv", () => save(views.get(chart.id).chart), "small");
  table.title = `save the values of this chart as a table${held(chart)}`;
  head.append(table);
  figure.append(head);
  if (chart.caption && !main) figure.append(element("figcaption", "", chart.caption));
  if (!several) figure.append(legend(chart));
  const plot = element("div", "plot");
  plot.tabIndex = 0;
  plot.setAttribute("role", "img");
  plot.style.minHeight = height(chart) + margin.top + margin.bottom + "px"; // so that nothing jumps when it is drawn
  figure.append(plot);
  where.append(figure);
  const view = { chart, plot, figure, dirty: true, seen: false, geometry: null, cursor: null };
  views.set(chart.id, view);
  listen(view);
  observer.observe(plot);
}

function scaleButton(chart) {
  const rows = () => (views.get(chart.id)?.chart ?? chart).rows; // a live page renews them
  const say = () => turn.setAttribute("aria-pressed", String(rows().some((row) => isLogarithmic(row, chart.id))));
  const turn = button("log", () => {
    state.logarithmic.has(chart.id) ? state.logarithmic.delete(chart.id) : state.logarithmic.add(chart.id);
    say();
    draw(views.get(chart.id));
  }, "small");
  turn.title = "logarithmic scale";
  say();
  return turn;
}

function legend(chart) {
  const box = element("div", "legend"), seen = new Set();
  for (const t of chart.rows.filter((row) => row.traces.length > 1).flatMap((row) => row.traces)) {
    if (seen.has(t.label + t.color)) continue;
    seen.add(t.label + t.color);
    const entry = element("span");
    entry.append(isLonely(t) ? dotKey(t.color) : key(t.color, t.dash), t.label);
    box.append(entry);
  }
  return box;
}

function dotKey(name) {
  const dot = svg("circle", { cx: 14, cy: 5, r: 3 }), swatch = svg("svg", { width: 28, height: 10, class: "key", "aria-hidden": "true" });
  dot.style.fill = "var(--" + name + ")";
  swatch.append(dot);
  return swatch;
}

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const view = [...views.values()].find((v) => v.plot === entry.target);
    if (!view) continue;
    view.seen = entry.isIntersecting;
    if (view.seen && view.dirty) draw(view);
  }
}, { rootMargin: "300px" });

// Charts in view are drawn at once, the others when they come into view.
function drawAll(unseen = false) {
  tip.hidden = true;
  for (const view of views.values()) {
    view.dirty = true;
    if (view.seen || unseen) draw(view);
  }
}

// Place the charts, or only their content if the same charts are there already.
function placeCharts() {
  const charts = [...data.charts, ...data.more];
  if (views.size && shapeOf([...views.values()].map((view) => view.chart)) === shapeOf(charts)) {
    for (const chart of charts) {
      const view = views.get(chart.id);
      view.chart = chart;
      view.figure.querySelector(".legend")?.replaceWith(legend(chart)); // it may name steps
    }
    const before = tip.hidden ? null : reading;
    drawAll();
    if (before) read(...before);
    return;
  }
  for (const view of views.values()) observer.unobserve(view.plot);
  views.clear();
  for (const id of ["main", "charts", "more-charts"]) document.getElementById(id)?.replaceChildren();
  for (const chart of data.charts) place(chart, document.getElementById(isMain(chart) ? "main" : "charts"));
  for (const chart of data.more) place(chart, document.getElementById("more-charts"));
  const more = document.getElementById("more");
  more.hidden = !data.more.length;
  more.querySelector("summary").textContent = `Other metrics of the log (${data.more.length})`;
  for (const id of state.logarithmic) if (!views.has(id)) state.logarithmic.delete(id);
  filterCharts(state.charts);
}

// What must be the same for a chart to stay where it is.
function shapeOf(charts) {
  const row = ({ title, traces }) => [title, traces.map((trace) => trace.series)];
  return JSON.stringify(charts.map(({ id, title, rows }) => [id, title, rows.map(row)]));
}

function filterCharts(words) {
  state.charts = words.toLowerCase();
  for (const { chart, figure } of views.values()) {
    const text = [chart.title, ...chart.rows.flatMap((r) => [r.title, ...r.traces.map((t) => t.series)])].join("\n");
    figure.hidden = !text.toLowerCase().includes(state.charts);
  }
  const more = document.getElementById("more");
  if (state.charts && data.more.some((c) => !views.get(c.id).figure.hidden)) more.open = true;
}

function zoom(range) {
  state.range = range;
  document.getElementById("reset").hidden = range === null;
  writeAddress();
  drawAll();
}

function toggle(runs, hidden) {
  for (const run of runs) hidden ? state.hidden.add(run) : state.hidden.delete(run);
  showToggles();
  writeAddress();
  drawAll();
}

function showToggles() {
  for (const node of document.querySelectorAll("button[data-run]")) {
    node.setAttribute("aria-pressed", String(!state.hidden.has(Number(node.dataset.run))));
  }
}

function runButton(i) {
  const node = button("", () => toggle([i], !state.hidden.has(i)), "run");
  node.dataset.run = i;
  node.title = "show or hide this run in all charts";
  node.append(key(data.runs[i].color, data.runs[i].dash), data.runs[i].name);
  for (const [name, run] of [["pointerenter", i], ["pointerleave", null], ["focus", i], ["blur", null]]) {
    node.addEventListener(name, () => highlight(run));
  }
  return node;
}

// What all charts are drawn over, and how smoothly. A log without a choice has no menu.
function choices() {
  const place = document.getElementById("choices"), over = menu("horizontal axis", (value) => redraw({ axis: value }));
  const names = { step: "by step", seconds: "by time", tokens: "by tokens" };
  options(over, axes().map((name) => [name, names[name]]), state.axis);
  const smooth = menu("smoothing", (value) => redraw({ times: Number(value) }));
  const rows = (count) => `mean of ${thousands(count * data.window)} rows`;
  const fitting = times.filter((count) => count < 2 || 2 * count * data.window <= data.rows);
  const offered = fitting.filter((count) => count || data.values);
  options(smooth, offered.map((count) => [String(count), count ? rows(count) : "every value"]), String(state.times));
  place.replaceChildren(...(axes().length > 1 ? [over] : []), ...(offered.length > 1 && data.rows ? [smooth] : []));
}

function redraw(chosen) {
  Object.assign(state, chosen);
  whole = null;
  if (chosen.axis) return zoom(null);
  writeAddress();
  drawAll();
}

function bar() {
  const place = document.getElementById("bar"), every = data.runs.map((_, i) => i);
  if (several) {
    place.append(...every.map(runButton));
    place.append(button("All", () => toggle(every, false), "small"));
    place.append(button("None", () => toggle(every, true), "small"));
  }
  place.append(input("find charts", "find a chart or metric", filterCharts));
  const reset = button("Show all", () => zoom(null));
  reset.id = "reset";
  reset.hidden = state.range === null;
  document.body.append(reset, tip);
}

// ---- tables: a click on a head sorts the rows

function tables(inside = document) {
  for (const cell of inside.querySelectorAll("td[data-run]")) {
    cell.replaceChildren(runButton(Number(cell.dataset.run)));
  }
  for (const table of inside.querySelectorAll("table.sorted")) {
    const heads = [...table.querySelectorAll("th")].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows) [...row.cells].forEach((cell, k) => (cell.dataset.head = heads[k]));
    table.querySelectorAll("th").forEach((head, column) => {
      const text = head.textContent;
      head.replaceChildren(button(text, () => sort(table, head, column)));
    });
  }
}

function sort(table, head, column) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const rows = [...table.tBodies[0].rows];
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)], [m, n] = [Number(x), Number(y)];
    if ((x === "–") !== (y === "–")) return x === "–" ? 1 : -1; // nothing known comes last, whichever way
    const order = isNaN(m) || isNaN(n) ? x.localeCompare(y, "en", { numeric: true }) : m - n;
    return down ? -order : order;
  };
  table.tBodies[0].append(...rows.sort(compare));
}

// ---- start

function main() {
  const wanted = readAddress();
  if (data.live !== null) refresh.html = contents();
  choices();
  bar();
  tables();
  showToggles();
  placeCharts();
  const first = views.values().next().value;
  if (first) {
    draw(first);
    performance.mark("first chart");
  }
  rollouts();
  follow();
  const again = performance.getEntriesByType("navigation")[0]?.type === "reload";
  const showRolloutsOfAddress = () => document.getElementById("rollouts").scrollIntoView();
  if (wanted && !again) showRolloutsOfAddress();
  addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return; // an anchor, such as that of a chart: nothing is chosen
    const rolloutsMeant = readAddress();
    showToggles();
    document.getElementById("reset").hidden = state.range === null;
    choices();
    whole = null;
    drawAll();
    reader.count = perPage;
    reader.picked = null;
    showRollouts();
    if (rolloutsMeant) showRolloutsOfAddress();
  });
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  document.getElementById("more").addEventListener("toggle", () => drawAll());
  addEventListener("beforeprint", () => {
    for (const box of document.querySelectorAll("[data-part=found] details")) box.open = true;
    drawAll(true);
  });
  performance.mark("ready");
  document.documentElement.dataset.ready = "yes";
}

if (isFrame()) answer();
else main();
