// What the verdict rests on: inputs, what was not compared, warnings, both recordings.

import { shown } from "./text.js";

const INPUTS = { equal: "equal on both sides", close: "equal but for rounding", different: "different", not_comparable: "not comparable", only_a: "only in A", only_b: "only in B" };
const MOST = 200;

function Names({ title, names }) {
  if (!names.length) return null;
  return (
    <details>
      <summary>{title} ({names.length})</summary>
      <ul class="names">{names.slice(0, MOST).map((name) => <li><bdi>{shown(name) || "(the whole model)"}</bdi></li>)}{names.length > MOST && <li class="dim">and {names.length - MOST} more</li>}</ul>
    </details>
  );
}

/** A run, and those of its notes that no warning says. */
function Run({ side, run, warnings }) {
  const notes = run.notes.filter((text) => !warnings.includes(`${side.toUpperCase()}: ${text}`));
  return (
    <div class="run">
      <b class={`tag-${side}`}>{side.toUpperCase()}</b> <bdi>{shown(run.file)}</bdi>
      <div class="dim">{run.framework} · task {run.task} · recorded {run.created} · run {run.run}{run.world_size > 1 && ` · rank ${run.rank} of ${run.world_size}`}</div>
      <ul class="notes">{notes.map((text) => <li>{shown(text)}</li>)}</ul>
    </div>
  );
}

/** The same of one recording, in the words of `probe info`. */
function Recorded({ report }) {
  const { run, sides } = report.doc;
  return (
    <section class="rest" aria-label="How it was recorded">
      <h2>How it was recorded</h2>
      <table class="recorded"><tbody>{Object.entries(run.facts).map(([name, text]) => <tr><th scope="row">{name}</th><td><bdi>{shown(text)}</bdi></td></tr>)}</tbody></table>
      <ul class="notes">{sides.a.notes.map((text) => <li>{shown(text)}</li>)}</ul>
      <p class="dim">Made by probe {report.doc.probe}. The key ? shows the keys.</p>
    </section>
  );
}

export function Rest({ report }) {
  return report.isAlone ? <Recorded report={report} /> : <RestsOn report={report} />;
}

function RestsOn({ report }) {
  const { answer, sides, probe } = report.doc;
  const inputs = Object.entries(INPUTS).filter(([key]) => answer.inputs[key].length);
  return (
    <section class="rest" aria-label="What this rests on">
      <h2>What this rests on</h2>
      <p>Inputs: {inputs.length ? inputs.map(([key, text], k) => <>{k > 0 && "; "}<bdi>{answer.inputs[key].slice(0, 20).map((name) => (/^\d/.test(name) ? `argument ${name}` : shown(name))).join(", ")}</bdi> {text}</>) : "none were compared"}</p>
      {answer.warnings.length > 0 && <ul class="notes">{answer.warnings.map((text) => <li>{shown(text)}</li>)}</ul>}
      <Names title="Unmatched in A" names={answer.only_a} />
      <Names title="Unmatched in B" names={answer.only_b} />
      <Names title="Need no partner in A" names={answer.unneeded_a} />
      <Names title="Need no partner in B" names={answer.unneeded_b} />
      <Names title="Left out by the mapping in A" names={answer.ignored_a} />
      <Names title="Left out by the mapping in B" names={answer.ignored_b} />
      <div class="runs"><Run side="a" run={sides.a} warnings={answer.warnings} /><Run side="b" run={sides.b} warnings={answer.warnings} /></div>
      <p class="dim">Made by probe {probe}. The key ? shows the keys.</p>
    </section>
  );
}
