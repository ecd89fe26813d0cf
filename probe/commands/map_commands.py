"""The commands ``probe map …``: trying a layer mapping, and finding one."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path

import click

from probe.commands.shared import DIRECTION, STRICT, Group
from probe.defaults import FRAMEWORKS
from probe.errors import ExistsError, MappingError
from probe.mapping import LayerMapping, library, load_mapping
from probe.matching import Direction, Known, Matching, match
from probe.matching.automatic import without_guesses
from probe.matching.automatic.completing import complete
from probe.matching.automatic.loose import match_loose
from probe.matching.automatic.outline import Outline, outline_of
from probe.matching.automatic.partial import with_whole_groups
from probe.matching.automatic.weights.packing import with_numbers
from probe.matching.automatic.weights.parameters import match_parameters
from probe.matching.automatic.weights.running import match_running
from probe.matching.changes import Change, changes_of
from probe.matching.checks.coverage import KINDS, Coverage, Left, coverage
from probe.matching.checks.misshapen import misshapen, reshaped
from probe.matching.draft import draft
from probe.matching.initial_weights import fingerprints
from probe.matching.loose import loose_weights, numbered, of_modules_not_left
from probe.matching.one_to_many import with_places
from probe.matching.unneeded import listed, needing_no_partner
from probe.ranks.opening import open_reader
from probe.report.layout import LONGEST_LIST, file_names, harmless, plain
from probe.store.reading.reader import Reader
from probe.structure.printed import model_config_of, record_printed
from probe.structure.tree import Tree

_WIDTH = 80
"""columns that lines are kept to; names are never broken"""


@click.group("map", cls=Group)
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


@map_group.command("tree")
@click.argument("text", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The recording to write.")
@click.option(
    "--framework", type=click.Choice(FRAMEWORKS), default=FRAMEWORKS[0], show_default=True, help="Whose print it is."
)
@click.option("--config", type=click.Path(path_type=Path), help="The model's config.json, for the numbers of a split.")
def tree_command(text: Path, output: Path, framework: str, config: Path | None) -> None:
    """Write a recording of a model's structure out of what print(model) shows.

    For a model that cannot be run here. Of parameters it has those that the text tells. The text may be a log: other
    lines, and a mark before each line ("# ", "[rank0]:"), are left out.

    \b
    Example: probe map tree model.txt -o tree.h5
    """
    known = model_config_of(config) if config else {}
    printed = record_printed(text, output, framework, known)
    shapes = f"{len(printed.parameters)} parameters and buffers"
    click.echo(harmless(f"{len(printed.modules)} modules and the shapes of {shapes} are in {output}"))


def _title(path: Path) -> str:
    """Return a file's first comment."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return " ".join(first.lstrip("#").split()) if first.startswith("#") else ""


