// The parts of a passage that its slots read, with the share of the dense score that comes from each.

import { el } from "./dom.js";
import { percent } from "./words.js";

/** Return the section, or null where slots read the whole passage. */
export function parts({ slots, passage_parts: each = [] }) {
  if (!each.length) return null;
  const rows = each.flatMap((part, at) => {
    const met = slots.filter((slot) => slot.passage_slot === at && slot.share !== null);
    const share = met.length ? ` · ${percent(met.reduce((sum, slot) => sum + slot.share, 0))}` : "";
    return [
      el("dt", { class: "passage" }, `Passage ${at + 1}${share}`),
      el("dd", { class: met.length ? null : "idle" }, part || "nothing of the text"),
    ];
  });
  return el(
    "section", {}, el("h3", {}, "What each slot reads"),
    el("p", { class: "told" }, "A slot reads its part of the passage; beside it is the share of the dense score that comes from there."),
    el("dl", { class: "readings parts" }, ...rows),
  );
}
