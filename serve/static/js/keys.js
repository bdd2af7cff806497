// Keyboard shortcuts.

import { byId } from "./dom.js";

function typing(target) {
  return target.matches("input:not([type=radio], [type=range]), select, textarea") || target.isContentEditable;
}

function move(event, buttons) {
  const at = buttons.indexOf(document.activeElement);
  const fromBox = document.activeElement === byId("q");
  if (at < 0 && !fromBox) return;
  const to = at + (event.key === "ArrowDown" ? 1 : -1);
  if (to >= buttons.length || (fromBox && event.key === "ArrowUp")) return;
  event.preventDefault();
  const next = to < 0 ? byId("q") : buttons[to];
  next.focus();
  next.closest(".hit")?.scrollIntoView({ block: "nearest" });
}

/** `/` focuses the search box, arrow keys move through the results, Escape returns to the box. */
export function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const results = [...document.querySelectorAll(".hit .why")];
    if (event.key === "/" && !typing(event.target)) {
      event.preventDefault();
      byId("q").select();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      move(event, results);
    } else if (event.key === "Escape" && results.includes(document.activeElement)) {
      byId("q").select();
    }
  });
}
