// The search page.

import { addressOf, readAddress, writeAddress } from "./address.js";
import { askIndex, askSearch } from "./api.js";
import { drawCollections, drawControls, possible } from "./controls.js";
import { byId, el } from "./dom.js";
import { openDrawer } from "./drawer.js";
import { facts, servedLine } from "./facts.js";
import { legend } from "./highlight.js";
import { listenToKeys } from "./keys.js";
import { clearProblem, showProblem } from "./problem.js";
import { result } from "./results.js";
import { count, milliseconds } from "./words.js";

const SHOWN = 10;
let served = null;
let readControls = null;
let asking = null;

function busy(on) {
  document.body.classList.toggle("busy", on);
  byId("results").setAttribute("aria-busy", String(on));
}

function show(answer) {
  const { query, budget, hits } = answer.results[0];
  byId("welcome").hidden = true;
  byId("facts").hidden = false;
  byId("facts").replaceChildren(...facts(answer), ...(hits.length ? [legend()] : []));
  byId("results").replaceChildren(...hits.map((hit) => result(hit, answer.mode, (each) => openDrawer(each, answer.mode))));
  if (!hits.length) byId("results").append(nothing(answer.mode, query));
  const slots = budget.slots === null ? "" : `, ${count(budget.slots, "query slot")}`;
  byId("status").textContent = `${count(hits.length, "passage")} in ${milliseconds(answer.timings_ms.total)}${slots}.`;
  byId("served").textContent = servedLine({ ...served, index: answer.index });
  document.title = `${query} · DiffRetriever`;
}

function nothing(mode, query) {
  const hint = mode === "sparse"
    ? "None has a word in common with it that counts. Dense and hybrid scores need no common word."
    : "There is no passage in what is searched.";
  return el("li", { class: "nothing" }, el("h2", {}, `No passage for “${query}”`), el("p", {}, hint));
}

function blank() {
  byId("results").replaceChildren();
  byId("facts").hidden = true;
  byId("welcome").hidden = false;
  byId("status").textContent = "";
  document.title = "Search · DiffRetriever";
}

async function search() {
  asking?.abort();
  clearProblem();
  const q = byId("q").value.trim();
  const configuration = readControls();
  const query = addressOf(q, { "": configuration });
  byId("to-compare").href = `compare${q ? query : ""}`;
  if (!q) {
    busy(false);
    blank();
    return;
  }
  writeAddress(query);
  const mine = new AbortController();
  asking = mine;
  busy(true);
  try {
    show(await askSearch({ q, ...configuration, k: SHOWN, explain: true }, mine.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    blank();
    byId("welcome").hidden = true;
    showProblem(error, search);
  }
  if (asking === mine) busy(false);
}

function fromAddress() {
  const asked = readAddress();
  byId("q").value = asked.q;
  const configuration = possible(served, asked);
  const read = drawControls(byId("controls"), "", served, configuration, search);
  const readCollection = drawCollections(byId("controls"), served, configuration.collection);
  readControls = () => ({ ...read(), collection: readCollection() });
  search();
}

async function start() {
  clearProblem();
  try {
    served = await askIndex();
  } catch (error) {
    showProblem(error, start);
    return;
  }
  byId("served").textContent = servedLine(served);
  fromAddress();
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (readControls) search();
  else start();
});
window.addEventListener("popstate", fromAddress);
listenToKeys();
if (!new URLSearchParams(location.search).has("q")) byId("q").focus();
start();
