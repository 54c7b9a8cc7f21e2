// Elements and times. What comes from the server becomes text, never markup.

import { shown } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";

// Attributes that somebody reads.
const READ = new Set(["title", "aria-label"]);

// el("p", {class: "soft", on: {click: f}}, "text", child): an element; null children are left out.
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    // Of these, "false" is a value like any other.
    const stated = name.startsWith("aria-") && value !== null;
    if (value === null || value === undefined || (value === false && !stated)) continue;
    if (name === "on") {
      for (const [kind, listener] of Object.entries(value)) node.addEventListener(kind, listener);
    } else {
      node.setAttribute(name, value === true && !stated ? "" : READ.has(name) ? shown(String(value)) : String(value));
    }
  }
  const there = children.flat().filter((child) => child !== null && child !== undefined && child !== "");
  node.append(...there.map((child) => (typeof child === "string" ? shown(child) : child)));
  return node;
}

export const byId = (id) => document.getElementById(id);

export function pill(tone, words) {
  return el("span", { class: "pill", "data-tone": tone, title: words }, words);
}

// --- time ---

let ahead = 0; // how far the server's clock is ahead of this one, in ms

export function setClock(serverNow) {
  ahead = Date.parse(serverNow) - Date.now();
}

export const now = () => Date.now() + ahead;

export function span(ms) {
  const s = Math.max(Math.floor(ms / 1000), 0);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return s % 3600 < 60 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function relative(at) {
  const left = at - now();
  if (left > 900) return `in ${span(left + 500)}`;
  return left > -1500 ? "now" : `${span(-left)} ago`;
}

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const clockTime = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

export const clockOf = (ms) => clockTime.format(new Date(ms));

// A time that ticks by itself: "12 s ago", "in 3 min".
export function when(instant, attributes = {}) {
  if (!instant) return null;
  const at = Date.parse(instant);
  return el("time", { datetime: instant, "data-at": at, title: exact.format(at), ...attributes }, relative(at));
}

export function tick() {
  for (const node of document.querySelectorAll("time[data-at]")) {
    const words = relative(Number(node.dataset.at));
    if (node.firstChild.data !== words) node.firstChild.data = words;
  }
}

// --- asking and being told ---

// A dialog of its own, which is gone when it is closed; the focus then goes back to where it was.
export function dialog(...inside) {
  const back = document.activeElement;
  const node = el("dialog", { "aria-labelledby": "dialog-title" }, ...inside);
  node.addEventListener("close", () => {
    node.remove();
    if (back && back.isConnected) back.focus();
    else byId("panel").focus();
  });
  document.body.append(node);
  node.showModal();
  return node;
}

export const asking = () => document.querySelector("dialog[open]") !== null;

export function say(words) {
  byId("said").textContent = shown(words);
}

export function many(number, one, more = `${one}s`) {
  return `${number.toLocaleString()} ${number === 1 ? one : more}`;
}

export function clipped(text, most) {
  const points = [...text];
  return points.length > most ? `${points.slice(0, most - 1).join("")}…` : text;
}
