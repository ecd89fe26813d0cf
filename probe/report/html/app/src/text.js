// How names and numbers are shown.

const CONTROL =
  /[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]/gu;

/** A text without what a reader cannot see, or what changes the order of what is seen: written out, as \u202e. */
export function shown(text) {
  return text.replace(CONTROL, (found) => {
    const code = found.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** A number of the document: infinities are texts there. */
export function value(number) {
  if (number === null || number === undefined) return NaN;
  return number === "inf" ? Infinity : number === "-inf" ? -Infinity : number;
}

/** An error, short: 5.8e-4, 0.58. */
export function error(number) {
  if (Number.isNaN(number)) return "–";
  if (!Number.isFinite(number)) return "∞";
  if (number === 0) return "0";
  return number >= 0.01 && number < 1000 ? String(Number(number.toPrecision(2))) : number.toExponential(1);
}

/** Any number, in at most six digits. */
export function plain(number) {
  if (Number.isNaN(number)) return "–";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  return String(Number(number.toPrecision(6)));
}

/** Step, phase and kind of a finding, each once: some kinds are called as their phase. */
export function headline(found) {
  return [...new Set(found.headline.split(" · "))].join(" · ");
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** What the words of a report mean, for whoever points at them. */
export const MEANING = {
  introduced: "The error begins here: what this was made from agrees on both sides, itself it differs by more than rounding explains, or than the chosen tolerance allows.",
  inherited: "It differs because what it was made from differs: look for where the error begins.",
  noise: "It differs by no more than rounding explains, or than the chosen tolerance allows.",
  margin: "So much wider all limits may be, and the first divergence stays the same: far above 1 it is beyond doubt, near 1 at the edge of noise.",
  limits: "What tells an error from noise. The built-in model computes what rounding explains from precisions, sizes and inputs; further runs, a reference and tolerances of your own are others.",
  confidence: "Falls for each thing that speaks against this place as the first divergence.",
  equal: "Bit for bit the same, or every number is.",
  "not judged": "It differs, or may, and nothing is known that it could be held against: the panel says why. The verdict says nothing of it.",
  "not comparable": "Nothing can be said of it: shapes or kinds differ, or one side has no numbers. The panel says why.",
  "non-finite": "It holds NaN or infinite elements.",
  band: "What rounding explains, and the errors of what a tensor was made from: what lies in it is noise, or inherited.",
  sources: "The largest error among what it was computed from: what it differs by, or more, it may have from there.",
  coherence: "Cosine between A and B − A: near 1 or −1, B is A scaled by a factor; near 0, the difference has no direction in common with A.",
  grad_total: "The gradient of this input summed over all that use the tensor, not only what this call adds to it.",
};

const SHORTEST = 6;

/** What a module is called by itself: the end of its path, with as much before it as an index or a short name needs. */
export function ownName(path) {
  const parts = path.split(".");
  const isIndex = (part) => /^\d+$/.test(part);
  let names = isIndex(parts[parts.length - 1]) ? 2 : 1;
  for (let from = parts.length - 1; from >= 0; from--) {
    if (isIndex(parts[from])) continue;
    names -= 1;
    const name = parts.slice(from).join(".");
    if (names <= 0 && (name.length >= SHORTEST || from < parts.length - 1)) return name;
  }
  return path;
}

/** The last part of a file's path. */
export function base(path) {
  return path.split(/[\\/]/).pop();
}
