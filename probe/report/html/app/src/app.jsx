import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import * as address from "./address.js";
import { Curves, hasCurves } from "./curves.jsx";
import { GraphView } from "./graph/graph.jsx";
import { actOf, Help } from "./keys.jsx";
import { Bar, canMatch, Matching } from "./matching.jsx";
import { NONE_PICKED, withPicked } from "./model.js";
import { Panel } from "./panel.jsx";
import { Picture } from "./picture.jsx";
import { focusSuggestion } from "./suggestion.jsx";
import { Rest } from "./rest.jsx";
import { Pane, Tabs } from "./tabs.jsx";
import { Summary } from "./summary.jsx";
import { kindsOf, TreeView } from "./tree.jsx";
import { Verdict } from "./verdict.jsx";
import { shown } from "./text.js";

function firstChoice(report) {
  const first = report.findings[0];
  const ref = first && (first.a[0] ?? first.b[0]);
  const step = ref && report.steps.includes(ref.step) ? ref.step : report.steps[0] ?? 0;
  const micros = report.micros(step);
  return { step, micro: micros.length > 1 ? (ref && micros.includes(ref.micro) ? ref.micro : micros[0]) : null };
}

/** What is looked at first: the first divergence, or what keeps it from being told. */
const firstRow = ({ findings, doc }) => findings[0]?.row ?? doc.doubts?.find(({ row }) => row >= 0)?.row ?? 0;

/** Steps and micro-batches to choose from; one alone is only named. */
function Choice({ report, choice, onChoice }) {
  const micros = useMemo(() => report.micros(choice.step), [report, choice.step]);
  const named = (micro) => (micro < 0 ? `evaluation ${-micro - 1}` : `micro ${micro}`);
  const choose = (step, micro) => onChoice({ step, micro });
  return (
    <span class="choice">
      {report.steps.length > 1 ? (
        <select aria-label="Step" value={choice.step} onChange={(event) => {
          const step = Number(event.currentTarget.value);
          const of = report.micros(step);
          choose(step, of.length > 1 ? of[0] : null);
        }}>
          {report.steps.map((step) => <option value={step}>step {step}</option>)}
        </select>
      ) : <span>step {choice.step}</span>}
      {micros.length > 1 && (
        <select aria-label="Micro-batch" value={choice.micro ?? "all"} onChange={(event) => {
          const chosen = event.currentTarget.value;
          choose(choice.step, chosen === "all" ? null : Number(chosen));
        }}>
          <option value="all">all micro-batches</option>
          {micros.map((micro) => <option value={micro}>{named(micro)}</option>)}
        </select>
      )}
    </span>
  );
}

function Theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const [theme, setTheme] = useState(dark ? "dark" : "light");
  useEffect(() => {
    const show = (name) => () => (document.documentElement.dataset.theme = name);
    const [paper, screen] = [show("light"), show(theme)];
    screen();
    addEventListener("beforeprint", paper);
    addEventListener("afterprint", screen);
    return () => {
      removeEventListener("beforeprint", paper);
      removeEventListener("afterprint", screen);
    };
  }, [theme]);
  const other = theme === "dark" ? "light" : "dark";
  return <button class="quiet" onClick={() => setTheme(other)}>{other === "dark" ? "Dark" : "Light"}</button>;
}

