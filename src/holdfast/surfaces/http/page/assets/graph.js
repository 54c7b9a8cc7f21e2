// The wait-for graph, drawn from left to right: who waits, for what, held by whom. Those at the right end wait for nobody.

import { clipped, el, svg } from "./dom.js";

const CHAR = 7.4;
const NAME_MAX = 22;
const HIGH = 34;
const GAP_X = 50;
const SMALLEST = 0.7; // a picture that would be smaller is scrolled
const GAP_Y = 14;

// edges: [{job, resource, mode, position, alive}]; room: pixels to fit into; open(kind, name)
export function graph(edges, room, open) {
  const { nodes, ways } = gathered(edges);
  const looped = inCycles(nodes, ways);
  const layers = placed(nodes, ways);
  const width = Math.max(...[...nodes.values()].map((one) => one.x + one.wide)) + 8;
  const height = Math.max(...layers.map((layer) => layer.length)) * (HIGH + GAP_Y) - GAP_Y + 8;
  const scale = Math.min(1, Math.max(room / width, SMALLEST));
  const drawing = svg("svg", { width: width * scale, height: height * scale, viewBox: `-4 -4 ${width} ${height}`, role: "group", "aria-label": "Who waits for whom" });
  drawing.append(tips(), ...ways.map((way) => edge(nodes, way, looped)));
  for (const layer of layers) drawing.append(...layer.map((key) => node(nodes.get(key), looped.has(key), open)));
  return el("figure", { class: "picture", tabindex: -1 }, drawing, told(edges));
}

function gathered(edges) {
  const nodes = new Map();
  const ways = [];
  const add = (key, kind, name) => {
    if (!nodes.has(key)) nodes.set(key, { key, kind, name, dead: false, waits: false, unseen: false });
    return nodes.get(key);
  };
  for (const { job, resource, mode, position, alive } of edges) {
    const who = add(`job ${job}`, "job", job);
    const what = add(`lock ${resource}`, "lock", resource);
    who.dead ||= alive === "dead";
    if (position === null) ways.push({ from: what.key, to: who.key, kind: "hold", mode });
    else {
      who.waits = true;
      ways.push({ from: who.key, to: what.key, kind: "wait", mode, position });
    }
  }
  return { nodes, ways };
}

// The layer of each node: its longest way to an end. A way back inside a cycle does not count.
function placed(nodes, ways) {
  const out = new Map([...nodes.keys()].map((key) => [key, []]));
  for (const way of ways) out.get(way.from).push(way.to);
  const depth = new Map();
  const visit = (key, path) => {
    if (depth.has(key)) return depth.get(key);
    if (path.has(key)) return -1;
    path.add(key);
    const deepest = Math.max(-1, ...out.get(key).map((next) => visit(next, path)));
    path.delete(key);
    depth.set(key, deepest + 1);
    return deepest + 1;
  };
  for (const key of nodes.keys()) visit(key, new Set());
  const layers = [];
  for (const [key, at] of depth) (layers[at] ||= []).push(key);
  layers.reverse();
  return settled(layers, out, nodes);
}

// Within a layer, each stands as near as can be to what it points at.
function settled(layers, out, nodes) {
  const widths = layers.map((layer) => 26 + CHAR * Math.max(6, ...layer.map((key) => Math.min([...nodes.get(key).name].length, NAME_MAX))));
  const lefts = widths.map((_, at) => widths.slice(0, at).reduce((sum, wide) => sum + wide + GAP_X, 0));
  for (let at = layers.length - 1; at >= 0; at -= 1) {
    const layer = layers[at];
    const mean = (key) => {
      const ys = out.get(key).map((next) => nodes.get(next).y).filter((y) => y !== undefined);
      return ys.length ? ys.reduce((sum, y) => sum + y, 0) / ys.length : 1e9;
    };
    layer.sort((a, b) => mean(a) - mean(b) || (nodes.get(a).name < nodes.get(b).name ? -1 : 1));
    layer.forEach((key, index) => {
      Object.assign(nodes.get(key), { x: lefts[at], wide: widths[at], y: index * (HIGH + GAP_Y) });
    });
  }
  const tallest = Math.max(...layers.map((layer) => layer.length));
  for (const layer of layers) {
    const shift = ((tallest - layer.length) * (HIGH + GAP_Y)) / 2;
    for (const key of layer) nodes.get(key).y += shift;
  }
  return layers;
}

