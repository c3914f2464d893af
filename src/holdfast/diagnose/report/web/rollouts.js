// The sampled rollouts: filters, and a card each. Only text nodes, whatever a model wrote.

const perPage = 6;
const outcomes = {
  correct: "✓ correct", incorrect: "✗ incorrect", invalid: "a turn without an action", truncated: "truncated",
  unanswered: "no answer", empty: "a search found nothing", failed: "failed",
};
const reader = { count: perPage, texts: new WeakMap(), controls: {}, cards: null, said: null, more: null, scale: 0 };

function rollouts() {
  const section = document.getElementById("rollouts");
  section.hidden = !data.rollouts.length;
  if (!data.rollouts.length || reader.cards) return;
  const chosen = state.rollouts, bar = element("div", "controls");
  if (several) reader.controls.run = menu("run", (value) => choose({ run: value }));
  reader.controls.outcome = menu("outcome", (value) => choose({ outcome: value }));
  reader.controls.step = input("steps", "step 40, or 35-45", (value) => choose({ step: value }));
  reader.controls.find = input("search in rollouts", "search in texts", (value) => choose({ find: value }));
  const before = button("‹ step", () => choose({ step: neighbour(-1) }));
  const after = button("step ›", () => choose({ step: neighbour(1) }));
  const all = button("Clear", () => choose({ run: "", step: "", outcome: "", find: "" }));
  const { run, outcome, step, find } = reader.controls;
  bar.append(...(run ? [run] : []), outcome, before, step, after, find, all);
  reader.scale = changeScale();
  reader.legend = element("span", "scale");
  bar.append(reader.legend);
  reader.said = element("p", "soft");
  reader.said.setAttribute("role", "status");
  reader.cards = element("div", "rollouts");
  reader.more = button("More", () => {
    reader.count += 2 * perPage;
    showRollouts();
  });
  reader.fresh = button("", () => showRollouts());
  reader.fresh.hidden = true;
  section.append(bar, reader.said, reader.fresh, reader.cards, reader.more);
  showRollouts();

  function choose(change) {
    Object.assign(chosen, change);
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
  reader.cards.replaceChildren(...found.slice(0, reader.count).map((e) => card(e, reader.scale)));
  const wrong = state.rollouts.step !== "" && !stepsWanted(state.rollouts.step);
  reader.controls.step.setAttribute("aria-invalid", String(wrong));
  const sampled = [...new Set(data.rollouts.map((e) => e.step))].sort((a, b) => a - b);
  const span = `${thousands(sampled[0])} to ${thousands(sampled.at(-1))}`;
  const whole = `${data.rollouts.length} rollouts of ${sampled.length} steps, ${span}`;
  reader.said.textContent = wrong ? "Steps are a number or two, such as 40 or 35-45." : `${found.length} of ${whole}.`;
  reader.more.hidden = found.length <= reader.count;
  reader.more.textContent = `More (${found.length - reader.count})`;
  reader.fresh.hidden = true;
  mark(state.rollouts.find);
}

function filtered({ run, step, outcome, find }) {
  const steps = stepsWanted(step), words = find.toLowerCase();
  return data.rollouts.filter((e) =>
    (run === "" || e.run === Number(run)) &&
    (!steps || (e.step >= steps[0] && e.step <= steps[1])) &&
    (outcome === "" || e.outcomes.includes(outcome)) &&
    (words === "" || textOf(e).includes(words)));
}

// [first, last] of "40" or "35-45"; null for anything else.
function stepsWanted(text) {
  const found = /^(?:steps?\s*)?(\d+)(?:\s*(?:-|–|to)\s*(\d+))?$/.exec(text.replaceAll(",", ""));
  return found ? [Number(found[1]), Number(found[2] ?? found[1])] : null;
}

function textOf(rollout) {
  if (!reader.texts.has(rollout)) {
    const parts = (t) => [(t.pieces || []).join(""), t.text, t.query, t.observation, ...(t.hits || [])];
    const all = [rollout.question, rollout.expected, rollout.answer, ...rollout.turns.flatMap(parts)];
    reader.texts.set(rollout, all.join("\n").toLowerCase());
  }
  return reader.texts.get(rollout);
}

// The sampled step before or after the ones that are shown, among those that the other filters leave.
function neighbour(direction) {
  const steps = [...new Set(filtered({ ...state.rollouts, step: "" }).map((e) => e.step))].sort((a, b) => a - b);
  if (!steps.length) return state.rollouts.step;
  const now = stepsWanted(state.rollouts.step);
  if (!now) return String(direction < 0 ? steps.at(-1) : steps[0]);
  const next = direction < 0 ? steps.findLast((s) => s < now[0]) : steps.find((s) => s > now[1]);
  return String(next ?? (direction < 0 ? steps[0] : steps.at(-1)));
}

function fillControls() {
  const { run, outcome, step, find } = reader.controls, chosen = state.rollouts;
  if (run) options(run, [["", "all runs"], ...data.runs.map((r, i) => [String(i), r.name])], chosen.run);
  const left = filtered({ ...chosen, outcome: "" });
  const count = (name) => left.filter((e) => e.outcomes.includes(name)).length;
  const known = new Set([chosen.outcome, ...data.rollouts.flatMap((e) => e.outcomes)]);
  const names = Object.keys(outcomes).filter((name) => known.has(name));
  const counted = names.map((name) => [name, `${outcomes[name]} (${count(name)})`]);
  options(outcome, [["", `all outcomes (${left.length})`], ...counted], chosen.outcome);
  if (step.value.trim() !== chosen.step) step.value = chosen.step;
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
  const turns = data.rollouts.flatMap((e) => e.turns);
  const sizes = turns.flatMap((turn) => turn.changes || []).map(Math.abs).sort((a, b) => a - b);
  if (!sizes.length) return 0;
  const top = Math.max(sizes[Math.floor(sizes.length * 0.95)], 0.01);
  const power = 10 ** Math.floor(Math.log10(top));
  return Number(([1, 2, 5, 10].find((m) => m * power >= top * 0.999) * power).toPrecision(1));
}

function card(rollout, scale) {
  const article = element("article", "rollout"), head = element("header");
  const link = element("a", "", (several ? data.runs[rollout.run].name + ", " : "") + "step " + rollout.step);
  const run = several ? String(rollout.run) : "";
  link.href = address({ run, step: String(rollout.step), outcome: "", find: [...rollout.question].slice(0, 60).join("") });
  link.title = "a link to this rollout";
  head.append(link);
  const [result, ...also] = rollout.outcomes; // the first is correct or incorrect
  head.append(element("span", "outcome" + (rollout.correct ? " ok" : ""), outcomes[result]));
  head.append(element("span", "", rollout.reward === null ? "no reward" : "reward " + rollout.reward));
  for (const name of also) if (name !== "failed") head.append(element("span", "", outcomes[name]));
  if (rollout.outcomes.includes("failed")) head.append(element("span", "", rollout.status.replaceAll("_", " ")));
  article.append(head, bidi("p", "question", rollout.question));
  rollout.turns.forEach((turn) => article.append(turnBox(turn, scale)));
  article.append(bidi("p", "soft", "Answer: " + (rollout.answer === null ? "none" : rollout.answer)));
  article.append(bidi("p", "soft", "Expected: " + rollout.expected));
  return article;
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
    const query = turn.query ? turn.query + " → " : "";
    box.append(bidi("div", "hits", `⌕ ${query}${hits.length ? passages : "nothing found"}`));
  }
  if (turn.observation) {
    const observation = bidi("div", "observation", turn.observation.trim());
    observation.tabIndex = 0; // it scrolls
    box.append(observation);
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
