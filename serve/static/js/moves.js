// Differences in rank between two lists: as text, and as lines between the lists.

import { svg } from "./dom.js";

/** Return { kind, text } of the difference between two ranks of a passage; `other` is undefined if the other list lacks it. */
export function move(rank, other) {
  if (other === undefined) return { kind: "only", text: "only here" };
  if (other === rank) return { kind: "same", text: "same rank" };
  const up = rank < other;
  return { kind: up ? "up" : "down", text: `${Math.abs(rank - other)} ${up ? "higher" : "lower"}` };
}

/** Return id → rank. */
export function ranks(hits) {
  return new Map(hits.map((hit) => [hit.id, hit.rank]));
}

/** Return a sentence on the overlap of two rankings. */
export function agreement(left, right) {
  const other = ranks(right);
  const both = left.filter((hit) => other.has(hit.id));
  const same = both.filter((hit) => other.get(hit.id) === hit.rank).length;
  if (!left.length && !right.length) return "Neither side found a passage.";
  if (same === left.length && same === right.length) return "Both sides give the same ranking.";
  const most = Math.max(left.length, right.length);
  if (!both.length) return "No passage is in both lists.";
  return `${both.length} of ${most} passages are in both lists, ${same || "none"} at the same rank.`;
}

function middles(list, top) {
  return new Map([...list.children].map((item) => {
    const box = item.getBoundingClientRect();
    return [item.dataset.id, box.top + box.height / 2 - top];
  }));
}

/** Draw a line for each passage in both lists, between its two entries. */
export function drawMoves(parent, left, right) {
  const { top, width, height } = parent.getBoundingClientRect();
  const [from, to] = [middles(left, top), middles(right, top)];
  const order = (list) => new Map([...list.children].map((item, at) => [item.dataset.id, at + 1]));
  const [before, after] = [order(left), order(right)];
  const lines = [...from].filter(([id]) => to.has(id)).map(([id, y]) => {
    const end = to.get(id);
    const { kind } = move(after.get(id), before.get(id));
    const path = `M2 ${y}C${width / 2} ${y} ${width / 2} ${end} ${width - 2} ${end}`;
    return svg("path", { d: path, class: kind, "data-id": id });
  });
  parent.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, fill: "none" }, ...lines));
}
