// The lines of source that a module or an operation is: A's and B's beside one another, or below where there is no room.

import { useRef } from "preact/hooks";
import { base, shown } from "./text.js";

const WHAT = { forward: "Its code", called: "Where it is called" };

/** Lines of a file, numbered; the one that is meant is marked. */
function Lines({ report, excerpt: { first, line, text, why_not, is_newer } }) {
  if (why_not) return <p class="dim">{why_not}</p>;
  return (
    <>
      <code class="lines-of">
        {report.words[text].split("\n").map((each, k) => (
          <span class={first + k === line ? "meant" : ""} style={{ "--indent": `${each.search(/\S|$/) + 2}ch` }}><i aria-hidden="true">{first + k}</i><bdi>{shown(each) || " "}</bdi></span>
        ))}
      </code>
      {is_newer && <p class="dim">The file is newer than the recording: other lines may have run.</p>}
    </>
  );
}

function Excerpt({ report, sides, at }) {
  const excerpt = report.doc.sources.excerpts[at];
  const file = report.words[excerpt.file];
  return (
    <div class="excerpt">
      <div class="dim">{sides.map((side) => <><b class={`tag-${side}`}>{side.toUpperCase()}</b>{" "}</>)}<span title={shown(file)}><bdi>{shown(base(file))}</bdi>:{excerpt.line}</span></div>
      <Lines report={report} excerpt={excerpt} />
    </div>
  );
}

/** Both sides of what was found; one that is the same on both stands once. */
function Both({ report, places }) {
  return Object.entries(WHAT).map(([what, title]) => {
    const [a, b] = ["a", "b"].map((side) => places[side]?.[what]);
    if (a === undefined && b === undefined) return null;
    const known = a === b ? [[["a", "b"], a]] : [[["a"], a], [["b"], b]].filter(([, at]) => at !== undefined);
    return <div class="source"><h4>{title}</h4><div class="both">{known.map(([sides, at]) => <Excerpt report={report} sides={sides} at={at} />)}</div></div>;
  });
}

export function Source({ report, row }) {
  const dialog = useRef(null);
  const found = report.doc.sources;
  if (!found) return null;
  const places = Object.fromEntries(report.sides.map((side) => [side, found[side][report.tree[side][row]]]));
  if (!places.a && !places.b) return null;
  const isTwo = Object.keys(WHAT).some((what) => places.a?.[what] !== places.b?.[what] && places.a?.[what] !== undefined && places.b?.[what] !== undefined);
  const both = <Both report={report} places={places} />;
  const close = () => dialog.current.close();
  return (
    <section class="sources" aria-label="Source">
      <h3>source{isTwo && <button class="quiet wider" aria-haspopup="dialog" onClick={() => dialog.current.showModal()}>side by side</button>}</h3>
      {both}
      <dialog class="help wide" ref={dialog} aria-label="Source of both sides" onClick={(event) => event.target === dialog.current && close()}>
        <div class="help-inside">
          <header><h2><bdi>{shown(report.path("a", row) ?? report.path("b", row)) || "(the whole model)"}</bdi></h2><span class="gap" /><button onClick={close}>Close</button></header>
          <div class="sources">{both}</div>
        </div>
      </dialog>
    </section>
  );
}
