"use strict";
// Draws what the page's JSON holds. One state, one function that draws a chart from it; every event changes the state
// and draws again. Texts of a run go into the page as text nodes only.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { range: null, hidden: new Set() };
const several = data.runs.length > 1;
const narrow = matchMedia("(max-width: 40rem)");
const coarse = matchMedia("(pointer: coarse)");
const phaseShade = { rise: 0, stagnation: 0.06, decay: 0.13, collapse: 0.2 };
const laneHeight = 17;

window.addEventListener("error", (event) => problem(event.message));
window.addEventListener("unhandledrejection", (event) => problem(String(event.reason)));

function problem(text) {
  document.documentElement.dataset.error = text;
  const line = element("p", "problem", "The plots could not be drawn: " + text);
  document.getElementById("charts").before(line);
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// ---- the library: compressed, so that the page is small and its text shows before the plots

async function loadPlotly() {
  const packed = document.getElementById("plotly").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

// ---- charts

function traces(chart) {
  const result = [];
  chart.rows.forEach((row, r) => {
    for (const t of row.traces) {
      if (state.hidden.has(t.run)) continue;
      const run = data.runs[t.run];
      const line = {
        color: color(several ? run.color : t.color), dash: several ? run.dash : t.dash, width: 2.2,
      };
      const name = several ? run.name : t.label;
      const base = { type: "scatter", mode: "lines", xaxis: "x", yaxis: "y" + (r ? r + 1 : ""), name: plain(name) };
      const hover = "%{y:.4~g}";
      const shown = (y) => (row.log ? y.map((v) => (v > 0 ? v : null)) : y);  // no logarithm, no point
      if (t.raw.x.length) {
        const faint = t.mean && !several;
        result.push({
          ...base, x: t.raw.x, y: shown(t.raw.y), line: faint ? { color: line.color, width: 1 } : line,
          opacity: faint ? 0.38 : 1, mode: t.points || t.raw.x.length < 3 ? "lines+markers" : "lines",
          marker: { size: 6 }, hovertemplate: hover,
        });
      }
      if (t.mean) {
        const skip = several ? { hovertemplate: hover } : { hoverinfo: "skip" };
        result.push({ ...base, x: t.mean.x, y: shown(t.mean.y), line, ...skip });
      }
      if (t.raw.bad.length) {
        // On the axis of a fraction of the row's height: a step without a number has no y.
        result.push({
          ...base, mode: "markers", yaxis: "y" + (chart.rows.length + 1), x: t.raw.bad,
          y: t.raw.bad.map(() => domain(chart, r)[0] + 0.01), marker: { symbol: "x", size: 7, color: color("pin") },
          name: plain(name) + ", not finite", hovertemplate: "not finite",
        });
      }
    }
  });
  if (several) result.push(...pinsOnCurves(chart));
  return result;
}

// plotly reads some tags and entities in names; a run may be called anything.
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function domain(chart, r) {
  const n = chart.rows.length, gap = n > 1 ? 0.16 / n + 0.05 : 0, height = (1 - gap * (n - 1)) / n;
  const top = 1 - r * (height + gap);
  return [Math.max(0, top - height), top];
}

function pinsOnCurves(chart) {
  const markers = [];
  for (const pin of chart.pins) {
    const trace = chart.rows[0] && chart.rows[0].traces.find((t) => t.run === pin.run);
    if (!trace || state.hidden.has(pin.run)) continue;
    const curve = trace.mean || trace.raw;
    const at = Math.max(0, curve.x.findLastIndex((x) => x <= pin.step));
    markers.push({
      type: "scatter", mode: "markers", xaxis: "x", yaxis: "y", x: [pin.step], y: [curve.y[at]],
      marker: { symbol: "triangle-down", size: 11, color: color(data.runs[pin.run].color),
        line: { color: color("paper"), width: 1 } },
      name: plain(data.runs[pin.run].name), hovertemplate: pin.code,
    });
  }
  return markers;
}

// Labels of findings in lanes above the plot, so that none covers another.
function lanes(pins, range, width) {
  const groups = new Map();
  for (const pin of pins) groups.set(pin.step, [...new Set([...(groups.get(pin.step) || []), pin.code])]);
  const taken = [], placed = [];
  for (const [step, codes] of [...groups].sort((a, b) => a[0] - b[0])) {
    if (step < range[0] || step > range[1]) continue;
    const x = ((step - range[0]) / (range[1] - range[0] || 1)) * width;
    const whole = codes.join(" "), fits = codes.length < 2 || whole.length * 7 < width * 0.3;
    const text = fits ? whole : codes[0] + " +" + (codes.length - 1);
    const room = text.length * 7 + 8;
    const left = Math.min(Math.max(0, x - room / 2), Math.max(0, width - room));
    let lane = taken.findIndex((end) => end <= left);
    if (lane < 0 && taken.length < 4) lane = taken.length;
    if (lane < 0) {
      const last = placed[placed.length - 1];
      last.more = (last.more || 0) + codes.length;
      placed.push({ step, lane: -1 });
      continue;
    }
    taken[lane] = left + room;
    placed.push({ step, text, lane, center: left + room / 2 });
  }
  return placed;
}

function layout(chart, plot) {
  const steps = chart.x === "step";
  const rows = chart.rows.length;
  const range = steps ? state.range || fullRange() : [0, 100];
  const margin = { l: 50, r: 12, b: 40, t: 22 };
  const width = plot.clientWidth - margin.l - margin.r;
  const pins = several ? [] : lanes(chart.pins, range, width).reverse();
  const laneCount = Math.max(0, ...pins.map((p) => p.lane + 1));
  const inner = height(chart);
  margin.t += laneCount * laneHeight;
  const figure = {
    height: inner + margin.t + margin.b, width: plot.clientWidth, margin, showlegend: false,
    paper_bgcolor: color("paper"), plot_bgcolor: color("paper"),
    font: { color: color("soft"), size: 12, family: "system-ui, -apple-system, 'Segoe UI', sans-serif" },
    hovermode: steps ? "x unified" : "closest", hoversubplots: "axis", dragmode: coarse.matches || !steps ? false : "zoom",
    hoverlabel: { bgcolor: color("box"), bordercolor: color("line"), font: { color: color("ink"), size: 12 } },
    xaxis: {
      range: [...range], gridcolor: color("grid"), zeroline: false, linecolor: color("line"), anchor: "free", position: 0,
      title: { text: steps ? "step" : "share of correct rollouts, %", standoff: 4 }, tickformat: "~s", hoverformat: ",d",
      showspikes: steps, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: color("soft"),
      nticks: narrow.matches ? 5 : 9,
    },
    shapes: [], annotations: [],
  };
  if (steps) figure.xaxis.tickformat = range[1] - range[0] < 3000 ? ",d" : "~s";
  if (steps) figure.xaxis.unifiedhovertitle = { text: "step %{x:,d}" };
  else figure.xaxis.hoverformat = ".0f";
  chart.rows.forEach((row, r) => {
    const area = domain(chart, r);
    figure["yaxis" + (r ? r + 1 : "")] = {
      domain: area, gridcolor: color("grid"), zeroline: false, type: row.log ? "log" : "linear", fixedrange: true,
      nticks: rows > 1 ? 4 : 6, tickformat: "~g", anchor: "x", ...(row.range ? { range: [...row.range] } : {}),
      ...(row.log ? { dtick: logTicks(row) } : {}),
    };
    if (!isMain(chart)) figure.annotations.push({
      xref: "paper", yref: "paper", x: 0, y: area[1], text: row.title, showarrow: false, xanchor: "left",
      yanchor: "bottom", font: { size: 12, color: color("soft") },
    });
    if (row.mark !== null) {
      figure.shapes.push({
        type: "line", xref: "paper", x0: 0, x1: 1, yref: "y" + (r ? r + 1 : ""), y0: row.mark, y1: row.mark,
        line: { color: color("soft"), width: 1 }, layer: "below",
      });
    }
  });
  figure["yaxis" + (rows + 1)] = { overlaying: "y", range: [0, 1], visible: false, fixedrange: true };
  if (steps && !several) shadePhases(figure, range, isMain(chart) ? width : 0);
  for (const pin of pins) pinAbove(figure, pin, range, width, inner);
  return figure;
}

// The reward of a single run is drawn above everything else.
function isMain(chart) {
  return chart.id === "reward" && !several;
}

function height(chart) {
  const rows = chart.rows.length;
  return rows * (rows > 1 ? 135 : isMain(chart) ? 230 : 210) + (rows - 1) * 30;
}

function logTicks(row) {
  const all = row.traces.flatMap((t) => [...t.raw.y, ...(t.mean ? t.mean.y : []), row.mark]);
  const values = all.filter((y) => y > 0).map(Math.log10);
  const decades = Math.max(...values) - Math.min(...values);
  return decades > 8 ? Math.ceil(decades / 5) : decades > 2.2 ? 1 : "D2";
}

function shadePhases(figure, range, width) {
  const phases = data.runs[0].phases;
  for (const phase of phases) {
    const x0 = Math.max(phase.start, range[0]), x1 = Math.min(phase.end, range[1]);
    if (x1 <= x0) continue;
    figure.shapes.push({
      type: "rect", xref: "x", x0, x1, yref: "paper", y0: 0, y1: 1, line: { width: 0 }, layer: "below",
      fillcolor: "rgba(" + color("phase") + "," + phaseShade[phase.name] + ")",
    });
    if (((x1 - x0) / (range[1] - range[0])) * width > phase.name.length * 7) {
      figure.annotations.push({
        x: (x0 + x1) / 2, yref: "paper", y: 1, text: phase.name, showarrow: false, yanchor: "bottom",
        xref: "x", font: { size: 12, color: color("soft") },
      });
    }
  }
}

function pinAbove(figure, pin, range, width, inner) {
  const lift = pin.lane < 0 ? 0 : 18 + pin.lane * laneHeight;
  figure.shapes.push({
    type: "line", xref: "x", x0: pin.step, x1: pin.step, yref: "paper", y0: 0, y1: 1 + lift / inner,
    line: { color: color("pin"), width: 1.2, dash: "dot" },
  });
  if (pin.lane < 0) return;
  figure.annotations.push({
    xref: "paper", x: pin.center / width, yref: "paper", y: 1, yshift: lift + laneHeight / 2 - 1, showarrow: false,
    text: "<b>" + pin.text + (pin.more ? " +" + pin.more : "") + "</b>", xanchor: "center", yanchor: "middle",
    font: { size: 11, color: color("pin") }, bgcolor: color("paper"), borderpad: 1,
  });
}

function fullRange() {
  const ends = data.charts.filter((c) => c.x === "step").flatMap((c) => c.rows).flatMap((r) => r.traces)
    .flatMap((t) => [t.raw.x, t.raw.bad, t.mean ? t.mean.x : []]).filter((x) => x.length)
    .flatMap((x) => [x[0], x[x.length - 1]]);
  const low = Math.min(...ends), high = Math.max(...ends), pad = Math.max((high - low) * 0.015, 0.5);
  return [low - pad, high + pad];
}

const drawn = new Map();

async function draw(chart) {
  const plot = drawn.get(chart.id);
  await Plotly.react(plot, traces(chart), layout(chart, plot), { displayModeBar: false, responsive: false, doubleClick: false, showTips: false });
}

async function drawAll() {
  for (const chart of data.charts) await draw(chart);
}

function place(chart) {
  const figure = element("figure"), main = isMain(chart);
  figure.id = "chart-" + chart.id;
  figure.append(element("h3", "", chart.title));
  if (chart.caption && !main) figure.append(element("figcaption", "", chart.caption));
  const explained = chart.rows.filter((row) => row.traces.length > 1).flatMap((row) => row.traces);
  if (!several && explained.length) {
    const legend = element("div", "legend"), seen = new Set();
    for (const t of explained) {
      const id = t.label + t.color;
      if (seen.has(id)) continue;
      seen.add(id);
      const entry = element("span");
      entry.append(key(t.color, t.dash), t.label);
      legend.append(entry);
    }
    figure.append(legend);
  }
  const plot = element("div", "plot");
  figure.append(plot);
  plot.style.minHeight = height(chart) + "px";  // so that nothing jumps when it is drawn
  document.getElementById(main ? "main" : "charts").append(figure);
  drawn.set(chart.id, plot);
}

function key(name, dash) {
  const swatch = element("i", "key");
  swatch.style.borderTopColor = "var(--" + name + ")";
  swatch.style.borderTopStyle = { solid: "solid", dot: "dotted" }[dash] || "dashed";
  return swatch;
}

function listen(chart) {
  const plot = drawn.get(chart.id);
  if (chart.x !== "step") return;
  plot.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) zoom([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
  });
  plot.on("plotly_doubleclick", () => zoom(null));
}

function zoom(range) {
  state.range = range;
  document.getElementById("reset").hidden = range === null;
  return drawAll();
}

function bar() {
  const place = document.getElementById("bar");
  if (several) {
    data.runs.forEach((run, i) => {
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(key(run.color, run.dash), run.name);
      button.addEventListener("click", () => {
        state.hidden.has(i) ? state.hidden.delete(i) : state.hidden.add(i);
        button.setAttribute("aria-pressed", String(!state.hidden.has(i)));
        drawAll();
      });
      place.append(button);
    });
  }
  const reset = element("button", "", "Show all steps");
  reset.type = "button";
  reset.id = "reset";
  reset.hidden = true;
  reset.addEventListener("click", () => zoom(null));
  document.body.append(reset);
}

async function main() {
  bar();
  data.charts.forEach(place);
  rollouts();
  await loadPlotly();
  for (const chart of data.charts) {
    await draw(chart);
    listen(chart);
    await new Promise((then) => setTimeout(then));
  }
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.documentElement.dataset.ready = "yes";
}