@map_group.command("check")
@click.argument("mapping", metavar="FILE|NAME")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@DIRECTION
@STRICT
def check_command(mapping: str, a: str, b: str, direction: str | None, strict: bool) -> None:
    """Tell which modules of two recordings a mapping pairs, and which it leaves.

    Recordings of structure alone are enough (task="structure"). What needs no partner, as containers, Identity and a Dropout
    that drops nothing, is listed apart, and so is what is compared by its weights alone.

    \b
    Exit status: 0 every module has a partner, needs none, or is ignored
                 1 a module or a weight has no partner, or a line does nothing
                 3 the mapping cannot be used
    Example:     probe map check map.yaml a.h5 b.h5
    """
    parsed = load_mapping(mapping)
    wanted = None if direction is None else Direction(direction)
    with open_reader(a) as first, open_reader(b) as second:
        sides = known_a, known_b = _known(first), _known(second)
        weights = fingerprints(first, known_a.tree, second, known_b.tree)
        found = match(*sides, parsed, *weights, wanted, strict)
        outlines = outline_of(first, known_a.tree), outline_of(second, known_b.tree)
        found = with_whole_groups(found, *outlines)
        placed = with_places(found, known_a.tree, known_b.tree)
        found = replace(found, weight_bundles=placed.weight_bundles, notes=placed.notes)
        packing = with_numbers(found, *outlines)
        found = replace(packing.matching, notes=(*found.notes, *packing.lost))
        changes = changes_of(found, known_a.tree, known_b.tree)
        covered = coverage(found, *sides, needing_no_partner(found, *outlines, changes))
        lonely = _lonely(found, sides, (first, second), outlines)
        loose = [
            of_modules_not_left(names, known, left)
            for names, known, left in zip(lonely, sides, (found.only_a, found.only_b), strict=True)
        ]
        ranks = first.info.world_size, second.info.world_size
        odd = misshapen(found, *sides, ranks)
    for line in _lines(found, covered, changes, loose, (a, b), (known_a.tree, known_b.tree)):
        click.echo(plain(line, LONGEST_LIST))
    for line in _titled("Numbers that no recorded configuration has", map(str, packing.notes)):
        click.echo(plain(line, LONGEST_LIST))
    for line in _of_shapes(odd, reshaped(found, *sides)):
        click.echo(plain(line, LONGEST_LIST))
    sys.exit(1 if covered.only_a or covered.only_b or any(loose) or odd or found.notes else 0)


@map_group.command("suggest")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the mapping to this file.")
@click.option("--min-confidence", default=0.5, show_default=True, type=click.FloatRange(0, 1),
              help="Leave out pairs that are less sure.")  # fmt: skip
