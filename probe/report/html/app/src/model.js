// The document, indexed: rows of the tree, tensors by pair, and what a choice of step and micro-batch shows.

import { error, value } from "./text.js";

export const PHASES = ["init", "forward", "backward", "gradient", "update"];
const OWN = new Set(["output", "value", "grad_input", "grad_total", "param", "buffer", "param_grad", "delta"]);
const RANK = { introduced: 5, inherited: 4, "not judged": 3, noise: 2, equal: 1, "not comparable": 0 };
const PER_STEP = PHASES.map((name) => name === "init" || name === "gradient" || name === "update");
const INTRODUCED = RANK.introduced;
const LEAST = -7; // decimal logarithm of an error that is drawn pale, or thin

/** Nothing that is picked for a match by hand. */
export const NONE_PICKED = { a: [], b: [] };

/** What is picked once a row is picked too, or no longer: one of a side, or several parts of one on the other. */
export function withPicked(picked, side, row) {
  const isAlone = picked[side === "a" ? "b" : "a"].length > 1;
  const rest = picked[side].filter((each) => each !== row);
  return { ...picked, [side]: rest.length < picked[side].length ? rest : isAlone ? [row] : [...rest, row].sort((x, y) => x - y) };
}

/** Tell whether a module of this state may be picked for a match by hand. */
export const canBePicked = (state) => state === "unmatched" || state === "needs no partner";

/** A table with all its columns: those that hardly change are written down as runs. */
export function spread(table) {
  for (const [name, column] of Object.entries(table)) {
    if (column.runs) {
      const found = [];
      for (let k = 0; k < column.runs.length; k += 2) for (let n = column.runs[k + 1]; n > 0; n--) found.push(column.runs[k]);
      table[name] = found;
    } else if (!Array.isArray(column)) spread(column);
  }
  return table;
}

/** Do something when the browser has nothing else to do. */
export const whenIdle = (act) => (globalThis.requestIdleCallback ?? setTimeout)(() => act());

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64); // browsers of 2025
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let k = 0; k < bytes.length; k++) bytes[k] = letters.charCodeAt(k);
  return bytes;
}

