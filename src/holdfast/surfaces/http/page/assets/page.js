// The page: which view is shown, what is asked for and when, and how the connection stands.

import { learn } from "./agents.js";
import { byId, clockOf, el, say, setClock, span, tick, when } from "./dom.js";
import { help, listen } from "./keys.js";
import { Away, Live, Refused } from "./live.js";
import { Now, totalOf } from "./now.js";
import { Panel } from "./panel.js";
import { shown } from "./text.js";
import { remember } from "./timeline.js";
import { agentList, entryWhy, gatewayList, jobList, journalList, lockList, workflowList } from "./views.js";

const LEAST_MS = 300; // between two looks, however much happens
const LOOK_MS = 2000; // without any news: a grant that nobody waits for makes none
const TIMELINE_MS = 4000;
const JOURNAL_MAX = 1000;
const STATUSES = ["pending", "running", "completed", "error", "cancelled"];

let told = null; // the last overview
let trouble = null; // what the server said when it could not answer
let entries = null; // the journal, the newest first
let view = "now";
let timelineAt = 0;
let heldShown = "";

const live = new Live({ onState: linkChanged, onEntry: entryCame, onGap: begunAgain });
const panel = new Panel(live, () => atOnce());
const page = { live, words: "", status: "", overview: () => told, open, entry, filtered, counted: (words) => (byId("counted").textContent = words) };
const now = new Now(open);

const VIEWS = {
  now: { title: "Now" },
  agents: { title: "Agents", make: agentList, asks: true, filter: "Filter by name, state, tool or tmux session" },
  locks: { title: "Locks", make: lockList, asks: true, filter: "Filter by resource, job, state or process" },
  jobs: { title: "Jobs", make: jobList, asks: true, filter: "Filter by prompt, id, label or state" },
  gateways: { title: "Gateways", make: gatewayList, filter: "Filter by agent or state" },
  workflows: { title: "Workflows", make: workflowList, filter: "Filter by name or recipe" },
  journal: { title: "Journal", make: (own) => journalList(own, journal), filter: "Filter by kind, subject or actor" },
};
const NAMES = Object.keys(VIEWS);

// --- which view is shown ---

function tabs() {
  byId("tabs").replaceChildren(
    ...NAMES.map((name, index) =>
      el(
        "a",
        { class: "tab", role: "tab", id: `tab-${name}`, href: `#/${name}`, "aria-controls": "main", "aria-keyshortcuts": index + 1, tabindex: -1, on: { keydown: tabKey } },
        el("b", {}, VIEWS[name].title),
        el("div", {}, el("i", {}, "–"), el("span", {})),
      ),
    ),
  );
}

function tabKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === " ") location.hash = event.currentTarget.getAttribute("href");
  else if (!step) return;
  else location.hash = `#/${NAMES[(NAMES.indexOf(view) + step + NAMES.length) % NAMES.length]}`;
  event.preventDefault();
  requestAnimationFrame(() => byId(`tab-${view}`).focus());
}

// "#/jobs/error" is the list of jobs with that status.
function route() {
  const [name, status] = location.hash.slice(2).split("/");
  show(NAMES.includes(name) ? name : "now", name === "jobs" && STATUSES.includes(status) ? status : "");
}

function show(name, status) {
  view = name;
  page.words = "";
  page.status = status;
  for (const one of NAMES) {
    byId(`tab-${one}`).setAttribute("aria-selected", one === name);
    byId(`tab-${one}`).tabIndex = one === name ? 0 : -1;
  }
  byId(`tab-${name}`).scrollIntoView({ block: "nearest", inline: "nearest" });
  document.title = name === "now" ? "Holdfast" : `${VIEWS[name].title} · Holdfast`;
  const main = byId("main");
  main.setAttribute("role", "tabpanel");
  main.setAttribute("aria-labelledby", `tab-${name}`);
  main.className = name === "now" ? "" : "fills";
  main.scrollTop = 0;
  if (name === "now") main.replaceChildren(now.element);
  else listView(name, main);
  timelineAt = 0;
  tick();
  atOnce();
}

function listView(name, main) {
  const one = VIEWS[name];
  one.list = one.make(page);
  let typed;
  const use = () => {
    clearTimeout(typed);
    page.words = filter.value.trim();
    renew(one.list);
  };
  const filter = el("input", {
    type: "search",
    id: "filter",
    placeholder: one.filter,
    "aria-label": one.filter,
    autocomplete: "off",
    maxlength: 256, // what the server takes
    spellcheck: "false",
    on: {
      input: () => {
        clearTimeout(typed);
        typed = setTimeout(use, 180);
      },
      // By itself a browser empties the box and tells nobody, once it has lost the focus.
      keydown: (event) => {
        if (event.key !== "Escape" || event.isComposing) return;
        event.preventDefault();
        filter.value = "";
        if (page.words) use();
        clearTimeout(typed);
        filter.blur();
      },
    },
  });
  const bar = el("div", { class: "bar" }, filter, name === "jobs" ? chips(one.list) : null, el("span", { class: "number", id: "counted", role: "status" }));
  main.replaceChildren(bar, one.list.element);
}

