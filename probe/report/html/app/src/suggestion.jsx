// The next module of A without a counterpart, and the modules of B that it is most like: Enter pairs it with the one that fits.

import { useMemo, useState } from "preact/hooks";
import { candidates, leftOf } from "./candidates.js";
import { count, shown } from "./text.js";

const MOST = 5;

/** The keyboard goes on where a candidate is chosen, or can be. */
export const focusSuggestion = () => (document.querySelector(".suggestion :is(input:checked, .again)") ?? document.querySelector(".suggestion input"))?.focus();

export function Suggestion({ report, collected, onCollected, onSelect, Preview, Paths }) {
  const [passed, setPassed] = useState(new Set());
  const [chosen, setChosen] = useState({ row: -1, at: -1 });
  const [said, setSaid] = useState({ row: -1, at: -1, text: "" }); // of what was to be paired and does not fit
  const [mine, theirs] = useMemo(() => ["a", "b"].map((side) => leftOf(report, side, collected)), [report, collected]);
  const row = mine.find((each) => !passed.has(each)) ?? -1;
  const found = useMemo(() => (row < 0 ? [] : candidates(report, row, mine, theirs, collected, MOST)), [report, row, theirs]);
  if (!mine.length || !theirs.length) return null;
  if (row < 0) {
    return <p class="suggestion">{count(mine.length, "module")} of A {mine.length === 1 ? "was" : "were"} skipped. <button class="again" onClick={() => setPassed(new Set())}>Begin again</button></p>;
  }
  const at = chosen.row === row ? chosen.at : found.findIndex(({ state, isInside }) => state === "fits" && isInside);
  const isAsked = said.row === row && said.at === at && at >= 0;
  const next = (act) => {
    act();
    requestAnimationFrame(() => requestAnimationFrame(focusSuggestion));
  };
  const add = (event) => {
    event.preventDefault();
    if (at < 0) return setSaid({ row, at, text: "Nothing fits by itself: choose one by the arrow keys, or skip." });
    const { a, b, state, misfits } = found[at];
    if (state === "misfits" && !isAsked) return setSaid({ row, at, text: `It does not fit: ${misfits.join("; ")}.` });
    next(() => onCollected([...collected, { a, b, scope: "class" }]));
  };
  return (
    <form class="suggestion" aria-label="Suggested pairs" onSubmit={add}>
      <h3>Next without a counterpart <span class="dim">{mine.indexOf(row) + 1} of {mine.length} in A</span></h3>
      <div><b class="tag-a">A</b> <button type="button" class="link" onClick={() => onSelect(row)}><bdi>{shown(report.path("a", row))}</bdi> <span class="class"><bdi>{shown(report.class("a", row))}</bdi></span></button></div>
      <fieldset>
        <legend class="dim">It is most like, of {count(theirs.length, "module")} in B:</legend>
        {found.map(({ a, b, why, state }, k) => (
          <label key={`${a} ${b}`}>
            <input type="radio" name="candidate" checked={k === at} onChange={() => setChosen({ row, at: k })} />
            <Paths report={report} side="b" rows={b} /> {b.length === 1 && <span class="class"><bdi>{shown(report.class("b", b[0]))}</bdi></span>}
            {a.length > 1 && <span>for <Paths report={report} side="a" rows={a} /></span>} <span class={state === "misfits" ? "misfit" : "dim"}>{why}</span>
          </label>
        ))}
      </fieldset>
      <p><button class="main">{isAsked ? "Pair them all the same (Enter)" : "Pair these (Enter)"}</button> <button type="button" onClick={() => next(() => setPassed(new Set([...passed, row])))}>Skip</button>{" "}
        <span role="status" class="misfit">{said.row === row && said.at === at && said.text}</span></p>
      {at >= 0 && <Preview report={report} picked={found[at]} />}
    </form>
  );
}
