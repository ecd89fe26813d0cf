// The first screen: the answer in words, and the way from the root to the first divergent module.

import { useMemo } from "preact/hooks";
import { base, count, error, headline, MEANING, ownName, plain, shown, value } from "./text.js";

const BEYOND = { explained: "differs by more than rounding explains", chosen: "is beyond the tolerance that was chosen", both: "is beyond its limit" };
const TITLES = { aligned: "Aligned", diverged: "Diverged", undecided: "Undecided" };

/** Whether code is somebody's own, not a framework's: its documentation says more. */
const isOwn = (file) => file && !/-packages.(torch|paddle|mindspore)[\\/]/.test(file);

function Place({ side, refs, role }) {
  if (!refs.length) return <div class="place"><b class={`tag-${side}`}>{side.toUpperCase()}</b> <i>has no counterpart</i></div>;
  return refs.slice(0, 6).map((ref) => (
    <div class="place">
      <b class={`tag-${side}`}>{side.toUpperCase()}</b>{" "}
      <bdi class="path">{shown(ref.path) || "(the whole model)"}</bdi>
      <span class="class"><bdi>{shown(ref.class)}</bdi>{ref.slot && <> · {role} <bdi>{shown(ref.slot)}</bdi></>}{ref.call > 0 && <> · call {ref.call}</>}{isOwn(ref.file) && <> · <bdi title={shown(ref.file)}>{shown(base(ref.file))}:{ref.line}</bdi></>}</span>
    </div>
  ));
}

/** The numbers of a finding in one line. */
function Numbers({ found }) {
  const m = found.metrics;
  if (!m || m.rel_l2 === null && m.status !== "nonfinite") return null;
  const about = found.estimated ? "≈" : "";
  const limit = value(found.limit);
  return (
    <p class="numbers">
      <span>relative error <b>{about}{m.rel_l2 === null ? "∞" : error(m.rel_l2)}</b>{limit >= 0 && (found.is_fixed ? <> ({found.measure && <>{error(value(found.error))} {found.measure}, </>}limit {error(limit)})</> : <> (up to {error(limit)} is noise)</>)}</span>
      {m.cosine !== null && <span>cosine {about}{m.cosine.toFixed(found.estimated ? 2 : 6)}</span>}
      {m.norm_ratio !== null && <span>norm B/A {plain(m.norm_ratio)}</span>}
      {m.max_abs !== null && <span>max |Δ| {plain(m.max_abs)}{m.max_abs_at && <> at [{m.max_abs_at.join(", ")}]</>}</span>}
    </p>
  );
}

/** Root, …, module: each a button that goes to its row. */
function Chain({ report, row, onSelect }) {
  const way = [...report.ancestors(row), row];
  return (
    <nav aria-label="From the root to the first divergence" class="chain">
      {way.map((at, n) => {
        const names = [...new Set([report.name("a", at), report.name("b", at)].filter((name) => name !== null))];
        return (
          <>
            {n > 0 && <span aria-hidden="true" class="arrow">›</span>}
            <button class={at === row ? "link here" : "link"} onClick={() => onSelect(at)}>
              {names.map((name, k) => <>{k > 0 && <span class="dim"> ⟷ </span>}<bdi>{shown(name)}</bdi></>)}
            </button>
          </>
        );
      })}
    </nav>
  );
}

/** A sentence in which options stay whole: a line may end behind each hyphen. */
const sentenced = (text) => shown(text).split(/(--?[a-z][a-z-]*)/).map((part, k) => (k % 2 ? <span class="option">{part}</span> : part));

/** Why it could not be told; the module that it names leads to its row. */
function Doubt({ doubt: { text, path, row }, onSelect }) {
  const at = row < 0 ? -1 : text.indexOf(path);
  const [before, after] = at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + path.length)];
  return <>{sentenced(before)}{row >= 0 && <>{at < 0 && ": "}<button class="link path" onClick={() => onSelect(row)}><bdi>{shown(path)}</bdi></button></>}{sentenced(after)}</>;
}

