"""What became of the optimizers behind the last step of both runs, where that is not the same: no step shows what it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.notes import Note, note
from probe.store.reading.reader import Reader


def changed_behind(readers: Sequence[Reader], last: tuple[int, int]) -> Iterator[Note]:
    """Yield what the two sides changed otherwise behind the last step that was compared, of A and of B."""
    if any(int(reader.steps["step"][-1]) != step for reader, step in zip(readers, last, strict=True)):
        return
    a, b = (_settings(reader, step) for reader, step in zip(readers, last, strict=True))
    found = {
        note("setting-behind-last-step", name=name, a=a[key][name], b=b[key][name])
        for key in a.keys() & b.keys()
        for name in _changed(readers, key)
        if name in a[key] and name in b[key] and a[key][name] != b[key][name]
    }
    if found:
        yield note("settings-behind-last-step", settings=tuple(sorted(found, key=str)))
    states = [reader.behind_last_step.get("states", {}) for reader in readers]
    if sorted(states[0].values()) == sorted(states[1].values()):
        return
    for side, changed in zip("AB", states, strict=True):
        if changed:
            yield note("states-behind-last-step", side=side, count=len(changed), first=next(iter(changed)))


def _changed(readers: Sequence[Reader], key: tuple[int, int]) -> set[str]:
    """Return the names of the settings of a group that either side changed."""
    return {
        name
        for reader in readers
        for number, index, changed in reader.behind_last_step.get("settings", ())
        if (number, index) == key
        for name in changed
    }


def _settings(reader: Reader, step: int) -> dict[tuple[int, int], dict[str, object]]:
    """Return the settings of each group as the recording ends, by numbers of optimizer and group."""
    found = {(group.optimizer, group.group): dict(group.hyper) for group in reader.groups_of(step)}
    for number, index, changed in reader.behind_last_step.get("settings", ()):
        found.setdefault((number, index), {}).update(changed)
    return found
