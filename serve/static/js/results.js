// The ranking as a list.

import { el } from "./dom.js";
import { contributions, marked } from "./highlight.js";
import { modeName, name, score, source } from "./words.js";

const EXCERPT = 340;
const ABSENT = "Not in the result list of this score (the best 1000, fewer under load)";

/** Return the scores of a passage, beginning with the one that ranks. */
export function scores(hit, mode) {
  const order = [mode, ...["hybrid", "dense", "sparse", "bm25"].filter((each) => each !== mode && each in hit.scores)];
  const parts = order.map((each) => {
    const value = each === mode ? hit.score : hit.scores[each];
    const title = value === null ? ABSENT : null;
    const label = each.includes("+") ? "sum" : modeName(each);
    return el("div", { class: each === mode ? "main" : null }, el("dt", {}, label), el("dd", { title }, score(value)));
  });
  return el("dl", { class: "scores" }, ...parts);
}

/** Return the list item of one passage; `open` shows its explanation. */
export function result(hit, mode, open) {
  const words = contributions(hit.explanation);
  const heading = el("h2", { id: `hit-${hit.rank}` }, ...marked(name(hit), words));
  const button = el(
    "button", { type: "button", class: "why", "aria-haspopup": "dialog" }, "Why this passage",
    el("span", { class: "unseen" }, `: ${name(hit)}`),
  );
  button.addEventListener("click", () => open(hit));
  const excerpt = el("p", { class: "excerpt" }, ...marked(hit.text, words, EXCERPT));
  const foot = el("div", { class: "foot" }, scores(hit, mode), hit.explanation ? button : null);
  return el(
    "li", { class: "hit" }, el("span", { class: "rank", "aria-hidden": "true" }, String(hit.rank)),
    el("article", { "aria-labelledby": heading.id }, heading, el("p", { class: "source" }, source(hit)), hit.text ? excerpt : null, foot),
  );
}
