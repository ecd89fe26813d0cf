"""Dumps of ptdbg_ascend, as mindstudio-probe was called before: ``ptdbg_dump_v4.0/step0/rank0/api_stack_dump.pkl``, and ``.npy``.

In spite of its name the file is text, of one list in JSON a line: ``["Functional_linear_0_forward_input.0", 0, [], dtype, shape,
[max, min, mean]]``, or ``["Functional_linear_0_forward_stack_info", [[path, line, function, code], ...]]``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.damage import Damaged, parsed, reading
from probe.dumps.files import text_of
from probe.dumps.msprobe import by_place, read_calls
from probe.dumps.seen import Dump, Step
from probe.errors import FormatError

_FILE = r"(?:(?:api_)?(?:stack|list|range|acl)_)?dump\.pkl"
_PLACE = re.compile(rf"(?:(?:.*/)?step(?P<step>\d{{1,9}})/)?(?:(?:.*/)?rank(?P<rank>\d{{1,9}})/)?{_FILE}")
_NAME = re.compile(
    r"(?:(?P<kind>Functional|Tensor|Torch|VF|Aten|NPU|Distributed)_)?(?P<name>.+)_(?P<number>\d{1,9})_"
    r"(?P<pass>forward|backward)_(?P<part>input|output|stack_info)(?:\.(?P<slot>.+))?"
)
"""of functions, whose kind stands first, and of what ``module_dump`` was given, by the name that it was given"""
_KEYS = {"forward": {"input": "input_args", "output": "output"}, "backward": {"input": "input", "output": "output"}}


def is_ptdbg(source: Path, files: list[str]) -> bool:
    """Return True for a folder of ptdbg_ascend, or one of its text files."""
    return any(_PLACE.fullmatch(name) for name in files)


def read_ptdbg(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank; where there is one, it is 0: on a CPU the folder has the number of the process."""
    places = by_place(source, files, _PLACE)
    for rank, steps in places:
        lacks = "which call lies in which, and modules but those of module_dump"
        yield Dump("torch", sorted(steps), functools.partial(_step, steps), rank if len(places) > 1 else 0, (lacks,))


def _step(steps: Mapping[int, list[Path]], number: int) -> Step:
    if len(steps[number]) > 1:
        raise FormatError(f"step {number} was dumped {len(steps[number])} times: import one of {steps[number][0]} …")
    (path,), step = steps[number], Step(number)
    data, stack = dict[str, dict[str, Any]](), dict[str, Any]()
    with reading(path):
        for line in filter(None, text_of(path).decode().splitlines()):
            name, *said = parsed(line.encode())
            if not isinstance(name, str) or (found := _NAME.fullmatch(name)) is None:
                step.notes.append(f"{name!s:.200} is left out: it is no call of a function or a module")
                continue
            form = "{kind}.{name}.{number}.{pass}" if found["kind"] else "Module.{name}.Module.{pass}.{number}"
            full = form.format(**found.groupdict())
            if found["part"] == "stack_info":
                frames = [f"File {frame[0]}, line {frame[1]}, in " for frame in said[0] if len(frame) > 1]
                stack[name] = [[full], frames]
            else:
                part = data.setdefault(full, {}).setdefault(_KEYS[found["pass"]][found["part"]], {})
                part[found["slot"] or "0"] = _told(path, name, *said[2:5])
    read_calls(step, path, data, "torch", {}, stack)
    return step


def _told(path: Path, name: str, dtype: object, shape: object, numbers: object) -> dict[str, Any]:
    """Return what dump.json of today's mindstudio-probe has of a tensor, or of an argument that is none."""
    if not isinstance(numbers, list) or len(numbers) not in (3, 4):
        raise Damaged(f"{name} has the numbers {numbers!s:.80}, expected max, min and mean")
    if str(dtype).startswith("<class"):
        return {"type": str(dtype), "value": numbers[0]}
    told = dict(zip(("Max", "Min", "Mean", "Norm"), (None if each == [] else each for each in numbers), strict=False))
    file = str(path.absolute().with_suffix("") / f"{name}.npy")
    return {"type": "torch.Tensor", "dtype": dtype, "shape": shape, **told, "data_name": file}