// The nodes from which a way leads back to themselves.
function inCycles(nodes, ways) {
  const out = new Map([...nodes.keys()].map((key) => [key, []]));
  for (const way of ways) out.get(way.from).push(way.to);
  const looped = new Set();
  for (const start of nodes.keys()) {
    const seen = new Set();
    const open = [...out.get(start)];
    while (open.length) {
      const key = open.pop();
      if (key === start) looped.add(start);
      if (seen.has(key)) continue;
      seen.add(key);
      open.push(...out.get(key));
    }
  }
  return looped;
}

function tips() {
  const tip = (kind) =>
    svg(
      "marker",
      { id: `tip-${kind}`, viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      svg("path", { class: `tip ${kind}`, d: "M0 0 8 4 0 8Z" }),
    );
  return svg("defs", {}, tip("hold"), tip("wait"), tip("cycle"));
}

function edge(nodes, way, looped) {
  const from = nodes.get(way.from);
  const to = nodes.get(way.to);
  const cycle = looped.has(way.from) && looped.has(way.to);
  const forward = to.x > from.x;
  const x1 = forward ? from.x + from.wide : from.x + from.wide / 2;
  const x2 = forward ? to.x : to.x + to.wide / 2;
  const y1 = from.y + (forward ? HIGH / 2 : HIGH);
  const y2 = to.y + (forward ? HIGH / 2 : HIGH);
  const bend = forward ? Math.max((x2 - x1) / 2, 24) : 0;
  const path = forward
    ? `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`
    : `M${x1} ${y1}C${x1} ${y1 + 40} ${x2} ${y2 + 40} ${x2} ${y2}`;
  const words = way.kind === "wait" ? `waits, position ${way.position}, ${way.mode}` : `held, ${way.mode}`;
  const tip = cycle ? "cycle" : way.kind;
  return svg("path", { class: `edge ${way.kind}${cycle ? " cycle" : ""}`, d: path, "marker-end": `url(#tip-${tip})` }, svg("title", {}, words));
}

function node(one, cycle, open) {
  const kinds = ["node", one.kind === "lock" ? "resource" : "job"];
  if (one.dead) kinds.push("dead");
  else if (one.waits) kinds.push("waits");
  if (cycle) kinds.push("cycle");
  const state = one.dead ? ", dead" : one.waits ? ", waits" : "";
  const go = () => open(one.kind, one.name);
  return svg(
    "g",
    {
      class: kinds.join(" "),
      transform: `translate(${one.x} ${one.y})`,
      tabindex: 0,
      role: "button",
      "data-focus": one.key,
      "aria-label": `${one.kind === "lock" ? "resource" : "job"} ${one.name}${state}: why?`,
      on: {
        click: go,
        keydown: (event) => {
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            go();
          }
        },
      },
    },
    svg("rect", { width: one.wide, height: HIGH, rx: one.kind === "lock" ? HIGH / 2 : 8 }),
    svg("text", { x: one.wide / 2, y: HIGH / 2 + 4.5, "text-anchor": "middle" }, clipped(one.name, NAME_MAX)),
    svg("title", {}, `${one.name}${state}`),
  );
}

// The same in words, for whoever does not see it.
function told(edges) {
  const lines = edges
    .slice(0, 60)
    .map(({ job, resource, position }) => (position === null ? `${job} holds ${resource}` : `${job} waits for ${resource}, position ${position}`));
  return el("figcaption", { class: "unseen" }, lines.join(". "));
}
