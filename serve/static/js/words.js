// Numbers, times and reasons as text.

/** Return a message as a sentence. */
export function sentence(text) {
  const shown = text.trim();
  return shown && shown[0].toUpperCase() + shown.slice(1) + (/[.!?]$/.test(shown) ? "" : ".");
}

/** Return a score with as many digits as tell two passages apart. */
export function score(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 10 ? value.toFixed(2) : value.toFixed(4);
}

/** Return the name of a score, such as `dense + BM25`. */
export function modeName(mode) {
  return mode.replaceAll("+", " + ").replace("bm25", "BM25");
}

/** Return a weight or product with two significant digits. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return value.toFixed(size >= 0.1 || size === 0 ? 2 : size >= 0.01 ? 3 : 4);
}

/** Return a share as a percentage. */
export function percent(value) {
  return value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;
}

/** Return a time, below 10 ms with one decimal. */
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

/** Return the reason for a query's number of slots; empty if the retriever has no slots. */
export function why(budget) {
  if (budget.slots === null) return "";
  if (budget.reason === "request") return "as requested";
  if (budget.reason === "retriever") return "the retriever's default";
  if (budget.reason === "load") return "lowered under load";
  const features = Object.entries(budget.features).map(([name, value]) => feature(name, value));
  const from = budget.allowed.length > 1 ? ` out of ${budget.allowed.join(", ")}` : "";
  return `chosen by “${budget.rule}”${from}${features.length ? ` for ${features.join(" and ")}` : ""}`;
}

/** Return at most `most` words of a slot, or a dash if it has none. */
export function slotWords(words, most = 3) {
  if (!words.length) return "–";
  const shown = words.slice(0, most).map(({ word }) => word.trim());
  return shown.join(", ") + (words.length > most ? ` +${words.length - most}` : "");
}

/** Return collection, id (unless it is the title) and metadata of a passage. */
export function source(hit) {
  const parts = Object.entries(hit.metadata ?? {}).filter(([, value]) => value !== null).map(([column, value]) => `${column} ${value}`);
  return [hit.collection, ...(name(hit) === hit.id ? [] : [hit.id]), ...parts].join(" · ");
}

/** Return a passage's title, or else its id. */
export function name(hit) {
  return hit.title.trim() || hit.id;
}
