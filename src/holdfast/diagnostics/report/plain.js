"use strict";
// Draws the plots as SVG where plotly is not installed: those calls and options of plotly that page.js uses.

globalThis.Plotly = (() => {
  const dashes = { dot: "2 3", dash: "7 4", dashdot: "7 3 2 3", longdash: "12 4" };
  const entities = { "&lt;": "<", "&gt;": ">", "&amp;": "&" };
  const words = (text) => text.replace(/<[^>]*>/g, "").replace(/&(lt|gt|amp);/g, (entity) => entities[entity]);
  const finite = (value) => value !== null && Number.isFinite(value);
  const short = (value) => {
    const size = Math.abs(value);
    if (size && (size < 1e-4 || size >= 1e6)) return value.toExponential(2).replace(/\.?0+e/, "e");
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 8 });
  };

  function node(parent, tag, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  // ---- axes

  function steps(low, high, most) {
    const rough = (high - low) / Math.max(most, 1), unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * ([1, 2, 5, 10].find((times) => times * unit >= rough) || 10);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) ticks.push(k * step);
    return ticks;
  }

  function decades(low, high, most) {
    const all = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
      for (const times of high - low < 2.2 ? [1, 2, 5] : [1]) all.push(power + Math.log10(times));
    }
    const inside = all.filter((value) => value >= low - 1e-9 && value <= high + 1e-9);
    const stride = Math.ceil(inside.length / (most + 2));
    return inside.filter((_, k) => k % stride === 0);
  }

  // An axis as functions: a value's place in pixels, and back.
  function scaled(axis, values, from, to) {
    const log = axis.type === "log", inner = log ? Math.log10 : (value) => value;
    let [low, high] = axis.range || [];
    if (low === undefined) {
      const places = values.filter((value) => finite(value) && (!log || value > 0)).map(inner);
      [low, high] = places.length ? [Infinity, -Infinity] : [0, 1];
      for (const place of places) [low, high] = [Math.min(low, place), Math.max(high, place)];
      const pad = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 0.5;
      [low, high] = [low - pad, high + pad];
    }
    const ticks = (log ? decades : steps)(low, high, axis.nticks || 6).map((place) => (log ? 10 ** place : place));
    const at = (value) => from + ((inner(value) - low) / (high - low)) * (to - from);
    return { at, ticks, low, high, back: (pixel) => low + ((pixel - from) / (to - from)) * (high - low) };
  }

  // ---- one figure

  function draw(plot, traces, layout) {
    const { width, height, margin, font } = layout;
    const left = margin.l, right = width - margin.r, top = margin.t, bottom = height - margin.b;
    const svg = node(plot, "svg", { width, height, fill: "none", "font-family": font.family, style: "display: block" });
    const paper = { x: (part) => left + part * (right - left), y: (part) => bottom - part * (bottom - top) };
    const x = scaled(layout.xaxis, [], left, right), axes = {};
    for (const [name, axis] of Object.entries(layout).filter(([name]) => name.startsWith("yaxis"))) {
      const id = "y" + name.slice(5), values = traces.filter((t) => t.yaxis === id).flatMap((t) => t.y);
      const [low, high] = (axis.domain || [0, 1]).map(paper.y);
      axes[id] = { ...scaled(axis, values, low, high), top: high, bottom: low, shown: axis.visible !== false, axis };
    }
    const xOf = (item, value) => (item.xref === "paper" ? paper.x(value) : x.at(value));
    const yOf = (item, value) => (item.yref === "paper" ? paper.y(value) : axes[item.yref].at(value));

    for (const shape of layout.shapes || []) {
      const [x0, x1] = [xOf(shape, shape.x0), xOf(shape, shape.x1)];
      const [y0, y1] = [yOf(shape, shape.y0), yOf(shape, shape.y1)];
      if (shape.type === "rect") {
        node(svg, "rect", { x: x0, y: y1, width: x1 - x0, height: y0 - y1, fill: shape.fillcolor });
      } else if (shape.yref === "paper" || (y0 >= axes[shape.yref].top && y0 <= axes[shape.yref].bottom)) {
        stroke(svg, `M${x0} ${y0}L${x1} ${y1}`, shape.line);
      }
    }
    const label = { fill: font.color, "font-size": font.size - 1 };
    for (const { ticks, at, axis, shown } of Object.values(axes)) {
      for (const tick of shown ? ticks : []) {
        node(svg, "path", { d: `M${left} ${at(tick)}H${right}`, stroke: axis.gridcolor });
        node(svg, "text", { x: left - 6, y: at(tick) + 4, "text-anchor": "end", ...label }, short(tick));
      }
    }
    for (const tick of x.ticks) {
      for (const y of Object.values(axes).filter((y) => y.shown)) {
        node(svg, "path", { d: `M${x.at(tick)} ${y.top}V${y.bottom}`, stroke: layout.xaxis.gridcolor });
      }
      node(svg, "text", { x: x.at(tick), y: bottom + 16, "text-anchor": "middle", ...label }, short(tick));
    }
    node(svg, "path", { d: `M${left} ${bottom}H${right}`, stroke: layout.xaxis.linecolor });
    const title = layout.xaxis.title.text;
    node(svg, "text", { x: (left + right) / 2, y: bottom + 33, "text-anchor": "middle", ...label }, title);

    for (const trace of traces) line(svg, trace, x, axes[trace.yaxis], [left, right]);
    for (const note of layout.annotations || []) {
      const bold = note.text.startsWith("<b>") ? { "font-weight": "bold" } : {};
      const anchor = note.xanchor === "left" ? "start" : "middle";
      const place = { x: xOf(note, note.x), y: yOf(note, note.y) - (note.yshift || 0) - (note.yanchor === "middle" ? -4 : 4) };
      node(svg, "text", { ...place, "text-anchor": anchor, fill: note.font.color, "font-size": note.font.size, ...bold },
        words(note.text));
    }
    return { svg, x, left, right, top, bottom };
  }

  function stroke(parent, d, { color, width = 1, dash = "solid" }, more = {}) {
    const dashed = dashes[dash] ? { "stroke-dasharray": dashes[dash] } : {};
    return node(parent, "path", { d, stroke: color, "stroke-width": width, "stroke-linejoin": "round", ...dashed, ...more });
  }

  let clips = 0;

  function line(svg, trace, x, y, [left, right]) {
    const clip = "plain-clip-" + clips++;
    const rect = { x: left, y: y.top - 6, width: Math.max(0, right - left), height: y.bottom - y.top + 12 };
    node(node(svg, "clipPath", { id: clip }), "rect", rect);
    const group = node(svg, "g", { "clip-path": `url(#${clip})`, opacity: trace.opacity ?? 1 });
    const shown = trace.y.map((value) => finite(value) && (y.axis.type !== "log" || value > 0));
    const at = (k) => [x.at(trace.x[k]).toFixed(1), y.at(trace.y[k]).toFixed(1)];
    if (trace.mode.includes("lines")) {
      const d = trace.x.map((_, k) => (shown[k] ? (k && shown[k - 1] ? "L" : "M") + at(k).join(" ") : "")).join("");
      stroke(group, d, trace.line);
    }
    if (!trace.mode.includes("markers")) return;
    const color = trace.marker.color || trace.line.color, size = trace.marker.size / 2;
    for (const k of trace.x.keys()) {
      if (!shown[k]) continue;
      const [cx, cy] = at(k).map(Number);
      if (trace.marker.symbol === "x") {
        stroke(group, `M${cx - size} ${cy - size}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}`, { color, width: 2 });
      } else if (trace.marker.symbol === "triangle-down") {
        node(group, "path", { d: `M${cx - size} ${cy - size}h${2 * size}L${cx} ${cy + size}z`, fill: color });
      } else node(group, "circle", { cx, cy, r: size, fill: color });
    }
  }

  // ---- the pointer: values at a step, and a stretch to zoom into

  function follow(plot, traces, layout, figure) {
    const { svg, x, left, right, top, bottom } = figure;
    const guide = node(svg, "path", { stroke: layout.font.color, "stroke-dasharray": "2 2" });
    const chosen = node(svg, "rect", { y: top, height: bottom - top, width: 0, fill: layout.font.color, opacity: 0.15 });
    const box = document.createElement("div");
    Object.assign(box.style, {
      position: "absolute", pointerEvents: "none", display: "none", zIndex: 4, padding: ".2rem .5rem", fontSize: ".75rem",
      background: layout.hoverlabel.bgcolor, border: "1px solid " + layout.hoverlabel.bordercolor, whiteSpace: "nowrap",
    });
    plot.style.position = "relative";
    plot.append(box);
    const pixel = (event) => Math.min(right, Math.max(left, event.clientX - svg.getBoundingClientRect().left));
    let from = null;
    const still = () => {
      box.style.display = "none";
      guide.removeAttribute("d");
    };
    svg.addEventListener("pointerdown", (event) => {
      if (layout.dragmode !== "zoom" || event.button) return;
      from = pixel(event);
      svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    svg.addEventListener("pointermove", (event) => {
      const to = pixel(event);
      if (from !== null) {
        chosen.setAttribute("x", Math.min(from, to));
        chosen.setAttribute("width", Math.abs(to - from));
        return still();
      }
      const rows = values(traces, x.back(to));
      if (!rows.length) return still();
      const step = rows[0].x, place = x.at(step);
      guide.setAttribute("d", `M${place} ${top}V${bottom}`);
      const heading = `${layout.xaxis.title.text.split(",")[0]} ${short(step)}`;
      box.replaceChildren(heading, ...rows.map((row) => {
        const entry = document.createElement("div");
        entry.style.color = row.color;
        entry.textContent = `${row.name}: ${row.text}`;
        return entry;
      }));
      box.style.display = "block";
      box.style.top = top + "px";
      box.style.left = (place > (left + right) / 2 ? Math.max(0, place - box.offsetWidth - 10) : place + 10) + "px";
    });
    svg.addEventListener("pointerup", (event) => {
      const [low, high] = [from ?? 0, pixel(event)].sort((a, b) => a - b).map(x.back);
      const far = from !== null && Math.abs(pixel(event) - from) > 6;
      from = null;
      chosen.setAttribute("width", 0);
      if (far) emit(plot, "plotly_relayout", { "xaxis.range[0]": low, "xaxis.range[1]": high });
    });
    svg.addEventListener("pointerleave", still);
    svg.addEventListener("dblclick", () => emit(plot, "plotly_doubleclick"));
  }

  function values(traces, wanted) {
    const rows = [];
    for (const trace of traces) {
      if (trace.hoverinfo === "skip" || !trace.x.length) continue;
      const k = trace.x.reduce((best, x, i) => (Math.abs(x - wanted) < Math.abs(trace.x[best] - wanted) ? i : best), 0);
      const template = trace.hovertemplate || "", text = template.includes("%{y") ? short(trace.y[k] ?? NaN) : template;
      rows.push({ x: trace.x[k], name: words(trace.name), text, color: (trace.line || trace.marker).color });
    }
    const nearest = Math.min(...rows.map((row) => Math.abs(row.x - wanted)));
    return rows.filter((row) => Math.abs(row.x - wanted) === nearest);
  }

  // ---- as plotly has it

  const listeners = new WeakMap();

  function emit(plot, event, detail) {
    for (const listener of listeners.get(plot)[event] || []) listener(detail);
  }

  async function react(plot, traces, layout) {
    if (!listeners.has(plot)) listeners.set(plot, {});
    plot.on = (event, listener) => (listeners.get(plot)[event] ||= []).push(listener);
    plot.replaceChildren();
    follow(plot, traces, layout, draw(plot, traces, layout));
    return plot;
  }

  return { react, newPlot: react, purge: (plot) => plot.replaceChildren() };
})();
