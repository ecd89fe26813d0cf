"""Reading what ``print(model)`` shows: the modules, and as much of their parameters as the text tells.

A model that cannot be run here (no card, no memory, somebody else's cluster) can still be mapped: its text is enough. The
prints of PyTorch, PaddlePaddle and MindSpore have one form, ``(name): Class(what it tells`` with children below, a list of
models in square brackets, and ``(0-15): 16 x Class(`` for members that print alike.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from probe._version import __version__
from probe.damage import refuse_pointer
from probe.errors import FormatError
from probe.numbers.layouts import layout_of
from probe.records import ModuleInfo, ParameterInfo, RunInfo, StepState
from probe.store.writing.writer import Writer, now
from probe.structure.printed_weights import Slot, kind_of, slots_of

_CHILD = re.compile(
    r"\((?P<name>[^()\s]+)\): (?:(?P<count>\d+) x )?(?:[\w.]+\.)?(?P<class>\w+)(?P<open>[(<])(?P<text>.*)"
)
_ROOT = re.compile(r"(?:[\w.]+\.)?(?P<class>\w+)(?P<open>[(<])(?P<text>.*)")
_OPENED = re.compile(r"(?P<mark>(?:[^()]*[\s:=>\]#|])?)(?P<root>\[?(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*[(<])\s*$")
"""the first line of a model, with what may stand before it"""
_LONGEST = 1000
"""characters of such a line"""
_NEAR = 64
"""lines in which the next one of the same process stands"""
_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_PARAMETER = re.compile(
    r"\((?P<name>[^()\s]+)\): Parameter containing: \[(?P<type>[\w.]+) of size (?P<size>[\dx]*)[^\]]*\]"
)
_MOST_MODULES = 1_000_000
_SIZE_LIMIT = 64 << 20
NOTE = "the structure was read from what print(model) showed: parameters that the text does not tell are not in it"


@dataclass
class _Node:
    """A module as it stands in the text; one node for all members of a list that print alike."""

    names: list[str]
    class_name: str
    line: int
    text: str = ""
    children: list[_Node] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)


@dataclass(frozen=True)
class Printed:
    """The modules of a printed model, parents first, and the parameters that the text tells."""

    framework: str
    modules: list[ModuleInfo]
    parameters: list[ParameterInfo]


def read_printed(text: str, name: str, framework: str = "torch") -> Printed:
    """Read what ``print(model)`` showed.

    Parameters
    ----------
    text
        the whole text; of several models, what ``print`` shows of the list
    name
        what errors call it
    framework
        whose print it is: ``torch``, ``paddle`` or ``mindspore``

    Raises
    ------
    FormatError
        the text is no printed model, or not the whole of one; with the line
    """
    root = _parsed(text, name)
    modules: list[ModuleInfo] = []
    parameters: list[ParameterInfo] = []
    for path, parent, node in _expanded(root, name):
        index = len(modules)
        slots = node.slots or slots_of(framework, node.class_name, node.text)
        modules.append(ModuleInfo(path, node.class_name, parent))
        kind = kind_of(framework, node.class_name, node.text)
        parameters += [_parameter(framework, path, index, kind, slot) for slot in slots]
    return Printed(framework, _counted(modules, parameters), parameters)


def record_printed(
    source: Path, target: Path, framework: str = "torch", model_config: Mapping[str, object] | None = None
) -> Printed:
    """Write a recording of the structure of a model whose print stands in a text file; return what was read.

    Raises
    ------
    FormatError
        the file is no printed model
    ExistsError, StoreError
        the recording cannot be written
    """
    refuse_pointer(source)
    try:
        with source.open("rb") as file:
            raw = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        raise FormatError(f"cannot read {source}: {error.strerror}") from None
    if len(raw) > _SIZE_LIMIT:
        raise FormatError(f"{source} has more than {_SIZE_LIMIT} bytes: expected the text of print(model)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{source} is no text: expected what print(model) shows") from None
    printed = read_printed(text, str(source), framework)
    write_structure(target, printed, model_config or {})
    return printed


def write_structure(target: Path, printed: Printed, model_config: Mapping[str, object]) -> None:
    """Write a recording with modules and parameters, and nothing that ran."""
    info = RunInfo(
        run_id=uuid.uuid4().hex,
        framework=printed.framework,
        framework_version="",
        probe_version=__version__,
        created=now(),
        rank=0,
        world_size=1,
        config={"task": "structure", "source": "print(model)"},
        model_config=dict(model_config),
    )
    writer = Writer(target, info)
    writer.add_modules(printed.modules)
    writer.add_parameters(printed.parameters)
    writer.end_step(
        0, calls=[], scalars=[], notes=[(0, -1, NOTE)], groups=[], wall_time=0.0, state=StepState.CLOSED
    )  # fmt: skip
    writer.close()


def model_config_of(path: Path) -> dict[str, object]:
    """Read a model's config.json. Raises FormatError where it holds no JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected a model's configuration as JSON ({error})") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path}: expected a JSON object with the model's configuration, got {type(found).__name__}")
    return found


