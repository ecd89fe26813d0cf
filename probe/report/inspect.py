"""What a recording holds, for the terminal."""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from probe.contents.experts import rows_of_experts
from probe.contents.float8 import float8_row
from probe.contents.unshown import cannot_show
from probe.errors import ConfigError, NotRecordedError
from probe.notes import note
from probe.ranks.opening import is_of_ranks, open_reader
from probe.ranks.reader import RanksReader
from probe.records import Phase, Role
from probe.report.layout import LONGEST_LIST, plain
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

_NUMBERS = ("min", "max", "mean", "norm")
_SUGGESTED = 3
_MOST_STEPS = 8
_MOST_RANKS = 64


def summary(file: str | Path, verbose: bool = False) -> Group:
    """Return who recorded what, when, and how much of it; of experts the first ten routers, ``verbose``: all."""
    with open_reader(file) as reader:
        reader.require_steps()
        table = Table.grid(padding=(0, 2))
        for name, value in facts(reader).items():
            table.add_row(Text(name, style="dim"), Text(plain(value, LONGEST_LIST)))
        notes = [Text(f"note: {plain(text)}", style="yellow") for _, _, text in reader.notes]
        notes += [Text(f"cannot show: {plain(str(each), LONGEST_LIST)}") for each in cannot_show(reader)]
        experts = rows_of_experts(reader, verbose)
        above = [table, Text(), _table(experts, experts[0][0])] if experts else [table]
        for each in reader.remarks() if is_of_ranks(reader) else ():
            text = note("of-set-of-files", side=reader.path.name, what=each)
            notes.append(Text(f"note: {text}", style="yellow"))
        above += [Text(), _layout(reader)] if is_of_ranks(reader) else []
        return Group(*above, *notes)


def facts(reader: Reader) -> dict[str, str]:
    """Return what `summary` says of a recording, each under its name."""
    info = reader.info
    ranks = reader if is_of_ranks(reader) else None
    paths = [reader.path] if ranks is None else ranks.paths
    size = sum(path.stat().st_size for path in paths) / 2**20
    what = reader.path.name if ranks is None else f"{len(paths)} files of {reader.path.name}"
    one = f"rank {info.rank} of {info.world_size}" if ranks is None else f"ranks {_sizes(ranks)}"
    state = "closed" if info.closed else "still being written, or its process was ended: complete steps can be read"
    return {
        "file": f"{what}, {size:.1f} MiB, {state}",
        "run": f"{info.run_id}, recorded {info.created}, {one}",
        "framework": f"{info.framework} {info.framework_version}, probe {info.probe_version}",
        "model": _model(reader),
        **_origins(reader),
        **float8_row(reader),
        "recorded": ", ".join(f"{key}={value}" for key, value in info.config.items() if value not in (None, False)),
        "steps": _steps(reader),
        "observations": _counts(reader),
        "scalars": _scalars(reader),
    }


def difference(a: str | Path, b: str | Path, width: int | None, *, verbose: bool = False) -> Text:
    """Return which settings two recordings hold otherwise: the model's configuration, the optimizers', the environment."""
    from probe.report.settings import held
    from probe.settings.comparing import held_against
    from probe.settings.reading.recordings import recorded
    from probe.settings.resolving import resolved

    return held(held_against(*(resolved(recorded(file)) for file in (a, b))), width, verbose=verbose)


def listing(file: str | Path, pattern: str, step: int | None, phase: str | None, limit: int) -> Group:
    """Return the records of the modules that match a glob, two lines each.

    Raises
    ------
    NotRecordedError
        no module, or no record, matches
    ConfigError
        the phase is none
    """
    labels = [known.label for known in Phase]
    if phase is not None and phase not in labels:
        raise ConfigError(f"phase {phase!r} is not known; expected one of {', '.join(labels)}")
    with open_reader(file) as reader:
        reader.require_steps()
        names = ((index, name) for index, each in enumerate(reader.modules) for name in (each.path, each.class_name))
        wanted = {index for index, name in names if fnmatch.fnmatchcase(name, pattern)}
        if not wanted:
            raise NotRecordedError(f"no module of {reader.path} matches {pattern!r}; {_near(reader, pattern)}")
        rows = [row for row in reader.records if int(row["module"]) in wanted and step in (None, row["step"])]
        rows = [row for row in rows if phase in (None, Phase(row["phase"]).label)]
        if not rows:
            steps = [int(each) for each in reader.steps["step"]]
            there = f"; its steps are {_listed(steps)}" if step is not None and step not in steps else ""
            raise NotRecordedError(f"nothing was recorded of {pattern!r} with these filters in {reader.path}{there}")
        shown = rows[:limit] if limit else rows
        pairs, left = zip(shown, [None, *shown], strict=False), len(rows) - len(shown)
        more = [Text(f"{left} more records: --limit 0 shows all")] if left else []
        return Group(*(line for row, before in pairs for line in _lines(reader, row, before)), *more)


