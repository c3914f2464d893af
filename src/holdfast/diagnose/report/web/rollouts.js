// The rollouts: filters, a plot of rewards over lengths, and a card each. Only text nodes, whatever a model wrote.
// Beyond the first ones, texts are packed: compressed, and unpacked when a card or a search needs them.

const perPage = 6;
const outcomes = {
  correct: "✓ correct", incorrect: "✗ incorrect", invalid: "a turn without an action", truncated: "truncated",
  unanswered: "no answer", empty: "a search found nothing", failed: "failed", held_out: "evaluation",
  tool_error: "a tool failed", malformed: "a malformed call", repeats: "repeats itself", copied: "the prompt's example", blank: "one character",
  language: "another script",
};
const reader = {
  count: perPage, texts: new WeakMap(), controls: {}, cards: null, said: null, more: null, scale: 0,
  picked: null, // rollouts that were chosen in the plot or to be compared; null for all that the filters leave
  scan: { words: "", hits: new Set(), left: 0 }, // the packed rollouts whose texts hold the words
};
const packs = new Map(); // number -> promise of the texts in a pack
const mostPacks = 12, mostPoints = 1500;

async function unpack(number) {
  if (!packs.has(number)) {
    const packed = atob(data.packs[number]), bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    packs.set(number, new Response(stream).json());
    if (packs.size > mostPacks) packs.delete(packs.keys().next().value);
  }
  return packs.get(number);
}

// The rollout with its texts.
async function withTexts(rollout) {
  return rollout.pack ? { ...rollout, ...(await unpack(rollout.pack[0]))[rollout.pack[1]] } : rollout;
}

function rollouts() {
  const section = document.getElementById("rollouts");
  section.hidden = !data.rollouts.length;
  if (!data.rollouts.length || reader.cards) return;
  const chosen = state.rollouts, bar = element("div", "controls");
  if (several) reader.controls.run = menu("run", (value) => choose({ run: value }));
  reader.controls.outcome = menu("outcome", (value) => choose({ outcome: value }));
  reader.controls.step = input("steps", "step 40, or 35-45", (value) => choose({ step: value }));
  reader.controls.reward = input("rewards", "reward 1, or 0-0.5", (value) => choose({ reward: value }));
  reader.controls.find = input("search in rollouts", "search in texts", (value) => choose({ find: value }));
  const before = button("‹ step", () => choose({ step: neighbour(-1) }));
  const after = button("step ›", () => choose({ step: neighbour(1) }));
  const all = button("Clear", () => choose({ run: "", step: "", outcome: "", reward: "", find: "" }));
  const { run, outcome, step, reward, find } = reader.controls;
  bar.append(...(run ? [run] : []), outcome, before, step, after, reward, find, all);
  reader.scale = changeScale();
  reader.legend = element("span", "scale");
  bar.append(reader.legend);
  reader.said = element("p", "soft");
  reader.said.setAttribute("role", "status");
  reader.plot = element("details");
  reader.plot.append(element("summary", "", "Reward over length"), element("div", "scatter"));
  reader.plot.addEventListener("toggle", () => showRollouts());
  reader.cards = element("div", "rollouts");
  reader.more = button("More", () => {
    reader.count += 2 * perPage;
    showRollouts();
  });
  reader.fresh = button("", () => showRollouts());
  reader.fresh.hidden = true;
  section.append(bar, reader.said, reader.plot, reader.fresh, reader.cards, reader.more);
  showRollouts();

  function choose(change) {
    Object.assign(chosen, change);
    reader.picked = null;
    reader.count = perPage;
    writeAddress();
    showRollouts();
  }
}

