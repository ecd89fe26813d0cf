// Where nodes and edges stand: laid out once for both sides, so that what is a pair stands at the same height.

import { Graph, layout } from "@dagrejs/dagre";
import { CODE } from "./flow.js";

const [PAD, LEAST] = [9, 64];
const [ROOM, ERROR] = [26, 66]; // for a diamond and what opens a call, beside a name; for the error, beside a class
const [NAME, BESIDE, RIM] = [16, 7, 7]; // for the name of a box, beside nodes, between boxes
export const HEIGHT = 36;
export const GAP = 44; // between the sides

let pen = null;
function wide(text, font) {
  pen ??= document.createElement("canvas").getContext("2d");
  pen.font = font;
  return pen.measureText(text).width;
}

/** The size of a node: that of its texts, on whichever side they are longer. */
export function sized({ a, b }, kind) {
  if (kind === CODE) return { width: Math.max(24, wide(a[0] || b[0], "600 12px system-ui, sans-serif") + 14), height: 22 };
  const widths = [a, b].map(([name, small]) => Math.max(wide(name, "600 12px system-ui, sans-serif") + ROOM, wide(small, "11px system-ui, sans-serif") + ERROR));
  return { width: Math.max(LEAST, Math.ceil(Math.max(...widths)) + 2 * PAD), height: HEIGHT };
}

/** Place what is seen. Returns a position for each item, box and edge (null where it is not drawn). */
export function placed(look, edges, sizes) {
  const graph = new Graph({ compound: true });
  graph.setGraph({ rankdir: "TB", nodesep: 14, ranksep: 24, edgesep: 10, marginx: 6, marginy: 6 });
  graph.setDefaultEdgeLabel(() => ({}));
  const isAlone = lonely(look, edges);
  for (const { node } of look.boxes) graph.setNode(`box ${node}`, {});
  look.items.forEach((_, at) => isAlone[at] || graph.setNode(`${at}`, { ...sizes[at] }));
  for (const { node, box } of look.boxes) if (box >= 0) graph.setParent(`box ${node}`, `box ${box}`);
  look.items.forEach(({ box }, at) => box >= 0 && !isAlone[at] && graph.setParent(`${at}`, `box ${box}`));
  edges.forEach(({ from, to, isAside }) => isAside || graph.setEdge(`${from}`, `${to}`, { weight: to === from + 1 ? 4 : 1 }));
  for (const { from, to, isAside } of edges) { // what only stands aside stands above its first use
    if (isAside && !isAlone[from] && !graph.inEdges(`${from}`).length && !graph.outEdges(`${from}`).length) graph.setEdge(`${from}`, `${to}`, { weight: 0 });
  }
  layout(graph);
  const items = look.items.map((_, at) => (isAlone[at] ? null : graph.node(`${at}`)));
  const boxes = look.boxes.map(({ node }) => graph.node(`box ${node}`));
  const ways = edges.map(({ from, to, isAside }) => (isAside ? null : graph.edge(`${from}`, `${to}`).points));
  const height = lowered(items, boxes, ways) + (graph.graph().height ?? 0);
  return { height, boxes, items, ways };
}

/** Make room for the name of each box at its top: everything below moves down. */
function lowered(items, boxes, ways) {
  const tops = boxes.filter((box) => box.height).map((box) => box.y - box.height / 2).sort((x, y) => x - y);
  const below = (y) => {
    let [low, high] = [0, tops.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle] < y) low = middle + 1;
      else high = middle;
    }
    return low * NAME;
  };
  for (const item of items) if (item) item.y += below(item.y);
  for (const way of ways) way?.forEach((point) => (point.y += below(point.y)));
  for (const box of boxes) {
    if (!box.height) continue;
    const [top, bottom] = [box.y - box.height / 2, box.y + box.height / 2];
    const to = [top + below(top), bottom + below(bottom)];
    Object.assign(box, { y: (to[0] + to[1]) / 2, height: to[1] - to[0] });
  }
  return tops.length * NAME;
}

