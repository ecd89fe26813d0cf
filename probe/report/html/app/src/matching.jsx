// Matching by mouse: one unmatched module of each side, what would be compared, and the lines for a mapping.

import { useRef, useState } from "preact/hooks";
import { clear } from "./address.js";
import { copied } from "./clipboard.js";
import { NONE_PICKED } from "./model.js";
import { fit, outlook, paired, records } from "./records.js";
import { Suggestion } from "./suggestion.jsx";
import { count, plain, shown } from "./text.js";
import { lineOf, mappingText, reach } from "./yaml.js";

function Preview({ report, picked }) {
  const rows = paired(records(report, "a", picked.a), records(report, "b", picked.b));
  if (!rows.length) return <p class="dim">Nothing was recorded of either.</p>;
  const side = (each) => (each ? `${each.shape} ‖${plain(each.norm)}‖` : "–");
  return (
    <table class="preview">
      <thead><tr><th>what</th><th class="tag-a">A</th><th class="tag-b">B</th><th>as far as norms and hashes tell</th></tr></thead>
      <tbody>
        {rows.map(({ a, b }) => {
          const [text, verdict] = outlook({ a, b });
          const slots = [...new Set([a?.slot, b?.slot].filter((slot) => slot !== undefined))];
          return <tr><td>{(a ?? b).what} <bdi>{slots.map(shown).join(" ⟷ ")}</bdi></td><td>{side(a)}</td><td>{side(b)}</td><td class={`cell ${verdict}`}>{text}</td></tr>;
        })}
      </tbody>
    </table>
  );
}

function Picked({ report, side, rows, onSelect }) {
  return (
    <div>
      <b class={`tag-${side}`}>{side.toUpperCase()}</b>{" "}
      {!rows.length && <span class="dim">none picked</span>}
      {rows.map((row, k) => <>{k > 0 && " + "}<button class="link" onClick={() => onSelect(row)}><bdi>{shown(report.path(side, row))}</bdi> <span class="class"><bdi>{shown(report.class(side, row))}</bdi></span></button></>)}
    </div>
  );
}

/** The paths of what is picked on a side. */
export function Paths({ report, side, rows }) {
  if (!rows.length) return <i class="dim">choose one</i>;
  return rows.map((row, k) => <>{k > 0 && <span class="dim"> + </span>}<bdi class="path">{shown(report.path(side, row))}</bdi></>);
}

/** Send the lines to the server that the page came from, which saves them and compares again. */
async function sent(lines) {
  const answer = await fetch("pairs", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(lines) });
  if (!answer.ok) throw new Error((await answer.json()).error);
}

function Saving({ report, collected }) {
  const [state, setState] = useState({ isBusy: false, failure: "" });
  const { file } = report.doc.serving;
  const lines = collected.map((each) => lineOf(report, each, each.scope));
  const unsayable = lines.find((line) => line.unsayable);
  const save = () => {
    setState({ isBusy: true, failure: "" });
    sent(lines.map(({ section, key, target }) => ({ section, key, target }))).then(
      () => {
        history.scrollRestoration = "manual"; // the answer stands at the top
        clear();
        location.reload();
      },
      (failure) => setState({ isBusy: false, failure: failure.message === "Failed to fetch" ? "the server has ended" : failure.message }));
  };
  return (
    <p>
      <button class="main" disabled={state.isBusy || Boolean(unsayable)} onClick={save}>Save in {shown(file)} and compare again</button>{" "}
      <span role="status">{state.isBusy ? "comparing again …" : unsayable ? `a mapping cannot name ${shown(String(unsayable.key))}` : state.failure && `Not saved: ${shown(state.failure)}`}</span>
    </p>
  );
}

