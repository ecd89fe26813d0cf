// The data flow of both models side by side, around what is looked at: pairs at one height, the error as colour and width.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { PHASES } from "../model.js";
import { count, MEANING } from "../text.js";
import { Canvas } from "./canvas.jsx";
import { CALL, Flow } from "./flow.js";
import { Boxes, Edges, Joins, Marks, Nodes } from "./drawing.jsx";
import { GAP, oneSide, placed, sized } from "./layout.js";
import { Reading } from "./reading.js";

const SHOWN = PHASES;
const FEW = 3; // calls inside one, up to which the largest is opened too

/** The data flow of a report, made once. */
export function flowOf(report) {
  report.flow ??= new Flow(report.doc.flow);
  return report.flow;
}

/** What is looked at in the beginning: what is chosen, which is the first finding, or the model itself, unless something else was. */
function firstNode(report, flow, { row, tensor }) {
  const call = tensor >= 0 && report.rowOfTensor(tensor) === row ? report.doc.tensors.call[tensor] : 0;
  const u = nodeOf(report, flow, row, call);
  return u >= 0 ? u : nodeOf(report, flow, report.findings[0]?.row ?? 0);
}

function nodeOf(report, flow, row, call = 0) {
  for (const side of report.sides) {
    const module = report.tree[side][row];
    for (const number of [call, 0]) {
      const u = module >= 0 ? flow.callOf(side, module, number) : -1;
      if (u >= 0) return flow.isDissolved[u] ? flow.roots[0] : u;
    }
  }
  return -1;
}

/** Calls that are open at first: those around a node, or, where that is the model itself, the first ones that have several inside. */
function opened(flow, node) {
  const open = new Set(node >= 0 ? flow.ancestors(node) : []);
  if (open.size) return open;
  let [last] = flow.roots;
  while (last !== undefined) {
    open.add(last);
    const inner = flow.children[last].filter((u) => flow.isCall(u));
    const calls = inner.filter((u) => flow.children[u].length);
    last = inner.length <= FEW && calls.length ? calls.reduce((most, u) => (flow.children[u].length > flow.children[most].length ? u : most)) : undefined;
  }
  return open;
}

/** What is seen, where it stands and how it looks. */
function useScene(report, flow, reading, open, near, runs) {
  return useMemo(() => {
    const look = flow.seen(open, near, runs);
    for (const item of look.items) item.kind = item.run ? CALL : flow.get("kind", item.node);
    const edges = flow.between(look);
    const sides = flow.sides.b ? ["a", "b"] : ["a"];
    const lines = look.items.map(({ node, run }) => Object.fromEntries(["a", "b"].map((side) => [side, !sides.includes(side) ? ["", ""] : run ? reading.runLines(run, side) : reading.lines(node, side)])));
    const sizes = look.items.map(({ kind }, at) => sized(lines[at], kind));
    const all = placed(look, edges, sizes);
    const isThere = (side) => (at) => (look.items[at].run ?? [look.items[at].node]).some((u) => flow[side][u] >= 0);
    const place = Object.fromEntries(sides.map((side) => [side, oneSide(all, look, isThere(side), (k) => edges[k][side])]));
    return { look, edges, lines, sides, place, height: all.height };
  }, [flow, open, near, runs]);
}

function Legend({ report, isBack }) {
  return (
    <ul class="legend graph-legend">
      {report.isAlone ? (
        <>
          <li title={MEANING["non-finite"]}><i class="swatch introduced" />NaN or Inf</li>
          <li>number: the rms of what it made</li>
        </>
      ) : (
        <>
          <li title={MEANING.introduced}><i class="swatch introduced" />wrong by itself</li>
          <li title={MEANING.inherited}><i class="stripe inherited" />error on its way, wider where it is larger</li>
          <li title={MEANING.noise}><i class="stripe noise" />noise</li>
          <li><i class="stripe unknown" />not compared</li>
          <li><i class="frame" />unmatched</li>
        </>
      )}
      <li>{isBack ? <><b>↑</b> gradients run up, from the loss</> : <><b>↓</b> data runs down</>}</li>
      <li class="gap" />
      <li>drag or scroll to move, Ctrl and scroll to zoom, ▸ opens</li>
    </ul>
  );
}

