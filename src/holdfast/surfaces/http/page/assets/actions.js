// The actions of an operator. Each asks once, says what will happen, and shows an error of the server as it is.

import { dialog, el, say } from "./dom.js";
import { shown } from "./text.js";

const segment = encodeURIComponent;

const WAYS = {
  kick: (action, why) => ["POST", "/v1/locks/kick", { name: action.subject, why, by: action.by }],
  cancel_job: (action) => ["POST", `/v1/jobs/${segment(action.subject)}/cancel`, {}],
  requeue_job: (action) => ["POST", `/v1/jobs/${segment(action.subject)}/requeue`, { token: action.token }],
  retry_job: (action) => ["POST", `/v1/jobs/${segment(action.subject)}/retry`],
  replay: (action) => ["POST", `/v1/gateways/${segment(action.subject)}/reconcile`, { action: "replay", epoch: action.epoch }],
  discard: (action) => ["POST", `/v1/gateways/${segment(action.subject)}/reconcile`, { action: "discard", epoch: action.epoch }],
  // The journal keeps that the answer came from a page: nobody's name is known here.
  answer: (action, text) => ["POST", `/v1/gateways/${segment(action.subject)}/questions/${segment(action.question_id)}/answer`, { reply: action.reply ?? text, by: "page" }],
  cancel_request: (action) => ["DELETE", `/v1/gateways/${segment(action.of)}/requests/${segment(action.subject)}`],
};
// What the operator has to write for an action; null for nothing.
function wanted(action) {
  if (action.verb === "kick") return "Why? The journal keeps it.";
  return action.verb === "answer" && action.reply === null ? "What do you answer? The journal keeps it." : null;
}

const GRAVE = new Set(["kick", "cancel_job", "discard", "cancel_request"]);
export const KEYS = { kick: "k", cancel_job: "c", requeue_job: "r", retry_job: "r", replay: "r", discard: "d" };

// A button for an action: `live` sends it, `done` is called when the server has done it.
export function button(action, live, done) {
  const key = KEYS[action.verb];
  return el(
    "button",
    {
      type: "button",
      "data-verb": action.verb,
      "data-focus": [action.verb, action.subject, action.question_id, action.question_id && action.label].filter(Boolean).join(" "),
      "aria-haspopup": "dialog",
      "aria-keyshortcuts": key,
      on: { click: () => ask(action, live, done) },
    },
    `${action.label}…`,
  );
}

export function ask(action, live, done) {
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const question = wanted(action);
  const reason = question ? el("input", { id: "reason", required: true, maxlength: action.verb === "answer" ? 4000 : 256, autocomplete: "off" }) : null;
  const go = el("button", { class: GRAVE.has(action.verb) ? "grave" : "main", type: "submit" }, action.label);
  const leave = el("button", { type: "button", on: { click: () => asked.close() } }, action.verb.startsWith("cancel") ? "Leave it" : "Not now");
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "dialog-title" }, `${action.label} ${action.of ? `${action.subject} of ${action.of}` : action.subject}?`),
    action.about && el("pre", {}, action.about),
    el("p", {}, action.effect),
    reason && el("label", { for: "reason" }, question),
    reason,
    problem,
    el("div", { class: "ends" }, leave, go),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    problem.hidden = true;
    try {
      await live.change(...WAYS[action.verb](action, reason ? reason.value.trim() : null));
      asked.close();
      say(`${action.label}: ${action.subject}, done`);
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
