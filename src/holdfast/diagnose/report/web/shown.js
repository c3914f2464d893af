// What is drawn of a chart: its curves over the axis that the reader chose, smoothed as they chose; and its values as a
// table. The page's data are by step.

const clocks = [["s", 1], ["min", 60], ["h", 3600]];
const times = [0, 1, 4, 16]; // of the rows in a mean

function axes() {
  return ["step", ...["seconds", "tokens"].filter((name) => data.runs.some((run) => run.axes[name]))];
}

// [unit, how many seconds it has], for the longest run.
function clock() {
  const longest = Math.max(...data.runs.map((run) => run.axes.seconds?.y.at(-1) ?? 0));
  return clocks.findLast(([, size]) => longest >= 2 * size) ?? clocks[0];
}

function axisTitle() {
  return state.axis === "seconds" ? "time, " + clock()[0] : state.axis === "tokens" ? "tokens" : "step";
}

// Where a step of a run is on the axis.
function placed(run, step) {
  if (state.axis === "step") return step;
  const size = state.axis === "seconds" ? clock()[1] : 1;
  return valueAt(data.runs[run].axes[state.axis], step) / size;
}

// A curve between its points, and beyond its ends.
function valueAt({ x, y }, at) {
  const after = Math.min(Math.max(lowerBound(x, at), 1), x.length - 1), before = Math.max(after - 1, 0);
  const share = x[after] > x[before] ? (Math.min(Math.max(at, x[0]), x.at(-1)) - x[before]) / (x[after] - x[before]) : 0;
  return y[before] + share * (y[after] - y[before]);
}

function shownOf(chart) {
  if (chart.x !== "step") return chart;
  const there = ({ run }) => state.axis === "step" || data.runs[run].axes[state.axis];
  const rows = chart.rows.map((row) => ({ ...row, traces: row.traces.filter(there).map(shownTrace) }));
  return { ...chart, rows, pins: chart.pins.filter(there).map((pin) => ({ ...pin, x: placed(pin.run, pin.step) })) };
}

function shownTrace(trace) {
  const move = (steps) => (state.axis === "step" ? steps : steps.map((step) => placed(trace.run, step)));
  const mean = trace.mean && (state.times || !trace.raw.x.length) ? longer(trace.mean, Math.max(state.times, 1)) : null;
  const raw = several && mean ? { x: [], y: [], bad: trace.raw.bad } : trace.raw; // single values of many are a cloud
  return {
    ...trace, raw: { ...raw, x: move(raw.x), bad: move(raw.bad) },
    mean: mean && { ...mean, x: move(mean.x) },
  };
}

// A mean over `count` times as many rows: the mean of running means, each `span` before the next. At the start it is over
// what is there.
function longer(mean, count) {
  if (count === 1) return mean;
  const y = mean.x.map((end) => {
    const places = Array.from({ length: count }, (_, k) => end - k * mean.span).filter((x) => x >= mean.x[0]);
    return places.reduce((sum, x) => sum + valueAt(mean, x), 0) / places.length;
  });
  return { ...mean, y };
}

// ---- the values of a chart as a table

function csvOf(chart) {
  const traces = chart.rows.flatMap((row) => row.traces.map((trace) => ({ ...trace, row: row.title })));
  const shown = traces.filter((t) => !state.hidden.has(t.run)).map((t) => ({ ...t, ...valuesOf(t) }));
  const places = [...new Set(shown.flatMap((t) => t.x))].sort((a, b) => a - b);
  const columns = shown.map((t) => new Map(t.x.map((x, i) => [x, t.y[i]])));
  const heads = shown.map((t) => (several ? data.runs[t.run].name + ": " : "") + t.series);
  const table = [[chart.x, ...heads], ...places.map((x) => [x, ...columns.map((column) => column.get(x) ?? "")])];
  return table.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function valuesOf(trace) {
  const curve = curveOf(trace);
  return { x: curve.x, y: trace.own || curve.y };
}

// A spreadsheet takes a text that begins like this for a formula.
function cell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" + value : String(value);
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}

function save(chart) {
  const link = element("a");
  link.download = `${several ? "runs" : data.runs[0].name}-${chart.id}.csv`.replace(/[^\w.-]+/g, "_");
  link.href = URL.createObjectURL(new Blob([csvOf(chart)], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// How many of its values a chart holds, if not all.
function held(chart) {
  const parts = chart.rows.flatMap((row) => row.traces).filter((t) => t.raw.of);
  const most = Math.max(0, ...parts.map((t) => t.raw.of));
  return most ? `, ${thousands(Math.max(...parts.map((t) => valuesOf(t).x.length)))} points of ${thousands(most)}` : "";
}