function chips(list) {
  const chip = (status) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": status === page.status,
        on: {
          click: (event) => {
            page.status = status;
            history.replaceState(null, "", status ? `#/jobs/${status}` : "#/jobs");
            for (const node of group.children) node.setAttribute("aria-pressed", node === event.currentTarget);
            renew(list);
          },
        },
      },
      status || "all",
    );
  const group = el("div", { class: "chips", role: "group", "aria-label": "Status" }, ...["", ...STATUSES].map(chip));
  return group;
}

// Why a list is empty that has lines behind its filter; null without one.
function filtered() {
  if (page.words) return [page.status ? `No ${page.status} job matches “${page.words}”.` : `Nothing matches “${page.words}”.`, "Esc in the filter shows all."];
  return page.status ? [`No jobs with status ${page.status}.`, "“all” shows the others."] : null;
}

async function renew(list) {
  try {
    await list.reset();
  } catch (error) {
    failed(error);
  }
}

// --- what is asked for, and when ---

let dirty = false;
let running = false;
let timer = null;
let earliest = 0;

function soon() {
  dirty = true;
  pump();
}

// For what somebody has just asked for: the pause between two looks is not for them.
function atOnce() {
  earliest = 0;
  clearTimeout(timer);
  timer = null;
  soon();
}

async function pump() {
  if (!dirty || running || timer !== null || live.session.secret === null) return;
  const left = earliest - Date.now();
  if (left > 0) {
    timer = setTimeout(() => {
      timer = null;
      pump();
    }, left);
    return;
  }
  dirty = false;
  running = true;
  const begun = Date.now();
  try {
    await look();
    trouble = null;
  } catch (error) {
    failed(error);
  }
  running = false;
  // A server that takes long is asked less often.
  earliest = Date.now() + Math.max(LEAST_MS, Math.min(2 * (Date.now() - begun), 6000));
  stateShown();
  if (dirty) pump();
}

async function look() {
  const asked = view;
  // Those with questions of their own need not wait for the overview's answer.
  const listing = VIEWS[asked].asks ? VIEWS[asked].list.refresh() : null;
  [told] = await Promise.all([live.get("/v1/overview"), listing]);
  setClock(told.now);
  learn(told.names, told.journal);
  headShown();
  if (asked !== view) dirty = true;
  else if (view === "now") now.draw(told);
  else if (listing === null) await VIEWS[view].list.refresh();
  await panel.refresh();
  if (asked === view) document.body.dataset.ready = view;
  if (view === "now") await holds();
}

async function holds() {
  const changed = JSON.stringify(told.graph) + told.locks.resources;
  if (Date.now() - timelineAt < TIMELINE_MS && changed === heldShown) return;
  timelineAt = Date.now();
  heldShown = changed;
  const found = await live.get("/v1/timeline");
  remember(found);
  now.drawHolds(found);
}

async function journal() {
  if (entries === null) {
    const found = await live.get(`/v1/overview/journal?limit=${JOURNAL_MAX}`);
    learn(found.names, found.entries);
    entries = found.entries;
  }
  return entries;
}

function failed(error) {
  if (error instanceof Away) live.lost();
  else if (error instanceof Refused && error.status !== 401) trouble = error.message;
  else if (!(error instanceof Refused)) {
    console.error(error);
    trouble = `this page has met a bug of its own: ${error.message}`;
  }
  stateShown();
}

function entryCame(entry) {
  learn(null, [entry]);
  if (entries !== null) {
    entries.unshift(entry);
    entries.length = Math.min(entries.length, JOURNAL_MAX);
  }
  if (!document.hidden) soon();
}

function begunAgain() {
  entries = null;
  say("Connected again");
  soon();
}

// --- how it stands ---

function linkChanged() {
  if (live.state === "live") soon();
  stateShown();
}

function stateShown() {
  const state = live.state === "live" && trouble ? "away" : live.state;
  document.body.dataset.link = state;
  byId("link").dataset.state = state;
  byId("link-words").textContent = { joining: "connecting", live: "live", away: "not answering", locked: "no session" }[state];
  byId("away").hidden = state !== "away" && state !== "locked";
  byId("again").hidden = state === "locked";
  byId("leave").hidden = live.session.secret === null;
  const words = shown(awayWords(state));
  if (byId("away-words").textContent !== words) byId("away-words").textContent = words;
}