function Answer({ report, onSelect }) {
  const { answer, but_for, not_compared, doubts } = report.doc;
  const first = report.findings[0];
  const title = <h1>{TITLES[answer.verdict]}</h1>;
  if (answer.verdict === "diverged" && first) {
    const names = [...new Set([first.a[0], first.b[0]].filter(Boolean).map(({ path, class: name }) => ownName(path) || name))];
    return (
      <>
        <div class="headline">{title}<h2>First divergence: {names.map((name, k) => <>{k > 0 && " ⟷ "}<bdi>{shown(name)}</bdi></>)} <span class="dim">{headline(first)}</span></h2></div>
        <Place side="a" refs={first.a} role={first.role} />
        <Place side="b" refs={first.b} role={first.role} />
        {first.evidence.map((line) => <p class="evidence"><bdi>{shown(line)}</bdi></p>)}
        <Numbers found={first} />
        {first.hint && <p class="hint">→ {shown(first.hint)}</p>}
        <Chain report={report} row={first.row} onSelect={onSelect} />
      </>
    );
  }
  if (answer.verdict === "aligned") {
    const closest = answer.flip?.closest;
    const sentence = `Nothing that was compared ${BEYOND[report.limitsAre]}.`;
    return (
      <>
        <div class="headline">{title}<h2>{but_for ? <span class="but">{shown(but_for)}</span> : sentence}</h2></div>
        {but_for && <p>{sentence}</p>}
        {not_compared && <p>Not compared: {shown(not_compared)}.</p>}
        {answer.unseen && <p>{answer.unseen.text}.</p>}
        {closest && <p>Closest to its limit: {closest.phase} {closest.role} <bdi>{shown(closest.slot_a)}</bdi> of <bdi class="path">{shown(closest.path_a) || "the whole model"}</bdi>, {error(value(closest.error))}; {report.doc.closest_is_fixed ? `limit ${error(value(closest.limit))}` : `up to ${error(value(closest.limit))} is noise`}.</p>}
      </>
    );
  }
  return (
    <>
      <div class="headline">{title}<h2>It could not be told whether the runs agree.</h2></div>
      <ul class="doubts">{doubts.map((doubt) => <li><Doubt doubt={doubt} onSelect={onSelect} /></li>)}</ul>
    </>
  );
}

function Others({ report, onSelect }) {
  const others = report.findings.slice(1);
  if (!others.length) return null;
  return (
    <details class="others">
      <summary>{count(others.length, "further place is", "further places are")} wrong by {others.length === 1 ? "itself" : "themselves"}</summary>
      <ol>
        {others.map((found) => {
          const ref = found.b[0] ?? found.a[0];
          return (
            <li>
              <button class="link" onClick={() => onSelect(found.row, found.tensor)}><bdi>{shown(ref.path) || "(the whole model)"}</bdi></button>{" "}
              <span class="dim">{headline(found)} · {found.role} <bdi>{shown(ref.slot)}</bdi></span>
              {found.metrics?.rel_l2 != null && <> · rel {error(found.metrics.rel_l2)}</>}
              {found.hint && <div class="hint">→ {shown(found.hint)}</div>}
            </li>
          );
        })}
      </ol>
    </details>
  );
}

/** The acceptance table that was asked for: the verdict does not depend on it. */
function Acceptance({ table }) {
  return (
    <div class="acceptance">
      <h2>{shown(table.title)}</h2>
      <p class="dim">{shown(table.source)}</p>
      <table>
        <thead><tr>{table.head.map((name) => <th scope="col">{name}</th>)}</tr></thead>
        <tbody>{table.rows.map((cells) => <tr>{cells.map((cell, at) => at ? <td><bdi>{shown(cell)}</bdi></td> : <th scope="row">{cell}</th>)}</tr>)}</tbody>
      </table>
      {table.notes.map((text) => <p class="evidence"><bdi>{shown(text)}</bdi></p>)}
    </div>
  );
}

