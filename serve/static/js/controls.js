// The controls of a configuration (score, query slots), and those of collection and filter.

import { el } from "./dom.js";
import { count, modeName } from "./words.js";

const MODES = { dense: "Dense", sparse: "Sparse", hybrid: "Hybrid" };
const HINTS = {
  dense: "MaxSim: the mean, over query slots, of the best match among passage slots",
  sparse: "Sum over shared words of the products of their weights",
  hybrid: "Fusion of the dense and the sparse score",
};
const WITH_BM25 = { dense: "dense+bm25", sparse: "sparse+bm25", hybrid: "dense+sparse+bm25" };
const BM25 = { without: "Off", added: "Added", alone: "Alone" };
const BM25_HINTS = {
  without: "Rank by the score alone",
  added: "Fusion of the score and BM25",
  alone: "Rank by BM25 alone",
};

function choice(group, value, text, title, checked) {
  const input = el("input", { type: "radio", name: group, value, checked, title });
  return el("label", { class: "choice", title }, input, el("span", {}, text));
}

function offered(served) {
  return [...served.modes, ...(served.further_modes ?? []), usualMode(served)];
}

function usualMode(served) {
  return served.default_mode;
}

/** Return the mode that fuses a score with BM25: the default mode, with its weights, if it fuses these scores. */
function withBm25(served, own) {
  const usual = usualMode(served);
  return usual.replaceAll(/(^|\+)[\d.]+/g, "$1") === WITH_BM25[own] ? usual : WITH_BM25[own];
}

/** Return the scores without BM25: the retriever's, and the default mode unless it contains BM25. */
function ownModes(served) {
  const usual = usualMode(served);
  return [...new Set(usual.includes("bm25") ? served.modes : [...served.modes, usual])];
}

/** Return the score in a mode without BM25, and the state of the BM25 control. */
function parted(served, mode) {
  if (mode === "bm25") return { own: served.modes.at(-1), bm25: "alone" };
  const own = served.modes.find((each) => withBm25(served, each) === mode);
  return own ? { own, bm25: "added" } : { own: mode, bm25: "without" };
}

function modes(prefix, served, mode) {
  const { own, bm25 } = parted(served, mode);
  const legend = el("legend", {}, "Score");
  const buttons = ownModes(served).map((each) =>
    choice(`${prefix}mode`, each, MODES[each] ?? modeName(each), HINTS[each] ?? "Weighted sum of scores", each === own),
  );
  const scores = el("fieldset", { class: "switch" }, legend, el("div", { class: "choices" }, ...buttons));
  if (!offered(served).includes("bm25")) return [scores];
  const further = Object.keys(BM25).map((each) => choice(`${prefix}bm25`, each, BM25[each], BM25_HINTS[each], each === bm25));
  const sums = el("fieldset", { class: "switch" }, el("legend", {}, "BM25"), el("div", { class: "choices" }, ...further));
  const dim = () => {
    scores.disabled = sums.querySelector("input:checked").value === "alone";
  };
  sums.addEventListener("change", dim);
  dim();
  return [scores, sums];
}

function readMode(served, parent, prefix) {
  const own = parent.querySelector(`[name="${prefix}mode"]:checked`).value;
  const bm25 = parent.querySelector(`[name="${prefix}bm25"]:checked`)?.value;
  return { alone: "bm25", added: withBm25(served, own) }[bm25] ?? own;
}

function budgets(prefix, served, budget) {
  const adaptive = budget === "adaptive";
  const most = Math.max(served.limits.max_budget, served.query_budget);
  const value = adaptive ? served.query_budget : budget;
  const buttons = [
    served.adaptive && choice(`${prefix}budget`, "adaptive", "Adaptive", `Chosen for each query by the selector “${served.adaptive}”`, adaptive),
    choice(`${prefix}budget`, "fixed", "Fixed", "The same number for every query", !adaptive),
  ].filter(Boolean);
  const output = el("output", { for: `${prefix}slots` }, count(value, "slot"));
  const slider = el("input", {
    id: `${prefix}slots`, type: "range", min: 1, max: most, value, "aria-label": "Query slots",
    "aria-valuetext": count(value, "slot"),
  });
  const fixed = el("div", { class: "fixed", hidden: adaptive }, slider, output);
  slider.addEventListener("input", () => {
    output.value = count(slider.valueAsNumber, "slot");
    slider.setAttribute("aria-valuetext", output.value);
  });
  const legend = el("legend", {}, "Query slots");
  const set = el("fieldset", { class: "switch" }, legend, el("div", { class: "choices" }, ...buttons), fixed);
  set.addEventListener("change", () => {
    fixed.hidden = set.querySelector("input:checked").value === "adaptive";
  });
  return set;
}

/** Return the supported configuration that is nearest to the one of the URL. */
export function possible(served, { mode, budget, collection, filter }) {
  const most = served.query_budget === null ? null : Math.max(served.limits.max_budget, served.query_budget);
  const usual = served.query_budget === null ? null : served.adaptive ? "adaptive" : served.query_budget;
  const requested = budget === "adaptive" && served.adaptive ? budget : Math.min(Number.parseInt(budget, 10), most);
  return {
    mode: offered(served).includes(mode) ? mode : usualMode(served),
    budget: most === null ? null : requested === "adaptive" || requested >= 1 ? requested : usual,
    collection: Object.hasOwn(served.collections, collection ?? "") ? collection : null,
    filter: columns(served).length ? filter || null : null,
  };
}

function columns(served) {
  return Object.entries(served.metadata ?? {});
}

/** Draw the controls into `parent`, call `changed` on each change, and return a function that reads them. */
export function drawControls(parent, prefix, served, configuration, changed) {
  const parts = modes(prefix, served, configuration.mode);
  if (served.query_budget !== null) parts.push(budgets(prefix, served, configuration.budget));
  parent.replaceChildren(...parts);
  parent.onchange = () => changed();
  return () => {
    const budget = parent.querySelector(`[name="${prefix}budget"]:checked`)?.value ?? null;
    return {
      mode: readMode(served, parent, prefix),
      budget: budget === "fixed" ? parent.querySelector("[type=range]").valueAsNumber : budget,
    };
  };
}

/** Add the choice of a collection to `parent`, if there are several; return a function that reads it. */
export function drawCollections(parent, served, chosen) {
  const every = Object.entries(served.collections);
  if (every.length < 2) return () => null;
  const options = every.map(([name, rows]) =>
    el("option", { value: name, selected: name === chosen }, `${name} (${rows.toLocaleString("en")})`),
  );
  const select = el("select", { id: "collection" }, el("option", { value: "" }, "All"), ...options);
  const label = el("label", { for: "collection", class: "legend" }, "Collection");
  parent.append(el("div", { class: "switch" }, label, select));
  return () => select.value || null;
}

/** Add the filter to `parent`, if the index has metadata; return a function that reads it. */
export function drawFilter(parent, served, chosen) {
  const known = columns(served);
  if (!known.length) return () => null;
  const title = `Columns: ${known.map(([name, type]) => `${name} (${type})`).join(", ")}`;
  const input = el("input", {
    id: "filter", type: "text", value: chosen ?? "", title, placeholder: `${known[0][0]} IS NOT NULL`,
    autocomplete: "off", autocapitalize: "off", spellcheck: "false", maxlength: 4000,
  });
  parent.append(el("div", { class: "switch" }, el("label", { for: "filter", class: "legend" }, "Filter"), input));
  return () => input.value.trim() || null;
}