export function App({ report }) {
  const [choice, setChoice] = useState(() => firstChoice(report));
  const [selected, setSelected] = useState(() => ({ row: firstRow(report), tensor: report.findings[0]?.tensor ?? -1 }));
  const [picked, setPicked] = useState(NONE_PICKED);
  const [collected, setCollected] = useState([]);
  const [tab, setTab] = useState("modules");
  const [isLarge, setLarge] = useState(false);
  const [isHelped, setHelped] = useState(false);
  const isGraphSeen = useRef(false); // it is laid out when it is looked at first
  isGraphSeen.current ||= tab === "graph";
  const view = useMemo(() => report.view(choice), [report, choice]);
  const [kind, setKind] = useState(() => kindsOf(report).find((name) => view.jumps[name].length) ?? kindsOf(report)[0]);
  const tree = useRef(null);
  const [unknown, setUnknown] = useState(null); // what an address names that is not here

  const select = (row, tensor = -1, reveal = true) => {
    setSelected({ row, tensor });
    setUnknown(null);
    address.write(report, row);
    if (!reveal) return;
    if (!["modules", "graph"].includes(tab)) setTab("modules");
    tree.current?.reveal(row);
  };
  const jump = (forwards) => {
    const stops = view.jumps[kind];
    if (!stops.length) return;
    const at = stops.indexOf(selected.row);
    const near = forwards ? (at + 1) % stops.length : (at - 1 + stops.length) % stops.length;
    select(stops[at < 0 && !forwards ? stops.length - 1 : near]);
  };
  const pick = (side, row) => setPicked(withPicked(picked, side, row));
  const keys = useRef(null);
  keys.current = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(input|select|textarea)$/i.test(event.target.tagName) && event.target.type !== "radio") return;
    if (isHelped) return;
    if (event.key === "Escape" && isLarge) setLarge(false);
    const act = {
      next: () => jump(true), previous: () => jump(false), help: () => setHelped(true), large: () => tab === "graph" && setLarge(!isLarge),
      match: () => {
        if (!canMatch(report)) return;
        setTab("matching");
        requestAnimationFrame(() => requestAnimationFrame(focusSuggestion));
      },
      copy: () => document.querySelector(".panel .copy")?.click(),
      search: () => {
        event.preventDefault();
        const focus = () => document.getElementById("search").focus();
        if (tab === "modules") return focus(); // at once: what is typed next belongs into it
        setTab("modules");
        requestAnimationFrame(() => requestAnimationFrame(focus));
      },
    }[actOf(event.key)];
    act?.();
  };
  useEffect(() => {
    const heard = (event) => keys.current(event);
    document.addEventListener("keydown", heard);
    return () => document.removeEventListener("keydown", heard);
  }, []);

  const visit = useRef(null);
  visit.current = () => {
    address.forget();
    if (location.hash.length < 2) return setUnknown(null);
    const row = address.rowOf(report, location.hash);
    if (row < 0) setUnknown(address.named(location.hash));
    else select(row);
  };
  useEffect(() => {
    const visited = () => visit.current();
    visited();
    addEventListener("hashchange", visited);
    return () => removeEventListener("hashchange", visited);
  }, []);

  useEffect(() => {
    const before = () => document.querySelectorAll("details").forEach((each) => (each.open = true));
    addEventListener("beforeprint", before);
    return () => removeEventListener("beforeprint", before);
  }, []);

  const unmatched = report.rowsThatAre("unmatched").length;
  const tabs = [
    ["modules", "Modules"], ...(report.doc.flow ? [["graph", "Graph"]] : []),
    ...(canMatch(report) ? [["matching", `Match by hand${unmatched ? ` (${unmatched})` : ""}`]] : []),
    ...(hasCurves(report) ? [["curves", "Curves"]] : []), ["rest", report.isAlone ? "How it was recorded" : "What this rests on"],
  ];
  const hasPanel = ["modules", "graph", "matching"].includes(tab);
  return (
    <>
      <header class="top">
        <strong class="brand">probe</strong>
        {report.sides.map((side) => {
          const { file, framework } = report.doc.sides[side];
          return <span class="side-name">{!report.isAlone && <><b class={`tag-${side}`}>{side.toUpperCase()}</b> </>}<bdi>{shown(file)}</bdi> <small>{framework}</small></span>;
        })}
        <span class="gap" />
        <Choice report={report} choice={choice} onChoice={setChoice} />
        <button class="quiet" title="the keys (key ?)" aria-haspopup="dialog" onClick={() => setHelped(true)}>Keys</button>
        <Theme />
      </header>
      <main class={tab === "graph" ? `graph-shown${isLarge ? " large" : ""}` : undefined}>
        {report.doc.serving?.said && <p class="news" role="status">{shown(report.doc.serving.said)}</p>}
        {unknown !== null && <p class="news unknown" role="status">The address names <bdi>{shown(unknown)}</bdi>: no module {report.isAlone ? "" : "of A or B "}has this path. <button class="quiet" onClick={() => setUnknown(null)}>ok</button></p>}
        {report.isAlone ? <Summary report={report} view={view} onSelect={select} /> : <Verdict report={report} onSelect={select} />}
        <Tabs tabs={tabs} chosen={tab} onChosen={setTab} label="Views" />
        <div class={hasPanel ? "work" : "work alone"}>
          <Pane name="modules" chosen={tab}>
            <Picture report={report} view={view} selected={selected} onSelect={select} />
            <TreeView ref={tree} report={report} view={view} choice={choice} selected={selected} onSelect={select}
              kind={kind} onKind={setKind} onJump={jump} picked={picked} onPick={pick} />
          </Pane>
          {report.doc.flow && (
            <Pane name="graph" chosen={tab}>
              {isGraphSeen.current && <GraphView report={report} view={view} choice={choice} selected={selected} onSelect={(row, tensor) => select(row, tensor, false)} isLarge={isLarge} onLarge={setLarge} />}
            </Pane>
          )}
          <Pane name="matching" chosen={tab}><Matching report={report} picked={picked} collected={collected} onCollected={setCollected} onSelect={select} /></Pane>
          <Pane name="curves" chosen={tab}><Curves report={report} /></Pane>
          <Pane name="rest" chosen={tab}><Rest report={report} /></Pane>
          <Panel report={report} choice={choice} selected={selected} onSelect={select} picked={picked} onPick={pick} />
        </div>
        <Bar report={report} picked={picked} onPicked={setPicked} collected={collected} onCollected={setCollected} onShow={() => setTab("matching")} />
      </main>
      <Help isAlone={report.isAlone} canMatch={canMatch(report)} isOpen={isHelped} onClose={() => setHelped(false)} hasGraph={Boolean(report.doc.flow)} />
    </>
  );
}
