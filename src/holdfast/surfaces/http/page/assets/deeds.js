// What an operator does. Each asks once, names what will happen, and shows the server's answer in its own words.

import { dialog, el, say } from "./dom.js";
import { shown } from "./text.js";

const segment = encodeURIComponent;

const WAYS = {
  kick: (deed, why) => ["POST", "/v1/locks/kick", { name: deed.subject, why, by: deed.by }],
  cancel_job: (deed) => ["POST", `/v1/jobs/${segment(deed.subject)}/cancel`, {}],
  requeue_job: (deed) => ["POST", `/v1/jobs/${segment(deed.subject)}/requeue`, { token: deed.token }],
  retry_job: (deed) => ["POST", `/v1/jobs/${segment(deed.subject)}/retry`],
  replay: (deed) => ["POST", `/v1/gateways/${segment(deed.subject)}/reconcile`, { action: "replay", epoch: deed.epoch }],
  discard: (deed) => ["POST", `/v1/gateways/${segment(deed.subject)}/reconcile`, { action: "discard", epoch: deed.epoch }],
  cancel_request: (deed) => ["DELETE", `/v1/gateways/${segment(deed.of)}/requests/${segment(deed.subject)}`],
};
const GRAVE = new Set(["kick", "cancel_job", "discard", "cancel_request"]);
export const KEYS = { kick: "k", cancel_job: "c", requeue_job: "r", retry_job: "r", replay: "r", discard: "d" };

// A button for a deed; `live` does it, `done` is called when it has happened.
export function button(deed, live, done) {
  const key = KEYS[deed.verb];
  return el(
    "button",
    {
      type: "button",
      "data-verb": deed.verb,
      "data-focus": `${deed.verb} ${deed.subject}`,
      "aria-haspopup": "dialog",
      "aria-keyshortcuts": key,
      on: { click: () => ask(deed, live, done) },
    },
    `${deed.label}…`,
  );
}

export function ask(deed, live, done) {
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const reason = deed.verb === "kick" ? el("input", { id: "reason", required: true, maxlength: 256, autocomplete: "off" }) : null;
  const go = el("button", { class: GRAVE.has(deed.verb) ? "grave" : "main", type: "submit" }, deed.label);
  const leave = el("button", { type: "button", on: { click: () => asked.close() } }, deed.verb.startsWith("cancel") ? "Leave it" : "Not now");
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "dialog-title" }, `${deed.label} ${deed.of ? `${deed.subject} of ${deed.of}` : deed.subject}?`),
    el("p", {}, deed.effect),
    reason && el("label", { for: "reason" }, "Why? The journal keeps it."),
    reason,
    problem,
    el("div", { class: "ends" }, leave, go),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    problem.hidden = true;
    try {
      await live.change(...WAYS[deed.verb](deed, reason ? reason.value.trim() : null));
      asked.close();
      say(`${deed.label}: ${deed.subject}, done`);
      done();
    } catch (error) {
      problem.textContent = shown(error.message);
      problem.hidden = false;
      go.disabled = false;
    }
  });
  const asked = dialog(form);
  (reason || leave).focus();
}
