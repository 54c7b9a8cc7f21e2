// The names of agents. The journal and some lists know an agent by its id, which nobody can read.

const names = new Map(); // by id

export const bare = (name) => name.replace(/^(HOLDFAST|HOUMAO)-/, "");

// What the server said of names, and what entries of the journal say.
export function learn(told, entries) {
  for (const [id, name] of Object.entries(told ?? {})) names.set(id, name);
  for (const { subject, data } of entries) if (data.agent_name) names.set(subject, bare(data.agent_name));
}

// What an entry of the journal is about, in words.
export function subjectOf({ kind, subject, data }) {
  if (!/^(agent|gateway)\./.test(kind)) return subject;
  return data.agent_name ? bare(data.agent_name) : (names.get(subject) ?? subject);
}
