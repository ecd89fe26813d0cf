// What was recorded of modules without a partner, and how far two of them would agree.

import { error, value } from "./text.js";

const ROLES = ["param", "buffer", "input", "output", "value", "grad_output", "grad_input", "grad_total", "param_grad", "state", "delta"];
const PHASES = ["init", "forward", "loss", "backward", "gradient", "update"];

export function records(report, side, row) {
  return (report.doc.loose[side][report.tree[side][row]] ?? []).map(([phase, role, slot, call, dtype, shape, norm, hash]) => ({
    what: `${PHASES[phase]} ${ROLES[role]}`, slot: report.words[slot], call, dtype: report.words[dtype], shape: report.words[shape], norm: value(norm), hash,
  }));
}

/** Records of both sides by phase and role: by the same slot, else by their order. */
export function paired(mine, theirs) {
  const left = [...theirs];
  return mine.filter(({ call }) => call === 0).map((a) => {
    const alike = left.filter((b) => b.what === a.what && b.call === 0);
    const b = alike.find((each) => each.slot === a.slot) ?? alike[0];
    if (b) left.splice(left.indexOf(b), 1);
    return { a, b };
  }).concat(left.filter(({ call }) => call === 0).map((b) => ({ a: undefined, b })));
}

const elements = (shape) => JSON.parse(shape).filter((size) => size !== 1).sort().join();

/** What would come of comparing two records, in words and as a verdict. */
export function outlook({ a, b }) {
  if (!a || !b) return ["on one side only", "absent"];
  if (elements(a.shape) !== elements(b.shape)) return ["other shapes", "introduced"];
  if (a.hash && a.hash === b.hash) return ["bit-equal", "equal"];
  const off = Math.abs(a.norm - b.norm) / Math.max(a.norm, b.norm);
  return Number.isNaN(off) ? ["no numbers", "absent"] : [off === 0 ? "norms equal" : `norms differ by ${error(off)}`, off < 1e-3 ? "noise" : "inherited"];
}
