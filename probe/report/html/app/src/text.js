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

/** The last part of a file's path. */
export function base(path) {
  return path.split(/[\\/]/).pop();
}
