// The relative error of every node in execution order, with the band of what is noise.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { PHASES } from "./model.js";
import { count, MEANING, ownName, shown } from "./text.js";

const ORDER = ["equal", "noise", "not judged", "inherited", "introduced", "recorded", "non-finite"];
const BY_MICRO = [1, 2]; // phases of which each micro-batch has its own
const NEAR = 12;
const MOST_NAMED = 3;
const EDGE = 0.7;
const FLOOR = 0.3;
const CEILING = 0.15;
/** Share of the numbers that may lie below the axis, at its foot: a few tiny ones would press all others together. */
const TINY = 0.05;
const FOOT = 0.65;

/** Levels (decimal logarithms) of all points: equal ones lie at the bottom, infinite ones at the top. */
function levels(report, points) {
  const logs = points.map((i) => Math.log10(report.error(i)));
  const finite = logs.filter(Number.isFinite);
  const limits = points.map((i) => Math.log10(report.limit(i)));
  const runs = points.map((i) => Math.log10(report.inRun(i)));
  const known = [...finite, ...limits.filter(Number.isFinite), ...runs.filter(Number.isFinite)];
  const typical = (some) => [...some].sort((x, y) => x - y)[Math.floor(TINY * some.length)] ?? 0;
  const that = (verdict) => logs.filter((log, k) => Number.isFinite(log) && report.verdict(points[k]) === verdict);
  const low = Math.floor(that("introduced").reduce((x, y) => Math.min(x, y), Math.min(typical(known), typical(that("inherited")), 0))) - 1;
  const high = Math.ceil(known.reduce((x, y) => Math.max(x, y), low + 2) + 0.45);
  return {
    low, high, hasInfinite: logs.some((log) => log === Infinity), limits: limits.map((limit) => (Number.isFinite(limit) ? Math.max(limit, low) : low)),
    runs: runs.map((run) => (Number.isFinite(run) ? Math.max(run, low + FOOT) : NaN)),
    y: logs.map((log) => (Number.isFinite(log) ? Math.max(log, low + FOOT) : log > 0 ? high - CEILING : low + FLOOR)),
  };
}

/** Where the axis is labelled: what is equal, powers of ten, not too many of them, and what is not finite. */
function ticks({ low, high, hasInfinite }) {
  const every = Math.max(1, Math.ceil((high - low) / 9));
  const powers = Array.from({ length: high - low }, (_, k) => low + 1 + k).filter((power) => power % every === 0 && power > low + every / 2);
  return [low + FLOOR, ...(hasInfinite ? [...powers.filter((power) => power < high), high - CEILING] : powers)];
}

function tickText(level, { low, high, bottom }) {
  return level === low + FLOOR ? bottom : level === high - CEILING ? "∞" : level === 0 ? "1" : `1e${level}`;
}

