// Shared by both pages: load the description of the index, send requests, show responses and problems.

import { fetchIndex } from "./api.js";
import { byId } from "./dom.js";
import { servedLine } from "./facts.js";
import { listenToKeys } from "./keys.js";
import { clearProblem, showProblem } from "./problem.js";

/** The response of `GET /index`; null until it has arrived. */
export let served = null;
let current = null;

function busy(on) {
  document.body.classList.toggle("busy", on);
  byId("results")?.setAttribute("aria-busy", String(on));
}

/** Cancel the current request and clear the last problem. */
export function stop() {
  current?.abort();
  clearProblem();
  busy(false);
}

/** Show the response of `request`, or `blank` the page and show the problem with a button for `retry`. */
export async function showAnswer({ request, show, blank, retry }) {
  const controller = new AbortController();
  current = controller;
  busy(true);
  try {
    show(await request(controller.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    blank();
    byId("welcome").hidden = true;
    showProblem(error, retry);
  }
  if (current === controller) busy(false);
}

/** Show the line about the index, for the version of a response. */
export function showServed(index = served.index) {
  byId("served").textContent = servedLine({ ...served, index });
}

/** Start the page: `fromAddress` runs the search of the URL, `submit` that of the form. */
export function begin(fromAddress, submit) {
  async function start() {
    clearProblem();
    try {
      served = await fetchIndex();
    } catch (error) {
      showProblem(error, start);
      return;
    }
    showServed();
    fromAddress();
  }
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (served) submit();
    else start();
  });
  window.addEventListener("popstate", fromAddress);
  listenToKeys();
  if (!new URLSearchParams(location.search).has("q")) byId("q").focus();
  start();
}
