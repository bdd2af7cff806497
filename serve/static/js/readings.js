// Tokens of the whole vocabulary that slots predict: query slots, matched passage slots, and the others on demand.

import { el } from "./dom.js";
import { count, short } from "./words.js";

function words(reading) {
  const each = reading.map(({ word, logit }, at) => el(at ? "span" : "strong", { title: `logit ${short(logit)}` }, word));
  return el("dd", {}, ...each.flatMap((word, at) => (at ? [", ", word] : [word])));
}

function list(label, kind, slots, readings) {
  const rows = slots.flatMap((slot) => [el("dt", { class: kind }, `${label} ${slot}`), words(readings[slot])]);
  return el("dl", { class: "readings" }, ...rows);
}

/** Return the section, or null if the response has no predicted tokens. */
export function readings({ slots, query_readings: query = [], passage_readings: passage = [] }) {
  if (!query.length || !passage.length) return null;
  const matches = new Set(slots.map((slot) => slot.passage_slot));
  const [matched, idle] = [true, false].map((isMatched) => [...passage.keys()].filter((slot) => matches.has(slot) === isMatched));
  const others = el(
    "details", {}, el("summary", {}, `${count(idle.length, "unmatched passage slot")}`),
    list("Passage slot", "passage", idle, passage),
  );
  return el(
    "section", {}, el("h3", {}, "Predicted words"),
    el("p", { class: "intro" }, "The words that the model predicts at each slot, from its whole vocabulary. They need not occur in the text."),
    list("Query slot", "query", [...query.keys()], query), list("Passage slot", "passage", matched, passage),
    idle.length ? others : null,
  );
}
