// Where in a tensor the error lies: histograms, the error along each axis, over two axes, and the worst elements.

import { useEffect, useRef, useState } from "preact/hooks";
import { count, error, plain, value } from "./text.js";

export const WIDTH = 340;

/** Counts as steps, for an SVG path. */
export function outline(counts, most, height) {
  const wide = WIDTH / counts.length;
  const top = (n) => (height - (n / most) * (height - 2)).toFixed(1);
  return `M0,${height}${counts.map((n, k) => `V${top(n)}H${((k + 1) * wide).toFixed(1)}`).join("")}V${height}Z`;
}

export function Ends({ from, to }) {
  return <div class="ends"><span>{from}</span><span>{to}</span></div>;
}

function Values({ values }) {
  const most = Math.max(1, ...values.a, ...values.b);
  return (
    <figure>
      <figcaption>Values <span class="tag-a">A</span> and <span class="tag-b">B</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} 70`} role="img" aria-label="Histogram of the values of both sides">
        <path class="hist-a" d={outline(values.a, most, 70)} /><path class="hist-b" d={outline(values.b, most, 70)} />
      </svg>
      <Ends from={plain(value(values.from))} to={plain(value(values.to))} />
    </figure>
  );
}

function Errors({ errors }) {
  return (
    <figure>
      <figcaption>|B − A| of single elements{errors.zeros > 0 && <span class="dim">; {count(errors.zeros, "element")} equal</span>}</figcaption>
      <svg viewBox={`0 0 ${WIDTH} 50`} role="img" aria-label="Histogram of the absolute errors, by order of magnitude">
        <path class="hist-error" d={outline(errors.counts, Math.max(1, ...errors.counts), 50)} />
      </svg>
      <Ends from={`1e${errors.from}`} to={`1e${errors.to}`} />
    </figure>
  );
}

/** What an axis is, where its size tells: token (axis 1). */
const axisName = (names, axis) => (names[axis] ? `${names[axis]} (axis ${axis})` : `axis ${axis}`);

function Profile({ profile, names }) {
  const rms = profile.rms.map(value);
  const most = Math.max(...rms) || 1;
  return (
    <figure>
      <figcaption>Error along {axisName(names, profile.axis)} <span class="dim">(size {profile.size}; up to {error(most)})</span></figcaption>
      <svg viewBox={`0 0 ${WIDTH} 40`} preserveAspectRatio="none" role="img" aria-label={`Root mean square error at each index of ${axisName(names, profile.axis)}`}>
        <path class="hist-error" d={outline(rms, most, 40)} />
      </svg>
      <Ends from="0" to={profile.size - 1} />
    </figure>
  );
}

function shade(level) {
  const style = getComputedStyle(document.documentElement);
  const ends = ["heat-from", "heat-to"].map((name) => style.getPropertyValue(`--${name}`).trim().split(/\s+/).map(Number));
  return ends[0].map((from, k) => Math.round(from + (ends[1][k] - from) * level));
}

function Heat({ map, names }) {
  const canvas = useRef(null);
  const [hover, setHover] = useState("");
  const [low, high] = [value(map.from), value(map.to)];
  const level = (n) => (n === 0 ? 0 : low * (high / low) ** ((n - 1) / 254));
  useEffect(() => {
    const paint = () => {
      const context = canvas.current.getContext("2d");
      const image = context.createImageData(map.columns, map.rows);
      map.shades.forEach((n, k) => image.data.set([...shade(n / 255), 255], 4 * k));
      context.putImageData(image, 0, 0);
    };
    paint();
    const themed = new MutationObserver(paint);
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => themed.disconnect();
  }, [map]);
  const moved = (event) => {
    const frame = canvas.current.getBoundingClientRect();
    const row = Math.min(map.rows - 1, Math.floor(((event.clientY - frame.top) / frame.height) * map.rows));
    const column = Math.min(map.columns - 1, Math.floor(((event.clientX - frame.left) / frame.width) * map.columns));
    const at = (k, size, steps) => Math.floor((k * size) / steps);
    setHover(`[${at(row, map.sizes[0], map.rows)}, ${at(column, map.sizes[1], map.columns)}]  ${error(level(map.shades[row * map.columns + column]))}`);
  };
  return (
    <>
      <canvas class="heat" ref={canvas} width={map.columns} height={map.rows} onMouseMove={moved} onMouseLeave={() => setHover("")}
        style={{ height: `${Math.min(200, Math.max(24, map.rows * 8))}px` }}
        role="img" aria-label={`Error over ${axisName(names, map.axes[0])} down and ${axisName(names, map.axes[1])} across, from ${error(low)} to ${error(high)}`} />
      <div class="ends"><span>↓ {names[map.axes[0]] || `axis ${map.axes[0]}`}, {map.sizes[0]} → {names[map.axes[1]] || `axis ${map.axes[1]}`}, {map.sizes[1]}</span><span>{hover || `${error(low)} … ${error(high)}`}</span></div>
    </>
  );
}

function Maps({ maps, names }) {
  const [chosen, setChosen] = useState(maps.length - 1);
  const map = maps[Math.min(chosen, maps.length - 1)];
  return (
    <figure>
      <figcaption>Error over two axes{" "}
        {maps.length > 1 && (
          <select aria-label="Which axes" value={chosen} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
            {maps.map((each, k) => <option value={k}>{each.axes.map((axis) => names[axis] || `axis ${axis}`).join(" × ")}</option>)}
          </select>
        )}
      </figcaption>
      <Heat map={map} names={names} />
    </figure>
  );
}

function Worst({ worst }) {
  return (
    <table class="statistics worst">
      <caption>Worst elements</caption>
      <thead><tr><th>at</th><th class="tag-a">A</th><th class="tag-b">B</th><th>B − A</th></tr></thead>
      <tbody>{worst.map(({ at, a, b }) => <tr><td>[{at.join(", ")}]</td><td>{plain(value(a))}</td><td>{plain(value(b))}</td><td>{plain(value(b) - value(a))}</td></tr>)}</tbody>
    </table>
  );
}

export function Drawn({ drawn }) {
  return (
    <div class="drawn">
      {drawn.nonfinite > 0 && <p class="state">{count(drawn.nonfinite, "element")} not finite on one side</p>}
      {drawn.maps.length > 0 && <Maps maps={drawn.maps} names={drawn.names} />}
      {drawn.profiles.map((profile) => <Profile profile={profile} names={drawn.names} />)}
      {drawn.values && <Values values={drawn.values} />}
      {drawn.errors && <Errors errors={drawn.errors} />}
      {drawn.worst.length > 0 && <Worst worst={drawn.worst} />}
    </div>
  );
}
