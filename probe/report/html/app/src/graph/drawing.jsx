// The parts of the graph as SVG: boxes of open calls, edges, nodes, and what joins the two sides.

import { count, shown } from "../text.js";
import { CODE, INPUT } from "./flow.js";
import { bowed, curve } from "./layout.js";

const LOOKS = ["introduced", "inherited", "noise", "equal", "unknown", "recorded"];

const HEADS = { introduced: 17, inherited: 17 }; // of wide edges

/** Heads of arrows, in every colour. */
export function Marks() {
  return (
    <defs>
      {LOOKS.map((look) => (
        <marker key={look} id={`head-${look}`} viewBox="0 0 8 8" refX="6.5" refY="4" markerWidth={HEADS[look] ?? 11} markerHeight={HEADS[look] ?? 11} markerUnits="userSpaceOnUse" orient="auto-start-reverse">
          <path class={`head ${look}`} d="M0,0.5L8,4L0,7.5Z" />
        </marker>
      ))}
    </defs>
  );
}

const headOf = (look) => `url(#head-${LOOKS.includes(look) ? look : "unknown"})`;

export function Boxes({ scene, reading, side, onToggle, focus }) {
  const { flow } = reading;
  return scene.look.boxes.map(({ node }, k) => {
    const at = scene.place[side].boxes[k];
    if (flow[side][node] < 0 || !at) return null;
    const [name, kind] = reading.lines(node, side);
    const left = at.x - at.width / 2;
    const top = at.y - at.height / 2;
    return (
      <g key={node} class={node === focus ? "graph-box chosen" : "graph-box"}>
        <rect x={left} y={top} width={at.width} height={at.height} rx="8" />
        <g class="box-name" role="button" aria-label={`close ${name}${kind && ` ${kind}`}`} onClick={() => onToggle(node)}>
          <rect class="hit" x={left + 4} y={top + 3} width={Math.max(20, at.width - 8)} height="16" />
          <text x={left + 8} y={top + 15}><tspan aria-hidden="true">▾ </tspan><tspan class="strong">{name}</tspan>{kind && ` ${kind}`}<title>{reading.title(node, side)}</title></text>
        </g>
      </g>
    );
  });
}

export function Edges({ scene, reading, side, isBack, current }) {
  return scene.edges.map((edge, k) => {
    const { ways, items } = scene.place[side];
    const isSeen = !edge.isAside || (current === edge.from || current === edge.to) && items[edge.from] && items[edge.to];
    if (!edge[side] || !isSeen) return null;
    const points = edge.isAside ? bowed(items[edge.from], items[edge.to]) : ways[k];
    const { look, width, i } = reading.edge(edge);
    const ends = isBack ? { "marker-start": headOf(look) } : { "marker-end": headOf(look) };
    return (
      <g key={`${edge.from} ${edge.to}`}>
        <path class={`edge ${look}${edge.isKnown ? "" : " guess"}`} d={curve(points, 0)} style={{ strokeWidth: width }} {...ends} />
        {i >= 0 && <path class="edge-hit" d={curve(points, 0)}><title>{reading.said(i)}</title></path>}
      </g>
    );
  });
}

/** What is a pair: a line from A's node to B's. */
export function Joins({ scene, reading, shift, sides, current }) {
  if (sides.length < 2) return null;
  const { flow } = reading;
  return scene.look.items.map((item, k) => {
    const [from, to] = ["a", "b"].map((name) => scene.place[name].items[k]);
    if (!from || !to) return null;
    const { look } = item.run ? reading.run(item.run) : reading.node(item.node);
    return <line key={k} class={`join ${look}${k === current ? " chosen" : ""}`} x1={from.x + from.width / 2} x2={to.x - to.width / 2 + shift.b} y1={from.y} y2={to.y} />;
  });
}

function Node({ scene, reading, side, k, isCurrent, onChoose, onToggle }) {
  const { flow } = reading;
  const item = scene.look.items[k];
  const at = scene.place[side].items[k];
  const { node, run } = item;
  const [name, small] = scene.lines[k][side];
  const { look, text, isWrong, inside } = run ? reading.run(run) : reading.node(node);
  const kind = run ? -1 : flow.get("kind", node);
  const hasInner = !run && flow.children[node].length > 0;
  const [left, top] = [at.x - at.width / 2, at.y - at.height / 2];
  const state = text ? (look === "equal" ? "equal" : `${look} ${text}`) : look;
  const label = `${side.toUpperCase()} ${name} ${small}: ${state}${inside > 0 ? `, ${count(inside, "place")} inside wrong by itself` : ""}`;
  return (
    <g id={`node-${side}-${k}`} role="img" aria-label={label} class={`node ${look}${kind === CODE ? " code" : kind === INPUT ? " input" : run ? " run" : ""}${isCurrent ? " chosen" : ""}`}
      onClick={() => onChoose(k)} onDblClick={() => (hasInner ? onToggle(node) : undefined)}>
      <title>{run ? `${shown(name)}: click to unfold` : `${reading.title(node, side)}${text ? `\n${look} ${text}` : ""}`}</title>
      {run && <rect class="behind" x={left + 4} y={top + 4} width={at.width} height={at.height} rx="6" />}
      <rect x={left} y={top} width={at.width} height={at.height} rx={kind === CODE || kind === INPUT ? at.height / 2 : 6} />
      {kind === CODE ? <text class="middle" x={at.x} y={at.y + 4}>{name}</text> : (
        <>
          <text x={left + 9} y={top + 15} class="strong">{isWrong && <tspan class="diamond">◆ </tspan>}{name}</text>
          <text x={left + 9} y={top + 29} class="small">{small}</text>
          <text x={left + at.width - 8} y={top + 29} class="error">{text}</text>
        </>
      )}
      {hasInner && (
        <g class="opener" onClick={(event) => {
          event.stopPropagation();
          onToggle(node);
        }}><rect class="hit" x={left + at.width - 18} y={top} width="18" height={at.height} /><text class="middle" x={left + at.width - 10} y={top + 15}>▸</text></g>
      )}
      {inside > 0 && !isWrong && <text class="inside-mark" x={left + at.width - 4} y={top - 3}>◆{inside}</text>}
    </g>
  );
}

export function Nodes({ scene, reading, side, current, onChoose, onToggle }) {
  return scene.look.items.map((item, k) => scene.place[side].items[k]
    && <Node key={item.id ?? item.node} scene={scene} reading={reading} side={side} k={k} isCurrent={k === current} onChoose={onChoose} onToggle={onToggle} />);
}
