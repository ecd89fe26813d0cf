"""Why nothing was compared of a module that is asked for by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from probe.mapping.nearest import nearest

Paths = Collection[str]


def why_not(path: str, ignored: tuple[Paths, Paths], alone: tuple[Paths, Paths], compared: Iterable[str]) -> str:
    """Say why a comparison has nothing of a path: it was left out, has no counterpart, or is none of its paths.

    Parameters
    ----------
    ignored, alone
        paths of A, and of B, that the mapping leaves out, and that ran and have no counterpart
    compared
        paths of which something was compared
    """
    left_out = [name for name, paths in zip("AB", ignored, strict=True) if path in paths]
    if left_out:
        return f"{path!r} is left out by the mapping (ignore) in {' and '.join(left_out)}: nothing of it was compared"
    lonely = [other for other, paths in zip("BA", alone, strict=True) if path in paths]
    if lonely:
        where = f"in {lonely[0]}" if len(lonely) == 1 else "on either side"
        return f"{path!r} has no counterpart {where}; a layer mapping can give it one (see .only_a and .only_b)"
    near = nearest(path, [*dict.fromkeys(compared), *(each for paths in (*ignored, *alone) for each in paths)])
    asked = f"; did you mean {near[0]!r}?" if near else ""
    return f"{path!r} is in neither recording, or nothing of it was recorded{asked}"
