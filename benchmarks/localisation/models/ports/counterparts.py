"""Which module of transformers each module of a port is, and how its weights are made of that one's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch
import yaml
from torch import Tensor

Combine = Callable[[list[Tensor]], Tensor]
Source = str | tuple[Combine, str | Sequence[str]]
"""a module of transformers, or several and what packs their weights"""
_INDICES = range(8)
"""numbers that ``{i}`` and ``{j}`` may have"""


def concatenated(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)


def transposed(parts: list[Tensor]) -> Tensor:
    """Turn a Conv1D's weight; its bias stays."""
    return parts[0].t()


def grouped(groups: int) -> Combine:
    """Return what packs, group by group, queries, keys, values."""
    return lambda parts: torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)


def interleaved(heads: int) -> Combine:
    """Return what puts the rows of the halves of each head beside each other."""
    return lambda parts: parts[0].unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def expert_half(number: int) -> Combine:
    """Return what takes one half of the rows of every expert."""
    return lambda parts: parts[0].chunk(2, 1)[number]


def row_half(number: int) -> Combine:
    return lambda parts: parts[0].chunk(2)[number]


def channels_last_patch_weight(parts: list[Tensor]) -> Tensor:
    """Turn a convolution's kernel into the weight of a Linear on patches whose channels come last."""
    return parts[0].permute(0, 2, 3, 1).flatten(1) if parts[0].dim() == 4 else parts[0]


def _read() -> dict[str, dict[str, Source]]:
    ports = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {port: {new: _source(old) for new, old in rows.items()} for port, rows in ports.items()}


def _source(text: str | dict[str, str | list[str]]) -> Source:
    if isinstance(text, str):
        return text
    ((how, old),) = text.items()
    name, *numbers = how.split()
    function = globals()[name]
    return function(*map(int, numbers)) if numbers else function, old


COUNTERPARTS: dict[str, dict[str, Source]] = _read()


def converted(port: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what has transformers' names, weights or gradients, with a port's names and in its shapes."""
    found = {}
    for new, source in COUNTERPARTS[port].items():
        combine, old = _parts(source)
        numbers = product(_INDICES if "{i}" in new else (0,), _INDICES if "{j}" in new else (0,))
        for (i, j), suffix in product(numbers, ("", ".weight", ".bias")):
            names = [f"{each}{suffix}".format(i=i, j=j) for each in old]
            if all(name in weights for name in names):
                found[f"{new}{suffix}".format(i=i, j=j)] = combine([weights[name] for name in names])
    return found


def nearest(port: str, path: str) -> str:
    """Return a module of a port, or the one around it that takes the place of one of transformers'."""
    while path and not any(_pattern(new).fullmatch(path) for new in COUNTERPARTS[port]):
        path = path.rpartition(".")[0]
    return path


def counterparts(port: str, path: str) -> tuple[str, ...]:
    """Return the modules of transformers that take the place of one of a port, or of the one around it that has such."""
    path = nearest(port, path)
    for new, source in COUNTERPARTS[port].items():
        if found := _pattern(new).fullmatch(path):
            return tuple(each.format(**found.groupdict()) for each in _parts(source)[1])
    return ("",)


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{j\}", r"(?P<j>\d+)"))


def _parts(source: Source) -> tuple[Combine, Sequence[str]]:
    if isinstance(source, str):
        return (lambda parts: parts[0]), (source,)
    combine, old = source
    return combine, (old,) if isinstance(old, str) else old