def _parsed(text: str, name: str) -> _Node:
    """Return the root; of a list of models a root of class ``list`` whose children are numbered."""
    top = _Node([""], "list", 0)
    stack = [top]
    lines = list(_of_model(text.replace("\r\n", "\n").split("\n")))
    is_list = next((line for _, line, _ in lines if line), "").startswith("[")
    for number, line, is_behind in lines:
        if is_behind and len(stack) == 1 and top.children and not is_list:
            continue
        if len(stack) == 1:
            line = line.lstrip("[").strip() if is_list else line
            found = _ROOT.match(line)
            if found is None:
                if line and top.children and not is_list and line != "]":
                    raise FormatError(f"{name}, line {number}: expected the end of the model, got {line[:80]!r}")
                continue
            if top.children and not is_list:
                raise FormatError(f"{name}, line {number}: a second model; expected one, or a list of them in [ ]")
            _begin(stack, found, [str(len(top.children)) if is_list else ""], number)
        elif line:
            _inside(stack, line, number, name)
    if len(stack) > 1:
        where = stack[-1]
        raise FormatError(
            f"{name}, line {where.line}: {where.class_name} does not end: expected the whole text that print(model) shows"
        )
    if not top.children:
        raise FormatError(f"{name}: expected the text that print(model) shows, found no line of it")
    return top if is_list else top.children[0]


