// Text as people see it: what a reader would not see is written out, as the command line does. The server puts the pattern of
// kernel/text.py in the place of the one that matches nothing (assets.py), so that there is one rule.

const UNFIT = /(?!)/gu;

export function shown(text) {
  return text.replace(UNFIT, (found, flag) => flag ?? written(found.codePointAt(0)));
}

function written(code) {
  if (code === 13) return "\\r";
  const digits = code.toString(16);
  if (code < 0x100) return `\\x${digits.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${digits.padStart(4, "0")}` : `\\U${digits.padStart(8, "0")}`;
}
