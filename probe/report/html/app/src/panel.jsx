// Everything that is known of one row: both modules, why they are a pair, their calls and their tensors.

import { useEffect, useRef, useState } from "preact/hooks";
import { copied } from "./clipboard.js";
import { Drawn } from "./drawn.jsx";
import { Experts } from "./experts.jsx";
import { canBePicked, PHASES } from "./model.js";
import { Source } from "./source.jsx";
import { base, count, error, headline, MEANING, plain, shown, value } from "./text.js";

const STATISTICS = ["min", "max", "mean", "rms", "norm", "zeros", "nan", "posinf", "neginf"];
const COUNTS = ["zeros", "nan", "posinf", "neginf"]; // said where there are any
const MOST_NAMES = 4;
const STATES = {
  part: "One of several modules that are one on the other side: all of them are compared together, in the row of the first.",
  unmatched: "It was called and has no counterpart: nothing of it was compared.",
  "needs no partner": "It has no counterpart and needs none: it passes on what it is given, or stands for what is a function on the other side. What it holds is compared.",
  alone: "An operation that one side alone calls: the code of the two differs here, and is compared behind it.",
  uncalled: "It has no counterpart and was never called: there is nothing to compare.",
  ignored: "The layer mapping leaves it out.",
  "passed over": "A wrapper, which only passes on: looked through.",
};

/** Copies a path as it is, though it is shown without what a reader cannot see. */
function Copy({ path, side, shownBy }) {
  const [said, setSaid] = useState("");
  useEffect(() => setSaid(""), [path]);
  return (
    <span class="copying">
      <button class="quiet copy" title={`copy this path${side === "b" ? "" : " (key c)"}`} aria-label={`copy the path of ${side ? side.toUpperCase() : "the module"}`}
        onClick={() => copied(path, shownBy.current).then(setSaid)}>copy</button>
      <span class="dim" role="status">{said}</span>
    </span>
  );
}

function Module({ report, side, row }) {
  const shownBy = useRef(null);
  const path = report.path(side, row);
  const tag = report.isAlone ? null : <b class={`tag-${side}`}>{side.toUpperCase()}</b>;
  if (path === null) return <tr><th>{tag}</th><td class="dim">no counterpart</td></tr>;
  const modules = report.doc.sides[side].modules;
  const module = report.tree[side][row];
  const file = report.words[modules.file[module]];
  return (
    <tr>
      {tag && <th>{tag}</th>}
      <td>
        <div class="path-line">
          <bdi class="path" ref={shownBy}>{shown(path) || "(the whole model)"}</bdi>
          {path && <Copy path={path} side={report.isAlone ? "" : side} shownBy={shownBy} />}
        </div>
        <div class="dim">
          <bdi>{shown(report.class(side, row))}</bdi>
          {file && <> · <span title={shown(file)}><bdi>{shown(base(file))}</bdi>:{modules.line[module]}</span></>}
          {report.words[modules.called[module]] && <> · called at <span title={shown(report.words[modules.called[module]])}><bdi>{shown(base(report.words[modules.called[module]]))}</bdi></span></>}
          {modules.parameters[module] > 0 && <> · {count(modules.parameters[module], "parameter")}</>}
        </div>
      </td>
    </tr>
  );
}

function Match({ report, row }) {
  const pair = report.pairOf(row);
  if (pair < 0) return <p class="state">{STATES[report.tree.state[row]]}</p>;
  const sure = report.doc.pairs.confidence[pair];
  return <p class="state">Matched: <b>{report.doc.pairs.reason[pair]}</b>{sure < 1 && <>, {Math.round(sure * 100)} % sure</>}</p>;
}

function Calls({ report, pair, choice }) {
  const calls = report.doc.calls;
  const chosen = report.callsOfPair[pair].filter((i) => calls.step[i] === choice.step && (choice.micro === null || calls.micro[i] === choice.micro));
  if (!chosen.length) return null;
  const mode = (training) => (training ? "train" : "eval");
  const said = new Map();
  for (const i of chosen) {
    const modes = report.isAlone || calls.training_a[i] === calls.training_b[i] ? `${mode(calls.training_a[i])} mode` : `A in ${mode(calls.training_a[i])}, B in ${mode(calls.training_b[i])} mode`;
    const cast = report.words[calls.autocast[i]];
    const text = [modes, calls.gradients[i] ? "" : "no gradients", cast && `autocast ${cast}`].filter(Boolean).join(", ");
    said.set(text, (said.get(text) ?? 0) + 1);
  }
  return <p class="state">{[...said].map(([text, times]) => `${count(times, "call")}: ${text}`).join("; ")}</p>;
}