def _lines(reader: Reader, row: Any, before: Any) -> Iterator[Text]:
    """Yield the lines of a record; its call first, where the record before is of another one."""
    call = ("step", "micro", "module", "call")
    if before is None or any(row[name] != before[name] for name in call):
        module = reader.modules[row["module"]]
        where = f"step {row['step']}, micro {row['micro']}, call {row['call']}"
        yield Text.assemble((plain(module.path) or "(root)", "cyan"), f"  {plain(module.class_name)}  ", (where, "dim"))
    values = "  values" if row["tensor"] >= 0 else ""
    yield Text(f"  {_what(reader, row)}  {row['dtype'].decode()} {list(reader.shapes[row['shape']])}{values}")
    bad = int(row["nan"]) + int(row["posinf"]) + int(row["neginf"])
    numbers = [f"{name} {row[name]:.6g}" for name in _NUMBERS] + ([f"NaN or Inf {bad}"] if bad else [])
    yield Text(f"    {'  '.join(numbers)}")


def _listed(steps: list[int]) -> str:
    """Return numbers of steps: all if they are few, else the first ones and the last."""
    shown = steps if len(steps) <= _MOST_STEPS else [*steps[: _MOST_STEPS - 2], "…", steps[-1]]
    return ", ".join(map(str, shown)) or "none"


def _near(reader: Reader, pattern: str) -> str:
    """Suggest modules whose path or class is like a pattern that matches none."""
    names = dict.fromkeys(name for module in reader.modules for name in (module.path, module.class_name) if name)
    last = pattern.strip("*").rpartition(".")[2].lower()
    inside = [name for name in names if last and last in name.lower()]
    near = difflib.get_close_matches(pattern, names, _SUGGESTED) or inside[:_SUGGESTED]
    return f"did you mean {' or '.join(near)}?" if near else "probe show FILE '*' lists all"


def _what(reader: Reader, row: object) -> str:
    phase, role = Phase(row["phase"]).label, Role(row["role"]).label  # type: ignore[index]
    return f"{phase} {role} {plain(reader.slots[row['slot']])}"  # type: ignore[index]


def _origins(reader: Reader) -> dict[str, str]:
    """Say what random numbers and inputs came from, where the program told probe."""
    facts, rows = reader.environment, {}
    if "seed" in facts:
        open_ends = reader.listed("not_deterministic")
        how = "deterministic" if facts.get("deterministic") else "not made deterministic"
        rows["seed"] = "; ".join([f"{facts['seed']} by probe.seed_all, {how}", *(f"not: {text}" for text in open_ends)])
    if "inputs" in facts:
        rows["inputs"] = "; ".join(reader.listed("inputs"))
    return rows


def _model(reader: Reader) -> str:
    models = " and ".join(Tree(reader.modules).model_names) or "?"
    operations = sum(module.is_operation for module in reader.modules)
    more = f", {operations} operations" if operations else ""
    return (
        f"{models}, {len(reader.modules) - operations} modules{more}, {len(reader.parameters)} parameters and buffers"
    )


def _steps(reader: Reader) -> str:
    numbers = [int(row["step"]) for row in reader.steps]
    if not numbers:
        return "none is complete"
    aborted = sum(int(row["state"]) for row in reader.steps)
    which = f"step {numbers[0]}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{len(numbers)} ({which})" + (f", {aborted} ended by an exception" if aborted else "")


def _counts(reader: Reader) -> str:
    phases = Counter(Phase(value).label for value in reader.records["phase"].tolist())
    stored = int((reader.records["tensor"] >= 0).sum())
    parts = [f"{name} {phases[name]}" for name in (phase.label for phase in Phase) if phases[name]]
    return f"{len(reader.records)} ({', '.join(parts)}), {f'values of {stored}' if stored else 'no values'}"


def _scalars(reader: Reader) -> str:
    last = {name: value for _, name, value in reader.scalars}
    return ", ".join(f"{name} {value:.6g}" for name, value in last.items()) or "none"


def _sizes(reader: RanksReader) -> str:
    """Return how many ranks there are and how they divide the work: ``4 ranks: tp 2 × pp 2``."""
    layout = reader.layout
    groups = " × ".join(f"{name} {layout.size(name)}" for name in layout.dividing)
    lacking = f"; no file of rank {', '.join(map(str, reader.missing[:_MOST_RANKS]))}" if reader.missing else ""
    return f"{len(layout.ranks)} of {layout.world_size}{f': {groups}' if groups else ''}{lacking}"


def _layout(reader: RanksReader) -> Table:
    """Return the layout: each rank's place in each group, the share of the batch that it is given, its parameters and its file."""
    layout = reader.layout
    rows, count = [("rank", *layout.groups, "share of the batch", "parameters", "file")], reader.shares.count
    for member, path in list(zip(reader.members, reader.paths, strict=True))[:_MOST_RANKS]:
        share = f"{member.part + 1} of {count}" if count > 1 else "all"
        weights = sum(not each.is_buffer for each in member.reader.parameters)
        places = (str(member.places[name]) for name in layout.groups)
        rows.append((str(member.rank), *places, share, str(weights), path.name))
    if len(reader.members) > _MOST_RANKS:
        rows.append((f"… and {len(reader.members) - _MOST_RANKS} more",))
    return _table(rows, "file")


def _table(rows: list[tuple[str, ...]], left: str) -> Table:
    """Return rows, the first of which are heads, as a table: numbers to the right, what ``left`` heads to the left."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if name == left else "right")
    for row in rows[1:]:
        table.add_row(*map(Text, map(plain, row)))
    return table
