// The views of the page: a list for each kind of thing.

import { bare, subjectOf } from "./agents.js";
import { clipped, el, many, pill, when } from "./dom.js";
import { List } from "./list.js";
import { facts } from "./panel.js";

const text = (words, kind = "") => el("span", { class: kind, title: words }, words);
const byText = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const query = (path, params) => {
  const said = Object.entries(params).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return said.length ? `${path}?${new URLSearchParams(said)}` : path;
};

function none(title, ...words) {
  return [el("b", {}, title), ...words];
}

// Each: {list, counted(page): words for the total, filters}
export function agentList(page) {
  return new List({
    name: "agents",
    label: "Agents",
    kind: "of-agents",
    keyOf: (one) => one.agent_id,
    order: (a, b) => byText(bare(a.name), bare(b.name)) || byText(a.agent_id, b.agent_id),
    columns: [
      ["agent", (one) => text(bare(one.name), "strong")],
      ["state", (one) => pill(one.tone, one.state)],
      ["why", (one) => text([one.works_on, one.why].filter(Boolean).join(" · "), "soft")],
      ["since", (one) => when(one.since, { class: "extra" }) ?? text("–", "soft extra")],
      ["tmux session", (one) => text(one.tmux_session ?? (one.pid ? `process ${one.pid}` : "–"), "soft extra")],
      ["lease", (one) => when(one.lease_expires_at, { class: "extra" })],
    ],
    fetchPage: async (last, limit) => {
      const after = last ? { after_name: last.name, after_id: last.agent_id } : {};
      const told = await page.live.get(query("/v1/overview/agents", { ...after, limit, words: page.words }));
      page.counted(many(told.total, "agent"));
      return told;
    },
    open: (one) => page.open("agent", one.agent_id),
    filtered: page.filtered,
    empty: none("No agents here.", "Start one: ", el("code", {}, "holdfast agents start NAME -- COMMAND")),
  });
}

export function lockList(page) {
  return new List({
    name: "locks",
    label: "What is held or waited for",
    kind: "of-locks",
    keyOf: (one) => one.name,
    order: (a, b) => byText(a.name, b.name),
    columns: [
      ["resource", (one) => text(one.name, "strong")],
      ["state", (one) => pill(one.tone, one.state)],
      ["held by", (one) => text(one.by || "nobody")],
      ["process", (one) => text([one.mode === "shared" ? "shared" : "", one.process].filter(Boolean).join(", "), "soft extra")],
      ["since", (one) => when(one.since) ?? text("–", "soft")],
    ],
    fetchPage: async (last, limit) => {
      const told = await page.live.get(query("/v1/overview/locks", { after: last ? last.name : "", limit, words: page.words }));
      page.counted(`${told.total.toLocaleString()} held or waited for`);
      return told;
    },
    open: (one) => page.open("lock", one.name),
    filtered: page.filtered,
    empty: none("Nothing is held, and nobody waits.", "Try: ", el("code", {}, "holdfast locks run NAME -- COMMAND")),
  });
}

export function jobList(page) {
  return new List({
    name: "jobs",
    label: "Jobs, the newest first",
    kind: "of-jobs",
    keyOf: (one) => one.job_id,
    order: (a, b) => b.arrival - a.arrival || byText(b.job_id, a.job_id),
    columns: [
      ["job", (one) => text(one.job_id, "mono extra")],
      ["state", (one) => pill(one.tone, one.state)],
      ["prompt", (one) => text(one.prompt, "strong first")],
      ["for", (one) => text(one.agent_session, "soft")],
      ["attempt", (one) => text(`${one.attempt}/${one.max_attempts}`, "soft extra")],
      ["since", (one) => when(one.at)],
    ],
    fetchPage: async (last, limit) => {
      const before = last ? { before_arrival: last.arrival, before_id: last.job_id } : {};
      const told = await page.live.get(query("/v1/overview/jobs", { ...before, limit, status: page.status, words: page.words }));
      const all = Object.values(told.counts).reduce((sum, one) => sum + one, 0);
      page.counted(page.status ? `${told.counts[page.status].toLocaleString()} of ${all.toLocaleString()} jobs` : many(all, "job"));
      return told;
    },
    open: (one) => page.open("job", one.job_id),
    filtered: page.filtered,
    empty: none("No jobs.", "Register one: ", el("code", {}, "holdfast jobs register --prompt 'say hello' --queue tmux:me")),
  });
}

