// The sampled rollouts: filters, and a card each. Only text nodes, whatever a model wrote.

const perPage = 6;

function rollouts() {
  const section = document.getElementById("rollouts");
  if (!data.rollouts.length) return;
  const scale = changeScale();
  const controls = element("div", "controls"), cards = element("div", "rollouts");
  const runs = several ? menu("run", [["", "all runs"], ...numbered(data.runs.map((r) => r.name))]) : null;
  const steps = [...new Set(data.rollouts.map((e) => e.step))].sort((a, b) => a - b);
  const step = menu("step", [["", "all steps"], ...steps.map((s) => [String(s), "step " + s])]);
  const outcome = menu("outcome", [["", "correct and incorrect"], ["correct", "correct"], ["incorrect", "incorrect"]]);
  const more = element("button", "", "More");
  more.type = "button";
  let count = perPage;
  const show = () => {
    const chosen = data.rollouts.filter((e) =>
      (!runs || runs.value === "" || e.run === Number(runs.value)) &&
      (step.value === "" || e.step === Number(step.value)) &&
      (outcome.value === "" || e.correct === (outcome.value === "correct")));
    cards.replaceChildren(...chosen.slice(0, count).map((e) => card(e, scale)));
    if (!chosen.length) cards.append(element("p", "soft", "No sampled rollout of this kind."));
    more.hidden = chosen.length <= count;
    more.textContent = "More (" + (chosen.length - count) + ")";
  };
  const again = () => { count = perPage; show(); };
  for (const select of [runs, step, outcome]) {
    if (!select) continue;
    select.addEventListener("change", again);
    controls.append(select);
  }
  more.addEventListener("click", () => { count += 2 * perPage; show(); });
  if (scale) {
    const legend = element("span", "scale");
    legend.append("less likely −" + scale, element("i"), "+" + scale + " nats more likely");
    controls.append(legend);
  }
  section.append(controls, cards, more);
  show();
}

function numbered(names) {
  return names.map((name, i) => [String(i), name]);
}

function menu(label, options) {
  const select = element("select");
  select.setAttribute("aria-label", label);
  for (const [value, text] of options) {
    const option = element("option", "", text);
    option.value = value;
    select.append(option);
  }
  return select;
}

// The change at which the colour is full: what 5 % of the shown tokens exceed, rounded up to 1, 2 or 5.
function changeScale() {
  const sizes = data.rollouts.flatMap((e) => e.turns).flatMap((t) => t.changes || []).map(Math.abs).sort((a, b) => a - b);
  if (!sizes.length) return 0;
  const top = Math.max(sizes[Math.floor(sizes.length * 0.95)], 0.01);
  const power = 10 ** Math.floor(Math.log10(top));
  return Number(([1, 2, 5, 10].find((m) => m * power >= top * 0.999) * power).toPrecision(1));
}

function card(rollout, scale) {
  const article = element("article", "rollout"), head = element("header");
  head.append(element("span", "", (several ? data.runs[rollout.run].name + ", " : "") + "step " + rollout.step));
  head.append(element("span", "outcome" + (rollout.correct ? " ok" : ""), rollout.correct ? "✓ correct" : "✗ incorrect"));
  head.append(element("span", "", rollout.reward === null ? "no reward" : "reward " + rollout.reward));
  if (rollout.status !== "ok") head.append(element("span", "", rollout.status.replaceAll("_", " ")));
  article.append(head, bidi("p", "question", rollout.question));
  rollout.turns.forEach((turn) => article.append(...turnParts(turn, scale)));
  article.append(bidi("p", "soft", "Answer: " + (rollout.answer === null ? "none" : rollout.answer)));
  article.append(bidi("p", "soft", "Expected: " + rollout.expected));
  return article;
}

function bidi(tag, className, text) {
  const node = element(tag, className, text);
  node.dir = "auto";
  return node;
}

function turnParts(turn, scale) {
  const searched = turn.query !== undefined || turn.hits !== undefined;
  const box = element("div", "turn" + (searched ? " search" : "")), text = element("div", "text");
  text.dir = "auto";
  (turn.pieces || []).forEach((piece, i) => text.append(token(piece, turn.changes[i], scale)));
  if (turn.text) text.append(turn.text);
  box.append(text);
  if (searched) {
    const hits = turn.hits || [];
    const result = hits.length ? hits.length + (hits.length > 1 ? " passages: " : " passage: ") + hits.join(", ") : "nothing found";
    box.append(bidi("div", "hits", (turn.query ? "⌕ " + turn.query + " → " : "⌕ ") + result));
  }
  if (turn.observation) box.append(bidi("div", "observation", turn.observation.trim()));
  return [box];
}

function token(piece, change, scale) {
  const span = element("span", "", piece === "" ? "∎" : piece);
  if (change === null) return span;
  const opacity = Math.min(1, Math.abs(change) / scale) * 0.85;
  span.style.background = "rgba(var(--" + (change < 0 ? "down" : "up") + ")," + opacity.toFixed(2) + ")";
  span.title = (change > 0 ? "+" : "") + change + " nats";
  return span;
}

main().catch((error) => problem(String(error)));
