// The parts of a passage that its slots pool from, with their shares of the dense score.

import { el } from "./dom.js";
import { percent } from "./words.js";

/** Return the section, or null if slots pool from the whole passage. */
export function parts({ slots, passage_parts: texts = [] }) {
  if (!texts.length) return null;
  const rows = texts.flatMap((text, number) => {
    const matches = slots.filter((slot) => slot.passage_slot === number && slot.share !== null);
    const share = matches.length ? ` · ${percent(matches.reduce((sum, slot) => sum + slot.share, 0))}` : "";
    return [
      el("dt", { class: "passage" }, `Passage slot ${number}${share}`),
      el("dd", { class: matches.length ? null : "idle" }, text || "no text"),
    ];
  });
  return el(
    "section", {}, el("h3", {}, "Text of each slot"),
    el("p", { class: "intro" }, "Each passage slot pools from a part of the text. The percentage is its share of the dense score."),
    el("dl", { class: "readings parts" }, ...rows),
  );
}
