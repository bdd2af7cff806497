// The search page.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { search as fetchResults } from "./api.js";
import { drawCollections, drawControls, drawFilter, possible } from "./controls.js";
import { byId, el } from "./dom.js";
import { openDrawer } from "./drawer.js";
import { facts } from "./facts.js";
import { legend } from "./highlight.js";
import { begin, served, showAnswer, showServed, stop } from "./page.js";
import { result } from "./results.js";
import { count, milliseconds } from "./words.js";

const SHOWN = 10;
const WORDS = 8;
let readControls = null;

function show(answer) {
  const { query, budget, hits } = answer.results[0];
  byId("welcome").hidden = true;
  byId("facts").hidden = false;
  byId("facts").replaceChildren(...facts(answer), ...(hits.length ? [legend()] : []));
  byId("results").replaceChildren(...hits.map((hit) => result(hit, answer.mode, (each) => openDrawer(each, answer.mode))));
  if (!hits.length) byId("results").append(nothing(answer.mode, query));
  const slots = budget.slots === null ? "" : `, ${count(budget.slots, "query slot")}`;
  byId("status").textContent = `${count(hits.length, "passage")} in ${milliseconds(answer.timings_ms.total)}${slots}.`;
  showServed(answer.index);
  document.title = `${query} · DiffRetriever`;
}

function nothing(mode, query) {
  const hint = mode === "sparse" || mode === "bm25"
    ? "No passage shares a weighted word with the query. Dense and hybrid scores need no shared words."
    : "No passage matches the collection and the filter.";
  return el("li", { class: "nothing" }, el("h2", {}, `No passage for “${query}”`), el("p", {}, hint));
}

function blank() {
  byId("results").replaceChildren();
  byId("facts").hidden = true;
  byId("welcome").hidden = false;
  byId("status").textContent = "";
  document.title = "Search · DiffRetriever";
}

function search() {
  stop();
  const q = byId("q").value.trim();
  const configuration = readControls();
  const query = addressOf(q, { "": configuration });
  byId("to-compare").href = `compare${q ? query : ""}`;
  if (!q) {
    blank();
    return;
  }
  writeAddress(query);
  const request = { q, ...configuration, k: SHOWN, explain: true, words: served.readable ? WORDS : 0 };
  showAnswer({ request: (signal) => fetchResults(request, signal), show, blank, retry: search });
}

function fromAddress() {
  const parameters = readAddress();
  byId("q").value = parameters.q;
  const configuration = possible(served, parameters);
  const read = drawControls(byId("controls"), "", served, configuration, search);
  const readCollection = drawCollections(byId("controls"), served, configuration.collection);
  const readFilter = drawFilter(byId("controls"), served, configuration.filter);
  readControls = () => ({ ...read(), collection: readCollection(), filter: readFilter() });
  search();
}

begin(fromAddress, search);
