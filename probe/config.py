"""What to record: one frozen object, validated once."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import enum
import fnmatch
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypedDict, get_args

from probe.damage import CAUSES, Damaged, parsed
from probe.errors import ConfigError
from probe.records import BatchName, CompressionName, LevelName, Phase, PhaseName, Task, TaskName

LOSS_JUMP = 3.0
"""``on_loss_jump=True``: a loss above so many times the running median"""

_RANGE = re.compile(r"(\d+)-(\d+)")
_TOKENS = re.compile(r"(\d{0,9}):(\d{0,9})")
_EVERY = re.compile(r"every *(\d+)")
_ENDLESS = sys.maxsize
_PART = "~"
"""before a text that is part of a path or class"""
_OF_ANOTHER_TOOL = {"is no option": True}
_LONGEST = 40
"""characters of a step, or of a range of them"""
_LARGEST = 256 << 10
"""bytes of a configuration"""


class Batch(enum.StrEnum):
    """What is kept of what the models themselves are given, where only norms are recorded of the rest."""

    HASH = "hash"
    """hashes of integers: ids, labels, masks"""
    ALL = "all"
    """hashes of everything, images too"""
    IDS = "ids"
    """integers in full, whatever the task"""


class Compression(enum.StrEnum):
    """How stored values are compressed."""

    LZ4 = "lz4"
    """their bits sorted by significance, then LZ4: faster"""
    ZSTD = "zstd"
    """their bytes sorted by significance, then zstd of level 1: smaller"""


_ALIASES = {"L0": "module", "L1": "op"}
"""levels as mindstudio-probe has them"""


@dataclass(frozen=True)
class Point:
    """A value inside the code of modules that is recorded: an entry of ``points``."""

    module: str
    """path or class of modules, as ``modules`` has them"""
    after: str
    """the line of code behind which the value stands"""
    value: str
    """an expression"""
    name: str
    """under which it is recorded"""
    line: int | None = None
    """number of the line in its file, where several read the same"""


class RecordOptions(TypedDict, total=False):
    """The options of `probe.start`, which has their meaning, for functions that pass them on."""

    level: LevelName | None
    task: TaskName | None
    steps: int | str | Iterable[int | str] | None
    ranks: int | Iterable[int] | None
    modules: str | Iterable[str] | None
    phases: PhaseName | Iterable[PhaseName] | None
    tensors: str | Iterable[str] | None
    tokens: str | None
    optimizer: object | None
    on_nonfinite: bool | None
    on_loss_jump: bool | float | None
    batch: BatchName | None
    compression: CompressionName | None
    points: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | None
    routing: str | os.PathLike[str] | None
    parallel: Mapping[str, Any] | None
    config: str | os.PathLike[str] | Mapping[str, Any] | None
    overwrite: bool | None
    quiet: bool


@dataclass(frozen=True)
class RecordConfig:
    """Options of `probe.start`, as they were understood.

    Each filter that is None lets everything through.
    """

    task: Task = Task.STATISTICS
    level: str = "module"
    steps: tuple[range, ...] | None = None
    """ranges of steps; ``"every 100"`` is one that does not end"""
    ranks: frozenset[int] | None = None
    modules: tuple[str, ...] | None = None
    """globs of module paths, or class names, or ``~`` and a part of either; with ``!`` in front they exclude"""
    phases: frozenset[Phase] | None = None
    tensors: tuple[str, ...] | None = None
    """globs of module paths: only these in full, statistics of the others"""
    tokens: slice | None = None
    """of what modules are given and return, along the axis of tokens: these alone"""
    on_nonfinite: bool = False
    """record the step after one with NaN or Inf in full"""
    on_loss_jump: float | None = None
    """record the step after one whose loss exceeds so many times the running median in full"""
    batch: Batch = Batch.HASH
    compression: Compression | None = None
    points: tuple[Point, ...] = ()
    """values inside the code of modules"""
    routing: str = ""
    """a recording whose routers' choices this model's take"""
    folder: str = field(default="", metadata=_OF_ANOTHER_TOOL)
    """where recordings go that have no path"""
    said: str = field(default="", metadata=_OF_ANOTHER_TOOL)
    """what is not done as another tool's configuration says"""

    @classmethod
    def from_options(cls, config: str | Path | Mapping[str, Any] | None = None, **options: Any) -> RecordConfig:
        """Check options as `probe.start` takes them; those in ``config`` are overridden by the others.

        ``config`` may be one of mindstudio-probe or of MindSpore's Dump (`probe.dump_settings`).

        Raises
        ------
        ConfigError
            an option is unknown or has a value that makes no sense
        """
        where = str(config) if isinstance(config, (str, Path)) else ""
        loaded, folder, said = load_config(config), "", ""
        if loaded:
            from probe import dump_settings  # few configurations are another tool's

            if dump_settings.is_foreign(loaded):
                meant = dump_settings.translated(loaded, where)
                loaded, folder, said = meant.options, meant.folder, meant.said
        merged = {**loaded, **{key: value for key, value in options.items() if value is not None}}
        known = [each.name for each in dataclasses.fields(cls) if not each.metadata]
        for name in merged:
            if name not in known:
                place = f"{where}: " if where else ""
                raise ConfigError(f"{place}unknown option {name!r}; expected one of {', '.join(known)}")
        task = _choice("task", merged.get("task", Task.STATISTICS), [task.value for task in Task])
        tensors = _patterns("tensors", merged.get("tensors"))
        if tensors and task in (Task.STRUCTURE, Task.NORMS):
            numbers = "no numbers" if task == Task.STRUCTURE else "norms only"
            raise ConfigError(f"task={task!r} records {numbers}, but tensors= asks for values: leave one out")
        task = Task.TENSOR if tensors else Task(task)
        batch = Batch(_choice("batch", merged.get("batch") or Batch.HASH, [kind.value for kind in Batch]))
        level = _choice("level", merged.get("level", "module"), [*get_args(LevelName), *_ALIASES])
        return cls(
            task=task,
            level=_ALIASES.get(level, level),
            steps=_ranges(merged.get("steps")),
            ranks=_integers("ranks", merged.get("ranks")),
            modules=_patterns("modules", merged.get("modules")),
            phases=_phases(merged.get("phases")),
            tensors=tensors,
            tokens=_tokens(merged.get("tokens")),
            on_nonfinite=_flag("on_nonfinite", merged.get("on_nonfinite", False)),
            on_loss_jump=_factor("on_loss_jump", merged.get("on_loss_jump", False)),
            batch=batch,
            compression=_compression(merged.get("compression"), task, batch),
            points=_points(merged.get("points")),
            routing=_routing(merged.get("routing")),
            folder=folder,
            said=said,
        )

    @classmethod
    def from_recording(cls, stored: Mapping[str, Any]) -> RecordConfig:
        """Return the filters of steps, modules and phases as a file has them; what it does not say lets everything through."""
        phases, steps = stored.get("phases"), stored.get("steps")
        between = [f"{each[0]}-{each[1]}" if isinstance(each, list) else each for each in steps or ()]
        return cls(
            steps=_ranges(between),
            modules=_patterns("modules", stored.get("modules")),
            phases=_phases(phases) if phases else None,
        )

    def wants_step(self, step: int) -> bool:
        """Return True if a step is to be recorded."""
        return self.steps is None or any(step in chosen for chosen in self.steps)

    def is_over(self, step: int) -> bool:
        """Return True if neither this step nor any later one is to be recorded."""
        return self.steps is not None and all(chosen[-1] < step for chosen in self.steps)

    def steps_from(self, step: int) -> int | None:
        """Return how many steps from this one on are to be recorded, or None where there is no end to them."""
        if self.steps is None or any(chosen.stop == _ENDLESS for chosen in self.steps):
            return None
        total = 0
        for chosen in sorted(self.steps, key=lambda chosen: chosen.start):
            total += max(0, chosen.stop - max(chosen.start, step))
            step = max(step, chosen.stop)
        return total

    def wants_rank(self, rank: int) -> bool:
        """Return True if this process records at all."""
        return self.ranks is None or rank in self.ranks

    def wants_phase(self, phase: Phase) -> bool:
        """Return True if a phase is to be recorded."""
        return self.phases is None or phase in self.phases

    def wants_module(self, path: str, class_name: str) -> bool:
        """Return True if the tensors of a module are to be recorded."""
        if self.modules is None:
            return True
        excluded = [pattern[1:] for pattern in self.modules if pattern.startswith("!")]
        included = [pattern for pattern in self.modules if not pattern.startswith("!")]
        if matches(excluded, path, class_name):
            return False
        return not included or matches(included, path, class_name)

    def wants_values(self, path: str, class_name: str) -> bool:
        """Return True if the tensors of a module are to be recorded in full."""
        if self.task is not Task.TENSOR:
            return False
        return self.tensors is None or matches(list(self.tensors), path, class_name)

    def unmatched(self, modules: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Yield, in words, the patterns of ``modules`` and ``tensors`` that choose none of the (path, class name)."""
        for option, patterns in (("modules", self.modules), ("tensors", self.tensors)):
            for pattern in patterns or ():
                whole = pattern.removesuffix(".*")
                # a module that has none inside is no mistake
                chosen = (pattern, whole) if whole in patterns else (pattern,)
                if pattern.startswith("!") or any(matches(list(chosen), *module) for module in modules):
                    continue
                if pattern.startswith(_PART):
                    yield f"no module has {pattern[1:]!r} in its path or class, upper and lower case apart: it chooses nothing ({option})"
                else:
                    yield f"{option}={pattern!r} matches no module{hint(pattern, modules)}"

    def as_json(self) -> dict[str, object]:
        """Return the options as they are stored in the file."""
        return {
            "task": self.task.value,
            "level": self.level,
            "steps": None if self.steps is None else [_as_json(chosen) for chosen in self.steps],
            "ranks": None if self.ranks is None else sorted(self.ranks),
            "modules": self.modules,
            "phases": None if self.phases is None else [phase.label for phase in sorted(self.phases)],
            "tensors": self.tensors,
            **({"tokens": f"{self.tokens.start}:{self.tokens.stop or ''}"} if self.tokens else {}),
            "on_nonfinite": self.on_nonfinite,
            "on_loss_jump": self.on_loss_jump,
            "batch": None if self.batch is Batch.HASH else self.batch.value,
            "compression": None if self.compression is None else self.compression.value,
            **({"points": [dataclasses.asdict(each) for each in self.points]} if self.points else {}),
            **({"routing": self.routing} if self.routing else {}),
        }


def matches(patterns: list[str], path: str, class_name: str) -> bool:
    """Return True if one of the patterns chooses a module."""
    return any(
        pattern[1:] in f"{path}.{class_name}"
        if pattern.startswith(_PART)
        else fnmatch.fnmatchcase(path, pattern) or pattern == class_name
        for pattern in patterns
    )


def hint(pattern: str, modules: Sequence[tuple[str, str]]) -> str:
    """Return the names that a pattern may have meant: paths with the same last component before others."""
    known = list(dict.fromkeys(name for module in modules for name in module if name))
    same = [name for name in known if name.rpartition(".")[2] == pattern.rpartition(".")[2]]
    near = difflib.get_close_matches(pattern.strip("*."), same or known, n=3, cutoff=0.0 if same else 0.5)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def load_config(config: str | Path | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a YAML or JSON file holds, or a mapping as it is.

    Raises
    ------
    ConfigError
        it cannot be read, or holds no names and values
    """
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    path = Path(config)
    loaded = _read(path)
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds a {type(loaded).__name__}; expected names of options and their values")
    unnamed = [key for key in loaded if not isinstance(key, str)]
    if unnamed:
        raise ConfigError(f"{path}: {unnamed[0]!r} is no name of an option")
    return loaded


def _read(path: Path) -> Any:
    """Return what a YAML or JSON file holds."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ConfigError(f"cannot read the configuration {path}: {getattr(error, 'strerror', error)}") from None
    if len(text) > _LARGEST:
        raise ConfigError(f"{path} has more than {_LARGEST} bytes, which no configuration has")
    try:
        return parsed(text) if path.suffix == ".json" else _from_yaml(text)
    except (Damaged, *CAUSES) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"{path} is not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {cause}") from None


def _from_yaml(text: bytes) -> Any:
    """Parse YAML in which nothing stands for something else: a few lines of such names can stand for more than there is memory."""
    import yaml  # where a file is read: what reads recordings has its options from them

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases (*name) are not read: write out what they stand for")
            return super().compose_node(parent, index)

    try:
        return yaml.load(text, Loader=Plain)
    except yaml.YAMLError as error:
        raise Damaged(str(error)) from None


def _choice(option: str, value: object, allowed: list[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{option}={value!r} is not known; expected {' or '.join(map(repr, allowed))}")
    return str(value)


def _integers(option: str, value: object) -> frozenset[int] | None:
    if value is None:
        return None
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if not all(isinstance(item, Integral) and not isinstance(item, bool) and item >= 0 for item in items):
        raise ConfigError(f"{option}={value!r}: expected a number, or a list of numbers from 0")
    return frozenset(map(int, items)) or None


def _flag(option: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{option}={value!r}: expected True or False")
    return value


def _factor(option: str, value: object) -> float | None:
    if isinstance(value, bool):
        return LOSS_JUMP if value else None
    if not isinstance(value, Real) or not 1 < value <= sys.float_info.max:
        raise ConfigError(f"{option}={value!r}: expected True, False, or a factor above 1")
    return float(value)


def _compression(value: object, task: Task, batch: Batch) -> Compression | None:
    if value is None:
        return None
    chosen = Compression(_choice("compression", value, [kind.value for kind in Compression]))
    if task is not Task.TENSOR and batch is not Batch.IDS:
        raise ConfigError(
            f"compression={value!r} is for values, and task={task.value!r} records none: leave it out, or record with task='tensor'"
        )
    return chosen


def _ranges(value: object) -> tuple[range, ...] | None:
    """Parse steps: 3, [0, 10], range(5), "10-20", "every 100", "0|5-8", or a list of such; an empty list means all."""
    if value is None:
        return None
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    found = []
    for item in _apart(items):
        if len(str(item)) > _LONGEST:
            raise ConfigError(f"steps={str(item)[:_LONGEST]} …: expected numbers of steps")
        between = _RANGE.fullmatch(item.replace(" ", "")) if isinstance(item, str) else None
        every = _EVERY.fullmatch(item.strip()) if isinstance(item, str) else None
        if between:
            found.append(range(int(between[1]), int(between[2]) + 1))
        elif every and int(every[1]):
            found.append(range(0, _ENDLESS, int(every[1])))
        elif isinstance(item, (Integral, str)) and str(item).isdecimal():
            found.append(range(int(item), int(item) + 1))
        else:
            raise ConfigError(
                f'steps={value!r}: {item!r} is no step; expected for example 3, [0, 10], [0, "10-20"] or "every 100"'
            )
        if not found[-1]:
            raise ConfigError(f"steps={value!r}: the range {item!r} runs backwards")
    return tuple(found) or None


def _apart(items: list[Any]) -> Iterator[Any]:
    """Yield steps one by one of what is joined by ``|``, as MindSpore's Dump has them: "0|5-8|100-120"."""
    for item in items:
        yield from item.split("|") if isinstance(item, str) and "|" in item else [item]


def _as_json(chosen: range) -> object:
    return f"every {chosen.step}" if chosen.stop == _ENDLESS else [chosen.start, chosen[-1]]


def _patterns(option: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{option}={value!r}: expected module paths, globs or class names, as strings")
    return tuple(items) or None


def _tokens(value: object) -> slice | None:
    """Parse "128:160", ":160" or "128:"."""
    if value is None:
        return None
    between = _TOKENS.fullmatch(value.replace(" ", "")) if isinstance(value, str) else None
    found = slice(int(between[1] or 0), int(between[2]) if between[2] else None) if between else None
    if found is None or (found.stop is not None and found.stop <= found.start):
        raise ConfigError(f"tokens={value!r}: expected a range of tokens such as '128:160', ':160' or '128:'")
    return found


def _points(value: object) -> tuple[Point, ...]:
    """Return points, given as a list or as a YAML or JSON file with one."""
    if value is None:
        return ()
    where = f"points={value!r}" if isinstance(value, (str, os.PathLike)) else "points"
    entries = _read(Path(value)) if isinstance(value, (str, os.PathLike)) else value
    if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Iterable):
        raise ConfigError(f"{where}: expected a list of points, each with {', '.join(_POINT)}")
    return tuple(_point(f"{where}, entry {number}", entry) for number, entry in enumerate(entries, 1))


def _routing(value: object) -> str:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"routing={value!r}: expected the recording whose routers' choices are to be taken")
    return "" if value is None else str(os.fspath(value))


