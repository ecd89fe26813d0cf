// The first screen of one recording: what was recorded, and whether anything in it is not finite.

import { count, plain, shown, value } from "./text.js";

/** What the loss was in the first and in the last step. */
function lossOf({ doc }) {
  const loss = doc.curves.scalars.find(({ name }) => name === "loss");
  const found = loss ? loss.a.map(value).filter((number) => !Number.isNaN(number)) : [];
  return found.length ? [...new Set([found[0], found[found.length - 1]].map(plain))].join(" → ") : "";
}

export function Summary({ report, view, onSelect }) {
  const { run, sides } = report.doc;
  const { modules } = sides.a;
  const [root] = report.tree.a;
  const bad = view.jumps.nonfinite.length;
  const loss = lossOf(report);
  return (
    <section class={`verdict ${bad ? "diverged" : "recorded"}`} aria-label="The recording">
      <div class="answer">
        <div class="headline"><h1>Recorded</h1><h2><bdi>{shown(report.words[modules.class[root]])}</bdi> <span class="dim">{sides.a.framework}</span></h2></div>
        <p>{bad ? <><b>NaN or Inf</b> in {count(bad, "module")} of this step: <button class="link" onClick={() => onSelect(view.jumps.nonfinite[0])}>go to the first</button></>
          : sides.a.task === "structure" ? "Structure alone was recorded: calls, shapes and dtypes, no numbers." : "All that modules made in this step is finite."}</p>
        {run.steps > report.steps.length && <p class="dim">{report.steps.length} of {run.steps.toLocaleString("en")} recorded steps are shown here.</p>}
        <p class="dim">To hold it against another run: <code>probe view A B</code></p>
      </div>
      <dl class="facts">
        <dt>Modules</dt><dd>{modules.path.length.toLocaleString("en")}</dd>
        <dt>Parameters</dt><dd>{modules.parameters[root].toLocaleString("en")}</dd>
        <dt>Steps</dt><dd>{run.steps.toLocaleString("en")}</dd>
        <dt>Tensors</dt><dd>{run.observations.toLocaleString("en")}{sides.a.task === "tensor" && ", with values"}</dd>
        {loss && <><dt>Loss</dt><dd>{loss}</dd></>}
      </dl>
    </section>
  );
}