function Lines({ report, collected, onCollected }) {
  const [said, setSaid] = useState("");
  const text = mappingText(report, collected);
  const hasBase = Boolean(report.doc.mapping.base);
  const place = useRef(null);
  const copy = () => copied(text, place.current).then(setSaid);
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/yaml" }));
    link.download = "layer_mapping.yaml";
    link.click();
    URL.revokeObjectURL(link.href);
    setSaid("saved as layer_mapping.yaml");
  };
  const scoped = (k) => (event) => onCollected(collected.map((each, n) => (n === k ? { ...each, scope: event.currentTarget.value } : each)));
  return (
    <div class="lines" id="lines">
      <ul>
        {collected.map((each, k) => {
          const line = lineOf(report, each, each.scope);
          const many = reach(report, lineOf(report, each, "class"));
          return (
            <li>
              <Paths report={report} side="a" rows={each.a} /> ⟷ <Paths report={report} side="b" rows={each.b} />{" "}
              {!line.isTop && (
                <select aria-label="For which modules" value={each.scope} onChange={scoped(k)}>
                  <option value="class">in every such class ({many})</option>
                  <option value="path">here only</option>
                </select>
              )}
              <button class="quiet" onClick={() => onCollected(collected.filter((_, n) => n !== k))}>remove</button>
            </li>
          );
        })}
      </ul>
      {report.doc.serving && <Saving report={report} collected={collected} />}
      <p class="dim">{report.doc.serving ? "Or take them yourself: " : ""}{hasBase
        ? "these lines stand in a draft of all pairs that were found, so that each is said. Save it, and compare again with -lm layer_mapping.yaml."
        : "add these lines to your layer mapping, or save them as one, and compare again with -lm."}</p>
      {report.doc.mapping.why_not && <p class="state">Beside a mapping nothing is found by structure or values, and the pairs that were found cannot all be written down: {shown(report.doc.mapping.why_not)}</p>}
      <textarea ref={place} readOnly spellcheck={false} aria-label="Lines of the layer mapping" rows={Math.min(24, text.split("\n").length)} value={text} />
      <p><button onClick={copy}>Copy</button> <button onClick={save}>Save as a file</button> <span role="status">{said}</span></p>
    </div>
  );
}

/** At the foot of the screen, whichever tab is shown: what is picked, or how many pairs wait to be saved. */
export function Bar({ report, picked, onPicked, collected, onCollected, onShow }) {
  const [asked, setAsked] = useState(null); // what does not fit, and was to be added
  if (!picked.a.length && !picked.b.length) {
    if (!collected.length) return null;
    const show = () => {
      onShow();
      requestAnimationFrame(() => document.getElementById("lines").scrollIntoView({ block: "nearest", behavior: "instant" }));
    };
    return (
      <div class="bar" role="status">
        <span class="bar-pair">{count(collected.length, "pair")} collected</span>
        <button class="main" onClick={show}>{report.doc.serving ? "See and save" : "See and export"}</button>
      </div>
    );
  }
  const isWhole = picked.a.length > 0 && picked.b.length > 0;
  const isAsked = asked === picked;
  const { state, misfits } = isWhole ? fit(report, picked) : {};
  const add = () => {
    if (state === "misfits" && !isAsked) return setAsked(picked);
    onCollected([...collected.filter((each) => !["a", "b"].some((side) => each[side].some((row) => picked[side].includes(row)))), { ...picked, scope: "class" }]);
    onPicked(NONE_PICKED);
  };
  return (
    <div class="bar" role="status">
      <span class="bar-pair"><b class="tag-a">A</b> <Paths report={report} side="a" rows={picked.a} /> <span class="dim">⟷</span> <b class="tag-b">B</b> <Paths report={report} side="b" rows={picked.b} />
        {isAsked && <> <span class="misfit">does not fit: {misfits.join("; ")}</span></>}</span>
      <button class="link bar-link" onClick={onShow}>what would be compared</button>
      <button class="main" disabled={!isWhole} onClick={add}>{isAsked ? "Add it all the same" : "Add this pair"}</button>
      <button onClick={() => onPicked(NONE_PICKED)}>Cancel</button>
    </div>
  );
}

export const canMatch = (report) => report.rowsThatAre("unmatched").length + report.rowsThatAre("needs no partner").length > 0;

export function Matching({ report, picked, collected, onCollected, onSelect }) {
  const unmatched = report.rowsThatAre("unmatched").length;
  if (!canMatch(report)) return null;
  const [isBegun, isWhole] = [picked.a.length + picked.b.length > 0, picked.a.length > 0 && picked.b.length > 0];
  return (
    <section class="matching" id="matching" aria-label="Match by hand">
      <h2>Match by hand</h2>
      <p class="dim">{unmatched ? `${count(unmatched, "module has", "modules have")} no counterpart and ${unmatched === 1 ? "was" : "were"} not compared.` : "Every module that needs a counterpart has one."}
        {" "}Pick one on each side, or on one side all parts of one on the other (q, k and v of a fused qkv), by “match” in the tree or in the panel beside it, to see what would be compared and to write the pair down{unmatched > 0 && ", or go through what is suggested"}.</p>
      {isBegun && <><Picked report={report} side="a" rows={picked.a} onSelect={onSelect} /><Picked report={report} side="b" rows={picked.b} onSelect={onSelect} /></>}
      {isWhole && <Preview report={report} picked={picked} />}
      {!isBegun && <Suggestion report={report} collected={collected} onCollected={onCollected} onSelect={onSelect} Preview={Preview} Paths={Paths} />}
      {collected.length > 0 && <Lines report={report} collected={collected} onCollected={onCollected} />}
    </section>
  );
}
