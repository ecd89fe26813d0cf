"""`python -m benchmarks.ablation.page FILE`: write docs/evidence/ablation.md from what `benchmarks.ablation` found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from benchmarks.ablation.__main__ import Effect
from benchmarks.localisation.tools.suite import ROOT

PAGE = ROOT / "docs" / "evidence" / "ablation.md"
_SHOWN = 40
"""functions that are listed, of those that are needed most"""

_HEAD = """# What each function of the comparison is worth

Written by `python -m benchmarks.ablation.page` from what `python -m benchmarks.ablation` found at commit {commit}. Every function that can have nothing to say
(it may return False, nothing or an empty text) was traced over {cases:,} recorded pairs: {share:g} of the localisation benchmark, from values and from
statistics, and the public ports. Then it was left out, and up to {most} of the pairs in which it said something were judged again.

| | functions | lines of code |
|---|---:|---:|
{summary}

Functions that say nothing here stand for what these pairs do not have: rarer faults, one-sided inputs, tolerances, further runs as a measure of noise. Their own
tests need them. Leaving out what changes no answer would save {spare:,} of the lines, and with them protection that
{cases:,} pairs are too few to show. So nothing was left out for its silence alone.

## By folder

Functions, and lines of code, that say nothing in any pair, that say something and change no answer, and that some answer needs.

| folder | functions | silent | change nothing | needed |
|---|---:|---:|---:|---:|
{folders}

## Needed most

Right answers that are wrong without the function, of the pairs judged again; architectures among them; right pairs that are then called wrong.

| function | lines | says something in | judged | lost | architectures | false alarms |
|---|---:|---:|---:|---:|---:|---:|
{needed}
"""


def is_silent(effect: Effect) -> bool:
    """Tell whether the function said nothing in any pair."""
    return not effect.fires


def is_needed(effect: Effect) -> bool:
    """Tell whether an answer changes without the function."""
    return bool(effect.lost or effect.gained or effect.moved)


def changes_nothing(effect: Effect) -> bool:
    """Tell whether the function said something, and no answer changes without it."""
    return bool(effect.fires) and not is_needed(effect)


def is_weak(effect: Effect) -> bool:
    """Tell whether fewer than 3 pairs, or a single architecture, and no right pair, need the function."""
    return bool(effect.lost) and not effect.alarms and (len(effect.lost) < 3 or effect.kinds < 2)


_KINDS: dict[str, Callable[[Effect], bool]] = {
    "say nothing in any pair": is_silent,
    "say something, and change no answer": changes_nothing,
    "change an answer": is_needed,
    "of these: fewer than 3 pairs, or a single architecture, need them": is_weak,
}


def written(effects: Sequence[Effect], cases: int, share: float, most: int, commit: str) -> str:
    """Return the page."""
    summary = [f"| all | {_sizes(effects)} |"]
    summary += [f"| {title} | {_sizes([each for each in effects if fits(each)])} |" for title, fits in _KINDS.items()]
    folders = sorted({_folder(each) for each in effects})
    needed = sorted((each for each in effects if each.lost), key=lambda each: (-len(each.lost), each.name))[:_SHOWN]
    return _HEAD.format(
        commit=commit,
        cases=cases,
        share=share,
        most=most,
        summary="\n".join(summary),
        spare=sum(each.lines for each in effects if changes_nothing(each)),
        folders="\n".join(
            _row_of_folder(name, [each for each in effects if _folder(each) == name]) for name in folders
        ),
        needed="\n".join(
            f"| `{each.name}` | {each.lines} | {each.fires} | {each.judged} | {len(each.lost)} | {each.kinds} | {each.alarms} |"
            for each in needed
        ),
    )


def _folder(effect: Effect) -> str:
    return "/".join(effect.name.partition(":")[0].split(".")[:2])


def _sizes(effects: Sequence[Effect]) -> str:
    return f"{len(effects):,} | {sum(each.lines for each in effects):,}"


def _row_of_folder(name: str, effects: Sequence[Effect]) -> str:
    cells = []
    for fits in (is_silent, changes_nothing, is_needed):
        some = [each for each in effects if fits(each)]
        cells.append(f"{len(some)} ({sum(each.lines for each in some):,})" if some else "·")
    return f"| `{name}` | {len(effects)} ({sum(each.lines for each in effects):,}) | {' | '.join(cells)} |"


@click.command()
@click.argument("found", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--commit", required=True, help="At which the functions were left out.")
@click.option("--share", type=float, default=0.3, show_default=True, help="As benchmarks.ablation was given.")
@click.option("--most", type=int, default=60, show_default=True, help="As benchmarks.ablation was given.")
def main(found: Path, commit: str, share: float, most: int) -> None:
    """Write the page of evidence."""
    known = json.loads(found.read_text(encoding="utf-8"))
    effects = [Effect(**each) for each in known["effects"].values()]
    PAGE.write_text(written(effects, len(known["traced"]), share, most, commit), encoding="utf-8")


if __name__ == "__main__":
    main()
