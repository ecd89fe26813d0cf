"""Pictures of results and recordings, those of an answer by their names; matplotlib is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from probe.errors import ConfigError
from probe.records import PassName, Phase, ViewName

if TYPE_CHECKING:
    from probe.answer.comparison import Comparison


def draw(answer: Comparison, kind: ViewName, step: int | None, at: str | None, phase: PassName | None, ax: Any) -> Any:
    """Draw an answer; return the axes.

    Raises
    ------
    ImportError
        matplotlib is not installed
    ConfigError
        there is no such kind or phase, it has no such option, the step was not compared, or no such module ran
    NotRecordedError
        there is nothing to draw
    """
    _check("kind", kind, get_args(ViewName))
    if kind == "error":
        from probe.report.plots import depth

        for name, value in (("at", at), ("phase", phase)):
            if value is not None:
                raise ConfigError(f'{name}={value!r} is for the graph: plot("graph", {name}={value!r})')
        return depth.draw(answer, step, ax)
    if phase is not None:
        _check("phase", phase, get_args(PassName))
    from probe.report.plots import graph

    return graph.draw(answer, step, at, None if phase is None else Phase[phase.upper()], ax)


def _check(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        more = f"; a step is chosen by step={value}" if name == "kind" and isinstance(value, int) else ""
        raise ConfigError(f"{name}={value!r} is not known; expected {' or '.join(map(repr, known))}{more}")
