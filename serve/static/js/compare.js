// The compare page: the rankings of one query by two configurations, and the differences in rank.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { search } from "./api.js";
import { drawCollections, drawControls, drawFilter, possible } from "./controls.js";
import { byId, el } from "./dom.js";
import { facts } from "./facts.js";
import { agreement, drawMoves, move, ranks } from "./moves.js";
import { begin, served, showAnswer, showServed, stop } from "./page.js";
import { count, modeName, name, score } from "./words.js";

const SHOWN = 10;
const SIDES = ["a", "b"];
let readers = null;
let readCollection = null;
let readFilter = null;

/** Return an entry of a list. The right list shows changes of rank, compared with the left. */
function entry(hit, others, onRight) {
  const change = move(hit.rank, others.get(hit.id));
  const { kind, text } = onRight || change.kind === "only" ? change : { kind: "", text: "" };
  const heading = el("h3", {}, name(hit));
  const moved = text ? el("p", { class: `move ${kind}` }, text) : null;
  const item = el(
    "li", { class: "entry" }, el("span", { class: "rank" }, String(hit.rank)), el("div", {}, heading, moved),
    el("span", { class: "score" }, score(hit.score)),
  );
  item.dataset.id = hit.id;
  item.title = hit.id;
  return item;
}

function title({ mode, budget }) {
  const slots = budget === null ? "" : `, ${budget === "adaptive" ? "adaptive" : count(budget, "slot")}`;
  const shown = modeName(mode);
  return `${shown[0].toUpperCase()}${shown.slice(1)}${slots}`;
}

function show(answers, configurations) {
  const hits = answers.map((answer) => answer.results[0].hits);
  SIDES.forEach((side, at) => {
    const others = ranks(hits[1 - at]);
    byId(`name-${side}`).textContent = title(configurations[at]);
    byId(`facts-${side}`).replaceChildren(...facts(answers[at]));
    byId(`list-${side}`).replaceChildren(...hits[at].map((hit) => entry(hit, others, at === 1)));
  });
  const [left, right] = answers.map((answer) => answer.index.version);
  const mixed = left === right ? "" : ` The index changed in between: left version ${left}, right version ${right}.`;
  byId("agreement").textContent = agreement(...hits) + mixed;
  showServed(answers[1].index);
  byId("welcome").hidden = true;
  byId("lists").hidden = false;
  redraw();
}

function redraw() {
  if (!byId("lists").hidden) drawMoves(byId("moves"), byId("list-a"), byId("list-b"));
}

function blank() {
  byId("agreement").textContent = "";
  byId("lists").hidden = true;
  byId("welcome").hidden = false;
}

function compare() {
  stop();
  const q = byId("q").value.trim();
  const [collection, filter] = [readCollection(), readFilter()];
  const configurations = readers.map((read) => read());
  byId("to-search").href = `./${q ? addressOf(q, { "": { ...configurations[0], collection, filter } }) : ""}`;
  if (!q) {
    blank();
    return;
  }
  writeAddress(addressOf(q, { "": { collection, filter }, "a.": configurations[0], "b.": configurations[1] }));
  const request = (signal) =>
    Promise.all(configurations.map((each) => search({ q, ...each, collection, filter, k: SHOWN, explain: false }, signal)));
  showAnswer({ request, show: (answers) => show(answers, configurations), blank, retry: compare });
}

/** Return the first configuration of a side: from the URL, or a default. */
function first(side, at) {
  const [own, shared] = [readAddress(`${side}.`), readAddress()];
  const usual = at === 0 ? { mode: served.default_mode, budget: "adaptive" } : { mode: served.modes[0], budget: served.query_budget };
  const pick = (key) => own[key] ?? (at === 0 ? shared[key] : null) ?? usual[key];
  const { mode, budget } = possible(served, { mode: pick("mode"), budget: pick("budget") });
  return { mode, budget };
}

function fromAddress() {
  byId("q").value = readAddress().q;
  readers = SIDES.map((side, at) => drawControls(byId(`controls-${side}`), `${side}-`, served, first(side, at), compare));
  byId("shared").replaceChildren();
  const shared = possible(served, readAddress());
  readCollection = drawCollections(byId("shared"), served, shared.collection);
  readFilter = drawFilter(byId("shared"), served, shared.filter);
  byId("shared").onchange = compare;
  compare();
}

new ResizeObserver(redraw).observe(byId("lists"));
begin(fromAddress, compare);