function awayWords(state) {
  if (state === "locked") return lockedWords(live.session);
  if (state !== "away") return "";
  const refusal = live.state === "live" ? trouble : live.problem;
  if (refusal) return `The server answers, but: ${refusal}. Trying again by itself.`;
  const since = live.since ? ` since ${clockOf(live.since)}, for ${span(Date.now() - live.since)}` : "";
  return `The server is not answering${since}. Trying again by itself${told ? "; below is what it said last" : ""}.`;
}

function lockedWords(session) {
  if (session.problem) return `This page has no session: ${session.problem}.`;
  const why = session.refused ? "The server does not know this page's session any more." : "This page has no session.";
  return `${why} Run \`holdfast serve --link\` on the machine that serves, and open the link that it prints. It can be used once.`;
}

function tab(name, number, words = "") {
  const node = byId(`tab-${name}`);
  node.querySelector("i").replaceChildren(number);
  node.querySelector("span").textContent = shown(words);
}

function headShown() {
  byId("where").textContent = shown(`${told.store} · ${told.namespace}`);
  const { states, total } = told.agents;
  const gone = states.dead + states.expired;
  const blocked = told.gateways.filter((one) => one.tone === "bad").length;
  const open = told.gateways.filter((one) => ["good", "busy", "wait"].includes(one.tone)).length;
  const needs = totalOf(told.needs);
  tab("now", needs ? needs.toLocaleString() : "✓", needs ? (needs === 1 ? "needs you" : "need you") : "all well");
  tab("agents", total.toLocaleString(), gone ? `${gone} not alive` : total ? "alive" : "");
  tab("locks", told.locks.resources.toLocaleString(), told.locks.waiting ? `${told.locks.waiting} waiting` : "held");
  tab("jobs", told.jobs.running.toLocaleString(), `running, ${told.jobs.pending.toLocaleString()} pending`);
  tab("gateways", told.gateways.length.toLocaleString(), blocked ? `${blocked} blocked` : told.gateways.length ? `${open || "none"} open` : "");
  tab("workflows", told.swap.workflows.length.toLocaleString(), told.swap.target ? `swap to ${told.swap.target}` : (told.swap.current ?? (told.swap.unknown ? "unknown model" : "")));
  tab("journal", told.journal.length ? when(told.journal[0].at) : "–", told.journal[0]?.kind ?? "empty");
}

// --- the panel ---

function open(kind, name) {
  if (kind === "graph") return;
  if (NAMES.includes(kind)) {
    location.hash = `#/${kind}${name && `/${name}`}`;
    return;
  }
  if (kind !== "job" || !told.graph.edges.some((edge) => edge.job === name)) show_(kind, name);
  else show_("holder", name, () => holderWhy(name));
}

function show_(kind, name, local = null) {
  panel.open(kind, name, local).catch(failed);
}

function entry(one) {
  show_("entry", String(one.revision), () => entryWhy(one));
}

// What the graph says of one job.
function holderWhy(name) {
  const own = told.graph.edges.filter((edge) => edge.job === name);
  const held = own.filter((edge) => edge.position === null).map((edge) => edge.resource);
  const waits = own.filter((edge) => edge.position !== null);
  const behind = new Set(told.graph.edges.filter((edge) => edge.position !== null && held.includes(edge.resource)).map((edge) => edge.job));
  const dead = own.some((edge) => edge.alive === "dead");
  const words = [];
  if (held.length) words.push(`${name} holds ${held.join(", ")}.`);
  for (const edge of waits) words.push(`It waits for ${edge.resource}, at position ${edge.position}.`);
  if (behind.size) words.push(`${[...behind].join(", ")} wait for what it holds.`);
  if (!own.length) words.push(`${name} neither waits nor is waited for any more.`);
  return {
    kind: "holder",
    name,
    title: name,
    state: dead ? "dead" : waits.length ? "waits" : held.length ? "holds" : "done",
    tone: dead ? "bad" : waits.length ? "wait" : "busy",
    words,
    facts: [],
    advice: held.map((resource) => `to see who holds ${resource}, choose it in the graph`),
    actions: [],
  };
}

// --- begin ---

tabs();
byId("help").addEventListener("click", help);
byId("leave").addEventListener("click", () => live.leave());
listen(NAMES);
byId("again").addEventListener("click", () => {
  live.again();
  soon();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => (document.hidden ? null : soon()));
let drawnWidth = 0;
new ResizeObserver(() => {
  if (Math.abs(now.element.clientWidth - drawnWidth) > 4) timelineAt = 0;
  drawnWidth = now.element.clientWidth;
}).observe(byId("main"));
setInterval(() => {
  tick();
  if (live.state !== "live" || trouble) stateShown();
}, 1000);
setInterval(() => {
  if (!document.hidden && (live.state === "live" || trouble)) soon();
}, LOOK_MS);
route();
live.run();