function Metrics({ report, i }) {
  if (report.isAlone) return null;
  const t = report.doc.tensors;
  const about = report.about(i);
  const at = report.words[t.max_abs_at[i]];
  const rows = [
    ["relative error", `${about}${error(value(t.rel_l2[i]))}`], ["judged", `${report.measure(i) && `${report.measure(i)} `}${about}${error(report.error(i))}, ${report.limitText(i)}`],
    ["sources", error(value(t.sources[i]))],
    ["cosine", plain(value(t.cosine[i]))], ["coherence", plain(value(t.coherence[i]))], ["norm B/A", plain(value(t.norm_ratio[i]))],
    ["max |Δ|", `${plain(value(t.max_abs[i]))}${at ? ` at ${at}` : ""}`], ["max |Δ| / value", error(value(t.max_rel[i]))], ["mean |Δ|", error(value(t.mean_abs[i]))],
  ].filter(([, text]) => text !== "–");
  return <dl class="metrics">{rows.map(([name, text]) => <><dt title={MEANING[name]}>{name}</dt><dd>{text}</dd></>)}</dl>;
}

function Statistics({ report, i }) {
  const t = report.doc.tensors;
  const { sides } = report;
  const rows = STATISTICS.map((name) => [name, sides.map((side) => value(t[`statistics_${side}`][name][i]))]);
  const isSame = ([a, b]) => !report.isAlone && (a === b || Number.isNaN(a));
  return (
    <table class="statistics">
      {!report.isAlone && <thead><tr><td /><th class="tag-a">A</th><th class="tag-b">B</th></tr></thead>}
      <tbody>
        {["dtype", "shape"].map((name) => <tr><th>{name}</th>{sides.map((side) => <td>{report.words[t[`${name}_${side}`][i]]}</td>)}</tr>)}
        {rows.filter(([name, each]) => !COUNTS.includes(name) || each.some(Boolean)).map(([name, each]) => (
          <tr class={isSame(each) ? "same" : ""}><th>{name}</th>{each.map((number) => <td>{plain(number)}</td>)}</tr>
        ))}
      </tbody>
    </table>
  );
}

/** What is unpacked when it is looked at first. */
function Measured({ report, i }) {
  const [isThere, setThere] = useState(report.isDetailed);
  useEffect(() => {
    if (!isThere) report.detailed().then(() => setThere(true));
  }, []);
  return isThere ? <><Metrics report={report} i={i} /><Statistics report={report} i={i} /></> : <p class="dim">Unpacking …</p>;
}

/** Of a tensor that shows what is wrong elsewhere: where. */
function Charged({ report, i, onSelect }) {
  const found = report.findings[report.findingOf.get(i)];
  if (!found || found.row === report.rowOfTensor(i)) return null;
  const path = report.path("a", found.row) ?? report.path("b", found.row);
  return <p class="state charged">◆ Shown here, charged to <button class="link" onClick={() => onSelect(found.row)}><bdi>{shown(path) || "the whole model"}</bdi></button>: {headline(found)}</p>;
}

/** What an exemption makes of a tensor: noise that has one is healed, since every use takes the difference back. */
const exempted = (report, i) => report.verdict(i) === "noise" ? "healed" : report.verdict(i);

/** Which rules judged a tensor: what --why prints. */
function Rules({ report, i }) {
  const [[left], [who]] = ["exemption", "blame"].map((column) => report.rules(column, i));
  const limit = report.isAlone ? "" : report.words[report.doc.tensors.why_limit[i]];
  return (
    <>
      {left && <p class="state">{exempted(report, i)}: {left}</p>}
      {who && <p class="state">Who answers: {who}</p>}
      {limit && <p class="state">Why this limit: {limit}</p>}
    </>
  );
}

/** What was not judged, or not as it is, of the chosen module, each reason once with the tensors that it holds for. */
function Exempt({ report, chosen }) {
  if (report.isAlone) return null;
  const t = report.doc.tensors;
  const said = new Map();
  for (const i of chosen) {
    const [left] = report.rules("exemption", i);
    const why = left ?? shown(report.words[t.why_not[i]]);
    if (!why) continue;
    const text = `${left ? exempted(report, i) : report.verdict(i)}: ${why}`;
    const name = `${report.words[t.role[i]]} ${shown(report.words[t.slot_a[i]])}`;
    said.set(text, new Set([...(said.get(text) ?? []), name]));
  }
  return [...said].map(([text, names]) => (
    <p class="state exempt">{[...names].slice(0, MOST_NAMES).map((name, k) => <>{k > 0 && ", "}<bdi>{name}</bdi></>)}{names.size > MOST_NAMES && ` and ${names.size - MOST_NAMES} more`}: {text}</p>
  ));
}

