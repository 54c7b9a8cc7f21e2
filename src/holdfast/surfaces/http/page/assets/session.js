// The secret of this page's session: where it comes from, where it is kept, and who is shown it.
//
// A link brings a one-time code in its fragment, which a browser sends to nobody. The code is exchanged for a secret, which stays in
// this tab's own storage. A browser keeps that apart by scheme, host and port, unlike cookies, which go to every port of a host. Only
// the requests of this page carry it, in a header. A new tab asks the other tabs of this server for theirs.
//
// While the server is down, another program may take its port. So after every silence the server must prove that it knows the secret
// before it is shown it. A browser can check that on loopback and over TLS; elsewhere others can read the secret anyway.

const KEY = "session";
const ENTER = "#/enter/";
const ANSWER_MS = 500; // for another tab to answer

const bytes = (text) => new TextEncoder().encode(text);
const ofHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

async function posted(path, body) {
  const headers = { "Content-Type": "application/json" };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), credentials: "omit", cache: "no-store", redirect: "error" });
}

const stored = () => sessionStorage.getItem(KEY);

export class Session {
  // `onChange` is called when another tab has handed a secret over.
  constructor(onChange) {
    this.secret = stored();
    this.refused = null; // the secret that the server did not know
    this.problem = null; // why a link did not let this page in, in the server's words
    this.proved = false; // that the server knows the secret, since it answered last
    this.onChange = onChange;
    this.tabs = new BroadcastChannel("holdfast session");
    this.tabs.addEventListener("message", (event) => this.told(event.data));
    addEventListener("hashchange", () => (location.hash.startsWith(ENTER) ? location.reload() : null));
  }

  get headers() {
    return this.secret === null ? {} : { Authorization: `Bearer ${this.secret}` };
  }

  // Use the link that this page was opened by; without one, and without a secret from before, ask the other tabs.
  async begin() {
    if (location.hash.startsWith(ENTER)) await this.enter(location.hash.slice(ENTER.length));
    if (this.secret !== null) return;
    this.tabs.postMessage({ asks: true });
    await new Promise((resolve) => {
      this.handed = resolve;
      setTimeout(resolve, ANSWER_MS);
    });
  }

  async enter(code) {
    history.replaceState(null, "", "#/now");
    try {
      const answer = await posted("/v1/sessions", { code });
      const told = await answer.json();
      if (answer.ok) this.keep(told.session);
      else this.problem = told.message;
    } catch {
      this.problem = "the server did not answer when this link was used: `holdfast serve --link` prints another";
    }
    if (this.secret !== null) this.tabs.postMessage({ secret: this.secret });
  }

  // Is it this page's server that answers? Throws when nobody answers, or somebody else does.
  async check() {
    const { secret } = this;
    if (this.proved || secret === null || !crypto.subtle) return true;
    const [name, end, signature] = secret.split(".");
    const nonce = crypto.randomUUID();
    const answer = await posted("/v1/sessions/proof", { session: `${name}.${end}`, nonce });
    const { proof } = await answer.json();
    const key = await crypto.subtle.importKey("raw", bytes(signature), { name: "HMAC", hash: "SHA-256" }, false, ["verify"]);
    const genuine = await crypto.subtle.verify("HMAC", key, ofHex(proof), bytes(`proof ${nonce}`));
    if (secret === this.secret) this.proved = genuine;
    return genuine;
  }

  // The server does not know it: it is shown to nobody again.
  refuse(secret) {
    if (secret === null || secret !== this.secret) return;
    this.refused = secret;
    this.forget();
    this.tabs.postMessage({ asks: true });
  }

  // This page and the other tabs of this session forget all they have.
  leave(secret) {
    this.tabs.postMessage({ left: secret });
    this.forget();
    location.reload();
  }

  keep(secret) {
    this.secret = secret;
    this.proved = false;
    this.problem = null;
    sessionStorage.setItem(KEY, secret);
  }

  forget() {
    this.secret = null;
    sessionStorage.removeItem(KEY);
  }

  told({ asks, secret, left }) {
    if (asks && this.secret !== null) this.tabs.postMessage({ secret: this.secret });
    // A tab that the server has already refused still shows old data, so it reloads too.
    if (left && (left === this.secret || left === this.refused)) {
      this.forget();
      location.reload();
    }
    if (secret && this.secret === null && secret !== this.refused) {
      this.keep(secret);
      if (this.handed) this.handed();
      this.onChange();
    }
  }
}