function Tools({ phase, onPhase, phases, sides, shownSides, onSides, canvas, isLarge, onLarge }) {
  return (
    <div class="toolbar" role="toolbar" aria-label="The graph">
      <select aria-label="Phase of the graph" value={phase} onChange={(event) => onPhase(event.currentTarget.value)}>
        {phases.map((name) => <option>{name}</option>)}
      </select>
      {sides.length > 1 && (
        <select aria-label="Sides of the graph" value={shownSides} onChange={(event) => onSides(event.currentTarget.value)}>
          <option value="ab">A and B</option><option value="a">A alone</option><option value="b">B alone</option>
        </select>
      )}
      <span class="gap" />
      <span class="jumps">
        <button title="smaller (key −)" aria-label="smaller" onClick={() => canvas.current.zoom(1 / 1.25)}>−</button>
        <button title="larger (key +)" aria-label="larger" onClick={() => canvas.current.zoom(1.25)}>+</button>
        <button title="all of it (key 0)" onClick={() => canvas.current.fit()}>fit</button>
        <button title="the graph alone (key f)" aria-pressed={isLarge} onClick={() => onLarge(!isLarge)}>{isLarge ? "smaller" : "larger"}</button>
      </span>
    </div>
  );
}

export function GraphView({ report, view, choice, selected, onSelect, isLarge, onLarge }) {
  const flow = flowOf(report);
  const [focus, setFocus] = useState(() => firstNode(report, flow, selected));
  const [open, setOpen] = useState(() => opened(flow, focus));
  const [near, setNear] = useState(() => [focus].filter((u) => u >= 0));
  const [runs, setRuns] = useState(() => new Set());
  const phases = useMemo(() => {
    const found = SHOWN.filter((name, k) => k > 0 && view.cells[k].some((i) => i >= 0) || report.findings[0]?.phase === name);
    return found.length ? found : ["forward"]; // nothing was compared: the data flow alone
  }, [view]);
  const [phase, setPhase] = useState(() => (phases.includes(report.findings[0]?.phase) ? report.findings[0].phase : "forward"));
  const [shownSides, setSides] = useState(() => (matchMedia("(max-width: 700px)").matches || !flow.sides.b ? "a" : "ab"));
  const canvas = useRef(null);
  const reading = useMemo(() => new Reading(report, flow, view, choice, phase), [report, flow, view, choice, phase]);
  const scene = useScene(report, flow, reading, open, near, runs);
  const { look } = scene;
  const sides = scene.sides.filter((side) => shownSides.includes(side));
  const place = scene.place[sides[0]];
  const shift = { a: 0, b: sides.length > 1 ? scene.place.a.width + GAP : 0 };
  const full = { width: sides.reduce((sum, side) => sum + scene.place[side].width, GAP * (sides.length - 1)), height: scene.height };
  const itemOf = (u) => (u >= 0 ? look.stands[u] : -1);
  const current = itemOf(focus);
  /** Where an item stands, on the first side that has it. */
  const placeOf = (at) => sides.map((side) => scene.place[side].items[at] && { ...scene.place[side].items[at], x: scene.place[side].items[at].x + shift[side] }).find(Boolean);
  /** What should be seen first: where the chosen item stands, on all sides that have it. */
  const centre = () => {
    const [first, ...others] = sides.map((side) => scene.place[side].items[current] && { ...scene.place[side].items[current], x: scene.place[side].items[current].x + shift[side] }).filter(Boolean);
    const last = others[others.length - 1] ?? first;
    return first && { ...first, from: first.x - first.width / 2, to: last.x + last.width / 2 };
  };

  const fit = useRef(null);
  fit.current = () => canvas.current.fit(centre());
  useEffect(() => fit.current(), [shownSides, isLarge]);
  useEffect(() => { // another size of the window
    const resized = () => fit.current();
    addEventListener("resize", resized);
    return () => removeEventListener("resize", resized);
  }, []);
  const last = useRef(selected);
  const own = useRef(-1); // the row that a node chosen here belongs to: of code, that of the call around it
  useEffect(() => { // what is chosen elsewhere is brought into the picture
    const isOwn = own.current === selected.row;
    own.current = -1;
    if (last.current === selected) return;
    last.current = selected;
    if (isOwn) return;
    const t = report.doc.tensors;
    const u = nodeOf(report, flow, selected.row, selected.tensor >= 0 ? t.call[selected.tensor] : 0);
    if (u < 0 || focus >= 0 && reading.row(focus) === selected.row && flow.isCall(focus)) return;
    look4(u);
  }, [selected]);
  const look4 = (u) => {
    setFocus(u);
    if (itemOf(u) >= 0 && look.items[itemOf(u)].node === u || open.has(u)) return;
    setOpen(new Set([...open, ...flow.ancestors(u)]));
    setNear([...near, u]);
  };
  const wanted = useRef(null);
  useEffect(() => { // what was opened, or is looked at, stays on the screen
    const box = look.boxes.findIndex(({ node }) => node === focus);
    const at = box >= 0 ? place.boxes[box] : centre();
    if (at && wanted.current !== null) canvas.current.show(at.x, at.y - (box >= 0 ? at.height / 2 - 20 : 0));
    wanted.current = focus;
  }, [scene, focus]);

  const choose = (at) => {
    const { node, run, id } = look.items[at];
    if (run) {
      setRuns(new Set([...runs, id]));
      return;
    }
    setFocus(node);
    last.current = null;
    own.current = reading.row(node);
    onSelect(reading.row(node), reading.node(node).i);
  };
  const toggle = (u) => {
    if (!flow.children[u].length) return;
    const next = new Set(open);
    if (!next.delete(u)) next.add(u);
    setOpen(next);
    setFocus(u);
  };
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const go = keyed(event.key, scene, placeOf, current, canvas);
    if (go === undefined && !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Enter" || event.key === " ") {
      if (current >= 0 && look.items[current].run) choose(current);
      else if (focus >= 0) toggle(focus);
    } else if (go >= 0) choose4(go);
  };
  const choose4 = (at) => {
    const { node, run } = look.items[at];
    if (run) setFocus(run[0]);
    else choose(at);
  };
  const isBack = phase === "backward";
  return (
    <div class="graph">
      <Tools phase={phase} onPhase={setPhase} phases={phases} sides={scene.sides} shownSides={shownSides} onSides={setSides} canvas={canvas} isLarge={isLarge} onLarge={onLarge} />
      <Canvas ref={canvas} {...full} heads={sides.length > 1 ? sides.map((side) => ({ text: side.toUpperCase(), name: `tag-${side}`, from: shift[side], to: shift[side] + scene.place[side].width })) : []} onKeyDown={onKey} active={current >= 0 ? `node-${sides[0]}-${current}` : undefined}
        label={`Data flow, ${phase}: ${count(look.items.length, "node")} are shown. Arrow keys follow the data, Enter opens and closes, plus, minus and 0 zoom.`}>
        <Marks />
        <Joins scene={scene} reading={reading} shift={shift} sides={sides} current={current} />
        {sides.map((side) => (
          <g key={side} transform={`translate(${shift[side]},0)`} class={`side-${side}`}>
            <Boxes scene={scene} reading={reading} side={side} onToggle={toggle} focus={focus} />
            <Edges scene={scene} reading={reading} side={side} isBack={isBack} current={current} />
            <Nodes scene={scene} reading={reading} side={side} current={current} onChoose={choose} onToggle={toggle} />
          </g>
        ))}
      </Canvas>
      <Legend report={report} isBack={isBack} />
    </div>
  );
}

/** Where a key leads: along the nearest edge, or to what stands beside; undefined for other keys. */
function keyed(key, { edges, look }, placeOf, current, canvas) {
  const way = { ArrowUp: ["to", "from"], ArrowDown: ["from", "to"] }[key];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
  const here = current >= 0 ? placeOf(current) : undefined;
  const apart = (at) => {
    const there = placeOf(at);
    return there ? Math.hypot(there.x - here.x, there.y - here.y) : Infinity;
  };
  const nearest = (found) => (found.length ? found.reduce((best, at) => (apart(at) < apart(best) ? at : best)) : -1);
  if (key === "+" || key === "=") canvas.current.zoom(1.25);
  else if (key === "-") canvas.current.zoom(1 / 1.25);
  else if (key === "0") canvas.current.fit();
  else if (key === "Home") return 0;
  else if (key === "End") return look.items.length - 1;
  else if (way && here) return nearest(edges.filter((each) => each[way[0]] === current).map((each) => each[way[1]]));
  else if (step && here) {
    return nearest(look.items.flatMap((_, at) => {
      const there = placeOf(at);
      return there && Math.abs(there.y - here.y) < 30 && step * (there.x - here.x) > 0 ? [at] : [];
    }));
  } else return undefined;
  return -1;
}
