// The drawer that explains one passage: matched slots, their texts and predicted words, shared words, the whole text.

import { byId, el } from "./dom.js";
import { contributions, legend, marked } from "./highlight.js";
import { parts } from "./parts.js";
import { picture } from "./picture.js";
import { readings } from "./readings.js";
import { scores } from "./results.js";
import { name, percent, short, slotWords, source } from "./words.js";

function table(caption, heads, rows) {
  const head = el("tr", {}, ...heads.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)));
  const body = rows.map((cells) => el("tr", {}, ...cells.map((cell, at) => el("td", { class: heads[at][1] }, cell))));
  return el(
    "table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, ...body),
  );
}

function slots(explanation, dense) {
  const idle = explanation.passage_slots.length - new Set(explanation.slots.map((slot) => slot.passage_slot)).size;
  const heads = [["Query slot predicts"], ["Passage slot predicts"], ["product", "number"], ["share", "number"]];
  const rows = explanation.slots.map((slot) => [
    `${slot.slot}: ${slotWords(slot.words)}`, `${slot.passage_slot}: ${slotWords(slot.passage_words)}`,
    short(slot.product), percent(slot.share),
  ]);
  const numbers = table("Slots and their matches", heads, rows);
  const score = dense === null || dense === undefined ? "" : ` The dense score, ${short(dense)}, is the mean of these products.`;
  const unused = idle > 0 ? ` ${idle} of ${explanation.passage_slots.length} passage slots are unmatched.` : "";
  return el(
    "section", {}, el("h3", {}, "Slots"),
    el("p", { class: "intro" }, `Each query slot matches the passage slot with the largest inner product.${score}${unused}`),
    el("div", { id: "picture" }), el("details", {}, el("summary", {}, "Show as a table"), numbers),
  );
}

function terms(explanation) {
  const most = Math.max(...explanation.terms.map((term) => Math.abs(term.share)), 1e-9);
  const rows = explanation.terms.map((term) => {
    const bar = el("span", { class: "amount", "aria-hidden": "true" });
    bar.style.inlineSize = `${(Math.abs(term.share) / most) * 100}%`;
    const word = el("span", { class: "shared" }, el("span", {}, term.word.trim()), bar);
    return [word, short(term.query_weight), short(term.passage_weight), short(term.product), percent(term.share)];
  });
  const heads = [["word"], ["query", "number"], ["passage", "number"], ["product", "number"], ["share", "number"]];
  return el(
    "section", {}, el("h3", {}, "Shared words"),
    rows.length
      ? table("Words that query and passage share", heads, rows)
      : el("p", { class: "intro" }, "Query and passage share no weighted words."),
  );
}

function whole(hit) {
  const text = el("p", { class: "text" }, ...marked(hit.text, contributions(hit.explanation)));
  return el("section", {}, el("h3", {}, "Passage"), legend(), text);
}

function draw(explanation) {
  const parent = byId("picture");
  parent?.replaceChildren(picture(explanation, Math.round(parent.clientWidth)));
}

/** Open the drawer for a passage; closing it restores the focus. */
export function openDrawer(hit, mode) {
  const drawer = byId("drawer");
  const close = el("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
  close.addEventListener("click", () => drawer.close());
  const heading = el("h2", { id: "drawer-title", tabindex: "-1" }, name(hit));
  const explanation = hit.explanation;
  const body = el(
    "div", { class: "inner" },
    el("div", { class: "top" }, el("div", {}, el("p", { class: "source" }, `Rank ${hit.rank} · ${source(hit)}`), heading), close),
    scores(hit, mode), explanation.slots.length ? slots(explanation, hit.scores.dense) : null, parts(explanation),
    readings(explanation), terms(explanation), whole(hit),
  );
  drawer.replaceChildren(body);
  drawer.onclick = (event) => {
    if (event.target === drawer) drawer.close();
  };
  drawer.showModal();
  heading.focus();
  drawer.scrollTop = 0;
  if (!explanation.slots.length) return;
  const watch = new ResizeObserver(() => draw(explanation));
  watch.observe(byId("picture"));
  drawer.addEventListener("close", () => watch.disconnect(), { once: true });
}
