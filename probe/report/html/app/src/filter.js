// Which rows of the tree are shown: those that a filter wants with all around them, or those that are not folded away.

import { PHASES } from "./model.js";

export const NO_FILTER = { text: "", phase: "", verdict: "", reason: "" };

export function isActive(filter) {
  return Object.values(filter).some(Boolean);
}

/** Tell what a row is in the phases that are looked at. */
function hasVerdict(report, view, row, phase, wanted) {
  if (wanted === "unmatched" || wanted === "needs no partner") return report.tree.state[row] === wanted;
  if (wanted === "nonfinite") return view.nonfinite.has(row);
  return PHASES.some((name, k) => {
    const i = view.cells[k][row];
    return i >= 0 && (!phase || name === phase) && (!wanted || report.verdict(i) === wanted);
  });
}

function texts(report) {
  report.texts ??= Array.from({ length: report.size }, (_, row) =>
    report.sides.map((side) => `${report.path(side, row) ?? ""} ${report.class(side, row)}`).join(" ").toLowerCase());
  return report.texts;
}

/** The rows that a filter wants, as flags. */
export function wanted(report, view, filter) {
  const found = new Uint8Array(report.size);
  const text = filter.text.trim().toLowerCase();
  const all = text ? texts(report) : null;
  for (let row = 0; row < report.size; row++) {
    if (all && !all[row].includes(text)) continue;
    const pair = report.pairOf(row);
    if (filter.reason && (pair < 0 || report.doc.pairs.reason[pair] !== filter.reason)) continue;
    if ((filter.verdict || filter.phase) && !hasVerdict(report, view, row, filter.phase, filter.verdict)) continue;
    found[row] = 1;
  }
  return found;
}

/** The rows that stand on the screen, in order: without a filter those whose parents are open. */
export function visible(report, open, flags) {
  const rows = [];
  if (flags) {
    const keep = Uint8Array.from(flags);
    for (let row = report.size - 1; row >= 0; row--) if (keep[row] && report.parent[row] >= 0) keep[report.parent[row]] = 1;
    for (let row = 0; row < report.size; row++) if (keep[row]) rows.push(row);
    return rows;
  }
  for (let row = 0; row < report.size; row = open[row] ? row + 1 : report.end[row]) rows.push(row);
  return rows;
}
