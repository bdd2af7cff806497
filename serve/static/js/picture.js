// Query slots and passage slots as two columns, joined by lines as thick as each slot's share of the dense score.

import { svg } from "./dom.js";
import { percent, slotWords } from "./words.js";

const ROW = 40;
const HEAD = 26;
const DOT = 5;
const LETTER = 7.2;
const MANY = 24;

function shownSlots(explanation) {
  const matched = new Set(explanation.slots.map((slot) => slot.passage_slot));
  const all = explanation.passage_slots.map((words, slot) => ({ slot, words, matched: matched.has(slot) }));
  return all.length <= MANY ? all : all.filter((each) => each.matched);
}

function cut(text, width) {
  const letters = Math.max(4, Math.floor(width / LETTER));
  return text.length <= letters ? text : `${text.slice(0, letters - 1).trimEnd()}…`;
}

function label({ x, y, anchor, text, note, width, kind }) {
  const group = svg("g", { class: kind }, svg("title", {}, note ? `${text} (${note})` : text));
  group.append(svg("text", { x, y: y + (note ? -1 : 4.5), "text-anchor": anchor }, cut(text, width)));
  if (note) group.append(svg("text", { x, y: y + 14, "text-anchor": anchor, class: "note" }, note));
  return group;
}

function line(from, to, share, order) {
  const bend = (to.x - from.x) * 0.5;
  const path = `M${from.x} ${from.y}C${from.x + bend} ${from.y} ${to.x - bend} ${to.y} ${to.x} ${to.y}`;
  const weight = Math.max(0, share ?? 0);
  return svg("path", {
    d: path, class: "line", "stroke-width": (1.25 + 9 * weight).toFixed(2), pathLength: 1, "data-order": order,
    "stroke-opacity": Math.min(0.9, 0.35 + weight).toFixed(2),
  });
}

/** Return the picture for a width in CSS pixels. The table has the same data. */
export function picture(explanation, width) {
  const right = shownSlots(explanation);
  const rows = Math.max(explanation.slots.length, right.length);
  const height = HEAD + rows * ROW;
  const [left, side] = [Math.round(Math.min(width * 0.36, 190)), Math.round(Math.max(width * 0.62, width - 230))];
  const level = (column, at) => HEAD + (rows * ROW * (at + 0.5)) / column.length;
  const positions = new Map(right.map(({ slot }, at) => [slot, { x: side, y: level(right, at) }]));
  const lines = svg("g", { class: "lines", fill: "none" });
  const labels = svg(
    "g", {}, svg("text", { x: left - 12, y: 12, "text-anchor": "end", class: "query head" }, "Query"),
    svg("text", { x: side + 12, y: 12, class: "passage head" }, "Passage"),
  );
  explanation.slots.forEach((slot, at) => {
    const from = { x: left, y: level(explanation.slots, at) };
    lines.append(line(from, positions.get(slot.passage_slot), slot.share, at));
    labels.append(svg("circle", { cx: from.x, cy: from.y, r: DOT, class: "query dot" }));
    const text = slotWords(slot.words, 2);
    const position = { x: from.x - 12, y: from.y, anchor: "end", width: left - 12 };
    labels.append(label({ ...position, text, note: percent(slot.share), kind: "query" }));
  });
  for (const { slot, words, matched } of right) {
    const { x, y } = positions.get(slot);
    labels.append(svg("circle", { cx: x, cy: y, r: DOT, class: matched ? "passage dot" : "idle dot" }));
    const kind = matched ? "passage" : "idle";
    labels.append(label({ x: x + 12, y, anchor: "start", text: slotWords(words, 2), width: width - x - 12, kind }));
  }
  const named = { role: "img", "aria-label": "Query slots joined to the passage slots that they match; the table has the same data" };
  return svg("svg", { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, ...named }, lines, labels);
}
