// What is known of nodes and edges of the graph in one phase of the chosen step: verdicts and errors of a comparison.

import { PHASES } from "../model.js";
import { count, error, shown } from "../text.js";
import { CALL, CODE } from "./flow.js";

const GIVEN = new Set(["input", "grad_output"]); // what a call is given: wrong by itself, it is the code's around the call
const BACK = { input: ["grad_input", "grad_total"], output: ["grad_output"] };
const ALONE = { unmatched: "unmatched", "needs no partner": "needs-no-partner", alone: "needs-no-partner", ignored: "ignored", part: "part" };
const GRADED = new Set(["introduced", "inherited", "noise"]); // looks of which the text is a number
const [THIN, THICK] = [1.4, 6.5];

export const named = (verdict) => verdict.replace(/ /g, "-");

export class Reading {
  constructor(report, flow, view, choice, phase) {
    Object.assign(this, { report, flow, view, choice, phase });
    this.column = PHASES.indexOf(phase);
    this.micro = choice.micro ?? report.doc.flow.micro;
    this.chosen = { step: choice.step, micro: this.micro };
    this._index();
  }

  /** What tells a tensor from the others of its micro-batch and phase; of another role, if one is given. */
  _key(i, role = this.report.doc.tensors.role[i]) {
    const t = this.report.doc.tensors;
    const words = this.report.words.length;
    return ((t.call[i] * this.report.ofPair.length + t.pair[i]) * words + role) * words + t.slot_a[i];
  }

  _index() {
    const { report, choice } = this;
    const t = report.doc.tensors;
    const given = new Set([...GIVEN].map((name) => report.words.indexOf(name)));
    this.byCall = new Map();
    this.blamed = new Map(report.findings.filter((found) => found.phase === this.phase && report._stepOf(found) === choice.step).reverse().map((found) => [found.row, found.tensor]));
    for (let i = 0; i < report.tensors; i++) {
      if (report.phase[i] !== this.column || !report.isChosen(i, this.chosen) || given.has(t.role[i])) continue;
      const key = t.call[i] * report.ofPair.length + t.pair[i];
      const old = this.byCall.get(key);
      if (old === undefined || report._tells(i, old)) this.byCall.set(key, i);
    }
  }

  /** The tensors of the chosen step and phase by their places; made when it is needed first. */
  get byPlace() {
    if (!this._byPlace) {
      this._byPlace = new Map();
      for (let i = 0; i < this.report.tensors; i++) if (this.report.phase[i] === this.column && this.report.isChosen(i, this.chosen)) this._byPlace.set(this._key(i), i);
    }
    return this._byPlace;
  }

  /** The tensor of an edge in the chosen step and phase; edges carry no weights. */
  tensor(i) {
    if (i < 0 || this.column !== 1 && this.column !== 2) return -1;
    const t = this.report.doc.tensors;
    if (this.report.phase[i] === this.column && this.report.isChosen(i, this.chosen)) return i;
    if (this.column === 1) return this.byPlace.get(this._key(i)) ?? -1;
    for (const name of BACK[this.report.words[t.role[i]]] ?? []) {
      const role = this.report.words.indexOf(name);
      const back = role < 0 ? undefined : this.byPlace.get(this._key(i, role));
      if (back !== undefined) return back;
    }
    return -1;
  }

  row(u) {
    const side = this.flow.side(u);
    const module = this.flow.get("module", u);
    return module < 0 ? 0 : this.report.rowOf[side][module];
  }

  /** The tensor that tells what a node is. */
  tells(u) {
    const { report, flow } = this;
    if (!flow.isCall(u)) return this.tensor(flow.get("tensor", u));
    const row = this.row(u);
    const pair = report.pairOf(row);
    const i = pair < 0 ? -1 : this.byCall.get(flow.get("call", u) * report.ofPair.length + pair) ?? -1;
    return i >= 0 && report.isWrong(i) ? i : this.blamed.get(row) ?? i;
  }

  /** How a node looks: a class, what is written in it, whether it is wrong by itself. */
  node(u) {
    const { report, flow } = this;
    const i = this.tells(u);
    const row = this.row(u);
    const inside = flow.isCall(u) ? this.view.inside[row] : 0;
    const isWrong = flow.isCall(u) && this.blamed.has(row);
    if (i >= 0) {
      const verdict = isWrong ? "introduced" : report.verdict(i);
      const text = report.isAlone ? report.cellText(i) : verdict === "equal" ? "=" : ["not comparable", "not judged"].includes(verdict) ? "not judged" : `${report.about(i)}${error(report.error(i))}`;
      return { look: named(verdict), text, isWrong: isWrong || report.isWrong(i), i, inside };
    }
    const state = flow.isCall(u) ? ALONE[report.tree.state[row]] : undefined;
    return { look: isWrong ? "introduced" : state ?? "unknown", text: state === "unmatched" ? state : "", isWrong, i, inside };
  }

