// What went wrong, kindly: the problem, what to do, and a way to do it.

import { keepKey } from "./api.js";
import { byId, el } from "./dom.js";
import { sentence } from "./words.js";

function keyForm(again) {
  const input = el("input", { id: "key", type: "password", required: true, autocomplete: "off" });
  const form = el(
    "form", { class: "key" }, el("label", { for: "key" }, "API key"), input, el("button", {}, "Use it in this tab"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(input.value);
    again();
  });
  return form;
}

/** Take the last problem away. */
export function clearProblem() {
  byId("problem").replaceChildren();
  byId("q").removeAttribute("aria-invalid");
}

/** Show a problem; `again` does once more what failed. */
export function showProblem(problem, again) {
  const parts = [el("h2", {}, problem.title), el("p", {}, sentence(problem.message))];
  if (problem.fix) parts.push(el("p", { class: "fix" }, sentence(problem.fix)));
  const inBox = problem.field?.startsWith("query");
  if (problem.field && !inBox) parts.push(el("p", { class: "field" }, "In ", el("code", {}, problem.field)));
  if (problem.status === 401) {
    parts.push(keyForm(again));
  } else if (!problem.field) {
    const button = el("button", { type: "button" }, "Try again");
    button.addEventListener("click", again);
    parts.push(button);
  }
  if (inBox) byId("q").setAttribute("aria-invalid", "true");
  byId("problem").replaceChildren(el("div", { class: "problem", role: "alert" }, ...parts));
}
