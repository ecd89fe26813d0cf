// Pairs that were picked, as lines of a layer mapping (docs/reference/mapping.md).

const PLAIN = /^[A-Za-z_][\w-]*(\.[\w-]+)*$/;
const WORDS = /^(y|yes|n|no|true|false|on|off|null|inf|nan)$/i;
const PATTERN = /[*{}/]/;

export function quoted(text) {
  if (PLAIN.test(text) && !WORDS.test(text)) return text;
  return JSON.stringify(text).replace(/[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const below = (path, top) => (top === "" ? path : path.slice(top.length + 1));
const isBelow = (path, top) => top === "" ? path !== "" : path.startsWith(`${top}.`);

/** The nearest pair around both modules, or the roots; and what a line says from there. */
export function lineOf(report, pair, scope) {
  const here = report.doc.mapping.from;
  const there = here === "a" ? "b" : "a";
  const [from, to] = [report.path(here, pair[here]), report.path(there, pair[there])];
  const around = report.ancestors(pair[here]).reverse().find((row) => report.pairOf(row) >= 0 && isBelow(to, report.path(there, row)));
  const [top, other] = around === undefined ? ["", ""] : [report.path(here, around), report.path(there, around)];
  const isTop = top === "";
  const section = isTop ? "TopLayer" : scope === "path" ? `/${top}` : report.class(here, around);
  const [key, target] = [below(from, top), below(to, other)];
  const unsayable = PATTERN.test(key) || PATTERN.test(target) || (section !== "TopLayer" && PATTERN.test(section.slice(1)));
  return { section, key, target, isTop, unsayable };
}

/** Tell whether a pair that was collected settles a row too: by its class, or because it is inside and both sides have it. */
export function settles(report, pair, side, row) {
  const other = side === "a" ? "b" : "a";
  const path = report.path(side, row);
  const isSettled = (mine, theirs) => path === mine || isBelow(path, mine) && report.rowAt(other, `${theirs}.${below(path, mine)}`) >= 0;
  if (isSettled(report.path(side, pair[side]), report.path(other, pair[other]))) return true;
  const line = lineOf(report, pair, pair.scope);
  if (line.isTop || pair.scope !== "class") return false;
  const { from } = report.doc.mapping;
  const [part, its] = side === from ? [line.key, line.target] : [line.target, line.key];
  return report.ancestors(row).some((up) => {
    const [top, around] = [report.path(side, up), report.path(other, up)];
    const isHere = top !== null && around !== null && report.class(from, up) === line.section;
    return isHere && isSettled(`${top}.${part}`, `${around}.${its}`);
  });
}

/** How many modules a line by class is about. */
export function reach(report, line) {
  const classes = report.doc.sides[report.doc.mapping.from].modules.class;
  return line.isTop ? 1 : classes.reduce((sum, word) => sum + (report.words[word] === line.section), 0);
}

/** The text to save: lines in sections, inside of what they have to stand beside. */
export function mappingText(report, collected) {
  const { base } = report.doc.mapping;
  const lines = base ? base.trimEnd().split("\n") : [];
  const added = new Map();
  for (const each of collected) {
    const line = lineOf(report, each, each.scope);
    const text = line.unsayable
      ? `  # a mapping cannot name this: ${quoted(line.key)} is ${quoted(line.target)}`
      : `  ${quoted(line.key)}: ${quoted(line.target)}`;
    const head = `${quoted(line.section)}:`;
    added.set(head, [...(added.get(head) ?? []), text]);
  }
  for (const [head, texts] of added) {
    const at = lines.indexOf(head);
    if (at >= 0) lines.splice(at + 1, 0, ...texts);
    else lines.push(...(lines.length ? [""] : []), head, ...texts);
  }
  return `${lines.join("\n")}\n`;
}
