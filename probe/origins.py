"""Where the random numbers and the inputs of this process came from: a recording keeps it in its environment."""

from __future__ import annotations

from collections.abc import Callable

_MOST = 32
"""origins of inputs that are kept, the last ones"""
_LONGEST = 500
_facts: dict[str, object] = {}
_listener: Callable[[dict[str, object]], None] | None = None


def note(**facts: object) -> None:
    """Keep facts for the recording under way and for every one that begins later."""
    _facts.update(facts)
    if _listener is not None:
        _listener(dict(facts))


def note_input(text: str) -> None:
    """Keep in words where inputs came from."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    known = list(_facts.get("inputs", ()))  # type: ignore[call-overload]
    if text not in known:
        note(inputs=[*known, text][-_MOST:])


def facts() -> dict[str, object]:
    """Return what was kept so far."""
    return dict(_facts)


def follow(listener: Callable[[dict[str, object]], None] | None) -> None:
    """Hand whatever is noted from now on to a recording; None when it has ended."""
    global _listener
    _listener = listener
