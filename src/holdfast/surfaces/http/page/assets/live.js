// The server, as long as it answers: questions, the stream of what happens, and how the connection stands.
//
// The stream is read by hand and not by EventSource, which hands over only events whose names it was given, and tells neither
// why a connection failed nor that one hangs.

import { Session } from "./session.js";

const SILENT_MS = 40000; // the server gives a sign every 15 s
const SOONEST_MS = 400;
const LATEST_MS = 5000;

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.message || `the server answered with status ${status}`);
    this.status = status;
    this.code = problem.code || "error";
  }
}

export class Away extends Error {}

async function answered(method, path, body, timeoutMs, secretly) {
  let answer;
  let text;
  try {
    answer = await fetch(path, {
      method,
      headers: body === undefined ? secretly : { ...secretly, "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
      signal: AbortSignal.timeout(timeoutMs),
    });
    text = await answer.text();
  } catch {
    throw new Away("the server does not answer");
  }
  let told = {};
  try {
    told = text ? JSON.parse(text) : {};
  } catch {
    throw new Refused(answer.status, {});
  }
  if (!answer.ok) throw new Refused(answer.status, told);
  return told;
}

export class Live {
  constructor({ onState, onEntry, onGap }) {
    this.state = "joining"; // joining, live, away, locked
    this.since = null; // the last moment at which it answered
    this.problem = null; // why it refused the stream, in its words
    this.onState = onState;
    this.onEntry = onEntry;
    this.onGap = onGap;
    this.lastId = null;
    this.pause = SOONEST_MS;
    this.wake = null;
    this.session = new Session(() => this.again());
  }

  // Ask for something. Throws Refused with the server's words, or Away.
  async get(path, timeoutMs = 10000) {
    return this.heard("GET", path, undefined, timeoutMs);
  }

  async change(method, path, body) {
    return this.heard(method, path, body, 30000);
  }

  async heard(method, path, body, timeoutMs) {
    const { secret } = this.session;
    try {
      await this.sure();
      const told = await answered(method, path, body, timeoutMs, this.session.headers);
      this.since = Date.now();
      return told;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) this.lock(secret);
      if (error instanceof Away) this.session.proved = false;
      throw error;
    }
  }

  // Go on only if it is this page's server that answers. Throws Refused when it does not know the session, or Away.
  async sure() {
    let known;
    try {
      known = await this.session.check();
    } catch {
      throw new Away("the server does not answer");
    }
    if (!known) throw new Refused(401, { code: "unauthorized", message: "the server does not know this page's session" });
  }

  async run() {
    await this.session.begin();
    for (;;) {
      const { secret } = this.session;
      try {
        if (secret === null) this.lock(null);
        else await this.follow();
      } catch (error) {
        this.problem = error instanceof Refused ? error.message : null;
        this.session.proved = false;
        if (error instanceof Refused && error.status === 401) this.lock(secret);
        else if (error instanceof Refused && this.lastId !== null) this.lastId = null; // of another journal: from now on, then
        else this.become("away");
      }
      await this.rest();
    }
  }

  // End this page's session, here and in the other tabs. The server is told first; whether it answers or not, the page forgets.
  async leave() {
    // Read it first: another request may be refused before this one is answered, and that clears the secret.
    const { secret } = this.session;
    try {
      await this.change("POST", "/v1/sessions/end");
    } catch {
      // Nobody else has the secret, and it ends by itself.
    }
    this.session.leave(secret);
  }

  // Nobody is let in with this secret, or there is none.
  lock(secret) {
    this.session.refuse(secret);
    if (this.session.secret === null) this.become("locked");
  }

  // Somebody has found out that the server is away: the stream, which may hang, begins anew.
  lost() {
    this.become("away");
    if (this.stop) this.stop.abort();
  }

  // Try again at once.
  again() {
    this.pause = SOONEST_MS;
    if (this.wake) this.wake();
  }

  async rest() {
    await new Promise((resolve) => {
      this.wake = resolve;
      setTimeout(resolve, this.pause);
    });
    this.wake = null;
    this.pause = Math.min(this.pause * 1.6, LATEST_MS);
  }

  async follow() {
    const stop = new AbortController();
    this.stop = stop;
    let watch = setTimeout(() => stop.abort(), SILENT_MS);
    try {
      await this.sure();
      const headers = this.lastId === null ? this.session.headers : { ...this.session.headers, "Last-Event-ID": this.lastId };
      const answer = await fetch("/v1/events", { headers, credentials: "omit", cache: "no-store", redirect: "error", signal: stop.signal });
      if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Away("the stream ended");
        clearTimeout(watch);
        watch = setTimeout(() => stop.abort(), SILENT_MS);
        this.since = Date.now();
        this.problem = null;
        this.pause = SOONEST_MS;
        if (this.state !== "live") {
          const first = this.state === "joining";
          this.become("live");
          if (!first) this.onGap();
        }
        rest = this.parsed(rest + value);
      }
    } finally {
      clearTimeout(watch);
      stop.abort();
    }
  }

  // Take every whole event out of the text, and return what is left of it.
  parsed(text) {
    const events = text.split("\n\n");
    const rest = events.pop();
    for (const event of events) {
      let data = "";
      for (const line of event.split("\n")) {
        if (line.startsWith("id: ")) this.lastId = line.slice(4);
        if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (!data) continue;
      const told = JSON.parse(data);
      if (told.revision === undefined) this.onGap(); // no entry, but that some are missing or come again
      else this.onEntry(told);
    }
    return rest;
  }

  become(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }
}