_POINT = ("module", "after", "value", "name")
"""what a point must have"""


def _point(where: str, entry: object) -> Point:
    keys = set(entry) if isinstance(entry, Mapping) else set()
    if not isinstance(entry, Mapping) or not set(_POINT) <= keys <= {*_POINT, "line"}:
        raise ConfigError(
            f"{where}: {entry!r} is no point; expected {', '.join(_POINT)}, and line if several lines read the same"
        )
    wrong = next((key for key in _POINT if not isinstance(entry[key], str) or not entry[key].strip()), "")
    if wrong:
        raise ConfigError(f"{where}: {wrong}={entry[wrong]!r} is no text")
    if type(line := entry.get("line")) not in (int, type(None)):
        raise ConfigError(f"{where}: line={line!r} is no number of a line")
    try:
        ast.parse(entry["value"].strip(), mode="eval")
    except (SyntaxError, ValueError) as error:
        said = getattr(error, "msg", error)
        raise ConfigError(f"{where}: value={entry['value']!r} is no expression of Python ({said})") from None
    return Point(**{key: entry[key].strip() for key in _POINT}, line=line)


def _phases(value: object) -> frozenset[Phase] | None:
    if value is None:
        return None
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    labels = {phase.label: phase for phase in Phase}
    for name in names:
        _choice("phases", name, list(labels))
    return frozenset(labels[name] for name in names) or None
