// The chosen module in the address, so that it can be sent: #path of A, or #b:path of what B alone has.

const OF_B = "b:";
/** The whole model, whose path is empty. */
const ROOT = ".";
const SETTLES = 150; // milliseconds: a held key chooses many rows, and browsers refuse many changes in a short time

const written = (path) => (path === "" ? ROOT : path === ROOT ? "%2E" : encodeURIComponent(path));

function read(text) {
  if (text === ROOT) return "";
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a path that was typed, with a % of its own
  }
}

/** The fragment of a row, "" for one that cannot be written. */
export function fragmentOf(report, row) {
  const path = report.path("a", row);
  try {
    return path === null ? `#${OF_B}${written(report.path("b", row))}` : `#${written(path)}`;
  } catch {
    return ""; // half a character
  }
}

/** The row that a fragment names, -1 for none: the module of A, else that of B. */
export function rowOf(report, fragment) {
  const text = fragment.slice(1);
  if (text.startsWith(OF_B)) {
    const row = report.rowAt("b", read(text.slice(OF_B.length)));
    if (row >= 0) return row;
  }
  const row = report.rowAt("a", read(text));
  return row >= 0 ? row : report.rowAt("b", read(text));
}

/** The path of a fragment, for whoever is told that there is none. */
export const named = (fragment) => read(fragment.startsWith(`#${OF_B}`) ? fragment.slice(1 + OF_B.length) : fragment.slice(1));

let waiting = 0;

/** Write a row into the address; without an entry in the history, and nothing is loaded. */
export function write(report, row) {
  clearTimeout(waiting);
  const before = location.hash; // what is typed until then stands: its own event comes after it
  waiting = setTimeout(() => {
    const fragment = fragmentOf(report, row);
    try {
      if (location.hash === before && fragment && fragment !== location.hash) history.replaceState(history.state, "", fragment);
    } catch {
      // a browser that refuses it: the page works as before
    }
  }, SETTLES);
}

/** Keep what was typed: a choice that came before it is not written any more. */
export const forget = () => clearTimeout(waiting);

/** Name no module any more: the next answer begins at its own first divergence. */
export function clear() {
  forget();
  if (location.hash) history.replaceState(history.state, "", location.pathname + location.search);
}
