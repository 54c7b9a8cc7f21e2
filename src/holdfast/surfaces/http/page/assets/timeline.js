// Who held and who waited for what, a lane a resource, time from left to right.

import { clipped, clockOf, el, now, span, svg } from "./dom.js";

const LANE = 26;
const LEFT = 132;
const FOOT = 22;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
const LONGEST_MS = 3600e3;
const SHORTEST_MS = 30e3;
const GRAVE = new Set(["died", "kicked", "expired", "timed out", "deadlock"]);

// What this page has seen itself: a hold that nobody waited for leaves no other trace.
const remembered = new Map();

function keyOf(one) {
  return `${one.what} ${one.resource} ${one.job} ${one.begin}`;
}

export function remember(told) {
  const open = new Map(told.stretches.filter((one) => one.end === null && one.what === "hold").map((one) => [keyOf(one), one]));
  for (const [key, one] of remembered) {
    if (one.end === null && !open.has(key)) remembered.set(key, { ...one, end: told.now, how: "released" });
  }
  for (const [key, one] of open) remembered.set(key, one);
  const oldest = Date.parse(told.now) - LONGEST_MS;
  for (const [key, one] of remembered) if (one.end !== null && Date.parse(one.end) < oldest) remembered.delete(key);
}

function together(told) {
  const all = new Map(told.stretches.map((one) => [keyOf(one), one]));
  const traced = new Set(told.stretches.map((one) => `${one.resource} ${one.job}`));
  for (const [key, one] of remembered) {
    if (!all.has(key) && one.end !== null && !traced.has(`${one.resource} ${one.job}`)) all.set(key, one);
  }
  return [...all.values()];
}

// told: {stretches, left_out}; width in pixels; open(kind, name)
export function timeline(told, width, open) {
  const end = now();
  const all = together(told).filter((one) => one.end === null || Date.parse(one.end) > end - LONGEST_MS);
  if (!all.length) return null;
  const oldest = Math.min(...all.map((one) => Date.parse(one.begin)));
  const begin = Math.max(end - LONGEST_MS, Math.min(oldest, end - SHORTEST_MS));
  const lanes = [...new Set(all.map((one) => one.resource))].sort();
  const wide = Math.max(width, 320);
  const high = lanes.length * LANE + FOOT;
  const x = (at) => LEFT + ((Math.min(Math.max(at, begin), end) - begin) / (end - begin)) * (wide - LEFT - 6);
  const drawing = svg("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": "Who held what, and when" });
  drawing.append(...axis(begin, end, x, lanes.length * LANE, wide));
  lanes.forEach((name, index) => drawing.append(lane(name, index, wide, open), ...bars(all.filter((one) => one.resource === name), index, x)));
  return el("figure", { class: "picture" }, drawing, el("figcaption", { class: "unseen" }, inWords(all)));
}

function axis(begin, end, x, bottom, wide) {
  const marks = [];
  const step = 1000 * (STEPS_S.find((s) => (end - begin) / 1000 / s <= wide / 130) || 86400);
  for (let at = Math.ceil(begin / step) * step; at < end; at += step) {
    marks.push(svg("line", { class: "grid-line", x1: x(at), x2: x(at), y1: 0, y2: bottom }));
    if (x(at) < wide - 40) marks.push(svg("text", { class: "small", x: x(at) + 3, y: bottom + 15 }, clockOf(at)));
  }
  return marks;
}

function lane(name, index, wide, open) {
  const y = index * LANE;
  const go = () => open("lock", name);
  return svg(
    "g",
    {
      class: "lane",
      tabindex: 0,
      role: "button",
      "data-focus": `lane ${name}`,
      "aria-label": `${name}: why?`,
      on: { click: go, keydown: (event) => (event.key === "Enter" ? go() : null) },
    },
    svg("line", { class: "lane-line", x1: 0, x2: wide, y1: y + LANE - 0.5, y2: y + LANE - 0.5 }),
    svg("text", { x: 4, y: y + 17 }, clipped(name, 17), svg("title", {}, name)),
  );
}

function bars(stretches, index, x) {
  const y = index * LANE;
  return stretches
    .sort((a, b) => (a.what < b.what ? 1 : -1))
    .map((one) => {
      const from = x(Date.parse(one.begin));
      const to = Math.max(x(one.end === null ? Infinity : Date.parse(one.end)), from + 3);
      const title = svg("title", {}, words(one));
      if (one.what === "wait") return svg("line", { class: "waited", x1: from, x2: to, y1: y + 22, y2: y + 22 }, title);
      const kinds = ["held", `hue-${hue(one.job)}`];
      if (one.began_before) kinds.push("before");
      if (GRAVE.has(one.how)) kinds.push("bad");
      return svg("rect", { class: kinds.join(" "), x: from, y: y + 5, width: to - from, height: 13, rx: 3 }, title);
    });
}

function hue(job) {
  let sum = 7;
  for (const point of job) sum = (sum * 31 + point.codePointAt(0)) % 9973;
  return sum % 6;
}

function words(one) {
  const long = span((one.end === null ? now() : Date.parse(one.end)) - Date.parse(one.begin));
  const verb = one.what === "wait" ? "waited" : "held";
  const ending = one.end === null ? "and still does" : `until ${clockOf(Date.parse(one.end))}${one.how ? `, ${one.how}` : ""}`;
  return `${one.job} ${verb} ${one.resource} ${one.began_before ? "at least " : ""}${long}, ${ending}`;
}

function inWords(all) {
  return all.slice(-40).map(words).join(". ");
}
