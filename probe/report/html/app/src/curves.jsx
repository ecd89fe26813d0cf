// Numbers that both programs wrote down, step by step, and the norms of their gradients.

import { useState } from "preact/hooks";
import { count, error, plain, shown, value } from "./text.js";

const [WIDTH, HEIGHT] = [360, 120];
const NAMES = { lr: "learning rate", grad_norm: "gradient norm", "grad_norm of the recorded gradients": "norm of all recorded gradients" };

function line(steps, values, x, y) {
  let pen = "M";
  return values.map((each, k) => {
    if (!Number.isFinite(each)) {
      pen = "M";
      return "";
    }
    const text = `${pen}${x(steps[k])},${y(each)}`;
    pen = "L";
    return text;
  }).join("");
}

/** How far two curves are apart at most, relative to the larger. */
function apart(steps, a, b) {
  const isSeen = (each) => each.some(Number.isFinite);
  if (!b || !isSeen(a) && !isSeen(b)) return "";
  if (!isSeen(a) || !isSeen(b)) return `only in ${isSeen(a) ? "A" : "B"}`;
  const off = steps.map((_, k) => (a[k] === b[k] ? 0 : Math.abs(a[k] - b[k]) / Math.max(Math.abs(a[k]), Math.abs(b[k]))));
  const at = off.reduce((best, each, k) => (each > (off[best] || 0) ? k : best), 0);
  return off[at] > 0 ? `up to ${error(off[at])} apart, at step ${steps[at]}` : off.every((each) => each === 0) ? "equal" : "";
}

export function Curve({ curve, mark }) {
  const { name, steps, total, verdict } = curve;
  const [a, b] = [curve.a.map(value), curve.b?.map(value)];
  const all = [...a, ...(b ?? [])].filter(Number.isFinite);
  const [low, high] = [all.reduce((p, q) => Math.min(p, q), Infinity), all.reduce((p, q) => Math.max(p, q), -Infinity)];
  const [from, to] = [steps[0], steps[steps.length - 1]];
  const x = (step) => (((step - from) / (to - from || 1)) * (WIDTH - 8) + 4).toFixed(1);
  const y = (number) => (HEIGHT - 4 - (high > low ? (number - low) / (high - low) : 0.5) * (HEIGHT - 8)).toFixed(1);
  return (
    <figure class="curve">
      <figcaption><bdi>{shown(NAMES[name] ?? name)}</bdi> <span class="dim">{apart(steps, a, b)}{SAID[verdict]}</span></figcaption>
      <div class="plot">
        <div class="scale"><span>{plain(high)}</span><span>{plain(low)}</span></div>
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${shown(NAMES[name] ?? name)}${b ? " of both runs" : ""}, steps ${from} to ${to}`}>
          {mark !== undefined && mark >= from && mark <= to && <line class="mark" x1={x(mark)} x2={x(mark)} y1="0" y2={HEIGHT} />}
          <path class="curve-a" d={line(steps, a, x, y)} />{b && <path class="curve-b" d={line(steps, b, x, y)} />}
        </svg>
        <span />
        <div class="ends"><span>step {from}</span>{steps.length < total && <span>{steps.length} of {total} steps drawn</span>}<span>{to}</span></div>
      </div>
    </figure>
  );
}

/** What the verdict says of the gradients of a curve. */
const SAID = { noise: ", which rounding explains", inherited: ", inherited", introduced: ": wrong by itself" };

/** Steps at which a curve has one value only are no curve. */
const isLong = ({ steps }) => steps.length > 1;

function Once({ curves }) {
  const isAlone = curves.every(({ b }) => !b);
  if (isAlone) return <table class="statistics"><tbody>{curves.map(({ name, a }) => <tr><th><bdi>{shown(NAMES[name] ?? name)}</bdi></th><td>{plain(value(a[0]))}</td></tr>)}</tbody></table>;
  return (
    <table class="statistics">
      <thead><tr><td /><th class="tag-a">A</th><th class="tag-b">B</th><th>apart</th></tr></thead>
      <tbody>{curves.map(({ name, a, b }) => {
        const [x, y] = [value(a[0]), value(b[0])];
        const off = x === y ? 0 : Math.abs(x - y) / Math.max(Math.abs(x), Math.abs(y));
        return <tr><th><bdi>{shown(NAMES[name] ?? name)}</bdi></th><td>{plain(x)}</td><td>{plain(y)}</td><td>{off === 0 ? "equal" : error(off)}</td></tr>;
      })}</tbody>
    </table>
  );
}

function Norms({ norms, mark }) {
  const [chosen, setChosen] = useState(0);
  return (
    <div>
      <p class="choose"><label>Norm of the gradient of <select value={chosen} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
        {norms.map(({ name }, k) => <option value={k}>{shown(name)}</option>)}
      </select></label> <span class="dim">{count(norms.length, "parameter")}, {norms[0].b ? "those that differ by more than rounding first" : "the largest first"}</span></p>
      <Curve curve={norms[chosen]} mark={mark} />
    </div>
  );
}

export const hasCurves = ({ doc }) => doc.curves.scalars.length + doc.curves.norms.length > 0;

export function Curves({ report }) {
  if (!hasCurves(report)) return null;
  const { scalars, norms } = report.doc.curves;
  const [first] = report.findings;
  const mark = first && (first.a[0] ?? first.b[0]).step;
  const long = scalars.filter(isLong);
  const once = scalars.filter((curve) => !isLong(curve));
  return (
    <section class="curves" aria-label="Loss and norms over the steps">
      <h2>Loss and norms over the steps</h2>
      {long.length > 0 && !report.isAlone && <p class="dim curve-legend"><i class="stroke a" /> <b class="tag-a">A</b> <i class="stroke b" /> <b class="tag-b">B</b>{mark !== undefined && <> <i class="stroke mark" /> first divergence (step {mark})</>}</p>}
      <div class="row-of-figures">
        {long.map((curve) => <Curve key={curve.name} curve={curve} mark={mark} />)}
        {norms.length > 0 && <Norms norms={norms} mark={mark} />}
      </div>
      {once.length > 0 && <Once curves={once} />}
    </section>
  );
}