function showRollouts() {
  if (!reader.cards) return;
  const found = filtered(state.rollouts);
  reader.scale = changeScale();
  reader.legend.replaceChildren();
  if (reader.scale) {
    reader.legend.append(`less likely −${reader.scale}`, element("i"), `+${reader.scale} nats more likely`);
  }
  fillControls();
  const chosen = reader.picked ?? found.slice(0, reader.count);
  reader.cards.replaceChildren(...chosen.map((e) => card(e, reader.scale)));
  if (reader.plot.open) reader.plot.lastChild.replaceChildren(...scatter(found));
  const wrong = state.rollouts.step !== "" && !spanOf(state.rollouts.step);
  reader.controls.step.setAttribute("aria-invalid", String(wrong));
  const sampled = [...new Set(data.rollouts.map((e) => e.step))].sort((a, b) => a - b);
  const span = `${sampled.length} steps, ${thousands(sampled[0])} to ${thousands(sampled.at(-1))}`;
  const every = `${data.rollouts.length} rollouts of ${sampled.length > 1 ? span : `step ${sampled[0]}`}`;
  const left = reader.scan.left ? ` Searching: ${reader.scan.left} packs of texts left.` : "";
  const count = reader.picked ? `${chosen.length} chosen` : found.length;
  reader.said.textContent =
    wrong ? "Steps are a number or two, such as 40 or 35-45." : `${count} of ${every}.${left}`;
  reader.more.hidden = reader.picked !== null || found.length <= reader.count;
  reader.more.textContent = `More (${found.length - reader.count})`;
  reader.fresh.hidden = true;
  mark(state.rollouts.find);
}

function filtered({ run, step, outcome, reward, find }) {
  const steps = spanOf(step), words = find.toLowerCase(), rewards = spanOf(reward);
  return data.rollouts.filter((e) =>
    (run === "" || e.run === Number(run)) &&
    (!steps || (e.step >= steps[0] && e.step <= steps[1])) &&
    (outcome === "" || e.outcomes.includes(outcome)) &&
    (!rewards || (e.reward !== null && e.reward >= rewards[0] && e.reward <= rewards[1])) &&
    (words === "" || (e.pack ? scanned(words).has(e) : textOf(e).includes(words))));
}

// [least, most] of "1", "0-0.5" or "steps 35 to 45"; null for anything else.
function spanOf(text) {
  const found = /^(?:steps?\s*)?(-?\d*\.?\d+)(?:\s*(?:-|–|to)\s*(-?\d*\.?\d+))?$/.exec(text.replaceAll(",", ""));
  return found ? [Number(found[1]), Number(found[2] ?? found[1])] : null;
}

// The packed rollouts whose texts hold the words, as far as they have been searched.
function scanned(words) {
  if (reader.scan.words !== words) {
    reader.scan = { words, hits: new Set(), left: data.packs.length };
    scan(reader.scan);
  }
  return reader.scan.hits;
}

async function scan(mine) {
  const rows = Map.groupBy(data.rollouts.filter((e) => e.pack), (e) => e.pack[0]);
  for (const [number, inside] of rows) {
    const texts = await unpack(number);
    if (reader.scan !== mine) return; // other words are searched by now
    for (const e of inside) if (joined(texts[e.pack[1]]).includes(mine.words)) mine.hits.add(e);
    mine.left -= 1;
    if (mine.left % 20 === 0) showRollouts();
  }
}

function textOf(rollout) {
  if (!reader.texts.has(rollout)) reader.texts.set(rollout, joined(rollout));
  return reader.texts.get(rollout);
}

function joined({ question, expected, answer, turns }) {
  const parts = (t) => [(t.pieces || []).join(""), t.text, t.query, t.observation, ...(t.hits || [])];
  return [question, expected, answer, ...turns.flatMap(parts)].join("\n").toLowerCase();
}

// The sampled step before or after the ones that are shown, among those that the other filters leave.
function neighbour(direction) {
  const steps = [...new Set(filtered({ ...state.rollouts, step: "" }).map((e) => e.step))].sort((a, b) => a - b);
  if (!steps.length) return state.rollouts.step;
  const now = spanOf(state.rollouts.step);
  if (!now) return String(direction < 0 ? steps.at(-1) : steps[0]);
  const next = direction < 0 ? steps.findLast((s) => s < now[0]) : steps.find((s) => s > now[1]);
  return String(next ?? (direction < 0 ? steps[0] : steps.at(-1)));
}

