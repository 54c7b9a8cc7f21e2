// The panel that answers "why?": what is so, since when, what to do next, and the few things that can be done from here.

import { KEYS, ask, button } from "./actions.js";
import { asking, byId, clipped, el, pill, when } from "./dom.js";

export class Panel {
  constructor(live, changed) {
    this.live = live;
    this.changed = changed;
    this.node = byId("panel");
    this.about = null;
    this.actions = [];
    this.node.tabIndex = -1;
    document.addEventListener("keydown", (event) => this.key(event));
  }

  // `local` gives the answer for what this page knows by itself.
  async open(kind, name, local = null) {
    if (!this.about) this.back = document.activeElement;
    this.about = { kind, name, local };
    this.shown = "";
    await this.refresh();
    if (this.about) this.node.focus({ preventScroll: true });
  }

  close() {
    this.about = null;
    this.actions = [];
    this.node.hidden = true;
    this.node.replaceChildren();
    if (this.back && this.back.isConnected) this.back.focus();
  }

  async refresh() {
    const about = this.about;
    if (!about) return;
    let told;
    try {
      told = about.local ? { why: about.local() } : await this.asked(about);
    } catch (error) {
      if (error.name === "Error" && !error.status) throw error;
      told = { problem: error.message };
    }
    const text = JSON.stringify(told);
    if (about !== this.about || text === this.shown) return;
    this.shown = text;
    this.draw(told);
  }

  async asked({ kind, name }) {
    const segment = encodeURIComponent(name);
    if (kind === "job") {
      const { job, log } = await this.live.get(`/v1/overview/jobs/${segment}`);
      return { why: job.why, job, log };
    }
    if (kind === "gateway") {
      const told = await this.live.get(`/v1/overview/gateways/${segment}`);
      return { why: told.why, requests: told.requests };
    }
    return { why: await this.live.get(`/v1/overview/why?kind=${encodeURIComponent(kind)}&name=${segment}`) };
  }

  draw(told) {
    const focus = document.activeElement && this.node.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const top = this.node.scrollTop;
    const { why } = told;
    const title = why ? why.title : this.about.name;
    const head = el(
      "div",
      { class: "head" },
      el("h2", { id: "panel-title" }, title),
      el("button", { class: "quiet", type: "button", "data-focus": "close", "aria-label": "Close", on: { click: () => this.close() } }, "✕"),
    );
    this.actions = why ? why.actions : [];
    const parts = why ? this.answer(why, told) : [el("p", { class: "problem" }, told.problem)];
    this.node.replaceChildren(head, ...parts.filter(Boolean));
    this.node.hidden = false;
    this.node.scrollTop = top;
    if (focus) [...this.node.querySelectorAll("[data-focus]")].find((node) => node.dataset.focus === focus)?.focus();
  }

  answer(why, told) {
    return [
      pill(why.tone, why.state),
      el("h3", {}, "Why"),
      el("ul", { class: "words" }, ...why.words.map((words) => el("li", {}, words))),
      ...(why.questions?.length ? [el("h3", {}, "It asks"), el("ul", { class: "told asked" }, ...why.questions.map((one) => this.question(one)))] : []),
      why.advice.length ? el("h3", {}, "What to do") : null,
      el("ul", { class: "advice" }, ...why.advice.map((words) => el("li", {}, words))),
      why.actions.length ? el("div", { class: "actions" }, ...why.actions.map((action) => button(action, this.live, this.changed))) : null,
      why.facts.length ? el("h3", {}, "What is known") : null,
      el("dl", {}, ...why.facts.flatMap((fact) => [el("dt", {}, fact.name), el("dd", {}, fact.at ? when(fact.at) : fact.text)])),
      ...(told.job ? this.job(told.job, told.log) : []),
      ...(told.requests ? this.requests(told.requests) : []),
    ];
  }

  question(one) {
    return el(
      "li",
      {},
      el("div", {}, el("span", { class: "strong" }, one.subject), when(one.asked_at)),
      one.detail ? el("pre", { tabindex: 0 }, one.detail) : null,
      one.expires_at ? el("p", {}, "its own dialog decides ", when(one.expires_at)) : null,
      one.actions.length ? el("div", { class: "actions" }, ...one.actions.map((action) => button(action, this.live, this.changed))) : el("p", {}, "Answer it in the agent's own terminal."),
    );
  }

  job(job, log) {
    return [
      el("h3", {}, "Prompt"),
      el("pre", { tabindex: 0 }, job.prompt),
      ...(job.result ? [el("h3", {}, "Result"), el("pre", { tabindex: 0 }, job.result)] : []),
      ...(job.error ? [el("h3", {}, "Error"), el("pre", { tabindex: 0 }, job.error)] : []),
      ...(job.late ? [el("h3", {}, "Came too late"), el("pre", { tabindex: 0 }, job.late)] : []),
      ...(job.progress.length ? [el("h3", {}, "Progress"), el("ul", { class: "told" }, ...job.progress.toReversed().map(progress))] : []),
      ...(log.length ? [el("h3", {}, "Log"), el("ul", { class: "told" }, ...log.toReversed().map(logged))] : []),
    ];
  }

  requests(requests) {
    const of = this.about.name;
    const line = (one) =>
      el(
        "li",
        {},
        el(
          "div",
          {},
          pill(one.tone, one.state),
          el("span", { class: "mono" }, `epoch ${one.epoch}`),
          when(one.accepted_at),
          one.cancel && button({ ...one.cancel, of }, this.live, this.changed),
        ),
        el("p", {}, one.sender ? `from ${one.sender}: ` : null, clipped(one.prompt || one.kind, 400)),
        one.error ? el("p", {}, one.error) : null,
      );
    return [el("h3", {}, "Requests, the newest first"), requests.length ? el("ul", { class: "told" }, ...requests.map(line)) : el("p", { class: "calm" }, "None.")];
  }

  key(event) {
    const typing = event.target.matches?.("input, textarea, select");
    if (!this.about || typing || event.ctrlKey || event.metaKey || event.altKey || asking()) return;
    if (event.key === "Escape") this.close();
    const action = this.actions.find((one) => KEYS[one.verb] === event.key);
    if (action) {
      event.preventDefault();
      ask(action, this.live, this.changed);
    }
  }
}

function progress(one) {
  const data = one.data === null ? "" : JSON.stringify(one.data);
  return el("li", {}, el("div", {}, el("span", {}, one.event.replaceAll("_", " ")), when(one.at)), el("p", {}, [one.detail, data].filter(Boolean).join(" ")));
}

function logged(line) {
  const { timestamp, event, actor, payload, ...rest } = line;
  const words = payload ? `${payload.event ?? ""} ${payload.detail ?? ""}` : facts(rest);
  return el("li", {}, el("div", {}, el("span", {}, String(event ?? "?").replaceAll("_", " ")), when(timestamp)), el("p", {}, `${words.trim()} by ${actor ?? "?"}`));
}

export function facts(data) {
  return Object.entries(data)
    .filter(([name, value]) => value !== null && !["schema_version", "job_id", "revision"].includes(name))
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
}