/** Where one phase of one micro-batch ends and the next begins. */
function segments(report, points) {
  const t = report.doc.tensors;
  const found = [];
  points.forEach((i, x) => {
    const phase = PHASES.indexOf(report.phaseOf(i));
    const micro = BY_MICRO.includes(phase) ? t.micro[i] : 0;
    const last = found[found.length - 1];
    if (last && last.phase === phase && last.micro === micro) last.to = x;
    else found.push({ phase, micro, from: x, to: x });
  });
  const several = new Set(found.filter(({ phase }) => BY_MICRO.includes(phase)).map((each) => each.micro)).size > 1;
  return found.map((each) => ({ ...each, label: PHASES[each.phase] + (several && BY_MICRO.includes(each.phase) ? ` ${each.micro}` : "") }));
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const named = (verdict) => verdict.replace(/ /g, "-");

/** Where values of both axes lie, in pixels: both are linear, and plot.valToPos is slow for hundreds of thousands of points. */
function pixels({ bbox: { left, top, width, height }, scales: { x, y } }) {
  return [(value) => left + ((value - x.min) / (x.max - x.min)) * width, (value) => top + height - ((value - y.min) / (y.max - y.min)) * height];
}

function paintBand(plot, scene) {
  const { ctx } = plot;
  const { limits, low } = scene;
  const [across, up] = pixels(plot);
  const left = (x) => across(x - 0.5);
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  ctx.fillStyle = color("band");
  const bottom = up(low);
  for (let from = 0, to; from < limits.length; from = to) { // those in one column of pixels are one
    const start = Math.floor(left(from));
    let limit = limits[from];
    for (to = from + 1; to < limits.length && Math.floor(left(to)) === start; to++) limit = Math.max(limit, limits[to]);
    const top = up(limit);
    ctx.fillRect(start, top, Math.floor(left(to)) - start, bottom - top);
  }
  ctx.fillStyle = color("line");
  const line = Math.max(1, devicePixelRatio);
  for (const { from } of scene.segments.slice(1)) ctx.fillRect(left(from), plot.bbox.top, line, plot.bbox.height);
  ctx.restore();
}

function paintPoints(plot, scene, selected) {
  const { ctx } = plot;
  const scale = devicePixelRatio;
  const size = (scene.y.length > 3000 ? 2.5 : 4) * scale;
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left - size, plot.bbox.top, plot.bbox.width + 2 * size, plot.bbox.height + size);
  ctx.clip();
  const [across, up] = pixels(plot);
  ctx.strokeStyle = color("inherited");
  ctx.lineWidth = scale;
  scene.runs.forEach((run, x) => { // of a replay, a small ring: what it is in a run of B by itself
    if (Number.isNaN(run)) return;
    ctx.beginPath();
    ctx.arc(across(x), up(run), size / 2, 0, 2 * Math.PI);
    ctx.stroke();
  });
  for (const verdict of ORDER) {
    ctx.fillStyle = ctx.strokeStyle = color(named(verdict));
    let last = -1;
    for (const x of scene.placesOf.get(verdict)) {
      const [cx, cy] = [across(x), up(scene.y[x])];
      const pixel = Math.round(cx) * 65536 + Math.round(cy);
      if (pixel === last) continue;
      last = pixel;
      if (scene.isWrong[x]) diamond(ctx, cx, cy, 6.5 * scale);
      else if (verdict === "not judged") ctx.strokeRect(cx - size / 2, cy - size / 2, size, size); // hollow
      else ctx.fillRect(cx - size / 2, cy - size / 2, size, size);
    }
  }
  ctx.restore();
  const { min, max } = plot.scales.x;
  ctx.save();
  ctx.strokeStyle = color("text");
  ctx.lineWidth = 1.5 * scale;
  scene.rows.forEach((row, x) => { // a ring at the edge is whole: nothing clips it
    if (row !== selected.row && scene.points[x] !== selected.tensor || x < min || x > max) return;
    ctx.beginPath();
    ctx.arc(across(x), up(scene.y[x]), 8 * scale, 0, 2 * Math.PI);
    ctx.stroke();
  });
  ctx.restore();
  paintNames(plot, scene, scale);
  paintLabels(plot, scene, scale);
}

function diamond(ctx, x, y, size) {
  ctx.beginPath();
  ctx.moveTo(x, y - size);
  ctx.lineTo(x + size, y);
  ctx.lineTo(x, y + size);
  ctx.lineTo(x - size, y);
  ctx.fill();
}

