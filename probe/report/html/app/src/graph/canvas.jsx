// A drawing that is moved by dragging and scrolling, and zoomed by Ctrl and scrolling, by two fingers or by keys.

import { useEffect, useImperativeHandle, useLayoutEffect, useRef, useState } from "preact/hooks";
import { forwardRef } from "preact/compat";

const [NEAREST, FARTHEST] = [2.5, 0.08];
const [READABLE, SMALLEST] = [0.85, 0.6]; // sizes at which texts are easily, and just, read
const BESIDE = 12;
const MOVED = 4; // pixels from which on a press is no click

/** heads: what stands at the top whichever part is seen, each with its place across the drawing. */
export const Canvas = forwardRef(function Canvas({ width, height, label, children, onKeyDown, active, heads = [] }, ref) {
  const place = useRef(null);
  const [at, setAt] = useState({ x: 0, y: 0, scale: 1 });
  const now = useRef(at);
  const drag = useRef(null);
  const move = (next) => {
    now.current = next;
    setAt(next);
  };
  const zoom = (factor, x, y) => {
    const old = now.current;
    const box = place.current.getBoundingClientRect();
    const [px, py] = [x ?? box.width / 2, y ?? box.height / 2];
    const scale = Math.max(FARTHEST, Math.min(NEAREST, old.scale * factor));
    move({ scale, x: px - ((px - old.x) * scale) / old.scale, y: py - ((py - old.y) * scale) / old.scale });
  };
  /** Show all of it, or, where that would be too small to read and a place is given, what is around the place; never larger than it is. */
  const fit = (centre) => {
    const { clientWidth: w, clientHeight: h } = place.current;
    if (!w || !width) return;
    const across = Math.min(1, (w - 2 * BESIDE) / width);
    const whole = Math.min(across, (h - 2 * BESIDE) / height);
    const both = centre ? (w - 4 * BESIDE) / (centre.to - centre.from) : 1; // where the chosen ones of all sides are seen
    const scale = Math.max(FARTHEST, centre && whole < READABLE ? Math.max(across, Math.min(SMALLEST, both)) : whole);
    const placed = (size, room, at) => (size * scale <= room ? (room - size * scale) / 2 : Math.max(room - size * scale - BESIDE, Math.min(BESIDE, room / 2 - at * scale)));
    move({ scale, x: placed(width, w, centre ? (centre.from + centre.to) / 2 : width / 2), y: placed(height, h, centre?.y ?? 0) });
  };
  /** Move as little as brings a place onto the screen. */
  const show = (x, y, margin = 60) => {
    const { clientWidth: w, clientHeight: h } = place.current;
    const { scale, ...old } = now.current;
    const into = (p, from, size) => (p * scale + from < margin ? margin - p * scale : p * scale + from > size - margin ? size - margin - p * scale : from);
    move({ scale, x: into(x, old.x, w), y: into(y, old.y, h) });
  };
  useImperativeHandle(ref, () => ({ zoom, fit, show, focus: () => place.current.focus({ preventScroll: true }) }), [width, height]);
  useLayoutEffect(() => {
    const wheel = (event) => {
      event.preventDefault();
      const box = place.current.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY * 0.01), event.clientX - box.left, event.clientY - box.top);
      else {
        const old = now.current;
        const [dx, dy] = event.shiftKey && !event.deltaX ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
        move({ ...old, x: old.x - dx, y: old.y - dy });
      }
    };
    const element = place.current;
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  }, []);
  const pressed = (event) => {
    if (event.button === 0) drag.current = { x: event.clientX, y: event.clientY, from: now.current, isMoved: false };
  };
  const dragged = (event) => {
    const start = drag.current;
    if (!start) return;
    const [dx, dy] = [event.clientX - start.x, event.clientY - start.y];
    if (!start.isMoved && Math.hypot(dx, dy) < MOVED) return;
    if (!start.isMoved) place.current.setPointerCapture(event.pointerId);
    start.isMoved = true;
    move({ ...start.from, x: start.from.x + dx, y: start.from.y + dy });
  };
  const released = (event) => {
    if (drag.current?.isMoved) {
      const swallow = (click) => click.stopPropagation();
      event.currentTarget.addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => place.current?.removeEventListener("click", swallow, { capture: true }));
    }
    drag.current = null;
  };
  useEffect(() => {
    const lost = () => (drag.current = null);
    addEventListener("pointerup", lost);
    return () => removeEventListener("pointerup", lost);
  }, []);
  return (
    <svg class="graph-canvas" ref={place} tabindex="0" role="application" aria-label={label} aria-activedescendant={active}
      onPointerDown={pressed} onPointerMove={dragged} onPointerUp={released} onKeyDown={onKeyDown}>
      <g transform={`translate(${at.x.toFixed(1)},${at.y.toFixed(1)}) scale(${at.scale.toFixed(4)})`}>{children}</g>
      {heads.map(({ text, name, from, to }) => {
        const left = Math.max(8, from * at.scale + at.x + 4);
        return to * at.scale + at.x > 24 && <text key={text} class={`side-label ${name}`} x={left} y="16">{text}</text>;
      })}
    </svg>
  );
});
