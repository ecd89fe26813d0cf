"""Settings that differ (`Comparison.settings`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.notes import Note


def _setting(a_name: str, b_name: str, a: str, b: str) -> str:
    if a_name == b_name:
        return f"{a_name}: {a} in A, {b} in B"
    return f"{a_name} {a} in A, {b_name} {b} in B"


def _behind(settings: Sequence[Note], first: Note | None) -> str:
    said = "; ".join(map(str, settings))
    return f"{said}; {first}" if first else said


WORDS: dict[str, str | Callable[..., str]] = {
    "setting": _setting,
    "settings-behind": _behind,
    "setting-shows-nowhere": "the settings differ and no finding shows it: {setting}",
}