/** The names of the first places that are wrong by themselves, beside their diamonds. */
function paintNames(plot, scene, scale) {
  const { ctx } = plot;
  const { left, width, top } = plot.bbox;
  let free = left;
  let named = 0;
  const seen = new Set();
  ctx.save();
  ctx.font = `600 ${12 * scale}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  ctx.lineJoin = "round";
  ctx.lineWidth = 4 * scale;
  ctx.strokeStyle = color("page");
  ctx.fillStyle = color("introduced");
  scene.verdicts.forEach((_, x) => {
    if (!scene.isWrong[x] || named >= MOST_NAMED || seen.has(scene.rows[x])) return;
    const [cx, cy] = [plot.valToPos(x, "x", true), plot.valToPos(scene.y[x], "y", true)];
    const text = scene.name(scene.rows[x]);
    const wide = ctx.measureText(text).width;
    if (cx < left || cx > left + width) return;
    const beside = 12 * scale;
    const isLeft = cx - wide - beside >= free; // what comes before it lies lower
    const start = isLeft ? cx - wide - beside : Math.min(cx + 2 * scale, left + width - wide);
    if (!isLeft && start < free) return;
    const at = [start, isLeft ? cy : cy - 15 * scale < top + 8 * scale ? cy + 15 * scale : cy - 15 * scale];
    ctx.strokeText(text, ...at);
    ctx.fillText(text, ...at);
    free = Math.max(cx + 8 * scale, at[0] + wide);
    named += 1;
    seen.add(scene.rows[x]);
  });
  ctx.restore();
}

function paintLabels(plot, scene, scale) {
  const { ctx } = plot;
  ctx.save();
  ctx.fillStyle = color("dim");
  ctx.font = `${11 * scale}px system-ui, sans-serif`;
  ctx.textBaseline = "bottom";
  ctx.textAlign = "left";
  for (const { from, to, label } of scene.segments) {
    const x = Math.max(plot.valToPos(from - 0.5, "x", true), plot.bbox.left);
    const end = Math.min(plot.valToPos(to + 0.5, "x", true), plot.bbox.left + plot.bbox.width);
    if (end - x > ctx.measureText(label).width + 6 * scale) ctx.fillText(label, x + 4 * scale, plot.bbox.top - 2 * scale);
  }
  ctx.restore();
}

const sizeOf = ({ clientWidth, clientHeight }) => ({ width: clientWidth || 600, height: clientHeight || 200 });

function Hover({ report, i, left, top, width }) {
  const t = report.doc.tensors;
  const row = report.rowOfPair[t.pair[i]];
  return (
    <div class="hover" style={left > width / 2 ? { right: `${width - left + 14}px`, top: `${top}px` } : { left: `${left + 14}px`, top: `${top}px` }}>
      <b>{report.phaseOf(i)} · {report.verdict(i)}</b>
      {report.sides.map((side) => <div>{!report.isAlone && <><span class={`tag-${side}`}>{side.toUpperCase()}</span> </>}<bdi>{shown(report.path(side, row)) || "(the whole model)"}</bdi></div>)}
      <div>{report.words[t.role[i]]} <bdi>{shown(report.words[t.slot_a[i]])}</bdi>{t.call[i] > 0 && ` · call ${t.call[i]}`}</div>
      <div>{report.said(i)}</div>
    </div>
  );
}

export function Picture({ report, view, selected, onSelect }) {
  const place = useRef(null);
  const plot = useRef(null);
  const scene = useRef(null);
  const chosen = useRef(selected);
  const [hover, setHover] = useState(null);
  const [isZoomed, setZoomed] = useState(false);
  chosen.current = selected;

  useEffect(() => {
    const { points } = view;
    if (!points.length) return;
    const rows = points.map((i) => report.rowOfPair[report.doc.tensors.pair[i]]);
    const verdicts = points.map((i) => report.verdict(i));
    const name = (row) => shown(ownName(report.path("a", row) ?? report.path("b", row) ?? "") || report.class("a", row));
    const isWrong = points.map((i) => report.isWrong(i));
    const placesOf = new Map(ORDER.map((verdict) => [verdict, []]));
    verdicts.forEach((verdict, x) => placesOf.get(verdict)?.push(x));
    scene.current = { points, rows, verdicts, placesOf, isWrong, name, bottom: report.isAlone ? "0" : "equal", segments: segments(report, points), ...levels(report, points) };
    const { low, high, y } = scene.current;
    const axis = { stroke: () => color("dim"), grid: { show: false }, ticks: { stroke: () => color("line"), size: 4 }, font: "11px system-ui, sans-serif" };
    plot.current = new uPlot({
      ...sizeOf(place.current), padding: [16, 12, 0, 0], legend: { show: false },
      scales: { x: { time: false, range: (_, from, to) => [from - EDGE, to + EDGE] }, y: { range: () => [low, high] } },
      axes: [
        { ...axis, show: false },
        { ...axis, size: 54, splits: () => ticks(scene.current), values: (_, splits) => splits.map((level) => tickText(level, scene.current)) },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      hooks: {
        drawClear: [(self) => paintBand(self, scene.current)],
        draw: [(self) => paintPoints(self, scene.current, chosen.current)],
        setCursor: [(self) => setHover(near(self, scene.current))],
        setScale: [(self, key) => key === "x" && setZoomed(self.scales.x.max - self.scales.x.min < points.length - 1 + 2 * EDGE - 0.1)],
      },
    }, [points.map((_, x) => x), y], place.current);
    const resized = new ResizeObserver(() => place.current.clientWidth && plot.current?.setSize(sizeOf(place.current)));
    resized.observe(place.current);
    const themed = new MutationObserver(() => plot.current?.redraw());
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      resized.disconnect();
      themed.disconnect();
      plot.current.destroy();
    };
  }, [report, view]);
  useEffect(() => plot.current?.redraw(false), [selected]);

  const wrong = view.points.filter((i) => report.isWrong(i)).length;
  const clicked = () => hover && onSelect(report.rowOfPair[report.doc.tensors.pair[hover.i]], hover.i);
  return (
    <section class="picture" aria-label={`${title(report, view.points)} in execution order`}>
      <div class="title">
        <h2>{title(report, view.points)}, in execution order</h2>
        {isZoomed && <button class="unzoom" onClick={() => plot.current.setScale("x", { min: 0, max: view.points.length - 1 })}>Show all</button>}
        <span class="gap" />
        <Legend report={report} />
      </div>
      {view.points.length ? (
        <div class="canvas" ref={place} onClick={clicked} onMouseLeave={() => setHover(null)} role="img"
          aria-label={`${count(view.points.length, "node")} from init to update; ${report.isAlone ? `${wrong} not finite` : count(wrong, "introduced error")}. The tree below has the same numbers.`}>
          {hover && <Hover report={report} {...hover} width={place.current.clientWidth} />}
        </div>
      ) : <p class="dim">Nothing with numbers was {report.isAlone ? "recorded" : "compared"} in this step.</p>}
    </section>
  );
}

/** The point next to the mouse: of those around it, the nearest in both directions. */
function near(plot, scene) {
  const { left, top } = plot.cursor;
  if (!(left >= 0)) return null;
  const from = Math.max(0, Math.floor(plot.posToVal(left - NEAR, "x")));
  const to = Math.min(scene.y.length - 1, Math.ceil(plot.posToVal(left + NEAR, "x")));
  let best = null;
  for (let x = from; x <= to; x++) {
    const far = Math.hypot(plot.valToPos(x, "x") - left, plot.valToPos(scene.y[x], "y") - top) - (scene.isWrong[x] ? 4 : 0);
    if (best === null || far < best.far) best = { far, i: scene.points[x], left: left + plot.bbox.left / devicePixelRatio, top };
  }
  return best && best.far < 60 ? best : null;
}

/** What the picture shows: relative errors, unless tolerances that were chosen judge something else. */
function title(report, points) {
  if (report.isAlone) return "Size of the numbers (rms)";
  const measures = new Set(points.filter((i) => report.doc.tensors.is_fixed[i]).map((i) => report.measure(i)));
  if (!measures.size || measures.size === 1 && measures.has("")) return "Relative error";
  return `Error (${report.limitsAre === "chosen" && measures.size === 1 ? [...measures][0] : "as it was judged"})`;
}

const BAND = { explained: "rounding and inputs", chosen: "within the chosen tolerance", both: "within its limit" };

function Legend({ report }) {
  const band = BAND[report.limitsAre];
  if (report.isAlone) {
    return (
      <ul class="legend">
        <li><i class="swatch recorded" />finite</li>
        <li title={MEANING["non-finite"]}><i class="swatch introduced" />NaN or Inf</li>
        <li><i class="swatch ring" />chosen</li>
      </ul>
    );
  }
  return (
    <ul class="legend">
      <li title={MEANING.introduced}><i class="swatch introduced" />introduced</li>
      <li title={MEANING.inherited}><i class="swatch inherited" />inherited</li>
      <li title={MEANING.noise}><i class="swatch noise" />noise</li>
      <li title={MEANING.equal}><i class="swatch equal" />equal</li>
      {report.has("not judged") && <li title={MEANING["not judged"]}><i class="swatch not-judged" />not judged</li>}
      {report.has("not comparable") && <li title={MEANING["not comparable"]}><b>n/c</b> not comparable</li>}
      <li title={MEANING.band}><i class="swatch band" />{band}</li>
      {report.isReplay && <li title="its own error, and what it inherits"><i class="swatch ring run" />in a run of B by itself</li>}
      <li><i class="swatch ring" />chosen</li>
      <li class="hint-to-drag">drag to zoom</li>
    </ul>
  );
}
