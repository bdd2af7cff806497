// The words of a passage that explain its score, marked in its text.

import { el } from "./dom.js";

const WORD = /[\p{L}\p{N}]+/gu;

/**
 * Return word → { kind, weight } for an explanation: words that query and passage share, by their share of the sparse
 * score, and words that only the matched passage slots predict.
 */
export function contributions(explanation) {
  const found = new Map();
  if (!explanation) return found;
  for (const { passage_words: words, share } of explanation.slots) {
    for (const { word } of words) found.set(fold(word), { kind: "slot", weight: Math.max(share ?? 0, 0.01) });
  }
  for (const { word, share } of explanation.terms) found.set(fold(word), { kind: "term", weight: 1 + share });
  return found;
}

function fold(word) {
  return word.trim().toLowerCase();
}

function spot(text, words) {
  const spots = [];
  for (const match of text.matchAll(WORD)) {
    const found = words.get(match[0].toLowerCase());
    spots.push({ start: match.index, end: match.index + match[0].length, found, weight: found ? found.weight : 0 });
  }
  return spots;
}

/** Return start and end of the words within `length` characters from `start`. */
function between(spots, start, length) {
  const words = spots.filter((each) => each.start >= start && each.end <= start + length);
  return words.length ? [start > 0 ? words[0].start : 0, words.at(-1).end] : [Math.round(start), Math.round(start + length)];
}

/** Return start and end of the part of a text, about `length` characters, with the highest weight of words. */
function bestPart(text, spots, length) {
  if (text.length <= length * 1.25) return [0, text.length];
  let [best, from, sum, last] = [-1, 0, 0, 0];
  for (let first = 0; first < spots.length; first += 1) {
    while (last < spots.length && spots[last].end <= spots[first].start + length) {
      sum += spots[last].weight;
      last += 1;
    }
    if (sum > best + 1e-9) [best, from] = [sum, spots[first].start];
    if (last > first) sum -= spots[first].weight;
    else last = first + 1;
  }
  const inside = spots.filter(({ found, start, end }) => found && start >= from && end <= from + length);
  if (!inside.length) return between(spots, 0, length);
  const spare = length - (inside.at(-1).end - inside[0].start);
  const start = inside[0].start - spare / 2;
  return between(spots, start < length / 4 ? 0 : start, length);
}

/** Return the legend of the marks. */
export function legend() {
  const [shared, predicted] = [el("mark", { class: "term" }, "shared words"), el("mark", { class: "slot" }, "words predicted by matched slots")];
  return el("p", { class: "legend" }, "Marked: ", shared, " and ", predicted);
}

/** Return nodes for a text with its contributing words marked; with `length` only the best part of it. */
export function marked(text, words, length = Infinity) {
  const spots = spot(text, words);
  const [start, end] = bestPart(text, spots, length);
  const nodes = start > 0 ? ["… "] : [];
  let at = start;
  for (const { start: first, end: last, found } of spots) {
    if (!found || first < start || last > end) continue;
    nodes.push(text.slice(at, first), el("mark", { class: found.kind }, text.slice(first, last)));
    at = last;
  }
  nodes.push(text.slice(at, end));
  if (end < text.length) nodes.push(" …");
  return nodes;
}
