// Numbers that both programs logged, step by step.

import { plain, shown, value } from "./text.js";

const [WIDTH, HEIGHT] = [360, 120];

function Curve({ name, a, b }) {
  const all = [...a, ...b].map(([, y]) => value(y)).filter(Number.isFinite);
  const steps = [...a, ...b].map(([step]) => step);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const [from, to] = [Math.min(...steps), Math.max(...steps)];
  const x = (step) => (((step - from) / (to - from || 1)) * (WIDTH - 8) + 4).toFixed(1);
  const y = (number) => (HEIGHT - 4 - ((number - low) / (high - low || 1)) * (HEIGHT - 8)).toFixed(1);
  const path = (points) => points.filter(([, each]) => Number.isFinite(value(each))).map(([step, each], k) => `${k ? "L" : "M"}${x(step)},${y(value(each))}`).join("");
  return (
    <figure class="curve">
      <figcaption><bdi>{shown(name)}</bdi> <span class="dim">step {from} to {to}</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${shown(name)} of both runs`}>
        <path class="curve-a" d={path(a)} /><path class="curve-b" d={path(b)} />
      </svg>
      <div class="ends"><span>{plain(low)}</span><span>{plain(high)}</span></div>
    </figure>
  );
}

export function Curves({ report }) {
  const { a, b } = report.doc.sides;
  const names = Object.keys(a.scalars).filter((name) => b.scalars[name]);
  if (!names.length) return null;
  const long = names.filter((name) => a.scalars[name].length > 1 || b.scalars[name].length > 1);
  return (
    <section class="curves" aria-label="Scalars">
      <h3>Scalars</h3>
      <div class="row-of-figures">{long.map((name) => <Curve name={name} a={a.scalars[name]} b={b.scalars[name]} />)}</div>
      {long.length < names.length && (
        <table class="statistics">
          <thead><tr><th /><th class="tag-a">A</th><th class="tag-b">B</th></tr></thead>
          <tbody>{names.filter((name) => !long.includes(name)).map((name) => (
            <tr><th><bdi>{shown(name)}</bdi></th><td>{plain(value(a.scalars[name][0]?.[1]))}</td><td>{plain(value(b.scalars[name][0]?.[1]))}</td></tr>
          ))}</tbody>
        </table>
      )}
    </section>
  );
}