const times = (factor) => Number(factor.toPrecision(3)).toLocaleString("en");
const MOST_SETTINGS = 6;

/** What both recordings hold otherwise: configuration, optimizers, environment. */
function Settings({ settings }) {
  if (!settings.length) return null;
  const row = ({ a, b, findings, counts }) => (
    <tr>
      <th scope="row"><bdi>{shown(a.name === b.name ? a.name : `${a.name} / ${b.name}`)}</bdi></th>
      <td><bdi>{shown(a.shown)}</bdi></td>
      <td><bdi>{shown(b.shown)}</bdi></td>
      <td class="dim">{findings.length ? (findings[0] === 0 ? "the first divergence" : "a later divergence") : counts ? "no finding shows it" : ""}</td>
    </tr>
  );
  return (
    <details class="settings" open={settings.some(({ counts, findings }) => counts || findings.length)}>
      <summary>{count(settings.length, "setting differs", "settings differ")}</summary>
      <table>
        <thead><tr><th scope="col">Setting</th><th scope="col">A</th><th scope="col">B</th><th scope="col">Shows in</th></tr></thead>
        <tbody>{settings.slice(0, MOST_SETTINGS).map(row)}</tbody>
      </table>
      {settings.length > MOST_SETTINGS && <details><summary>{settings.length - MOST_SETTINGS} more</summary><table><tbody>{settings.slice(MOST_SETTINGS).map(row)}</tbody></table></details>}
    </details>
  );
}

export function Verdict({ report, onSelect }) {
  const { answer } = report.doc;
  const { coverage } = answer;
  const [inherited, equal] = useMemo(() => ["inherited", "equal"].map((name) => report.doc.tensors.verdict.reduce((sum, word) => sum + (report.words[word] === name), 0)), [report]);
  const smaller = coverage.only_b < coverage.only_a ? "B" : "A";
  const total = coverage.paired + Math.min(coverage.only_a, coverage.only_b);
  return (
    <section class={`verdict ${answer.verdict}`} aria-label="The answer">
      <div class="answer"><Answer report={report} onSelect={onSelect} />{report.doc.acceptance && <Acceptance table={report.doc.acceptance} />}<Others report={report} onSelect={onSelect} /><Settings settings={answer.settings} /></div>
      <dl class="facts">
        {report.findings[0] && <><dt title={MEANING.confidence}>Confidence</dt><dd>{report.findings[0].confidence.toFixed(2)}</dd></>}
        {report.doc.stands && <><dt title={`${report.doc.stands}. ${MEANING.margin}`}>Margin</dt><dd>{answer.flip.first_divergence === null ? "holds with any limits" : `${times(answer.flip.first_divergence)} × the limits`}</dd></>}
        <dt>Compared</dt><dd>{coverage.paired} of {count(total, "module call")} of {smaller}</dd>
        <dt>Tensors</dt><dd>{count(coverage.compared, "pair")}, {equal.toLocaleString("en")} bit-equal</dd>
        {inherited > 0 && <><dt>Inherited</dt><dd>{count(inherited, "later tensor")}</dd></>}
        {coverage.not_comparable > 0 && <><dt>Not comparable</dt><dd>{count(coverage.not_comparable, "pair")}</dd></>}
        <dt>Unmatched</dt><dd>{answer.only_a.length + answer.only_b.length ? `${count(answer.only_a.length, "module")} in A, ${answer.only_b.length} in B` : "none"}</dd>
        {answer.unneeded_a.length + answer.unneeded_b.length > 0 && <><dt>Need no partner</dt><dd>{count(answer.unneeded_a.length, "module")} in A, {answer.unneeded_b.length} in B</dd></>}
        <dt title={MEANING.limits}>Limits from</dt><dd>{shown(answer.noise)}</dd>
      </dl>
    </section>
  );
}
