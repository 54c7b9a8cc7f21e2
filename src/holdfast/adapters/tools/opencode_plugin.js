// The plugin by which opencode reports what it does to Holdfast. Each event is handed to the program
// that other tools run as a hook (agent_report.py), which leaves a report.
//
// The options are { report: [word, ...] }: the program with its folder, to which the event's name is
// added. Only the conversations of the user are reported, not those of its sub-agents.

import { spawn } from "node:child_process";

const TOKEN = "HOLDFAST_REPORT_TOKEN";
const CONFIG = "OPENCODE_CONFIG_CONTENT";
const OWN_CONFIG = "HOLDFAST_OPENCODE_CONFIG";

// What opencode starts is no agent of ours: it gets neither the token nor this plugin.
const environment = { ...process.env };
delete process.env[TOKEN];
if (process.env[OWN_CONFIG]) process.env[CONFIG] = process.env[OWN_CONFIG];
else delete process.env[CONFIG];
delete process.env[OWN_CONFIG];

export const Holdfast = async ({ client }, options) => {
  const children = new Set();
  // The prompts that are not answered yet, in their order: each with its conversation, and the text
  // parts of the messages that answer it.
  const open = new Map();
  const latest = new Map();
  const questions = new Map();
  let last = Promise.resolve();

  function start(event, document) {
    const [program, ...words] = options.report;
    return new Promise((resolve) => {
      const process = spawn(program, [...words, event], {
        env: environment,
        stdio: ["pipe", "pipe", "pipe"],
      });
      let output = "";
      let complaint = "";
      process.stdout.on("data", (data) => (output += data));
      process.stderr.on("data", (data) => (complaint += data));
      process.stdin.on("error", () => {});
      process.on("error", (error) => resolve({ status: 1, output, complaint: String(error) }));
      process.on("close", (status) => resolve({ status, output, complaint }));
      process.stdin.end(JSON.stringify(document));
      if (event === "question") questions.set(document.request_id, process);
    });
  }

  // One after the other: reports count in the order of their times.
  function report(event, document) {
    last = last.then(() => start(event, document));
    return last;
  }

  function about(session) {
    return { session_id: session, prompt_id: latest.get(session) };
  }

  async function ask(asked) {
    const metadata = asked.metadata ?? {};
    const document = {
      ...about(asked.sessionID),
      request_id: asked.id,
      tool_name: asked.permission ?? asked.type,
      tool_input: Object.keys(metadata).length ? metadata : { patterns: asked.patterns },
    };
    const { output } = await start("question", document);
    questions.delete(asked.id);
    let decision;
    try {
      decision = JSON.parse(output).hookSpecificOutput.decision;
    } catch {
      return; // Nobody decided: its own dialog is open.
    }
    const reply = decision.behavior === "allow" ? "once" : "reject";
    await client._client.post({
      url: `/permission/${asked.id}/reply`,
      body: { reply, message: decision.message },
      headers: { "Content-Type": "application/json" },
    });
  }

  function end(session, event, document) {
    for (const [prompt, { session: own, messages }] of [...open]) {
      if (own !== session) continue;
      open.delete(prompt);
      const parts = [...messages.values()].pop() ?? new Map();
      const answer = [...parts.values()].filter(Boolean).join("\n");
      const known = { session_id: session, prompt_id: prompt, last_assistant_message: answer };
      report(event, { ...known, ...document });
    }
  }

  await report("session", { source: "startup" });

  return {
    event: async ({ event }) => {
      const { type, properties } = event;
      if (type === "session.created" && properties.info?.parentID) {
        children.add(properties.info.id);
      }
      const session = properties?.sessionID ?? properties?.part?.sessionID;
      if (type === "permission.asked") {
        ask(properties).catch(() => {});
      } else if (type === "permission.replied") {
        questions.get(properties.requestID ?? properties.permissionID)?.kill("SIGTERM");
      }
      if (!session || children.has(session)) return;
      if (type === "message.updated" && properties.info?.role === "assistant") {
        const { id, parentID } = properties.info;
        const messages = open.get(parentID)?.messages;
        if (messages && !messages.has(id)) messages.set(id, new Map());
      } else if (type === "message.part.updated" && properties.part?.type === "text") {
        const { messageID, id, text } = properties.part;
        for (const { messages } of open.values()) messages.get(messageID)?.set(id, text);
      } else if (type === "session.error") {
        const { name, data } = properties.error ?? {};
        if (name === "MessageAbortedError") end(session, "stopped", {});
        else end(session, "failed", { last_assistant_message: "", error: data?.message ?? name });
      } else if (type === "session.idle") {
        end(session, "ended", {});
      }
    },
    "chat.message": async ({ sessionID }, { message, parts }) => {
      if (children.has(sessionID)) return;
      const texts = parts.filter((one) => one.type === "text" && !one.synthetic);
      const prompt = texts.map((one) => one.text).join("\n");
      open.set(message.id, { session: sessionID, messages: new Map() });
      latest.set(sessionID, message.id);
      const { status, complaint } = await report("prompt", { ...about(sessionID), prompt });
      if (status === 2) {
        open.delete(message.id);
        throw new Error(complaint);
      }
    },
    "tool.execute.before": async ({ tool, sessionID }, { args }) => {
      await report("tool", { ...about(sessionID), tool_name: tool, tool_input: args });
    },
    "tool.execute.after": async ({ tool, sessionID, args }) => {
      await report("tool_ended", { ...about(sessionID), tool_name: tool, tool_input: args });
    },
  };
};