/** The part of the document that stands in an element of the page. */
export async function unpacked(id) {
  const stream = new Blob([bytesOf(document.getElementById(id).textContent)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

export class Report {
  constructor(doc) {
    this.doc = doc;
    spread(doc.tensors);
    this.sides = doc.sides.b ? ["a", "b"] : ["a"];
    this.isAlone = this.sides.length === 1; // one recording, and nothing that it is held against
    this.words = doc.words;
    this.tree = doc.tree;
    this.size = doc.tree.a.length;
    this.findings = doc.findings;
    this.reasons = [...new Set(doc.pairs.reason)];
    this._indexRows();
    this._indexTensors();
    this._indexCalls();
  }

  _indexRows() {
    const { depth, state, pair } = this.tree;
    this.parent = new Int32Array(this.size).fill(-1);
    this.end = new Int32Array(this.size);
    this.rowOfPair = new Int32Array(this.doc.pairs.a.length).fill(-1);
    this.rowOf = Object.fromEntries(this.sides.map((side) => [side, new Int32Array(this.doc.sides[side].modules.path.length)]));
    const open = [];
    for (let row = 0; row < this.size; row++) {
      while (open.length > depth[row]) this.end[open.pop()] = row;
      this.parent[row] = open.length ? open[open.length - 1] : -1;
      open.push(row);
      if (state[row] === "paired") this.rowOfPair[pair[row]] = row;
      for (const side of this.sides) if (this.tree[side][row] >= 0) this.rowOf[side][this.tree[side][row]] = row;
    }
    for (const row of open) this.end[row] = this.size;
  }

  _indexTensors() {
    const t = this.doc.tensors;
    this.tensors = t.pair.length;
    this.ofPair = this.doc.pairs.a.map(() => []);
    for (let i = 0; i < this.tensors; i++) this.ofPair[t.pair[i]].push(i);
    const byWord = (column, rank) => {
      const ranks = this.words.map(rank);
      return Int8Array.from(column, (word) => ranks[word]);
    };
    this.phase = byWord(t.phase, (word) => PHASES.indexOf(word));
    this.isOwn = byWord(t.role, (word) => (OWN.has(word) ? 1 : 0));
    this.hasNonfinite = new Int8Array(this.tensors);
    t.nonfinite.forEach((i) => (this.hasNonfinite[i] = 1));
    this.steps = [...new Set(t.step)];
    this._indexVerdicts(byWord);
  }

  _indexVerdicts(byWord) {
    const t = this.doc.tensors;
    this.rank = byWord(t.verdict, (word) => RANK[word] ?? 0);
    this.findingOf = new Map(this.findings.map((found, at) => [found.tensor, at]).filter(([tensor]) => tensor >= 0));
  }

  get isDetailed() {
    return "statistics_a" in this.doc.tensors;
  }

  /** Unpack what is looked at one tensor at a time; of a large page when the browser has nothing else to do. */
  detailed(isSmall = false) {
    const begun = isSmall ? Promise.resolve() : new Promise(whenIdle);
    this._details ??= begun.then(() => unpacked("details")).then((found) => Object.assign(this.doc.tensors, spread(found)));
    return this._details;
  }

  _indexCalls() {
    const calls = this.doc.calls;
    this.callsOfPair = this.doc.pairs.a.map(() => []);
    calls.pair.forEach((pair, i) => this.callsOfPair[pair].push(i));
  }

  micros(step) {
    const t = this.doc.tensors;
    const found = new Set();
    for (let i = 0; i < this.tensors; i++) if (t.step[i] === step && !PER_STEP[this.phase[i]]) found.add(t.micro[i]);
    return [...found];
  }

  /** Tell whether a tensor belongs to a choice of step and micro-batch; null is all micro-batches. */
  isChosen(i, choice) {
    const t = this.doc.tensors;
    return t.step[i] === choice.step && (choice.micro === null || t.micro[i] === choice.micro || PER_STEP[this.phase[i]]);
  }

  verdict(i) {
    return this.words[this.doc.tensors.verdict[i]];
  }

  /** What stands in the cell of a tensor. */
  cellText(i) {
    const verdict = this.verdict(i);
    return verdict === "equal" ? (this.hasNonfinite[i] ? "NaN/Inf" : "=") : verdict === "not comparable" ? "n/c" : `${verdict === "introduced" ? "◆\u2009" : ""}${error(this.error(i))}`;
  }

  /** What is said of a tensor in a line. */
  said(i) {
    return `${this.measure(i) || "error"} ${this.about(i)}${error(this.error(i))} · ${this.limitText(i)}`;
  }

  /** Tell whether a tensor is wrong by itself. */
  isWrong(i) {
    return this.verdict(i) === "introduced";
  }

  /** What stands before an error that is estimated, or known from below only. */
  about(i) {
    const t = this.doc.tensors;
    return t.is_bound[i] ? "≥" : t.estimated[i] ? "≈" : "";
  }

  /** The sentences of the rules that stand in a column (exemption, blame) of a tensor. */
  rules(column, i) {
    const codes = this.words[this.doc.tensors[column][i]];
    return codes ? codes.split(" ").map((code) => this.doc.rules[column][code]) : [];
  }

  /** Whether a pair of tensors has this verdict. */
  has(verdict) {
    return this.doc.tensors.verdict.includes(this.words.indexOf(verdict));
  }

  /** How large an error is, from 0 to 1, by its logarithm; 1 for one that is not finite. */
  sizeOf(i) {
    const level = (Math.log10(this.error(i)) - LEAST) / -LEAST;
    return Number.isNaN(level) ? 1 : Math.max(0, Math.min(1, level));
  }

  phaseOf(i) {
    return PHASES[this.phase[i]] ?? "";
  }

  error(i) {
    return value(this.doc.tensors.error[i]);
  }

  limit(i) {
    return value(this.doc.tensors.limit[i]);
  }

  /** Whether B's modules were run alone with A's tensors: then errors are their own. */
  get isReplay() {
    return Boolean(this.doc.tensors.in_run);
  }

  /** How far what a module returns is off in a run of B by itself; NaN where that is not known. */
  inRun(i) {
    return this.isReplay ? value(this.doc.tensors.in_run[i]) : NaN;
  }

  /** Where limits come from: what rounding explains, tolerances that were chosen, or both. */
  get limitsAre() {
    if (!this.doc.tensors.is_fixed.some(Boolean)) return "explained";
    return this.doc.answer.noise.includes("; else ") ? "both" : "chosen";
  }

  /** What is judged of a tensor, where that is not the relative error of the two. */
  measure(i) {
    return this.words[this.doc.tensors.measure[i]];
  }

  /** What an error is held against: what rounding explains, or a tolerance that was chosen. */
  limitText(i) {
    if (Number.isNaN(this.limit(i))) return "not held against a limit";
    const limit = error(this.limit(i));
    if (this.doc.tensors.is_fixed[i]) return `limit ${limit}`;
    const isUpdate = this.words[this.doc.tensors.role[i]] === "delta";
    return `up to ${limit} is explained${isUpdate ? "; its length and direction are judged too" : ""}`;
  }

  /** Of two tensors of one module, the one that says more: wrong by itself, then made by the module, then further off. */
  _tells(i, j) {
    const first = (this.rank[i] === INTRODUCED) - (this.rank[j] === INTRODUCED) || this.isOwn[i] - this.isOwn[j] || this.rank[i] - this.rank[j];
    if (first) return first > 0;
    const times = (k) => this.error(k) / (this.limit(k) || 1e-300);
    return times(i) > times(j) || Number.isNaN(times(j));
  }

  /** Of tensors of several modules, the one whose verdict is worse, then the one that is further off. */
  _isWorse(i, j) {
    if (this.rank[i] !== this.rank[j]) return this.rank[i] > this.rank[j];
    return this.error(i) > this.error(j) || Number.isNaN(this.error(j));
  }

  /** What a choice shows: per row and phase the tensor that says most, the points of the picture, what stands inside. */
  view(choice) {
    const t = this.doc.tensors;
    const cells = PHASES.map(() => new Int32Array(this.size).fill(-1));
    const runs = new Float64Array(this.size).fill(NaN);
    const points = [];
    const byCall = new Map();
    const found = this.findings.filter((each) => this._stepOf(each) === choice.step);
    const introduced = found.map(({ row }) => row);
    const nonfinite = [];
    for (let i = 0; i < this.tensors; i++) {
      if (!this.isChosen(i, choice)) continue;
      const row = this.rowOfPair[t.pair[i]];
      const phase = this.phase[i];
      if (phase < 0 || row < 0) continue;
      const run = this.inRun(i);
      if (!(run <= runs[row]) && !Number.isNaN(run)) runs[row] = run;
      const old = cells[phase][row];
      if (old < 0 || this._tells(i, old)) cells[phase][row] = i;
      if (this.rank[i] === INTRODUCED) introduced.push(row);
      if (this.hasNonfinite[i]) nonfinite.push(row);
      const key = ((t.micro[i] + 4096) * 8 + phase) * 1e10 + t.pair[i] * 1e4 + t.call[i];
      const at = byCall.get(key);
      if (at === undefined) byCall.set(key, points.push(i) - 1);
      else if (this._tells(i, points[at])) points[at] = i;
    }
    for (const { row, tensor } of found.reverse()) { // the first of a row says most
      if (tensor >= 0 && this.isChosen(tensor, choice) && this.phase[tensor] >= 0) cells[this.phase[tensor]][row] = tensor;
    }
    const folded = cells.map((column) => this._folded(column));
    const places = [...new Set(introduced)];
    const inside = new Int32Array(this.size);
    for (const row of places) for (let up = this.parent[row]; up >= 0; up = this.parent[up]) inside[up]++;
    return {
      cells, folded, runs, inside, nonfinite: new Set(nonfinite),
      points: this._drawn(points),
      jumps: { introduced: places, unmatched: this.rowsThatAre("unmatched"), nonfinite: [...new Set(nonfinite)] },
    };
  }

  /** What the cells of rows show while they are folded: the worst of all that is inside. */
  _folded(column) {
    const found = Int32Array.from(column);
    for (let row = this.size - 1; row > 0; row--) {
      const [i, up] = [found[row], this.parent[row]];
      if (i >= 0 && up >= 0 && this._isSeenFolded(i) && (found[up] < 0 || this._isWorse(i, found[up]))) found[up] = i;
    }
    return found;
  }

  _isSeenFolded() {
    return true;
  }

  /** The points of the picture, each where what it shows was made; initial weights only where more than rounding is wrong with them. */
  _drawn(points) {
    const known = points.filter((i) => !Number.isNaN(this.error(i))).sort((i, j) => i - j);
    const isDull = known.every((i) => this.phaseOf(i) !== "init" || ["equal", "noise"].includes(this.verdict(i)));
    return isDull ? known.filter((i) => this.phaseOf(i) !== "init") : known;
  }

  _stepOf(found) {
    return (found.a[0] ?? found.b[0]).step;
  }

  rowsThatAre(state) {
    const found = [];
    for (let row = 0; row < this.size; row++) if (this.tree.state[row] === state) found.push(row);
    return found;
  }

  // Names

  path(side, row) {
    const module = this.tree[side]?.[row] ?? -1;
    return module < 0 ? null : this.doc.sides[side].modules.path[module];
  }

  /** The row of the module with a path, -1 if a side has none. */
  rowAt(side, path) {
    this._rowAt ??= Object.fromEntries(this.sides.map((name) => [name, new Map(this.doc.sides[name].modules.path.map((each, module) => [each, this.rowOf[name][module]]))]));
    return this._rowAt[side]?.get(path) ?? -1;
  }

  class(side, row) {
    const module = this.tree[side]?.[row] ?? -1;
    return module < 0 ? "" : this.words[this.doc.sides[side].modules.class[module]];
  }

  /** What a row is called below the nearest row around it that this side has too. */
  name(side, row) {
    const path = this.path(side, row);
    if (path === null) return null;
    if (path === "") return this.class(side, row);
    for (let up = this.parent[row]; up >= 0; up = this.parent[up]) {
      const above = this.path(side, up);
      if (above === null) continue;
      if (above === "") return path;
      return path.startsWith(above) && "./".includes(path[above.length]) ? path.slice(above.length + 1) : path;
    }
    return path;
  }

  ancestors(row) {
    const found = [];
    for (let up = this.parent[row]; up >= 0; up = this.parent[up]) found.unshift(up);
    return found;
  }

  /** The rows of the modules around a path of one side, the nearest first. */
  around(side, path) {
    const names = path === "" ? [] : path.split(".");
    return names.map((_, k) => this.rowAt(side, names.slice(0, names.length - 1 - k).join("."))).filter((row) => row >= 0);
  }

  /** The row that a tensor was recorded in. */
  rowOfTensor(i) {
    return this.rowOfPair[this.doc.tensors.pair[i]];
  }

  /** Tell whether a row is a finding that no cell of it shows. */
  isFound(row) {
    this._found ??= new Set(this.findings.filter(({ tensor }) => tensor < 0).map(({ row: at }) => at));
    return this._found.has(row);
  }

  pairOf(row) {
    return this.tree.state[row] === "paired" ? this.tree.pair[row] : -1;
  }
}