export function gatewayList(page) {
  return new List({
    name: "gateways",
    label: "Gateways",
    kind: "of-gateways",
    keyOf: (one) => one.agent,
    order: (a, b) => byText(a.agent, b.agent),
    columns: [
      ["agent", (one) => el("span", { class: "strong", title: one.agent }, one.name)],
      ["state", (one) => pill(one.tone, one.state)],
      ["why", (one) => text(one.why, "soft")],
      ["in queue", (one) => text(String(one.queue_depth), "number extra")],
      ["epoch", (one) => text(one.epoch ? String(one.epoch) : "–", "soft extra")],
    ],
    fetchPage: async () => {
      const all = page.overview().gateways;
      const wanted = page.words.toLowerCase();
      page.counted(many(all.length, "gateway"));
      return { lines: all.filter((one) => `${one.name} ${one.agent} ${one.state}`.toLowerCase().includes(wanted)), next: null };
    },
    open: (one) => page.open("gateway", one.agent),
    filtered: page.filtered,
    empty: none("No gateway on this machine.", "Put one before an agent: ", el("code", {}, "holdfast gateway serve AGENT")),
  });
}

export function workflowList(page) {
  return new List({
    name: "workflows",
    label: "Workflows",
    kind: "of-workflows",
    keyOf: (one) => one.name,
    order: (a, b) => byText(a.name, b.name),
    columns: [
      ["workflow", (one) => text(one.name, "strong")],
      ["recipe", (one) => text(one.recipe)],
      ["state", (one) => pill(one.in_the_way && one.tone === "good" ? "wait" : one.tone, one.in_the_way && one.state === "runs" ? "in the way" : one.state)],
      ["owner", (one) => text(`${one.owner}${one.preemptible ? ", preemptible" : ""}`, "soft extra")],
      ["lease", (one) => when(one.ends_at, { class: "extra" })],
    ],
    fetchPage: async () => {
      const all = page.overview().swap.workflows;
      const wanted = page.words.toLowerCase();
      page.counted([many(all.length, "workflow"), swapWords(page.overview().swap)].join(", "));
      return { lines: all.filter((one) => `${one.name} ${one.recipe}`.toLowerCase().includes(wanted)), next: null };
    },
    open: (one) => page.open("workflow", one.name),
    filtered: page.filtered,
    empty: none("No workflows.", "Try: ", el("code", {}, "holdfast workflows run NAME --recipe RECIPE -- COMMAND")),
  });
}

export function journalList(page, entries) {
  return new List({
    name: "journal",
    label: "The journal, the newest first",
    kind: "of-journal",
    keyOf: (one) => `${one.revision} ${one.kind} ${one.subject}`,
    order: () => 0,
    columns: [
      ["when", (one) => when(one.at)],
      ["what", (one) => text(one.kind, "strong")],
      ["of", (one) => el("span", { title: one.subject }, subjectOf(one))],
      ["facts", (one) => text(facts(one.data), "soft extra")],
      ["by", (one) => text(one.actor, "soft extra")],
    ],
    fetchPage: async () => {
      const wanted = page.words.toLowerCase();
      const all = await entries();
      page.counted(`the last ${all.length.toLocaleString()}`);
      return { lines: all.filter((one) => `${one.kind} ${subjectOf(one)} ${one.subject} ${one.actor} ${facts(one.data)}`.toLowerCase().includes(wanted)), next: null };
    },
    open: (one) => page.entry(one),
    filtered: page.filtered,
    empty: none("Nothing has happened yet."),
  });
}

function swapWords(swap) {
  const loaded = swap.current ? `${swap.current} loaded` : swap.unknown ? "unknown model" : "nothing loaded";
  if (!swap.target) return loaded;
  return `${loaded}, a swap to ${swap.target} ${swap.waits_for.length ? `waits for ${swap.waits_for.join(", ")}` : "is loading"}`;
}

// What an entry tells, as the panel shows it.
export function entryWhy(one) {
  return {
    kind: "entry",
    name: String(one.revision),
    title: one.kind,
    state: clipped(subjectOf(one), 40),
    tone: "idle",
    words: [`${one.kind} of ${subjectOf(one)}, by ${one.actor}.`],
    facts: [
      ...(subjectOf(one) === one.subject ? [] : [{ name: "id", text: one.subject }]),
      { name: "at", at: one.at, text: "" },
      { name: "revision", text: String(one.revision) },
      ...Object.entries(one.data).map(([name, value]) => ({ name, text: typeof value === "object" ? JSON.stringify(value) : String(value) })),
    ],
    advice: [`older ones: holdfast log --subject ${one.subject}`],
    actions: [],
  };
}
