// What the keyboard does everywhere on the page, and the dialog that tells of it.

import { asking, byId, dialog, el } from "./dom.js";

export function help() {
  const row = (keys, words) => el("tr", {}, el("td", {}, ...keys.map((key) => el("kbd", {}, key)).flatMap((node) => [node, " "])), el("td", {}, words));
  const shown = dialog(
    el("h2", { id: "dialog-title" }, "Keys"),
    el(
      "table",
      {},
      row(["1", "…", "7"], "another view"),
      row(["/"], "filter"),
      row(["↑", "↓", "Home", "End"], "go through a list"),
      row(["Enter"], "why?"),
      row(["k"], "kick, in a panel that offers it"),
      row(["r"], "requeue, retry or replay"),
      row(["c"], "cancel"),
      row(["d"], "discard"),
      row(["Esc"], "close"),
    ),
    el("div", { class: "ends" }, el("button", { class: "main", type: "button", on: { click: () => shown.close() } }, "Close")),
  );
}

// Keys that work wherever the focus is; `names` are those of the views, in their order.
export function listen(names) {
  document.addEventListener("keydown", (event) => pressed(event, names));
}

function pressed(event, names) {
  if (event.target.matches("input, textarea, select")) {
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || asking()) return;
  const at = Number(event.key) - 1;
  if (at in names) location.hash = `#/${names[at]}`;
  else if (event.key === "?") help();
  else if (event.key === "/" && byId("filter")) byId("filter").focus();
  else return;
  event.preventDefault();
}
