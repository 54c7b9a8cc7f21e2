// The first view: what needs somebody, who waits for whom, who held what, the model, and what happened last.

import { subjectOf } from "./agents.js";
import { el, many, pill, when } from "./dom.js";
import { graph } from "./graph.js";
import { timeline } from "./timeline.js";

// A card whose inside is drawn again only when what it shows has changed, so that focus and scrolling stay.
class Card {
  constructor(title, kind = "") {
    this.words = el("p", {});
    this.inside = el("div", {});
    this.element = el("section", { class: `card ${kind}`, "aria-label": title }, el("header", {}, el("h2", {}, title), this.words), this.inside);
    this.shown = null;
  }

  show(data, draw) {
    const text = JSON.stringify(data);
    if (text === this.shown) return;
    this.shown = text;
    const focus = this.inside.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const scroller = this.inside.querySelector(".picture");
    const place = scroller ? [scroller.scrollLeft, scroller.scrollTop] : [0, 0];
    this.inside.replaceChildren(...draw().filter(Boolean));
    this.inside.querySelector(".picture")?.scrollTo(...place);
    if (focus) [...this.inside.querySelectorAll("[data-focus]")].find((node) => node.dataset.focus === focus)?.focus();
  }
}

const calm = (...words) => [el("div", { class: "inside" }, el("p", { class: "calm" }, ...words))];

// A line may stand for many things, which a list shows.
export const totalOf = (needs) => needs.reduce((sum, need) => sum + need.count, 0);

export class Now {
  constructor(open) {
    this.open = open;
    this.needs = new Card("Needs you", "needs");
    this.graph = new Card("Who waits for whom");
    this.holds = new Card("Who held what");
    this.model = new Card("Model");
    this.latest = new Card("Last events", "latest");
    const left = el("div", {}, this.needs.element, this.graph.element, this.holds.element);
    this.element = el("div", { class: "now" }, left, el("div", {}, this.model.element, this.latest.element));
  }

  draw(told) {
    this.needs.show(told.needs, () => this.drawNeeds(told.needs));
    this.drawGraph(told);
    this.model.show(told.swap, () => this.drawModel(told.swap));
    this.latest.show(told.journal, () => this.drawLatest(told.journal));
  }

  drawNeeds(needs) {
    const total = totalOf(needs);
    this.needs.words.textContent = total > 1 ? `${total.toLocaleString()} things` : "";
    if (!needs.length) return calm(el("b", {}, "Nothing needs you. "), "All that is held is held by somebody alive, and nothing is blocked.");
    const line = (need) =>
      el(
        "li",
        {},
        el(
          "button",
          { type: "button", "data-focus": `${need.kind} ${need.name}`, on: { click: () => this.open(need.kind, need.name) } },
          el("span", { class: "mark", "data-tone": need.tone, "aria-hidden": "true" }),
          el("span", { class: "words" }, need.words),
          when(need.at) ?? el("span"),
        ),
      );
    return [el("ul", {}, ...needs.map(line))];
  }

  drawGraph({ graph: told, locks }) {
    const shown = new Set(told.edges.filter((edge) => edge.position !== null).map((edge) => edge.job)).size;
    const waiting = many(locks.waiting, "waits", "wait");
    this.graph.words.textContent = locks.waiting ? `${waiting}${shown < locks.waiting ? `, ${shown} drawn` : ""}` : "";
    this.graph.show(told, () => {
      if (!told.edges.length) return calm("Nobody waits for anybody.");
      const legend = el(
        "div",
        { class: "inside legend", "aria-hidden": "true" },
        el("span", {}, el("i", { class: "wait" }), "waits for"),
        el("span", {}, el("i", {}), "is held by"),
      );
      return [graph(told.edges, this.graph.element.clientWidth - 26, this.open), ...told.deadlocks.map((cycle) => el("div", { class: "inside" }, el("p", { class: "problem" }, `A deadlock: ${cycle}`))), legend];
    });
  }

  drawHolds(told) {
    const drawn = timeline(told, this.holds.element.clientWidth - 26, this.open);
    this.holds.words.textContent = told.left_out ? `the newest; ${many(told.left_out, "more resource")}` : "";
    this.holds.show(Math.random(), () =>
      drawn ? [drawn] : calm("Nothing was held, as far as the journal tells. A hold that nobody waited for shows while it lasts."),
    );
  }

  drawModel(swap) {
    const why = el("button", { class: "quiet", type: "button", "data-focus": "swap", on: { click: () => this.open("swap", "swap") } }, "Why?");
    const waits = swap.waits_for.length > 0;
    const now = el("b", {}, swap.current ?? (swap.unknown ? "unknown" : "none loaded"));
    if (!swap.target) {
      return [el("div", { class: "inside" }, el("p", { class: "model" }, now), el("p", {}, swap.unknown ? `${swap.unknown}, ` : "", swap.loaded_at ? "loaded " : "", when(swap.loaded_at), swap.loaded_at ? ", " : "", many(swap.workflows.length, "workflow")))];
    }
    return [
      el(
        "div",
        { class: "inside" },
        el("p", { class: "model" }, now, el("span", { class: "way" }, "→"), el("b", {}, swap.target), pill(waits ? "wait" : "busy", waits ? "waits" : "loading"), why),
        el("p", {}, waits ? `waits for ${swap.waits_for.join(", ")}` : "nothing is in its way", ", begun ", when(swap.begun_at)),
        el("div", { class: "stripe", "data-tone": waits ? "wait" : "busy", "aria-hidden": "true" }),
      ),
    ];
  }

  drawLatest(entries) {
    if (!entries.length) return calm("Nothing has happened yet.");
    const line = (one) => el("li", {}, el("span", { class: "kind" }, one.kind), when(one.at), el("span", { class: "subject", title: one.subject }, `${subjectOf(one)} · ${one.actor}`));
    return [el("ul", {}, ...entries.slice(0, 14).map(line))];
  }
}
