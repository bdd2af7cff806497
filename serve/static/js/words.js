// Numbers and facts in words.

/** Return a remark as a sentence of its own. */
export function sentence(text) {
  const shown = text.trim();
  return shown && shown[0].toUpperCase() + shown.slice(1) + (/[.!?]$/.test(shown) ? "" : ".");
}

/** Return a score with as many digits as tell two passages apart. */
export function score(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 10 ? value.toFixed(2) : value.toFixed(4);
}

/** Return the name of a score: of BM25 in capitals, of sums with room between their parts. */
export function modeName(mode) {
  return mode.replaceAll("+", " + ").replace("bm25", "BM25");
}

/** Return a weight or product, shorter than a score; small ones keep two digits that say something. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return value.toFixed(size >= 0.1 || size === 0 ? 2 : size >= 0.01 ? 3 : 4);
}

/** Return a share as a percentage. */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;
}

/** Return a time with a digit after the point where it is short. */
export function milliseconds(value) {
  return value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`;
}

/** Return "1 slot", "2 slots", "9,412 passages". */
export function count(number, one) {
  return `${number.toLocaleString("en")} ${one}${number === 1 ? "" : "s"}`;
}

function feature(name, value) {
  if (name === "length") return count(value, "subword");
  if (name === "entropy") return `${value.toFixed(2)} bits of entropy`;
  return `${name.replaceAll("_", " ")} ${Number(value.toFixed(2))}`;
}

/** Say why a query had the slots that it had; empty where its retriever has none. */
export function why(budget) {
  if (budget.slots === null) return "";
  if (budget.reason === "asked") return "as asked";
  if (budget.reason === "retriever") return "the retriever's own budget";
  if (budget.reason === "load") return "lowered while the server is busy";
  const seen = Object.entries(budget.features).map(([name, value]) => feature(name, value));
  const from = budget.allowed.length > 1 ? ` out of ${budget.allowed.join(", ")}` : "";
  return `chosen by “${budget.rule}”${from}${seen.length ? ` for ${seen.join(" and ")}` : ""}`;
}

/** Return the words of a slot, at most `most` of them, or a dash for a slot that says none. */
export function slotWords(words, most = 3) {
  if (!words.length) return "–";
  const shown = words.slice(0, most).map(({ word }) => word.trim());
  return shown.join(", ") + (words.length > most ? ` +${words.length - most}` : "");
}

/** Say where a passage comes from, with its id unless that is its name already, and what is known of it. */
export function source(hit) {
  const known = Object.entries(hit.metadata ?? {}).filter(([, value]) => value !== null);
  const parts = known.map(([column, value]) => `${column} ${value}`);
  return [hit.collection, ...(name(hit) === hit.id ? [] : [hit.id]), ...parts].join(" · ");
}

/** Return a passage's title, or its id where it has none. */
export function name(hit) {
  return hit.title.trim() || hit.id;
}
