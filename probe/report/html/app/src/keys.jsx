// The keys of the page: one table, which the page obeys and shows.

import { useEffect, useRef } from "preact/hooks";

/** keys: as the browser calls them, and acts: what the page does at each; shown: keys that a part of the page listens to itself. */
export const KEYS = [
  { where: "everywhere", keys: ["n", "p"], acts: ["next", "previous"], does: "go to the next and the previous introduced, unmatched or non-finite place", alone: "go to the next and the previous non-finite place" },
  { where: "everywhere", keys: ["/"], acts: ["search"], does: "search; Enter: next hit, Shift+Enter: previous" },
  { where: "everywhere", keys: ["c"], acts: ["copy"], does: "copy the path of the chosen module" },
  { where: "everywhere", keys: ["m"], acts: ["match"], does: "match by hand: the next module without a counterpart, and its best candidates; Enter pairs it" },
  { where: "everywhere", keys: ["?"], acts: ["help"], does: "show these keys; Esc closes them" },
  { where: "in the trees", shown: ["↑", "↓", "Home", "End", "PgUp", "PgDn"], does: "move" },
  { where: "in the trees", shown: ["←", "→", "Enter"], does: "fold and unfold" },
  { where: "in the graph", keys: ["f"], acts: ["large"], does: "give the graph the whole page, and take it back; Esc too" },
  { where: "in the graph", shown: ["↑", "↓", "←", "→"], does: "follow the data" },
  { where: "in the graph", shown: ["Enter"], does: "open and close a module" },
  { where: "in the graph", shown: ["+", "-", "0"], does: "zoom in, out, and show all" },
  { where: "in the row of tabs", shown: ["←", "→"], does: "show another tab" },
];

/** What a key does, by its name in the table; undefined for a key that only a part of the page knows. */
export function actOf(key) {
  const found = KEYS.find(({ keys = [] }) => keys.includes(key));
  return found?.acts[found.keys.indexOf(key)];
}

/** The table; the browser keeps the focus in it while it is open, and gives it back. */
export function Help({ isOpen, onClose, hasGraph, canMatch, isAlone }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (isOpen && !dialog.current.open) dialog.current.showModal();
    else if (!isOpen && dialog.current.open) dialog.current.close();
  }, [isOpen]);
  const rows = KEYS.filter(({ where }) => hasGraph || where !== "in the graph").filter(({ acts = [] }) => canMatch || !acts.includes("match"));
  return (
    <dialog class="help" ref={dialog} aria-labelledby="help-title" onClose={onClose} onClick={(event) => event.target === dialog.current && onClose()}>
      <div class="help-inside">
        <header><h2 id="help-title">Keys</h2><span class="gap" /><button onClick={onClose}>Close</button></header>
        <table>
          {[...new Set(rows.map(({ where }) => where))].map((where) => (
            <tbody>
              <tr><th colSpan={2} scope="rowgroup">{where}</th></tr>
              {rows.filter((row) => row.where === where).map(({ keys, shown = keys, does, alone = does }) => (
                <tr><td>{shown.map((key, k) => <>{k > 0 && " "}<kbd>{key}</kbd></>)}</td><td>{isAlone ? alone : does}</td></tr>
              ))}
            </tbody>
          ))}
        </table>
      </div>
    </dialog>
  );
}
