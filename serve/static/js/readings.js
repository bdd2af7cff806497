// What slots say in words of the whole vocabulary: those of the query, those that they met, and the others on demand.

import { el } from "./dom.js";
import { count, short } from "./words.js";

function words(reading) {
  const each = reading.map(({ word, logit }, at) => el(at ? "span" : "strong", { title: `logit ${short(logit)}` }, word));
  return el("dd", {}, ...each.flatMap((word, at) => (at ? [", ", word] : [word])));
}

function list(label, kind, slots, readings) {
  const rows = slots.flatMap((slot) => [el("dt", { class: kind }, `${label} ${slot + 1}`), words(readings[slot])]);
  return el("dl", { class: "readings" }, ...rows);
}

/** Return the section, or null where the answer has no such words. */
export function readings({ slots, query_readings: asked = [], passage_readings: held = [] }) {
  if (!asked.length || !held.length) return null;
  const met = new Set(slots.map((slot) => slot.passage_slot));
  const [matched, idle] = [true, false].map((wanted) => [...held.keys()].filter((slot) => met.has(slot) === wanted));
  const others = el(
    "details", {}, el("summary", {}, `${count(idle.length, "passage slot")} besides, which match none`),
    list("Passage", "passage", idle, held),
  );
  return el(
    "section", {}, el("h3", {}, "In any words"),
    el("p", { class: "told" }, "What the model would say at each slot, in all its vocabulary: the words need not be in the text."),
    list("Query", "query", [...asked.keys()], asked), list("Passage", "passage", matched, held),
    idle.length ? others : null,
  );
}
