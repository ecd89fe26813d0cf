// What was recorded of modules without a partner, how far they would agree as a pair, and whether they fit.

import { count, error, plain, shown, value } from "./text.js";

const ROLES = ["param", "buffer", "input", "output", "value", "grad_output", "grad_input", "grad_total", "param_grad", "state", "delta"];
const PHASES = ["init", "forward", "loss", "backward", "gradient", "update"];
const SHARED = ["input", "grad_total"]; // what several parts of one are given together
const SUMMED = "grad_input"; // of several parts of one it adds up, each being a part of it
const WEIGHTS_AGREE = 1e-3; // relative differences of norms
const [INPUTS_AGREE, INPUTS_DIFFER] = [1e-2, 0.1]; // they may inherit an error

function recordsOf(report, side, row) {
  return (report.doc.loose[side][report.tree[side][row]] ?? []).map(([phase, role, slot, call, dtype, shape, norm, hash]) => {
    const sizes = JSON.parse(report.words[shape]);
    return {
      what: `${PHASES[phase]} ${ROLES[role]}`, role: ROLES[role], slot: report.words[slot], call, dtype: report.words[dtype], shape: report.words[shape], norm: value(norm), hash,
      form: sizes.filter((size) => size !== 1).sort().join(), elements: sizes.reduce((x, y) => x * y, 1),
    };
  }).filter((each) => each.call === 0);
}

/** What was recorded of a module, or of several as the parts of one. */
export function records(report, side, rows) {
  const parts = rows.map((row) => recordsOf(report, side, row));
  if (parts.length === 1) return parts[0];
  const found = new Map();
  for (const each of parts.flat()) {
    const key = `${each.what} ${each.slot}`;
    const old = found.get(key);
    if (each.role === SUMMED || old && SHARED.includes(each.role)) continue;
    found.set(key, old ? { ...old, shape: `${old.shape} + ${each.shape}`, norm: Math.hypot(old.norm, each.norm), hash: "", form: null, elements: old.elements + each.elements } : each);
  }
  return [...found.values()];
}

/** Records of both sides by phase and role: by the same slot, else by their order. */
export function paired(mine, theirs) {
  const left = [...theirs];
  return mine.map((a) => {
    const alike = left.filter((b) => b.what === a.what);
    const b = alike.find((each) => each.slot === a.slot) ?? alike[0];
    if (b) left.splice(left.indexOf(b), 1);
    return { a, b };
  }).concat(left.map((b) => ({ a: undefined, b })));
}

const isOneSize = (a, b) => (a.form !== null && b.form !== null ? a.form === b.form : a.elements === b.elements);
const apart = (a, b) => (a.norm === b.norm ? 0 : Math.abs(a.norm - b.norm) / Math.max(a.norm, b.norm));

/** What would come of comparing two records, in words and as a verdict. */
export function outlook({ a, b }) {
  if (!a || !b) return ["on one side only", "absent"];
  if (!isOneSize(a, b)) return ["other shapes", "introduced"];
  if (a.hash && a.hash === b.hash) return ["bit-equal", "equal"];
  const off = apart(a, b);
  return Number.isNaN(off) ? ["no numbers", "absent"] : [off === 0 ? "norms equal" : `norms differ by ${error(off)}`, off < WEIGHTS_AGREE ? "noise" : "inherited"];
}

const nameOf = ({ a, b }) => shown((a ?? b).slot);

/** What speaks against a pair of weights. */
function misfitOf(pair) {
  const { a, b } = pair;
  if (!a || !b) return `${nameOf(pair)} is only in ${a ? "A" : "B"}`;
  if (!isOneSize(a, b)) return `${nameOf(pair)} is ${a.shape} in A, ${b.shape} in B`;
  const off = apart(a, b);
  return off > WEIGHTS_AGREE ? `${nameOf(pair)} differs: norms ${plain(a.norm)} and ${plain(b.norm)}` : "";
}

/** How many parameters modules have, together. */
export function sizeOf(report, side, rows) {
  return rows.reduce((sum, row) => sum + report.doc.sides[side].modules.parameters[report.tree[side][row]], 0);
}

/** Whether modules fit as a pair, by their weights and by what they were given: fits, misfits with the reasons, or nothing is known. */
export function fit(report, picked) {
  const [mine, theirs] = ["a", "b"].map((side) => records(report, side, picked[side]));
  const [sizeA, sizeB] = ["a", "b"].map((side) => sizeOf(report, side, picked[side]));
  const weights = paired(...[mine, theirs].map((side) => side.filter(({ what }) => what === "init param")));
  const inputs = mine.filter(({ what }) => what === "forward input").flatMap((a) => theirs.filter(({ what }) => what === "forward input").map((b) => ({ a, b })));
  const known = inputs.filter(({ a, b }) => !isOneSize(a, b) || !Number.isNaN(apart(a, b)));
  const closest = known.reduce((best, { a, b }) => Math.min(best, isOneSize(a, b) ? apart(a, b) : Infinity), Infinity);
  const misfits = weights.map(misfitOf).filter(Boolean);
  if (!misfits.length && sizeA !== sizeB) misfits.push(`${count(sizeA, "parameter")} in A, ${sizeB.toLocaleString("en")} in B`);
  if (known.length && closest > INPUTS_DIFFER) misfits.push(closest === Infinity ? "inputs have other shapes" : `norms of inputs differ by ${error(closest)}`);
  const hasNumbers = weights.length > 0 && weights.every(({ a, b }) => a && b && !Number.isNaN(apart(a, b)));
  const isSure = known.length ? closest <= INPUTS_AGREE : hasNumbers;
  return { state: misfits.length ? "misfits" : isSure ? "fits" : "unknown", misfits, closest };
}
