// The document of one recording: numbers in the place of errors, and nothing that is held against a limit.

import { Report } from "./model.js";
import { plain, value } from "./text.js";

/** The statistics that the cells can show. */
export const NUMBERS = ["rms", "norm", "mean", "min", "max", "zeros"];
const BAD = { nan: "NaN", posinf: "Inf", neginf: "−Inf" };

/** Any number, short enough for a cell. */
function brief(number) {
  if (!Number.isFinite(number) || number === 0) return plain(number);
  const size = Math.abs(number);
  return size >= 1e-3 && size < 1e5 ? String(Number(number.toPrecision(4))) : number.toExponential(2);
}

export class Run extends Report {
  _indexVerdicts() {
    this.rank = new Int8Array(this.tensors);
    this.findingOf = new Map();
  }

  statistic(i, name) {
    return value(this.doc.tensors.statistics_a[name][i]);
  }

  verdict(i) {
    return this.hasNonfinite[i] ? "non-finite" : "recorded";
  }

  isWrong(i) {
    return this.hasNonfinite[i] === 1;
  }

  cellText(i, name = "rms") {
    const bad = Object.keys(BAD).find((each) => this.statistic(i, each) > 0);
    return bad ? BAD[bad] : brief(this.statistic(i, name));
  }

  said(i) {
    const t = this.doc.tensors;
    return `rms ${this.cellText(i)} · ${this.words[t.dtype_a[i]]} ${this.words[t.shape_a[i]]}`;
  }

  /** The size of a tensor's elements: what the picture shows. */
  error(i) {
    return this.hasNonfinite[i] ? Infinity : this.statistic(i, "rms");
  }

  limit() {
    return NaN;
  }

  get limitsAre() {
    return "";
  }

  about() {
    return "";
  }

  rules() {
    return [];
  }

  /** Of two tensors of one module, the one that says more: made by the module, then not finite, then what an optimizer changed, then the first. */
  _tells(i, j) {
    return (this.isOwn[i] - this.isOwn[j] || this.hasNonfinite[i] - this.hasNonfinite[j] || this._isUpdate(i) - this._isUpdate(j)) > 0;
  }

  _isWorse(i, j) {
    return this.hasNonfinite[i] > this.hasNonfinite[j];
  }

  /** Numbers of other modules say nothing of the one around them, unless they are not finite. */
  _isSeenFolded(i) {
    return this.isWrong(i);
  }

  _isUpdate(i) {
    return this.words[this.doc.tensors.role[i]] === "delta";
  }

  _drawn(points) {
    return points.filter((i) => !Number.isNaN(this.error(i))).sort((i, j) => i - j);
  }
}
