"""Which rank is which, for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from probe.ranks.reader import RanksReader
from probe.report.names import plain

_MOST = 64


def sizes(reader: RanksReader) -> str:
    """Return how many ranks there are and how they divide the work: ``4 ranks: tp 2 × pp 2``."""
    layout = reader.layout
    groups = " × ".join(f"{name} {layout.size(name)}" for name in layout.dividing)
    lacking = f"; no file of rank {', '.join(map(str, reader.missing[:_MOST]))}" if reader.missing else ""
    return f"{len(layout.ranks)} of {layout.world_size}{f': {groups}' if groups else ''}{lacking}"


def drawn(reader: RanksReader) -> Table:
    """Return the layout: each rank's place in each group, the share of the batch that it is given, its parameters and its file."""
    layout = reader.layout
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("rank", justify="right")
    for name in layout.groups:
        table.add_column(name, justify="right")
    for name in ("share of the batch", "parameters", "file"):
        table.add_column(name, justify="left" if name == "file" else "right")
    count = reader.shares.count
    for member, path in list(zip(reader.members, reader.paths, strict=True))[:_MOST]:
        share = f"{member.part + 1} of {count}" if count > 1 else "all"
        weights = sum(not each.is_buffer for each in member.reader.parameters)
        cells = [
            str(member.rank),
            *(str(member.places[name]) for name in layout.groups),
            share,
            str(weights),
            plain(path.name),
        ]
        table.add_row(*map(Text, cells))
    if len(reader.members) > _MOST:
        table.add_row(Text(f"… and {len(reader.members) - _MOST} more"))
    return table
