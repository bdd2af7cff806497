// Query slots, timing and missing shards of a response, and the line about the index.

import { el } from "./dom.js";
import { count, milliseconds, why } from "./words.js";

const STAGES = { choose: "choose slots", encode: "encode", search: "search", passages: "read passages" };

function slots(budget) {
  const reason = why(budget);
  if (!reason) return null;
  const dots = Array.from({ length: Math.min(budget.slots, 32) }, () => el("i"));
  return el(
    "p", { class: "slots" }, el("span", { class: "dots", "aria-hidden": "true" }, ...dots),
    el("strong", {}, count(budget.slots, "query slot")), el("span", {}, ` ${reason}`),
  );
}

function times(timings) {
  const stages = Object.entries(STAGES).map(([key, title]) => ({ key, title, value: timings[key] }));
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  for (const { key, value } of stages) {
    const part = el("i", { class: key });
    part.style.flexGrow = value;
    bar.append(part);
  }
  const items = stages.map(({ key, title, value }) =>
    el("li", {}, el("i", { class: key, "aria-hidden": "true" }), `${title} ${milliseconds(value)}`),
  );
  const total = el("li", { class: "total" }, `${milliseconds(timings.total)} in total`);
  return el("div", { class: "times" }, bar, el("ul", {}, total, ...items));
}

function missing(shards) {
  if (!shards?.length) return null;
  const one = shards.length === 1;
  const subject = `${one ? "Shard" : "Shards"} ${shards.join(", ")} of the index did not respond`;
  return el("p", { class: "missing" }, `${subject}: the results lack ${one ? "its" : "their"} passages.`);
}

/** Return the elements above a ranking. */
export function facts(answer) {
  return [missing(answer.missing_shards), slots(answer.results[0].budget), times(answer.timings_ms)].filter(Boolean);
}

/** Return a line that describes the index. */
export function servedLine(served) {
  const { name, rows, version, checked_seconds_ago: seconds, fingerprint } = served.index;
  const fresh = seconds < 1.5 ? "just now" : `${Math.round(seconds)} seconds ago`;
  return [name, count(rows, "passage"), served.title, `version ${version}, checked ${fresh}`, fingerprint].join(" · ");
}
