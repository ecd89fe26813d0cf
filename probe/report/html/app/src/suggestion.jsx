// The next module of A without a counterpart, and the modules of B that it is most like: Enter pairs it with the best.

import { useMemo, useState } from "preact/hooks";
import { candidates, leftOf } from "./candidates.js";
import { count, shown } from "./text.js";

const MOST = 5;

/** The keyboard goes on where the best candidate is chosen. */
export const focusSuggestion = () => document.querySelector(".suggestion :is(input:checked, .again)")?.focus();

export function Suggestion({ report, collected, onCollected, onSelect, Preview }) {
  const [passed, setPassed] = useState(new Set());
  const [chosen, setChosen] = useState({ row: -1, other: -1 });
  const [mine, theirs] = useMemo(() => ["a", "b"].map((side) => leftOf(report, side, collected)), [report, collected]);
  const row = mine.find((each) => !passed.has(each)) ?? -1;
  const found = useMemo(() => (row < 0 ? [] : candidates(report, row, theirs, collected, MOST)), [report, row, theirs]);
  if (!mine.length || !theirs.length) return null;
  if (row < 0) {
    return <p class="suggestion">{count(mine.length, "module")} of A {mine.length === 1 ? "was" : "were"} skipped. <button class="again" onClick={() => setPassed(new Set())}>Begin again</button></p>;
  }
  const other = chosen.row === row ? chosen.other : found[0].row;
  const next = (act) => {
    act();
    requestAnimationFrame(() => requestAnimationFrame(focusSuggestion));
  };
  const add = (event) => {
    event.preventDefault();
    next(() => onCollected([...collected, { a: row, b: other, scope: "class" }]));
  };
  return (
    <form class="suggestion" aria-label="Suggested pairs" onSubmit={add}>
      <h3>Next without a counterpart <span class="dim">{mine.indexOf(row) + 1} of {mine.length} in A</span></h3>
      <div><b class="tag-a">A</b> <button type="button" class="link" onClick={() => onSelect(row)}><bdi>{shown(report.path("a", row))}</bdi> <span class="class"><bdi>{shown(report.class("a", row))}</bdi></span></button></div>
      <fieldset>
        <legend class="dim">It is most like, of {count(theirs.length, "module")} in B:</legend>
        {found.map((each) => (
          <label key={each.row}>
            <input type="radio" name="candidate" checked={each.row === other} onChange={() => setChosen({ row, other: each.row })} />
            <bdi class="path">{shown(report.path("b", each.row))}</bdi> <span class="class"><bdi>{shown(report.class("b", each.row))}</bdi></span> <span class="dim">{each.why}</span>
          </label>
        ))}
      </fieldset>
      <p><button class="main">Pair these two (Enter)</button> <button type="button" onClick={() => next(() => setPassed(new Set([...passed, row])))}>Skip</button></p>
      <Preview report={report} picked={{ a: row, b: other }} />
    </form>
  );
}
