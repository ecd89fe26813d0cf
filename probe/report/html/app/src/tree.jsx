// Both module trees side by side, pair by pair; only the rows on the screen are in the page.

import { flushSync, forwardRef } from "preact/compat";
import { useEffect, useImperativeHandle, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { isActive, NO_FILTER, visible, wanted } from "./filter.js";
import { canBePicked, PHASES } from "./model.js";
import { NUMBERS } from "./run.js";
import { count, error, MEANING, shown } from "./text.js";

const ROW = 26;
const BEYOND = 10;
const DEEPEST = 20; // what is deeper stands no further to the right
const ON_PAPER = 200; // rows at most
const RECYCLED = 256; // rows that scroll away lend their elements to those that come
const SHORT = { init: "init", forward: "fwd", backward: "bwd", gradient: "grad", update: "upd" };
const ABSENT = { part: "↑ in one with the above", unmatched: "(no counterpart)", "needs no partner": "(none needed)", alone: "(no such operation)", ignored: "(left out by the mapping)", "passed over": "(looked through)" };
const dashed = (text) => text.replace(/ /g, "-");

/** own: the tensor of the row itself; i: that one, or, of a folded row, the worst of all that is inside. */
function Cell({ report, i, own, row, number }) {
  if (i < 0) return <span class="cell" role="gridcell" />;
  const verdict = report.verdict(i);
  const role = report.words[report.doc.tensors.role[i]];
  const at = report.rowOfTensor(i);
  const where = `${role} of ${shown(report.path("a", at))}`;
  const elsewhere = at === row ? "" : i !== own ? `; the worst inside: ${where}` : `; it shows in the ${where}`;
  const what = report.isAlone ? `${role} ${shown(report.words[report.doc.tensors.slot_a[i]])}, ${report.said(i)}` : verdict;
  const style = verdict === "inherited" ? { "--size": report.sizeOf(i).toFixed(2) } : undefined;
  return <span role="gridcell" class={`cell ${dashed(verdict)}${i === own ? "" : " within"}`} style={style} title={`${report.phaseOf(i)}: ${what}${elsewhere}${MEANING[verdict] ? `. ${MEANING[verdict]}` : ""}`}>{report.cellText(i, number)}</span>;
}

function Name({ report, side, row, fold, picked, onPick }) {
  const name = report.name(side, row);
  const state = report.tree.state[row];
  const style = { "--depth": Math.min(report.tree.depth[row], DEEPEST) };
  if (name === null) return <span class={`name absent ${dashed(state)}`} role="gridcell" style={style}>{fold}{ABSENT[state] ?? ""}</span>;
  return (
    <span class={`name ${dashed(state)}`} role="gridcell" style={style} title={shown(report.path(side, row))}>
      {fold}
      <span class="text">
        <bdi class="own">{shown(name)}</bdi>
        {report.path(side, row) !== "" && <> <span class="class"><bdi>{shown(report.class(side, row))}</bdi></span></>}
      </span>
      {canBePicked(state) && (
        <button class={picked[side].includes(row) ? "pick on" : "pick"} tabIndex={-1} onClick={(event) => {
          event.stopPropagation();
          onPick(side, row);
        }} aria-pressed={picked[side].includes(row)}>match</button>
      )}
    </span>
  );
}

function Row({ report, view, row, index, number, top, isOpen, isFiltered, isMatch, isSelected, onSelect, onToggle, picked, onPick }) {
  const { depth } = report.tree;
  const hasChildren = report.end[row] > row + 1;
  const inside = view.inside[row];
  const fold = (
    <span class="fold">
      {hasChildren && <button class="twist" tabIndex={-1} aria-hidden="true" onClick={(event) => {
        event.stopPropagation();
        onToggle(row);
      }}>{isOpen ? "▾" : "▸"}</button>}
    </span>
  );
  return (
    <div id={`row-${row}`} role="row" aria-rowindex={index} aria-level={depth[row] + 1} aria-selected={isSelected} aria-expanded={hasChildren ? isOpen : undefined}
      class={`row${isSelected ? " selected" : ""}${isFiltered ? (isMatch ? " hit" : " around") : ""}`} style={{ transform: `translateY(${top}px)` }}
      onClick={() => onSelect(row)} onDblClick={() => onToggle(row)}>
      <Name report={report} side="a" row={row} fold={fold} picked={picked} onPick={onPick} />
      {PHASES.map((_, k) => <Cell report={report} i={(hasChildren && !isOpen ? view.folded : view.cells)[k][row]} own={view.cells[k][row]} row={row} number={number} />)}
      {report.isReplay && <span role="gridcell" class="cell run" title="what it returns in a run of B by itself: its own error, and what it inherits">{Number.isNaN(view.runs[row]) ? "" : error(view.runs[row])}</span>}
      {!report.isAlone && <Name report={report} side="b" row={row} picked={picked} onPick={onPick} />}
      <span class="inside" role="gridcell">{report.isFound(row) && <b title="a place that is wrong by itself">◆</b>}{inside > 0 && !isOpen && <b title={`${count(inside, "module")} inside with an introduced error`}>◆{inside}</b>}</span>
    </div>
  );
}

const KINDS = { introduced: "introduced", unmatched: "unmatched", nonfinite: "non-finite" };
const VERDICTS = ["introduced", "inherited", "noise", "equal", "not judged", "not comparable", "unmatched", "needs no partner"];

function Toolbar({ report, filter, onFilter, kind, onKind, onJump, view, found, onFold, onHit, number, onNumber }) {
  const set = (name) => (event) => onFilter({ ...filter, [name]: event.currentTarget.value });
  return (
    <div class={report.isAlone ? "toolbar one" : "toolbar"} role="toolbar" aria-label="Search, filter and jump">
      <input id="search" type="search" placeholder="Search  ( / )" title="Search path or class (key /)" aria-label="Search path or class" value={filter.text} onInput={set("text")}
        onKeyDown={(event) => event.key === "Enter" && onHit(!event.shiftKey)} />
      <select aria-label="Phase" value={filter.phase} onChange={set("phase")}>
        <option value="">any phase</option>{PHASES.map((name) => <option>{name}</option>)}
      </select>
      <select aria-label={report.isAlone ? "Which modules" : "Verdict"} value={filter.verdict} onChange={set("verdict")}>
        <option value="">{report.isAlone ? "all modules" : "any verdict"}</option>
        {!report.isAlone && VERDICTS.map((name) => <option>{name}</option>)}
        <option value="nonfinite">non-finite</option>
      </select>
      {report.isAlone ? (
        <select aria-label="Number in the cells" value={number} onChange={(event) => onNumber(event.currentTarget.value)}>
          {NUMBERS.map((name) => <option>{name}</option>)}
        </select>
      ) : (
        <select aria-label="Reason of the match" value={filter.reason} onChange={set("reason")}>
          <option value="">any match</option>{report.reasons.map((name) => <option>{name}</option>)}
        </select>
      )}
      {found !== null && <span class={found ? "found" : "found none"} role="status">{count(found, "row")}{found === 0 && ": nothing is like this"}{found > 0 && filter.text && <span> · Enter: next</span>} <button class="quiet" onClick={() => onFilter(NO_FILTER)}>clear</button></span>}
      <span class="gap" />
      <span class="jumps">
        <select aria-label="What to jump to" value={kind} onChange={(event) => onKind(event.currentTarget.value)}>
          {kindsOf(report).map((name) => <option value={name}>{KINDS[name]} ({view.jumps[name].length})</option>)}
        </select>
        <button title="previous (key p)" onClick={() => onJump(false)}>↑ p</button>
        <button title="next (key n)" onClick={() => onJump(true)}>↓ n</button>
        <button class="quiet" onClick={() => onFold(true)}>unfold</button>
        <button class="quiet" onClick={() => onFold(false)}>fold</button>
      </span>
    </div>
  );
}

/** What the keys n and p go to. */
export const kindsOf = (report) => (report.isAlone ? ["nonfinite"] : Object.keys(KINDS));

/** What is open at first: the top of the tree, and the way to the first divergence. */
function opened(report) {
  const open = new Uint8Array(report.size);
  for (let row = 0; row < report.size; row++) {
    const few = report.end[row] - row < 60;
    if (report.tree.depth[row] < 2 || few && report.tree.depth[row] < 3 && report.size < 300) open[row] = 1;
  }
  for (const found of report.findings.slice(0, 1)) for (const up of report.ancestors(found.row)) open[up] = 1;
  return open;
}

/** Scroll the page so that the tree and one row of it are seen; at once, as some are made ill by what moves. */
function bringOntoScreen(body, below) {
  const { top } = body.getBoundingClientRect();
  if (top < 0 || top > innerHeight - 200 || top + below + ROW > innerHeight) body.closest(".work").scrollIntoView({ block: "start", behavior: "instant" });
}

export const TreeView = forwardRef(function TreeView(props, ref) {
  const { report, view, selected, onSelect, kind, onKind, onJump, picked, onPick } = props;
  const [open, setOpen] = useState(() => opened(report));
  const [filter, setFilter] = useState(NO_FILTER);
  const [scroll, setScroll] = useState({ top: 0, height: 600 });
  const [isPrinted, setPrinted] = useState(false);
  const [number, setNumber] = useState(NUMBERS[0]);
  const body = useRef(null);
  const grid = useRef(null);
  const goal = useRef({ row: selected.row, isSought: false }); // sought: brought onto the screen too
  const flags = useMemo(() => (isActive(filter) ? wanted(report, view, filter) : null), [report, view, filter]);
  const rows = useMemo(() => visible(report, open, flags), [report, open, flags]);

  useImperativeHandle(ref, () => ({
    reveal(row) {
      goal.current = { row, isSought: true };
      if (flags && !rows.includes(row)) setFilter(NO_FILTER);
      const next = Uint8Array.from(open);
      for (const up of report.ancestors(row)) next[up] = 1;
      setOpen(next);
      grid.current.focus({ preventScroll: true });
    },
  }));
  useLayoutEffect(() => {
    const resized = new ResizeObserver(() => setScroll((old) => ({ ...old, height: body.current.clientHeight })));
    resized.observe(body.current);
    return () => resized.disconnect();
  }, []);
  useEffect(() => {
    const [before, after] = [true, false].map((state) => () => flushSync(() => setPrinted(state)));
    addEventListener("beforeprint", before);
    addEventListener("afterprint", after);
    return () => {
      removeEventListener("beforeprint", before);
      removeEventListener("afterprint", after);
    };
  }, []);
  useLayoutEffect(() => {
    if (goal.current === null) return;
    const at = rows.indexOf(goal.current.row);
    const element = body.current;
    if (at >= 0 && (at * ROW < element.scrollTop || (at + 2) * ROW > element.scrollTop + element.clientHeight)) {
      element.scrollTop = Math.max(0, at * ROW - element.clientHeight / 3);
    }
    if (goal.current.isSought) bringOntoScreen(element, at * ROW - element.scrollTop);
    goal.current = null;
  }, [rows, open]);

  const toggle = (row, to = !open[row]) => {
    const next = Uint8Array.from(open);
    next[row] = to ? 1 : 0;
    setOpen(next);
  };
  const go = (row) => {
    goal.current = { row, isSought: true };
    onSelect(row, -1, false);
    setOpen(Uint8Array.from(open));
  };
  const toHit = (forwards) => {
    const hits = flags ? rows.filter((row) => flags[row]) : [];
    if (!hits.length) return;
    const next = forwards ? hits.find((row) => row > selected.row) ?? hits[0] : hits.findLast((row) => row < selected.row) ?? hits[hits.length - 1];
    go(next);
  };
  const onKey = (event) => {
    const at = Math.max(0, rows.indexOf(selected.row));
    const row = rows[at];
    const page = Math.max(1, Math.floor(scroll.height / ROW) - 2);
    const targets = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1 };
    if (event.key in targets) go(rows[Math.min(rows.length - 1, Math.max(0, targets[event.key]))]);
    else if (event.key === "ArrowRight") report.end[row] > row + 1 && !open[row] ? toggle(row, true) : go(rows[Math.min(rows.length - 1, at + 1)]);
    else if (event.key === "ArrowLeft") open[row] && report.end[row] > row + 1 ? toggle(row, false) : report.parent[row] >= 0 && go(report.parent[row]);
    else if (event.key === "Enter" || event.key === " ") toggle(row);
    else return;
    event.preventDefault();
  };
  const first = isPrinted ? 0 : Math.max(0, Math.floor(scroll.top / ROW) - BEYOND);
  const last = Math.min(rows.length, isPrinted ? ON_PAPER : Math.ceil((scroll.top + scroll.height) / ROW) + BEYOND);
  const at = rows.indexOf(selected.row);
  return (
    <div class="tree">
      <Toolbar report={report} view={view} filter={filter} onFilter={setFilter} kind={kind} onKind={onKind} onJump={onJump}
        onHit={toHit} number={number} onNumber={setNumber} found={flags && flags.reduce((sum, flag) => sum + flag, 0)}
        onFold={(to) => setOpen(to ? new Uint8Array(report.size).fill(1) : Uint8Array.from({ length: report.size }, (_, row) => (row === 0 ? 1 : 0)))} />
      <div class={report.isReplay ? "grid replay" : report.isAlone ? "grid one" : "grid"} ref={grid} role="treegrid"
        aria-label={report.isAlone ? "Modules, with their numbers in each phase" : "Modules of A and B, with the error in each phase"} aria-rowcount={rows.length + 1} tabIndex={0}
        aria-activedescendant={first <= at && at < last ? `row-${selected.row}` : undefined} onKeyDown={onKey}>
      <div class="heads" role="row" aria-rowindex={1}>
        <span class="name" role="columnheader">{report.isAlone ? `module · ${number} of what it made` : <b class="tag-a">A</b>}</span>
        {PHASES.map((name) => <span class="cell head" role="columnheader" title={name} aria-label={name}>{SHORT[name]}</span>)}
        {report.isReplay && <span class="cell head" role="columnheader" title="in a run of B by itself" aria-label="in a run of B by itself">run</span>}
        {!report.isAlone && <span class="name" role="columnheader"><b class="tag-b">B</b></span>}<span class="inside" role="columnheader"><span class="hidden">introduced inside</span></span>
      </div>
      <div class="rows" ref={body} role="rowgroup" tabIndex={-1} onScroll={(event) => setScroll({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}>
        <div class="all" style={{ height: `${(isPrinted ? last : rows.length) * ROW}px` }}>
          {rows.slice(first, last).map((row, k) => (
            <Row key={(first + k) % RECYCLED} report={report} view={view} row={row} number={number} index={first + k + 2} top={(first + k) * ROW} isOpen={Boolean(flags || open[row])} isFiltered={flags !== null} isMatch={flags?.[row] === 1}
              isSelected={row === selected.row} onSelect={(chosen) => onSelect(chosen, -1, false)} onToggle={toggle} picked={picked} onPick={onPick} />
          ))}
        </div>
      </div>
      {isPrinted && rows.length > last && <p class="dim">and {count(rows.length - last, "row")} more</p>}
      </div>
    </div>
  );
});
