// Which modules of B a module of A is most like, of those that have no counterpart.

import { outlook, paired, records } from "./records.js";
import { count } from "./text.js";
import { settles } from "./yaml.js";

const READ = 30; // candidates of which the records are looked at: those that are most alike by name and place
const WEIGHT = { place: 3, name: 2, class: 1.5, numbers: 1, fits: 3, equal: 3 };

/** How alike two names are, 0 to 1: the share of pairs of letters that both have. */
function alike(a, b) {
  const pairs = (text) => Array.from({ length: Math.max(1, text.length - 1) }, (_, k) => text.slice(k, k + 2).toLowerCase());
  const [mine, theirs] = [pairs(a), pairs(b)];
  const left = [...theirs];
  let both = 0;
  for (const each of mine) {
    const at = left.indexOf(each);
    if (at < 0) continue;
    left.splice(at, 1);
    both += 1;
  }
  return (2 * both) / (mine.length + theirs.length);
}

const LONGEST = 60; // letters of a name that are looked at
const last = (path) => path.slice(path.lastIndexOf(".") + 1).slice(0, LONGEST);
const numbers = (path) => path.split(".").filter((part) => /^\d+$/.test(part)).join();

/** Rows of a side that have no counterpart, and that no pair settles that was collected. */
export function leftOf(report, side, collected) {
  return report.rowsThatAre("unmatched").filter((row) => report.tree[side][row] >= 0 && !collected.some((pair) => settles(report, pair, side, row)));
}

/** The rows of B that a row of A is most like, with what speaks for each, the best first. */
export function candidates(report, row, others, collected, most) {
  const path = report.path("a", row);
  const name = last(path);
  const kind = report.class("a", row).slice(0, LONGEST);
  const around = report.parent[row];
  const known = others.map((other) => {
    const theirs = report.path("b", other);
    const isThere = around === report.parent[other] || collected.some(({ a, b }) => a === around && b === report.parent[other]);
    const isSameKind = kind === report.class("b", other);
    const score = WEIGHT.place * isThere + WEIGHT.name * alike(name, last(theirs))
      + WEIGHT.class * alike(kind, report.class("b", other).slice(0, LONGEST)) + WEIGHT.numbers * (numbers(path) === numbers(theirs));
    return { row: other, score, why: [isThere && "at the same place", isSameKind && "of the same class"] };
  }).sort((x, y) => y.score - x.score || x.row - y.row).slice(0, READ);
  const mine = records(report, "a", row);
  for (const each of known) {
    const rows = paired(mine, records(report, "b", each.row)).map((pair) => outlook(pair)[1]);
    if (!rows.length) continue;
    const [fits, equal] = [rows.filter((verdict) => !["absent", "introduced"].includes(verdict)).length, rows.filter((verdict) => verdict === "equal").length];
    each.score += (WEIGHT.fits * fits + WEIGHT.equal * equal) / rows.length;
    each.why.push(`${fits} of ${count(rows.length, "tensor")} ${fits === 1 ? "fits" : "fit"}${equal ? `, ${equal} bit-equal` : ""}`);
  }
  return known.sort((x, y) => y.score - x.score || x.row - y.row).slice(0, most).map(({ row: other, why }) => ({ row: other, why: why.filter(Boolean).join(", ") }));
}
