// The drawer that explains one passage: slots and their matches, what they read and say, shared words, the whole text.

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
  const heads = [["Query slot says"], ["Passage slot says"], ["product", "number"], ["share", "number"]];
  const rows = explanation.slots.map((slot) => [
    `${slot.slot + 1}. ${slotWords(slot.words)}`, `${slot.passage_slot + 1}. ${slotWords(slot.passage_words)}`,
    short(slot.product), percent(slot.share),
  ]);
  const numbers = table("Slots and their matches", heads, rows);
  const told = dense === null || dense === undefined ? "" : ` Their products' mean is the dense score, ${short(dense)}.`;
  const unused = idle > 0 ? ` ${idle} of the passage's ${explanation.passage_slots.length} slots match none.` : "";
  return el(
    "section", {}, el("h3", {}, "Slots"),
    el("p", { class: "told" }, `Each query slot takes the passage slot nearest to it.${told}${unused}`),
    el("div", { id: "picture" }), el("details", {}, el("summary", {}, "The same as a table"), numbers),
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
      : el("p", { class: "told" }, "Query and passage share no word that counts: this passage comes from its vectors."),
  );
}

function whole(hit) {
  const text = el("p", { class: "text" }, ...marked(hit.text, contributions(hit.explanation)));
  return el("section", {}, el("h3", {}, "Passage"), legend(), text);
}

function draw(explanation) {
  const place = byId("picture");
  place?.replaceChildren(picture(explanation, Math.round(place.clientWidth)));
}

/** Open the drawer on a passage; closing gives the focus back to where it was. */
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
