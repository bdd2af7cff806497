// Problems, with their fix and a form for the API key or a button to try again.

import { keepKey } from "./api.js";
import { byId, el } from "./dom.js";
import { sentence } from "./words.js";

function keyForm(retry) {
  const input = el("input", { id: "key", type: "password", required: true, autocomplete: "off" });
  const form = el(
    "form", { class: "key" }, el("label", { for: "key" }, "API key"), input, el("button", {}, "Use in this tab"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(input.value);
    retry();
  });
  return form;
}

/** Clear the last problem. */
export function clearProblem() {
  byId("problem").replaceChildren();
  byId("q").removeAttribute("aria-invalid");
}

/** Show a problem; `retry` repeats the failed request. */
export function showProblem(problem, retry) {
  const parts = [el("h2", {}, problem.title), el("p", {}, sentence(problem.message))];
  if (problem.fix) parts.push(el("p", { class: "fix" }, sentence(problem.fix)));
  const inBox = problem.field?.startsWith("query");
  if (problem.field && !inBox) parts.push(el("p", { class: "field" }, "In ", el("code", {}, problem.field)));
  if (problem.status === 401) {
    parts.push(keyForm(retry));
  } else if (!problem.field) {
    const button = el("button", { type: "button" }, "Try again");
    button.addEventListener("click", retry);
    parts.push(button);
  }
  if (inBox) byId("q").setAttribute("aria-invalid", "true");
  byId("problem").replaceChildren(el("div", { class: "problem", role: "alert" }, ...parts));
}