/**
 * One side of a layout: where its own nodes stand when the room that only the other side needs is left out.
 *
 * Heights stay, so that what is a pair stands at one height on both sides.
 */
export function oneSide({ items, boxes, ways }, look, isThere, isOn) {
  const spans = items.flatMap((item, at) => (item && isThere(at) ? [[item.x - item.width / 2 - BESIDE, item.x + item.width / 2 + BESIDE]] : []));
  ways.forEach((way, k) => {
    if (!way || !isOn(k)) return;
    const across = way.map(({ x }) => x);
    spans.push([Math.min(...across) - BESIDE, Math.max(...across) + BESIDE]);
  });
  const { moved, width } = pressed(spans);
  const nested = depths(look.boxes);
  const rim = RIM * Math.max(0, ...nested.values());
  const placed = items.map((item, at) => (item && isThere(at) ? { ...item, x: moved(item.x) + rim } : null));
  const ends = new Map(look.boxes.map(({ node }) => [node, [Infinity, -Infinity]]));
  const outer = new Map(look.boxes.map(({ node, box }) => [node, box]));
  placed.forEach((item, at) => {
    for (let box = look.items[at].box; item && box >= 0; box = outer.get(box)) {
      const end = ends.get(box);
      end[0] = Math.min(end[0], item.x - item.width / 2);
      end[1] = Math.max(end[1], item.x + item.width / 2);
    }
  });
  return {
    width: width + 2 * rim,
    items: placed,
    ways: ways.map((way) => way?.map(({ x, y }) => ({ x: moved(x) + rim, y }))),
    boxes: look.boxes.map(({ node }, k) => {
      const [left, right] = ends.get(node);
      return left > right ? null : { ...boxes[k], x: (left + right) / 2, width: right - left + 2 * RIM * nested.get(node) };
    }),
  };
}

/** How many boxes each box is around, itself among them, at most. */
function depths(boxes) {
  const found = new Map(boxes.map(({ node }) => [node, 1]));
  for (const { node, box } of [...boxes].reverse()) if (box >= 0) found.set(box, Math.max(found.get(box), found.get(node) + 1));
  return found;
}

/** Places without the room between spans. */
function pressed(spans) {
  const kept = [];
  for (const [from, to] of spans.sort((p, q) => p[0] - q[0])) {
    const last = kept[kept.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else kept.push([from, to]);
  }
  const moved = (x) => kept.reduce((sum, [from, to]) => sum + Math.max(0, Math.min(x, to) - from), 0);
  return { moved, width: kept.reduce((sum, [from, to]) => sum + to - from, 0) };
}

/** What code makes, or the model is given, and nothing but edges that stand aside leads to or from, is not drawn. */
function lonely(look, edges) {
  const isAlone = look.items.map(({ kind }) => kind > 0);
  for (const { from, to, isAside } of edges) if (!isAside) isAlone[from] = isAlone[to] = false;
  return isAlone;
}

/** A way past the nodes between two. */
export function bowed(from, to) {
  const side = Math.max(from.x + from.width / 2, to.x + to.width / 2) + 14;
  return [{ x: from.x + from.width / 2, y: from.y }, { x: side, y: from.y }, { x: side, y: to.y }, { x: to.x + to.width / 2, y: to.y }];
}

/** A smooth way through points. */
export function curve(points, dx) {
  const at = ({ x, y }) => `${(x + dx).toFixed(1)},${y.toFixed(1)}`;
  if (points.length < 3) return `M${points.map(at).join("L")}`;
  const middle = (p, q) => ({ x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 });
  let way = `M${at(points[0])}L${at(middle(points[0], points[1]))}`;
  for (let k = 1; k < points.length - 1; k++) way += `Q${at(points[k])} ${at(middle(points[k], points[k + 1]))}`;
  return `${way}L${at(points[points.length - 1])}`;
}
