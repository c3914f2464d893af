"use strict";
// What the page holds, what the reader has chosen, and the address that says so. Every event changes the state and
// draws again. Texts of a run go into the page as text nodes only.

let data = JSON.parse(document.getElementById("data").textContent);
const state = {
  axis: "step", // what curves are drawn over
  times: 1, // rows in a mean, as a multiple of those in the data; 0 for no mean
  range: null, // [first, last] place on the axis that is drawn; null for all
  hidden: new Set(), // runs that are switched off
  logarithmic: new Set(), // charts whose scale the reader turned
  highlighted: null, // the run in front of the others
  cursor: null, // the step whose values are shown
  charts: "", // a text that titles and series of charts must hold
  rollouts: { run: "", step: "", outcome: "", reward: "", find: "" },
};
const several = data.runs.length > 1;

window.addEventListener("error", (event) => problem(event.message));
window.addEventListener("unhandledrejection", (event) => problem(String(event.reason)));

function problem(text) {
  document.documentElement.dataset.error = text;
  document.getElementById("charts").before(element("p", "problem", "The page could not be drawn: " + text));
}

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function button(text, onClick, className) {
  const node = element("button", className, text);
  node.type = "button";
  node.addEventListener("click", onClick);
  return node;
}

function input(label, hint, onInput) {
  const node = element("input");
  node.type = "search";
  node.setAttribute("aria-label", label);
  node.placeholder = hint;
  node.addEventListener("input", () => onInput(node.value.trim()));
  return node;
}

// The swatch of a line: its colour and its dash.
function key(name, dash) {
  const line = svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, class: "line" });
  paint(line, name, dash);
  const swatch = svg("svg", { width: 28, height: 10, class: "key", "aria-hidden": "true" });
  swatch.append(line);
  return swatch;
}

// ---- the address: what follows `#` can be shared, and survives loading the page again

const numbers = /^(-?\d+(?:\.\d+)?)-(-?\d+(?:\.\d+)?)$/;

function readAddress() {
  const hash = location.hash.slice(1);
  if (!hash.includes("=")) return false; // an anchor, which the browser follows by itself
  const said = new URLSearchParams(hash);
  for (const name of Object.keys(state.rollouts)) state.rollouts[name] = said.get(name) || "";
  if (axes().includes(said.get("x"))) state.axis = said.get("x");
  if (times.includes(Number(said.get("mean") ?? 1))) state.times = Number(said.get("mean") ?? 1);
  const zoom = numbers.exec(said.get("zoom") || "");
  if (zoom && Number(zoom[1]) < Number(zoom[2])) state.range = [Number(zoom[1]), Number(zoom[2])];
  if (said.has("hide")) state.hidden = new Set(said.get("hide").split(",").filter(Boolean).map(Number).filter((i) => data.runs[i]));
  return Object.values(state.rollouts).some(Boolean);
}

function address(rollouts = state.rollouts) {
  const said = Object.entries(rollouts).filter(([, value]) => value !== "");
  if (state.axis !== "step") said.push(["x", state.axis]);
  if (state.times !== 1) said.push(["mean", state.times]);
  if (state.range) said.push(["zoom", state.range.map((x) => Number(x.toPrecision(6))).join("-")]);
  if (state.hidden.size) said.push(["hide", [...state.hidden].join(",")]);
  return "#" + new URLSearchParams(said);
}

function writeAddress() {
  const now = address();
  if (now === location.hash || (now === "#" && !location.hash.includes("="))) return;
  history.replaceState(null, "", now);
}
