// Pairs that were picked, as lines of a layer mapping (docs/reference/mapping.md).

const PLAIN = /^[A-Za-z_][\w-]*(\.[\w-]+)*$/;
const WORDS = /^(y|yes|n|no|true|false|on|off|null|inf|nan)$/i;
const PATTERN = /[*{}/]/;

export function quoted(text) {
  if (PLAIN.test(text) && !WORDS.test(text)) return text;
  return JSON.stringify(text).replace(/[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const below = (path, top) => (top === "" ? path : path.slice(top.length + 1));
export const isBelow = (path, top) => top === "" ? path !== "" : path.startsWith(`${top}.`);
const oneOrAll = (names) => (names.length === 1 ? names[0] : names);

/** The nearest pair around all modules of a pair, or the roots; and what a line says from there: key and target, of several a list. */
export function lineOf(report, pair, scope) {
  const here = report.doc.mapping.from;
  const there = here === "a" ? "b" : "a";
  const [from, to] = [here, there].map((side) => pair[side].map((row) => report.path(side, row)));
  const holds = (side, paths, row) => paths.every((path) => isBelow(path, report.path(side, row)));
  const around = report.around(here, from[0]).find((row) => report.pairOf(row) >= 0 && holds(here, from, row) && holds(there, to, row));
  const [top, other] = around === undefined ? ["", ""] : [report.path(here, around), report.path(there, around)];
  const isTop = top === "";
  const section = isTop ? "TopLayer" : scope === "path" ? `/${top}` : report.class(here, around);
  const [keys, targets] = [from.map((path) => below(path, top)), to.map((path) => below(path, other))];
  const unsayable = [...keys, ...targets].some((text) => PATTERN.test(text)) || (section !== "TopLayer" && PATTERN.test(section.slice(1)));
  return { section, key: oneOrAll(keys), target: oneOrAll(targets), isTop, unsayable };
}

/** A line as text: of several on this side the key is that of the other. How they lie in the one is read from the weights. */
export function written({ key, target }) {
  const several = (way, names) => `{${way}: [${names.map(quoted).join(", ")}], split: {groups: as_recorded}}`;
  if (Array.isArray(key)) return `${quoted(target)}: ${several("from", key)}`;
  return `${quoted(key)}: ${Array.isArray(target) ? several("to", target) : quoted(target)}`;
}

/** Tell whether a pair that was collected settles a row too: by its class, or because it is inside and both sides have it. */
export function settles(report, pair, side, row) {
  const other = side === "a" ? "b" : "a";
  const path = report.path(side, row);
  const isSettled = (mine, theirs) => mine.includes(path) || theirs.length === 1 && mine.length === 1 && isBelow(path, mine[0]) && report.rowAt(other, `${theirs[0]}.${below(path, mine[0])}`) >= 0;
  const paths = (of) => pair[of].map((each) => report.path(of, each));
  if (isSettled(paths(side), paths(other))) return true;
  const line = lineOf(report, pair, pair.scope);
  if (line.isTop || pair.scope !== "class") return false;
  const { from } = report.doc.mapping;
  const [part, its] = (side === from ? [line.key, line.target] : [line.target, line.key]).map((names) => [names].flat());
  return report.around(side, path).some((up) => {
    const [top, around] = [report.path(side, up), report.path(other, up)];
    const isHere = around !== null && report.class(from, up) === line.section;
    return isHere && isSettled(part.map((name) => `${top}.${name}`), its.map((name) => `${around}.${name}`));
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
    const text = `  ${line.unsayable ? "# a mapping cannot name this: " : ""}${written(line)}`;
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
