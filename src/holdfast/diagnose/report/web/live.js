// A page that is still being rewritten looks at its own file. A file may not be fetched, but it may be framed: the
// page opens itself in a hidden frame, which sends its content and does nothing else. It sends it only to a page that
// knows the key of the file: any page on this computer may frame it.

const asked = "?refresh=";
const patience = 12; // looks that a frame may take before another is opened
const parts = () => [...document.querySelectorAll("[data-part]")];
const contents = () => Object.fromEntries(parts().map((part) => [part.dataset.part, part.innerHTML]));

// In the frame: send what is new to the page around it.
function answer() {
  if (!location.search.startsWith(asked + data.key)) return;
  const said = { holdfast: document.getElementById("data").textContent, html: contents(), title: document.title };
  parent.postMessage(said, location.protocol === "file:" ? "*" : location.origin);
}

function isFrame() {
  return parent !== window && location.search.startsWith(asked);
}

const refresh = { frame: null, html: {}, unanswered: 0, timer: 0 }; // html: the parts as they were written

function follow() {
  if (data.live === null) return;
  addEventListener("message", (event) => {
    if (!refresh.frame || event.source !== refresh.frame.contentWindow || !event.data.holdfast) return;
    const fresh = JSON.parse(event.data.holdfast);
    if (fresh.key !== data.key) return; // a page around this one can put another into its frame
    refresh.unanswered = 0;
    refresh.frame.remove();
    refresh.frame = null;
    if (fresh.written !== data.written) renew(fresh, event.data.html, event.data.title);
    sayAge();
  });
  document.addEventListener("visibilitychange", () => document.hidden || look());
  refresh.timer = setInterval(() => document.hidden || look(), data.live * 1000);
  sayAge();
}

function look() {
  if (data.live === null) return;
  if (refresh.frame) {
    refresh.unanswered += 1;
    sayAge();
    if (refresh.unanswered % patience) return; // a large page, or a slow machine
    refresh.frame.remove();
  }
  sayAge();
  refresh.frame = element("iframe");
  refresh.frame.hidden = true;
  refresh.frame.src = location.href.split(/[?#]/)[0] + asked + data.key + Date.now();
  document.body.append(refresh.frame);
}

// The reader's choices, the scroll position and what is folded out stay as they are.
function renew(fresh, html, title) {
  const open = new Set([...document.querySelectorAll("[data-part] details[open] > summary")].map(nameOf));
  const before = data.rollouts;
  data = fresh;
  packs.clear();
  reader.scan = { words: "", hits: new Set(), left: 0 };
  whole = null;
  document.title = title;
  for (const part of parts()) {
    const name = part.dataset.part;
    if (refresh.html[name] === html[name]) continue;
    part.innerHTML = html[name];
    tables(part);
    for (const summary of part.querySelectorAll("summary")) summary.parentElement.open ||= open.has(nameOf(summary));
  }
  refresh.html = html;
  choices();
  placeCharts();
  if (!reader.cards) rollouts();
  else if (JSON.stringify(before) !== JSON.stringify(data.rollouts)) freshRollouts();
  if (data.live === null) clearInterval(refresh.timer);
}

function nameOf(summary) {
  return summary.textContent.replace(/\s*\(\d+\)$/, "");
}

// Cards that somebody reads are not taken away.
function freshRollouts() {
  const box = document.getElementById("rollouts").getBoundingClientRect();
  if (box.top > innerHeight || box.bottom < 0) return showRollouts();
  reader.fresh.textContent = "New rollouts: show";
  reader.fresh.hidden = false;
}

function sayAge() {
  const line = document.getElementById("age");
  if (!line || data.live === null) return;
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - data.written));
  const [size, unit] = seconds < 100 ? [1, "s"] : seconds < 6000 ? [60, "min"] : [3600, "h"];
  const silent = " The page cannot read its file; reload it to see more.";
  line.textContent = `Last written ${Math.round(seconds / size)} ${unit} ago.${refresh.unanswered > 2 ? silent : ""}`;
}