function fillControls() {
  const { run, outcome, step, reward, find } = reader.controls, chosen = state.rollouts;
  if (run) options(run, [["", "all runs"], ...data.runs.map((r, i) => [String(i), r.name])], chosen.run);
  const left = filtered({ ...chosen, outcome: "" });
  const count = (name) => left.filter((e) => e.outcomes.includes(name)).length;
  const known = new Set([chosen.outcome, ...data.rollouts.flatMap((e) => e.outcomes)]);
  const names = Object.keys(outcomes).filter((name) => known.has(name));
  const counted = names.map((name) => [name, `${outcomes[name]} (${count(name)})`]);
  options(outcome, [["", `all outcomes (${left.length})`], ...counted], chosen.outcome);
  if (step.value.trim() !== chosen.step) step.value = chosen.step;
  if (reward.value.trim() !== chosen.reward) reward.value = chosen.reward;
  if (find.value.trim() !== chosen.find) find.value = chosen.find;
}

function menu(label, onChange) {
  const select = element("select");
  select.setAttribute("aria-label", label);
  select.addEventListener("change", () => onChange(select.value));
  return select;
}

function options(select, pairs, chosen) {
  select.replaceChildren(...pairs.map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

// The change at which the colour is full: what 5 % of the shown tokens exceed, rounded up to 1, 2 or 5.
function changeScale() {
  const turns = data.rollouts.flatMap((e) => e.turns || []);
  const sizes = turns.flatMap((turn) => turn.changes || []).map(Math.abs).sort((a, b) => a - b);
  if (!sizes.length) return 0;
  const top = Math.max(sizes[Math.floor(sizes.length * 0.95)], 0.01);
  const power = 10 ** Math.floor(Math.log10(top));
  return Number(([1, 2, 5, 10].find((m) => m * power >= top * 0.999) * power).toPrecision(1));
}

// Texts are filled in when they are unpacked.
function card(rollout, scale) {
  const article = element("article", "rollout");
  article.append(head(rollout));
  const fill = (e) => article.append(...inside(e, scale));
  if (rollout.pack) withTexts(rollout).then((e) => {
    fill(e);
    mark(state.rollouts.find);
  });
  else fill(rollout);
  return article;
}

function head(rollout) {
  const head = element("header");
  const link = element("a", "", (several ? data.runs[rollout.run].name + ", " : "") + "step " + rollout.step);
  const run = several ? String(rollout.run) : "";
  link.href = address({ run, step: String(rollout.step), outcome: "", find: [...rollout.question].slice(0, 60).join("") });
  link.title = "a link to this rollout";
  head.append(link);
  const known = rollout.correct !== null; // then the first outcome is correct or incorrect
  const [result, ...also] = known ? rollout.outcomes : ["", ...rollout.outcomes];
  if (known) head.append(element("span", "outcome" + (rollout.correct ? " ok" : ""), outcomes[result]));
  head.append(element("span", "", rollout.reward === null ? "no reward" : "reward " + rollout.reward));
  if (rollout.advantage !== undefined) head.append(element("span", "", "advantage " + rollout.advantage));
  for (const name of also) if (name !== "failed") head.append(element("span", "", outcomes[name]));
  if (rollout.outcomes.includes("failed")) head.append(element("span", "", rollout.status.replaceAll("_", " ")));
  const others = siblings(rollout);
  if (others.length) head.append(button("beside another", () => compare(rollout, others), "small"));
  return head;
}

// The other rollouts of the same question at the same step, the most different reward first.
function siblings(rollout) {
  const apart = (e) => Math.abs((e.reward ?? 0) - (rollout.reward ?? 0));
  const same = (e) => e !== rollout && e.step === rollout.step && e.run === rollout.run && e.group === rollout.group;
  return data.rollouts.filter(same).sort((a, b) => apart(b) - apart(a));
}

// Two rollouts of a question; again, the next of the others.
function compare(rollout, others) {
  const now = reader.picked && reader.picked[0] === rollout ? others.indexOf(reader.picked[1]) : -1;
  reader.picked = [rollout, others[(now + 1) % others.length]];
  showRollouts();
}

function inside(rollout, scale) {
  const nodes = rollout.prompt ? [folded("Prompt", rollout.prompt)] : [];
  nodes.push(bidi("p", "question", rollout.question), ...rollout.turns.map((turn) => turnBox(turn, scale)));
  if (rollout.answer !== null) nodes.push(bidi("p", "soft", "Answer: " + rollout.answer));
  else if (rollout.expected) nodes.push(element("p", "soft", "Answer: none"));
  if (rollout.expected) nodes.push(bidi("p", "soft", "Expected: " + rollout.expected));
  return nodes;
}

function folded(title, text) {
  const box = element("details"), body = bidi("div", "observation", text.trim());
  body.tabIndex = 0; // it scrolls
  box.append(element("summary", "soft", title), body);
  return box;
}

// A point for each rollout; a click shows it.
function scatter(found) {
  const known = found.filter((e) => e.reward !== null), every = Math.ceil(known.length / mostPoints);
  const points = known.filter((_, i) => i % every === 0);
  if (!points.length) return [element("p", "soft", "No rollout here has a reward.")];
  const bounds = (of) => [Math.min(...points.map(of)), Math.max(...points.map(of))];
  const [short, long] = bounds((e) => e.length), [low, high] = bounds((e) => e.reward);
  const place = (value, least, most, size) => (most > least ? (value - least) / (most - least) : 0.5) * size;
  const plot = svg("svg", { viewBox: "0 0 640 220", role: "img", "aria-label": "reward over length" });
  for (const e of points) {
    const x = 50 + place(e.length, short, long, 570), y = 180 - place(e.reward, low, high, 160);
    const point = svg("circle", { cx: x, cy: y, r: 4, class: e.correct === false ? "dot incorrect" : "dot" });
    point.addEventListener("click", () => {
      reader.picked = [e];
      showRollouts();
    });
    plot.append(point);
  }
  plot.append(
    label(50, 212, "start", `${thousands(short)} characters`), label(520, 212, "start", thousands(long)),
    label(0, 24, "start", high), label(0, 184, "start", low),
  );
  return [plot];
}

function bidi(tag, className, text) {
  const node = element(tag, className, text);
  node.dir = "auto";
  return node;
}

function turnBox(turn, scale) {
  const searched = turn.query !== undefined || turn.hits !== undefined;
  const box = element("div", "turn" + (searched ? " search" : "")), text = element("div", "text");
  text.dir = "auto";
  (turn.pieces || []).forEach((piece, i) => text.append(token(piece, turn.changes[i], scale)));
  if (turn.text) text.append(turn.text);
  box.append(text);
  if (searched) {
    const hits = turn.hits || [];
    const passages = `${hits.length} passage${hits.length === 1 ? "" : "s"}: ${hits.join(", ")}`;
    const query = turn.query ? turn.query + (turn.hits === undefined ? "" : " → ") : "";
    const found = turn.hits === undefined ? "" : hits.length ? passages : "nothing found"; // others do not write hits
    box.append(bidi("div", "hits", `⌕ ${query}${found}`));
  }
  if (turn.observation) {
    const seen = turn.observation.trim();
    const title = seen.replace(/\s+/g, " ").slice(0, 90);
    box.append(folded(`${title}${seen.length > 90 ? " …" : ""}`, seen));
  }
  return box;
}

function token(piece, change, scale) {
  const span = element("span", "", piece === "" ? "∎" : piece);
  if (change === null) return span;
  const opacity = Math.min(1, Math.abs(change) / scale) * 0.85;
  span.style.background = "rgba(var(--" + (change < 0 ? "down" : "up") + ")," + opacity.toFixed(2) + ")";
  span.title = (change > 0 ? "+" : "") + change + " nats";
  return span;
}

// Mark where the searched text is, also across tokens, without touching the cards. Old browsers do without.
function mark(words) {
  if (!window.Highlight) return;
  CSS.highlights.delete("found");
  if (words === "") return;
  const ranges = [], wanted = words.toLowerCase();
  for (const block of reader.cards.querySelectorAll(".text, .observation, .hits, .question, p")) {
    const nodes = [], walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    let text = "";
    while (walker.nextNode()) {
      nodes.push([text.length, walker.currentNode]);
      text += walker.currentNode.data.toLowerCase();
    }
    for (let at = text.indexOf(wanted); at >= 0 && ranges.length < 500; at = text.indexOf(wanted, at + wanted.length)) {
      const range = new Range(), place = (k) => nodes.findLast(([from]) => from <= k);
      const [first, start] = place(at), [last, end] = place(at + wanted.length - 1);
      if (at - first >= start.length || at + wanted.length - last > end.length) continue; // lower case may be longer
      range.setStart(start, at - first);
      range.setEnd(end, at + wanted.length - last);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}
