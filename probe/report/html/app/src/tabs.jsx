// A row of tabs, by mouse, by arrow keys, and for a screen reader.

/** tabs: [name, text] of each. */
export function Tabs({ tabs, chosen, onChosen, label }) {
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex(([name]) => name === chosen);
    const [name] = tabs[(at + step + tabs.length) % tabs.length];
    onChosen(name);
    event.currentTarget.querySelector(`#tab-${name}`)?.focus();
    event.preventDefault();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={onKey}>
      {tabs.map(([name, text]) => (
        <button key={name} id={`tab-${name}`} role="tab" aria-selected={name === chosen} aria-controls={`pane-${name}`} tabIndex={name === chosen ? 0 : -1} onClick={() => onChosen(name)}>{text}</button>
      ))}
    </div>
  );
}

/** What stands behind a tab; it keeps its state while another one is shown. */
export function Pane({ name, chosen, class: kind = "", children }) {
  return <div class={`pane ${kind}`} id={`pane-${name}`} role="tabpanel" aria-labelledby={`tab-${name}`} hidden={name !== chosen}>{children}</div>;
}
