"""The commands ``probe map …``: trying a layer mapping, and finding one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from probe.errors import MappingError
from probe.mapping import library, load_mapping
from probe.matching import Direction, Known, Matching, match
from probe.matching.coverage import KINDS, Coverage, Left, coverage
from probe.report.text import harmless
from probe.store.reader import Reader
from probe.tree import Tree


@click.group("map")
def map_group() -> None:
    """Layer mappings: what takes the place of what."""


@map_group.command("list")
def list_command() -> None:
    """List the mappings that come with probe.

    \b
    Example: probe map list
             probe compare a.h5 b.h5 -lm megatron-core/qwen2
    """
    known = library()
    if not known:
        raise MappingError("the mappings that come with probe were not installed")
    width = max(map(len, known))
    for name, path in known.items():
        click.echo(f"{name:{width}}  {_title(path)}".rstrip())


def _title(path: Path) -> str:
    """Return a file's first comment."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return " ".join(first.lstrip("#").split()) if first.startswith("#") else ""


@map_group.command("check")
@click.argument("mapping", metavar="FILE|NAME")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option(
    "--map-direction", type=click.Choice(["a-to-b", "b-to-a"]), help="Which side the mapping is written from."
)
@click.option("--strict", is_flag=True, help="A line of the mapping that does nothing is an error, not a warning.")
def check_command(mapping: str, a: str, b: str, map_direction: str | None, strict: bool) -> None:
    """Tell which modules of two recordings a mapping pairs, and which it leaves.

    Recordings of structure alone are enough (task="structure").

    \b
    Exit status: 0 every module is paired or ignored, 1 some are left or a line does nothing, 2 the mapping cannot be used.
    Example:     probe map check map.yaml a.h5 b.h5
    """
    parsed = load_mapping(mapping)
    sides = known_a, known_b = _known(a), _known(b)
    direction = None if map_direction is None else Direction(map_direction)
    found = match(*sides, parsed, _nothing, _nothing, direction, strict)
    covered = coverage(found, known_a, known_b)
    for line in _lines(found, covered, (a, b)):
        click.echo(harmless(line))
    sys.exit(1 if covered.only_a or covered.only_b or found.warnings else 0)


def _known(path: str) -> Known:
    with Reader(path) as reader:
        return Known(Tree(reader.modules), reader.parameters, reader.info.model_config)


def _nothing(_: int) -> frozenset[object]:
    return frozenset()


def _lines(found: Matching, covered: Coverage, files: Sequence[str]) -> Iterator[str]:
    source = found.direction.value[0].upper()
    yield f"A: {files[0]}"
    yield f"B: {files[1]}"
    yield f"The mapping is read as written from {source}."
    yield ""
    left_a, left_b = (sum(left.count for left in side) for side in (covered.only_a, covered.only_b))
    rows = [
        ("", "A", "B"),
        ("modules", *covered.modules),
        *((reason, count, count) for reason, count in sorted(covered.paired.items())),
        ("further parts of one", *covered.further),
        ("ignored", *covered.ignored),
        ("left", left_a, left_b),
    ]
    for name, in_a, in_b in rows:
        yield f"  {name:20} {in_a:>7} {in_b:>7}"
    yield from _listed("Only in A", covered.only_a)
    yield from _listed("Only in B", covered.only_b)
    if found.warnings:
        yield ""
        yield "Warnings"
        yield from (f"  {text}" for text in found.warnings)


def _listed(title: str, left: Sequence[Left]) -> Iterator[str]:
    if not left:
        return
    yield ""
    yield title
    for each in left[:KINDS]:
        count = f" ×{each.count}" if each.count > 1 else ""
        near = f"   perhaps {' or '.join(each.nearest)}" if each.nearest else ""
        yield f"  {each.path or 'the root'} ({each.class_name}){count}{near}"
    if len(left) > KINDS:
        yield f"  and {len(left) - KINDS} more"