  /** How a run of nodes looks: as the worst of them. */
  run(members) {
    const rank = { "non-finite": 7, introduced: 6, inherited: 5, unmatched: 4, "not-judged": 3, noise: 2, equal: 1 };
    const looks = members.map((u) => this.node(u));
    const worst = looks.reduce((best, each) => ((rank[each.look] ?? 0) > (rank[best.look] ?? 0) || each.look === best.look && this._far(each) > this._far(best) ? each : best));
    return { ...worst, text: GRADED.has(worst.look) ? `to ${worst.text}` : worst.look === "unknown" ? "" : worst.text, inside: looks.reduce((sum, each) => sum + each.inside, 0) };
  }

  _far({ i }) {
    return i < 0 ? -1 : this.report.error(i);
  }

  /** How an edge looks: colour of the worst that it carries, wide by its error. */
  edge({ tensors, targets, around }) {
    const { report, flow } = this;
    // what comes back through code is the gradient of what the code made: that of a sum is the same for all of its parts
    const isBack = this.column === 2 && !around.length;
    const meant = tensors.map((i, k) => (isBack && flow.get("kind", targets[k]) === CODE ? flow.get("tensor", targets[k]) : i));
    const found = meant.map((i) => this.tensor(i)).filter((i) => i >= 0);
    if (!found.length) return { look: "unknown", width: THIN, i: -1 };
    const i = found.reduce((best, each) => (report.rank[each] > report.rank[best] || report.rank[each] === report.rank[best] && report.error(each) > report.error(best) ? each : best));
    const verdict = report.verdict(i);
    const isWrong = report.isWrong(i) || verdict === "inherited";
    const width = isWrong ? 2 + (THICK - 2) * report.sizeOf(i) : THIN;
    return { look: isWrong ? "inherited" : named(verdict), width, i };
  }

  /** What goes along an edge. */
  said(i) {
    const { report } = this;
    const t = report.doc.tensors;
    return report.isAlone ? report.said(i) : `${report.words[t.dtype_a[i]]} ${report.words[t.shape_a[i]]}: ${report.verdict(i)}, ${report.said(i)}`;
  }

  // Names

  /** Both lines of a node on a side: its name below the call around it, and its class. */
  lines(u, side) {
    const { report, flow } = this;
    const i = flow[side]?.[u] ?? -1;
    if (i < 0) return ["", ""];
    const from = flow.sides[side];
    const text = report.words[from.text[i]];
    if (from.kind[i] === CODE) return [text || "code", ""];
    if (from.kind[i] !== CALL) return [`${shown(text)}`, "input"];
    const modules = report.doc.sides[side].modules;
    const path = modules.path[from.module[i]];
    const up = from.parent[i];
    const above = up >= 0 ? modules.path[from.module[up]] : "";
    const name = above && path.startsWith(above) && "./".includes(path[above.length]) ? path.slice(above.length + 1) : path;
    const kind = report.words[modules.class[from.module[i]]];
    const call = from.call[i] > 0 ? ` (call ${from.call[i] + 1})` : "";
    return [short(shown(name || kind)) + call, name ? short(shown(kind)) : ""];
  }

  /** What a run is called. */
  runLines(members, side) {
    const there = members.filter((u) => this.flow[side][u] >= 0);
    const calls = there.filter((u) => this.flow.isCall(u));
    const names = (calls.length ? calls : there).map((u) => this.lines(u, side)[0]);
    return names.length ? [names.length > 1 ? `${names[0]} … ${names[names.length - 1].split(".").pop()}` : names[0], `${count(names.length, "call")}`] : ["", ""];
  }

  title(u, side) {
    const i = this.flow[side]?.[u] ?? -1;
    const from = this.flow.sides[side];
    if (i < 0 || from.module[i] < 0) return "";
    return shown(this.report.doc.sides[side].modules.path[from.module[i]]) || "(the whole model)";
  }
}

const MOST = 30;
/** A name of bounded length: its beginning and its end. */
export function short(text) {
  return text.length <= MOST ? text : `${text.slice(0, 12)}…${text.slice(13 - MOST)}`;
}
