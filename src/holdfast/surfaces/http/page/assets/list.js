// A list of any length. It is read a page at a time as somebody scrolls, and only the rows that are seen are in the document.

import { el } from "./dom.js";

const AROUND = 8; // rows above and below what is seen
const LONG = 2000; // lines of a page on the way to the end

export class List {
  // columns: [[heading, render(line) -> node]]; keyOf(line); more(last) -> {lines, next}; open(line); filtered() -> why it may be empty though there are lines, or null
  constructor({ name, label, kind, columns, keyOf, order, fetchPage, open, empty, filtered }) {
    Object.assign(this, { keyOf, order, fetchPage, open, columns, kind, empty, filtered });
    this.lines = [];
    this.next = null;
    this.at = 0; // the row that the keyboard is at
    this.busy = false;
    this.toEnd = false;
    this.turn = 0; // a page that was asked for before the last reset is not of this list any more
    this.drawn = new Map();
    this.known = null;
    this.space = el("div", { class: "space", role: "presentation" });
    this.rows = el(
      "div",
      {
        class: "rows",
        id: `rows-${name}`,
        role: "listbox",
        tabindex: 0,
        "aria-label": label,
        on: { scroll: () => this.draw(), keydown: (event) => this.key(event), click: (event) => this.click(event), focus: () => this.draw() },
      },
      this.space,
    );
    this.none = el("div", { class: "none", hidden: true });
    const heads = el("div", { class: `heads ${kind}`, "aria-hidden": "true" }, ...columns.map(([heading]) => el("span", {}, heading)));
    this.element = el("div", { class: "card list" }, heads, this.rows, this.none);
    new ResizeObserver(() => this.draw()).observe(this.rows);
  }

  // Begin anew, as after another filter.
  async reset() {
    this.lines = [];
    this.next = null;
    this.at = 0;
    this.known = null;
    this.turn += 1;
    this.rows.scrollTop = 0;
    await this.refresh();
  }

  // Read again what is seen, and the first page, where new lines come.
  async refresh() {
    await this.take(null);
    const [from, to] = this.seen();
    const first = this.lines[Math.max(from - 1, 0)];
    if (to > this.pageSize && first && from > 0) await this.take(first);
    this.draw();
  }

  async take(after, limit = null) {
    const turn = this.turn;
    const page = await this.fetchPage(after, limit);
    if (turn !== this.turn) return;
    if (!limit) this.pageSize = Math.max(page.lines.length, 1);
    this.merge(after, page);
  }

  // A page tells all there is from `after` to its last line: what was known of that stretch goes.
  merge(after, page) {
    const begin = after ? this.lines.findIndex((line) => this.order(after, line) < 0) : 0;
    const head = begin < 0 ? this.lines : this.lines.slice(0, begin);
    const last = page.lines.at(-1);
    const tail = page.next && last ? this.lines.filter((line) => this.order(last, line) < 0) : [];
    this.lines = [...head, ...page.lines, ...tail];
    if (!tail.length) this.next = page.next ? last : null;
    const keys = new Set(this.lines.map(this.keyOf));
    this.fresh = this.known ? new Set([...keys].filter((key) => !this.known.has(key))) : new Set();
    this.known = keys;
    this.at = Math.min(this.at, Math.max(this.lines.length - 1, 0));
  }

  seen() {
    const height = this.height();
    const from = Math.floor(this.rows.scrollTop / height);
    return [from, from + Math.ceil(this.rows.clientHeight / height) + 1];
  }

  height() {
    return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 44;
  }

  draw() {
    const height = this.height();
    const [first, last] = this.seen();
    const from = Math.max(first - AROUND, 0);
    const to = Math.min(last + AROUND, this.lines.length);
    this.none.hidden = this.lines.length > 0 || this.known === null;
    if (!this.none.hidden) this.drawNone();
    this.rows.hidden = this.lines.length === 0;
    this.space.style.height = `${this.lines.length * height}px`;
    const wanted = new Map();
    for (let index = from; index < to; index += 1) wanted.set(this.keyOf(this.lines[index]), index);
    for (const [key, row] of this.drawn) {
      if (!wanted.has(key)) {
        row.node.remove();
        this.drawn.delete(key);
      }
    }
    for (const [key, index] of wanted) this.place(key, index, height);
    const current = this.lines[this.at];
    const row = current && this.drawn.get(this.keyOf(current));
    if (row) this.rows.setAttribute("aria-activedescendant", row.node.id);
    else this.rows.removeAttribute("aria-activedescendant");
    if (this.next && !this.busy && last + 40 > this.lines.length) this.more();
  }

  // An empty list says why it is empty: with a filter, there may be lines that it hides.
  drawNone() {
    const why = this.filtered();
    if (String(why) === this.why) return;
    this.why = String(why);
    if (why) this.none.replaceChildren(el("b", {}, why[0]), why[1]);
    else this.none.replaceChildren(...this.empty);
  }

  place(key, index, height) {
    const line = this.lines[index];
    const text = JSON.stringify(line);
    let row = this.drawn.get(key);
    if (!row || row.text !== text) {
      const node = this.render(line, key);
      if (row) row.node.replaceWith(node);
      else this.space.append(node);
      row = { node, text };
      this.drawn.set(key, row);
    }
    const node = row.node;
    node.style.top = `${index * height}px`;
    node.setAttribute("aria-posinset", index + 1);
    node.setAttribute("aria-setsize", this.next ? -1 : this.lines.length);
    node.classList.toggle("at", index === this.at);
    node.setAttribute("aria-selected", index === this.at);
  }

  render(line, key) {
    const cells = this.columns.map(([, cell]) => cell(line));
    const fresh = this.fresh && this.fresh.has(key) ? " fresh" : "";
    const id = `row-${this.rows.id}-${encodeURIComponent(key)}`;
    return el("div", { class: `row ${this.kind}${fresh}`, role: "option", id, "data-key": key }, ...cells);
  }

  async more() {
    this.busy = true;
    try {
      await this.take(this.lines.at(-1), this.toEnd ? LONG : null);
    } catch {
      // The page says elsewhere that the server is away, and refreshes when it is back.
    } finally {
      this.busy = false;
    }
    if (this.toEnd) {
      this.at = Math.max(this.lines.length - 1, 0);
      this.toEnd = this.next !== null;
      this.reveal();
    } else {
      this.draw();
    }
  }

  click(event) {
    const row = event.target.closest(".row");
    if (!row) return;
    this.at = this.lines.findIndex((line) => this.keyOf(line) === row.dataset.key);
    this.draw();
    this.open(this.lines[this.at]);
  }

  key(event) {
    const page = Math.max(Math.floor(this.rows.clientHeight / this.height()) - 1, 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      this.at = Math.min(Math.max(this.at + steps[event.key], 0), Math.max(this.lines.length - 1, 0));
      // The end may be yet to be read.
      this.toEnd = event.key === "End" && this.next !== null;
      this.reveal();
    } else if ((event.key === "Enter" || event.key === " ") && this.lines[this.at]) {
      this.open(this.lines[this.at]);
    } else {
      return;
    }
    event.preventDefault();
  }

  reveal() {
    const height = this.height();
    // Before scrolling: there is no place yet for lines that have just come.
    this.space.style.height = `${this.lines.length * height}px`;
    const top = this.at * height;
    if (top < this.rows.scrollTop) this.rows.scrollTop = top;
    const over = top + height - this.rows.clientHeight;
    if (over > this.rows.scrollTop) this.rows.scrollTop = over;
    this.draw();
  }
}