def suggest_command(a: str, b: str, output: str | None, min_confidence: float) -> None:
    """Draft a mapping from two recordings: read it, correct it, keep it.

    Recordings of structure alone are enough (task="structure"); from values, more is certain. Lines that may be wrong are
    marked with "# ?".

    \b
    Example: probe map suggest a.h5 b.h5 -o map.yaml
             probe map check map.yaml a.h5 b.h5
    """
    if output is not None and Path(output).exists():
        raise ExistsError(
            f"{output} exists already, and may have been corrected by hand: give another name or delete it"
        )
    with open_reader(a) as first, open_reader(b) as second:
        sides = [Known(Tree(each.modules), each.parameters, each.info.model_config) for each in (first, second)]
        weights = fingerprints(first, sides[0].tree, second, sides[1].tree)
        certain = match(*sides, LayerMapping(), *weights)
        outlines = [outline_of(each, known.tree) for each, known in zip((first, second), sides, strict=True)]
        found = without_guesses(complete(certain, *outlines), min_confidence)
        found = match_parameters(found, *outlines, min_confidence)
        found = match_loose(found, *outlines, min_confidence)
        found = match_running(found, first, second, min_confidence)
        lonely = _lonely(with_places(found, sides[0].tree, sides[1].tree), sides, (first, second), outlines)
        missed = [
            tuple(index for index in left if not outline.adds_nothing(index))
            for left, outline in zip((found.only_a, found.only_b), outlines, strict=True)
        ]
        found = replace(found, only_a=missed[0], only_b=missed[1])
        text = draft(found, *sides, file_names(a, b), lonely)
    if output is None:
        click.echo("\n".join(map(harmless, text.split("\n"))), nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MappingError(f"cannot write {output}: {error.strerror}") from None
    click.echo(f"{len(found.pairs)} pairs are in {harmless(output)}; try it with probe map check", err=True)


def _lonely(
    found: Matching, sides: Sequence[Known], readers: Sequence[Reader], outlines: Sequence[Outline]
) -> tuple[list[str], list[str]]:
    """Return the weights of both sides that have no partner."""
    frameworks = readers[0].info.framework, readers[1].info.framework
    return loose_weights(found, sides[0], sides[1], frameworks, (outlines[0].unmeasured, outlines[1].unmeasured))


def _known(reader: Reader) -> Known:
    return Known(Tree(reader.modules), reader.parameters, reader.info.model_config)


def _lines(
    found: Matching,
    covered: Coverage,
    changes: Sequence[Change],
    loose: Sequence[Sequence[str]],
    files: Sequence[str],
    trees: Sequence[Tree],
) -> Iterator[str]:
    source = found.direction.value[0].upper()
    yield f"A: {files[0]}"
    yield f"B: {files[1]}"
    yield f"The mapping is read as written from {source}."
    yield from _titled("Warnings", found.warnings)
    yield ""
    left_a, left_b = (sum(left.count for left in side) for side in (covered.only_a, covered.only_b))
    rows = [
        ("", "A", "B"),
        ("modules", *covered.modules),
        *((reason, count, count) for reason, count in sorted(covered.paired.items())),
        ("further parts of one", *covered.further),
        *([("by weights alone", *covered.by_weights)] if any(covered.by_weights) else []),
        ("ignored", *covered.ignored),
        ("need no partner", *map(len, covered.unneeded)),
        ("left", left_a, left_b),
        *([("weights left", *map(len, loose))] if any(loose) else []),
    ]
    for name, in_a, in_b in rows:
        yield f"  {name:20} {in_a:>7} {in_b:>7}"
    unneeded = [
        f"{name}: {listed(*each)}" for name, *each in zip("AB", trees, covered.unneeded, strict=True) if each[1]
    ]
    yield from _titled("Changed from A to B", (change.text for change in changes))
    yield from _titled("Need no partner", unneeded)
    for name, left in (("A", covered.weights_a), ("B", covered.weights_b)):
        yield from _listed(
            f"In {name}, compared by weights alone: what they return has no counterpart", left, frozenset()
        )
    both = {each.named for each in covered.only_a} & {each.named for each in covered.only_b}
    yield from _listed(
        "Left on both sides, at the same path",
        [replace(each, nearest=()) for each in covered.only_a if each.named in both],
        {path for each in changes for path in each.a},
    )
    sides = (
        (name, [each for each in only if each.named not in both])
        for name, only in zip("AB", (covered.only_a, covered.only_b), strict=True)
    )
    for name, left in sides:
        yield from _listed(
            f"Only in {name}", left, {path for each in changes for path in (each.a if name == "A" else each.b)}
        )
    for name, names in zip("AB", loose, strict=True):
        yield from _titled(
            f"In {name}, weights without a partner, of modules that are not left", numbered(names)[:KINDS]
        )


def _of_shapes(odd: Sequence[str], turned: Sequence[str]) -> Iterator[str]:
    """Yield what is said of weights of other shapes: those that do not fit, and those that are read in another one."""
    yield from _titled("Weights of which the shapes do not fit", odd[:KINDS])
    yield from _titled(
        "Weights that are read in another shape: shapes alone do not tell whether the order is right", turned
    )


def _titled(title: str, texts: Iterable[str]) -> Iterator[str]:
    """Yield a heading and what stands below it, if anything does."""
    for place, text in enumerate(texts):
        if not place:
            yield ""
            yield title
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )


def _listed(title: str, left: Sequence[Left], whole: Set[str]) -> Iterator[str]:
    """Yield what is left; of modules that are said to be more on one side, not what is in them."""
    if not left:
        return
    yield ""
    yield title
    inside = {path: [each for each in left if each.path.startswith(f"{path}.")] for path in whole}
    hidden = {each.path for members in inside.values() for each in members}
    left = [each for each in left if each.path not in hidden]
    for each in left[:KINDS]:
        line = f"  {each.path or 'the root'} ({each.class_name})" + (f" ×{each.count}" if each.count > 1 else "")
        more = sum(member.count for member in inside.get(each.path, ()))
        line += f" and {more} modules inside" if more else ""
        near = f"perhaps {' or '.join(each.nearest)}" if each.nearest else ""
        fits = len(line) + len(near) + 3 <= _WIDTH
        yield f"{line}   {near}".rstrip() if fits else line
        if not fits:
            yield f"    {near}"
    if len(left) > KINDS:
        yield f"  and {len(left) - KINDS} more"