function Tensor({ report, i, isOpen, onToggle, several, onSelect }) {
  const t = report.doc.tensors;
  const verdict = report.verdict(i);
  const [a, b] = report.sides.map((side) => report.words[t[`slot_${side}`][i]]);
  const finding = report.findingOf.get(i);
  const drawn = finding === undefined ? null : report.findings[finding].drawn;
  const why = report.isAlone ? "" : report.words[t.why_not[i]];
  return (
    <li class={isOpen ? "tensor open" : "tensor"}>
      <button class="line" aria-expanded={isOpen} onClick={onToggle}>
        <span class="slot"><span title={MEANING[report.words[t.role[i]]]}>{report.words[t.role[i]]}</span> <bdi>{shown(a)}</bdi>{b !== undefined && b !== a && <> ⟷ <bdi>{shown(b)}</bdi></>}
          {several && <span class="dim"> {t.micro[i] !== 0 && `micro ${t.micro[i]} `}{t.call[i] > 0 && `call ${t.call[i]}`}</span>}</span>
        <span class="shape">{report.words[t.shape_a[i]]}</span>
        <span class={`cell ${verdict.replace(/ /g, "-")}`} style={verdict === "inherited" ? { "--size": report.sizeOf(i).toFixed(2) } : undefined}>{report.cellText(i).replace("◆", "").trim()}</span>
        <span class="said" title={MEANING[verdict]}>{report.isAlone ? report.words[t.dtype_a[i]] : verdict}</span>
      </button>
      {isOpen && (
        <div class="detail">
          <Charged report={report} i={i} onSelect={onSelect} />
          {why && <p class="state">{shown(why)}</p>}
          <Rules report={report} i={i} />
          <Measured report={report} i={i} />
          {drawn ? <Drawn drawn={drawn} /> : report.findings[finding]?.not_drawn && <p class="dim">Not drawn: {report.findings[finding].not_drawn}.</p>}
        </div>
      )}
    </li>
  );
}

function Finding({ report, found, onSelect }) {
  const elsewhere = found.tensor >= 0 ? report.rowOfTensor(found.tensor) : found.row;
  const inherits = (report.ofPair[report.pairOf(found.row)] ?? []).some((i) => report.verdict(i) === "inherited");
  return (
    <div class="finding">
      <b>◆ {headline(found)}</b>
      {found.evidence.map((line) => <p>{shown(line)}</p>)}
      {found.hint && <p class="hint">→ {shown(found.hint)}</p>}
      {found.hints.slice(1).map((hint) => <p class="dim">or {shown(hint.found)}: {shown(hint.check)}</p>)}
      {found.blame && <p class="dim">Who answers: {report.doc.rules.blame[found.blame]}</p>}
      <p class="dim">confidence {found.confidence.toFixed(2)}</p>
      {elsewhere !== found.row && <p><button class="link" onClick={() => onSelect(elsewhere, found.tensor)}>where it shows first: {found.role} of <bdi>{shown(report.path("a", elsewhere))}</bdi></button></p>}
      {elsewhere !== found.row && inherits && <p class="dim">What reads “inherited” below has the error from there.</p>}
    </div>
  );
}

function Tensors({ report, pair, choice, wanted, onSelect }) {
  const [open, setOpen] = useState(new Set());
  const chosen = report.ofPair[pair].filter((i) => report.isChosen(i, choice));
  useEffect(() => {
    const first = wanted >= 0 ? wanted : chosen.find((i) => report.findingOf.has(i)) ?? chosen.find((i) => report.verdict(i) === "introduced");
    setOpen(new Set(first === undefined ? [] : [first]));
  }, [pair, wanted]);
  const t = report.doc.tensors;
  const several = new Set(chosen.map((i) => `${t.micro[i]} ${t.call[i]}`)).size > 1;
  const toggle = (i) => {
    const next = new Set(open);
    if (!next.delete(i)) next.add(i);
    setOpen(next);
  };
  if (!chosen.length) return <p class="dim">No tensor of it was {report.isAlone ? "recorded" : "compared"} in this step.</p>;
  const inPhases = PHASES.map((phase) => {
    const here = chosen.filter((i) => report.phaseOf(i) === phase);
    return here.length > 0 && (
      <>
        <h3>{phase}</h3>
        <ul class="tensors">{here.map((i) => <Tensor key={i} report={report} i={i} isOpen={open.has(i)} onToggle={() => toggle(i)} several={several} onSelect={onSelect} />)}</ul>
      </>
    );
  });
  return <><Exempt report={report} chosen={chosen} />{inPhases}</>;
}

export function Panel({ report, choice, selected, onSelect, picked, onPick }) {
  const { row } = selected;
  const pair = report.pairOf(row);
  const state = report.tree.state[row];
  const found = report.findings.filter((each) => each.row === row);
  const whole = state === "part" ? report.rowOfPair[report.tree.pair[row]] : -1;
  const side = report.tree.a[row] >= 0 ? "a" : "b";
  return (
    <aside class="panel" aria-label="The chosen module">
      <table class="modules"><tbody>{report.sides.map((name) => <Module key={name} report={report} side={name} row={row} />)}</tbody></table>
      {!report.isAlone && <Match report={report} row={row} />}
      {whole >= 0 && <button onClick={() => onSelect(whole)}>go to that row</button>}
      {canBePicked(state) && <button aria-pressed={picked[side].includes(row)} onClick={() => onPick(side, row)}>{picked[side].includes(row) ? "no longer chosen for a match" : `choose as ${side.toUpperCase()} of a match`}</button>}
      {found.map((each) => <Finding report={report} found={each} onSelect={onSelect} />)}
      <Experts report={report} row={row} choice={choice} onSelect={onSelect} />
      <Source key={row} report={report} row={row} />
      {pair >= 0 && <><Calls report={report} pair={pair} choice={choice} /><Tensors report={report} pair={pair} choice={choice} wanted={selected.tensor} onSelect={onSelect} /></>}
    </aside>
  );
}
