// Which modules of B a module of A is most like, of those that have no counterpart; several of one side for one of the other, too.

import { fit, sizeOf } from "./records.js";
import { isBelow, settles } from "./yaml.js";

const READ = 30; // candidates of which the records are looked at: those that are most alike by name and place
const WEIGHT = { place: 3, name: 2, class: 1.5, numbers: 1 };
const STATES = ["misfits", "unknown", "fits"];
const [MOST_SIBLINGS, MOST_PARTS] = [8, 4];

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
const around = (path) => path.slice(0, Math.max(0, path.lastIndexOf(".")));
const numbers = (path) => path.split(".").filter((part) => /^\d+$/.test(part)).join();

/** Rows of a side that have no counterpart, and that no pair settles that was collected. */
export function leftOf(report, side, collected) {
  return report.rowsThatAre("unmatched").filter((row) => report.tree[side][row] >= 0 && !collected.some((pair) => settles(report, pair, side, row)));
}

/** The partner, by its path, of the nearest module around a row of A that has one, or was given one. */
function partnerAround(report, row, collected) {
  for (const up of report.around("a", report.path("a", row))) {
    const given = collected.find(({ a, b }) => a.length === 1 && b.length === 1 && a[0] === up);
    if (given) return report.path("b", given.b[0]);
    if (report.pairOf(up) >= 0) return report.path("b", up);
  }
  return "";
}

/** Choices of two or more among siblings, in their order. */
function several(rows) {
  const found = [[]];
  for (const row of rows.slice(0, MOST_SIBLINGS)) found.push(...found.filter((each) => each.length < MOST_PARTS).map((each) => [...each, row]));
  return found.filter((each) => each.length > 1);
}

/** Rows that have parameters, by the modules that they stand in. */
function siblings(report, side, rows) {
  const found = new Map();
  for (const row of rows.filter((each) => sizeOf(report, side, [each]))) {
    const path = around(report.path(side, row));
    found.set(path, [...(found.get(path) ?? []), row]);
  }
  return found;
}

/** Several of one side whose weights, put together, are as large as those of one of the other, and fit. */
function joined(report, row, mine, inside) {
  const whole = sizeOf(report, "a", [row]);
  if (!whole) return [];
  const ofB = [...siblings(report, "b", inside).values()].flatMap(several).filter((b) => sizeOf(report, "b", b) === whole).map((b) => ({ a: [row], b }));
  const parts = several(siblings(report, "a", mine).get(around(report.path("a", row)))).filter((a) => a.includes(row)).map((a) => [a, sizeOf(report, "a", a)]);
  const ofA = inside.map((each) => [each, sizeOf(report, "b", [each])]).flatMap(([each, size]) => parts.filter(([, sum]) => sum === size).map(([a]) => ({ a, b: [each] })));
  return [...ofB, ...ofA].map((each) => ({ ...each, ...fit(report, each) })).filter(({ state }) => state === "fits");
}

/**
 * The rows of B that a row of A is most like, with what speaks for and against each: those inside the partner of what is around it first,
 * then those that fit. Each is {a, b, state, why, isInside}, with several rows on one side where these are parts of one on the other.
 */
export function candidates(report, row, mine, others, collected, most) {
  const path = report.path("a", row);
  const name = last(path);
  const kind = report.class("a", row).slice(0, LONGEST);
  const partner = partnerAround(report, row, collected);
  const known = others.map((other) => {
    const theirs = report.path("b", other);
    const isInside = isBelow(theirs, partner);
    const isThere = isInside && around(theirs) === partner;
    const isSameKind = kind === report.class("b", other);
    const score = WEIGHT.place * isThere + WEIGHT.name * alike(name, last(theirs))
      + WEIGHT.class * alike(kind, report.class("b", other).slice(0, LONGEST)) + WEIGHT.numbers * (numbers(path) === numbers(theirs));
    return { a: [row], b: [other], isInside, score, why: [isThere && "at the same place", !isInside && "elsewhere", isSameKind && "of the same class"] };
  });
  const found = known.sort((x, y) => y.isInside - x.isInside || y.score - x.score || x.b[0] - y.b[0]).slice(0, READ).map((each) => ({ ...each, ...fit(report, each) }));
  const groups = joined(report, row, mine, known.filter(({ isInside }) => isInside).map(({ b }) => b[0])).map((each) => ({ ...each, isInside: true, score: 0, why: ["several for one"] }));
  return [...found, ...groups]
    .sort((x, y) => y.isInside - x.isInside || STATES.indexOf(y.state) - STATES.indexOf(x.state) || y.score - x.score || x.closest - y.closest || x.b[0] - y.b[0])
    .slice(0, most)
    .map((each) => ({ ...each, why: [...each.why, each.state === "fits" ? "weights and inputs fit" : each.misfits[0] ?? "nothing tells whether it fits"].filter(Boolean).join(", ") }));
}