def _of_model(lines: list[str]) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of a model, numbered, without what stands before and between them, and without a mark before each.

    The third is whether a line is text if it stands behind the model.

    A model begins with a line that opens a class, with a member in the next one. What stands before the class there, a log's
    ``INFO``, ``[rank0]:`` or ``#``, is left out; where the next line has it too, each line of the model has it.
    """
    begin, mark = next(((at, found) for at in range(len(lines)) if (found := _mark(lines, at)) is not None), (-1, ""))
    if begin < 0:
        yield from ((number, line.strip(), False) for number, line in enumerate(lines, 1))
        return
    every = mark.rstrip() if any(line.startswith(mark.rstrip()) for line in lines[begin + 1 : begin + _NEAR]) else ""
    margin = len(mark) if not mark.strip() else 0
    yield begin + 1, lines[begin][len(mark) :].strip(), False
    for at in range(begin + 1, len(lines)):
        line, is_second = lines[at].removeprefix(every), _mark(lines, at) is not None
        is_inside = len(line) - len(line.lstrip()) > margin or line.lstrip()[:1] in tuple(")>](")
        if lines[at].startswith(every) and (is_inside or is_second):
            yield at + 1, line.strip(), not is_second


def _mark(lines: list[str], at: int) -> str | None:
    """Return what stands before a class that a line opens, with a member in the next one; None where it opens none."""
    is_open = lines[at].rstrip()[-1:] in tuple("(<") and len(lines[at]) < _LONGEST
    found = _OPENED.match(lines[at]) if is_open else None
    if found is None:
        return None
    near, mark = lines[at + 1 : at + _NEAR], found["mark"].rstrip()
    following = (
        next((line for line in near if line.startswith(mark)), near[0] if near else "").removeprefix(mark).strip()
    )
    return found["mark"] if _CHILD.match(following) or _PARAMETER.match(following) else None


def _inside(stack: list[_Node], line: str, number: int, name: str) -> None:
    """Take a line that stands below a module."""
    parameter, child = _PARAMETER.match(line), _CHILD.match(line)
    if parameter is not None:
        stack[-1].slots.append(_slot(parameter))
        _close(stack, line[parameter.end() :])
    elif child is not None:
        _begin(stack, child, _names(child, name, number), number)
    elif line[0] in ")>":
        _end(stack, line, number)
    else:  # what the module tells about itself, over several lines
        stack[-1].text += f"{line} "
        _close(stack, line)


def _end(stack: list[_Node], line: str, number: int) -> None:
    """Take a line that begins with the end of a module, and may begin the next of a list of models."""
    stack.pop()
    rest = line[1:].lstrip(", ")
    found = _ROOT.match(rest)
    if len(stack) == 1 and found is not None:
        _begin(stack, found, [str(len(stack[0].children))], number)
    elif rest.startswith((")", ">")) and len(stack) > 1:
        _end(stack, rest, number)


def _names(child: re.Match[str], name: str, number: int) -> list[str]:
    found = _RANGE.fullmatch(child["name"])
    if found is None or child["count"] is None:
        return [child["name"]]
    first, last = int(found[1]), int(found[2])
    if last - first + 1 != int(child["count"]) or last - first > _MOST_MODULES:
        raise FormatError(f"{name}, line {number}: ({child['name']}) are not {child['count']} members")
    return [str(i) for i in range(first, last + 1)]


def _begin(stack: list[_Node], found: re.Match[str], names: list[str], number: int) -> None:
    node = _Node(names, found["class"], number)
    stack[-1].children.append(node)
    inside = found["text"]
    depth = 1
    for place, character in enumerate(inside):
        depth += (character == "(" or (character == "<" == found["open"])) - (
            character == ")" or (character == ">" and found["open"] == "<")
        )
        if depth == 0:
            node.text = inside[:place]
            node.slots = [_slot(parameter) for parameter in _PARAMETER.finditer(node.text)]
            return
    node.text = inside + " "
    stack.append(node)


def _slot(parameter: re.Match[str]) -> Slot:
    """Return a member of a ParameterList or a ParameterDict."""
    shape = tuple(int(size) for size in parameter["size"].split("x") if size)
    dtype = parameter["type"].removeprefix("torch.")
    return Slot(parameter["name"], shape, "float32" if dtype == "FloatTensor" else dtype)


def _close(stack: list[_Node], line: str) -> None:
    """End the module whose last bracket closes at the end of a line of its own text."""
    if line.count(")") > line.count("("):
        stack.pop()


def _expanded(root: _Node, name: str) -> Iterator[tuple[str, int, _Node]]:
    """Yield every module with its path and the index of its parent, parents first."""
    waiting: list[tuple[str, int, _Node]] = [("", -1, root)]
    count = 0
    while waiting:
        path, parent, node = waiting.pop()
        yield path, parent, node
        index = count
        count += 1
        if count > _MOST_MODULES:
            raise FormatError(f"{name}: more than {_MOST_MODULES:,} modules")
        waiting += [
            (f"{path}.{child_name}" if path else child_name, index, child)
            for child in reversed(node.children)
            for child_name in reversed(child.names)
        ]


def _parameter(framework: str, path: str, index: int, kind: str, slot: Slot) -> ParameterInfo:
    layout = layout_of(framework, (kind,), slot.name)
    axes = layout.axes if len(layout.axes) == len(slot.shape) else ()
    return ParameterInfo(
        (f"{path}.{slot.name}" if path else slot.name,), index, slot.name, slot.shape, slot.dtype, not slot.is_buffer,
        slot.is_buffer, axes, layout.name,
    )  # fmt: skip


def _counted(modules: list[ModuleInfo], parameters: list[ParameterInfo]) -> list[ModuleInfo]:
    """Return the modules with the number of elements in each and below it."""
    sizes = [0] * len(modules)
    for parameter in parameters:
        if not parameter.is_buffer:
            size = 1
            for length in parameter.shape:
                size *= length
            sizes[parameter.module] += size
    for index in range(len(modules) - 1, 0, -1):
        sizes[modules[index].parent] += sizes[index]
    return [replace(module, n_params=size) for module, size in zip(modules, sizes, strict=True)]
