// How routers spread the tokens over their experts: the load of both sides beside each other.

import { Ends, outline, WIDTH } from "./drawn.jsx";
import { plain, shown } from "./text.js";

const HEIGHT = 60;
const MOST = 100; // routers that are listed
const short = (number) => (number === null || number === undefined ? "–" : number.toFixed(2));

const FACTS = [
  ["chosen", (load) => `${load.k ?? "?"} of ${load.experts}`],
  ["tokens", (load) => (load.tokens === null ? "–" : plain(load.tokens))],
  ["load / mean, least", (load) => short(load.load_min)],
  ["load / mean, most", (load) => short(load.load_max)],
  ["without a token", (load) => plain(load.unused)],
  ["entropy", (load) => short(load.entropy)],
  ["entropy of the load", (load) => short(load.load_entropy)],
];

function Bars({ loads }) {
  const sides = Object.keys(loads);
  const shares = sides.map((side) => loads[side].tokens_per_expert.map((count) => (count * loads[side].experts) / (loads[side].tokens_per_expert.reduce((p, q) => p + q, 0) || 1)));
  const most = Math.max(1, ...shares.flat());
  const mean = HEIGHT - (HEIGHT - 2) / most;
  return (
    <figure>
      <figcaption>Load of each expert <span class="dim">(dotted: the mean; up to {short(most)}× of it)</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`Load of each expert${sides.length > 1 ? " on both sides" : ""}, up to ${short(most)} times the mean`}>
        {sides.map((side, k) => <path class={`hist-${side}`} d={outline(shares[k], most, HEIGHT)} />)}
        <line class="mean" x1="0" x2={WIDTH} y1={mean} y2={mean} />
      </svg>
      <Ends from="expert 0" to={loads[sides[0]].experts - 1} />
    </figure>
  );
}

function One({ loads }) {
  const sides = Object.keys(loads);
  const isAlone = sides.length === 1 && sides[0] === "a";
  return (
    <>
      <Bars loads={loads} />
      <table class="statistics">
        {!isAlone && <thead><tr><td />{sides.map((side) => <th class={`tag-${side}`}>{side.toUpperCase()}</th>)}</tr></thead>}
        <tbody>{FACTS.map(([name, text]) => {
          const texts = sides.map((side) => text(loads[side]));
          return <tr class={texts.length > 1 && texts[0] === texts[1] ? "same" : ""}><th>{name}</th>{texts.map((each) => <td>{each}</td>)}</tr>;
        })}</tbody>
      </table>
      {sides.filter((side) => loads[side].own_choices).map((side) => <p class="dim">What {side.toUpperCase()} would have chosen: it took the other run's choices.</p>)}
    </>
  );
}

function Several({ report, found, onSelect }) {
  const { sides } = report;
  const heads = sides.map((side) => <th class={`tag-${side}`}>{side.toUpperCase()}</th>);
  return (
    <table class="statistics routers">
      <thead>
        <tr><td /><th colSpan={sides.length}>load, most</th><th colSpan={sides.length}>entropy</th></tr>
        {!report.isAlone && <tr><td />{heads}{heads}</tr>}
      </thead>
      <tbody>{[...found].slice(0, MOST).map(([row, loads]) => {
        const path = report.path("a", row) ?? report.path("b", row);
        return (
          <tr>
            <th title={shown(path)}><button class="link" onClick={() => onSelect(row)}><bdi>{shown(path)}</bdi></button></th>
            {["load_max", "entropy"].map((name) => sides.map((side) => <td>{short(loads[side]?.[name])}</td>))}
          </tr>
        );
      })}</tbody>
    </table>
  );
}

/** The routers in a row of the tree: bars of a single one, a line for each of several. */
export function Experts({ report, row, choice, onSelect }) {
  const found = new Map();
  for (const side of report.sides) {
    for (const load of report.doc.experts?.[side] ?? []) {
      const at = report.rowOf[side][load.module];
      if (load.step === choice.step && at >= row && at < report.end[row]) found.set(at, { ...found.get(at), [side]: load });
    }
  }
  if (!found.size) return null;
  return <><h3>experts</h3>{found.size === 1 ? <One loads={[...found.values()][0]} /> : <Several report={report} found={found} onSelect={onSelect} />}</>;
}
