// What both pages do: learn what is served, then ask, and show what came back or what went wrong.

import { askIndex } from "./api.js";
import { byId } from "./dom.js";
import { servedLine } from "./facts.js";
import { listenToKeys } from "./keys.js";
import { clearProblem, showProblem } from "./problem.js";

/** What the service says of itself; null until it has. */
export let served = null;
let asking = null;

function busy(on) {
  document.body.classList.toggle("busy", on);
  byId("results")?.setAttribute("aria-busy", String(on));
}

/** Give up what is being asked, and forget the last problem. */
export function stop() {
  asking?.abort();
  clearProblem();
  busy(false);
}

/** Show what `ask` returns, or `blank` the page and show the problem; `again` does once more what failed. */
export async function showAnswer({ ask, show, blank, again }) {
  const mine = new AbortController();
  asking = mine;
  busy(true);
  try {
    show(await ask(mine.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    blank();
    byId("welcome").hidden = true;
    showProblem(error, again);
  }
  if (asking === mine) busy(false);
}

/** Say what an answer, or the service itself, was served from. */
export function showServed(index = served.index) {
  byId("served").textContent = servedLine({ ...served, index });
}

/** Start the page: `fromAddress` draws what the address asks for, `ask` asks what the form holds. */
export function begin(fromAddress, ask) {
  async function start() {
    clearProblem();
    try {
      served = await askIndex();
    } catch (error) {
      showProblem(error, start);
      return;
    }
    showServed();
    fromAddress();
  }
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (served) ask();
    else start();
  });
  window.addEventListener("popstate", fromAddress);
  listenToKeys();
  if (!new URLSearchParams(location.search).has("q")) byId("q").focus();
  start();
}
