"""Configurations of other tools as options of `probe.start`: mindstudio-probe's config.json, MindSpore's Dump.

`FIELDS` is the whole of it: one row for each field, with what becomes of it. docs/reference/other-tools.md is made from the rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.errors import ConfigError

MINDSTUDIO, DUMP = "mindstudio-probe", "MindSpore's Dump"
TASK_SECTION = "the task's section"
"""where fields stand in the object that is named after the task"""
_COMMON, _E2E = "common_dump_settings", "e2e_dump_settings"
_OURS = frozenset(
    "steps ranks modules phases tensors tokens on_nonfinite on_loss_jump batch compression points".split()
)
"""options that only probe has"""

TASKS = {
    "statistics": ("statistics", "the same"),
    "tensor": ("tensor", "the same: statistics and values"),
    "structure": ("structure", "the same: no numbers"),
    "overflow_check": ("statistics", "every record counts its NaN and Inf"),
    "nan_check": ("statistics", "every record counts its NaN and Inf"),
    "acc_check": (None, "it runs single operations again; record both sides and compare them"),
    "diff_check": (None, "it stops at a difference from an earlier dump; record both sides and compare them"),
    "exception_dump": (None, "it dumps kernels"),
    "free_benchmark": (None, "it runs single operations again; probe.noise_run perturbs a run"),
    "grad_probe": (None, 'record gradients with task="norms"'),
}
"""tasks of mindstudio-probe: the task that they become, or None; what is different"""
LEVELS = {"L0": "module", "L1": "op", "mix": "mix", "debug": "module", "L2": None}
"""levels of mindstudio-probe: the level that they become, or None"""

_API = re.compile(
    r"(?:Distributed|Functional|Torch|Tensor|Mint|MintFunctional|Primitive|Aten|VF|NPU|Jit|Triton|Npu)\..*\d"
)
_MODULE = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.\w+\.(?:forward|backward)(?:\.\d+)?")
"""``Module.layers.0.mlp.MLP.forward.0``"""
_BETWEEN = re.compile(r"(\d+)\s*-\s*(\d+)")
_MOST_RANKS = 1_000_000
_ALL_DEVICES = [*range(8)]
"""what the documentation of MindSpore sets where all devices dump"""
_SAVED = {"tensor": "tensor", "statistic": "statistics", "full": "tensor"}


@dataclass
class Draft:
    """Options as they come together."""

    tool: str
    where: str
    """file, colon and space, or nothing"""
    options: dict[str, Any] = field(default_factory=dict)
    folder: str = ""
    notes: list[str] = field(default_factory=list)
    """what is not done as the configuration says"""

    def refuse(self, name: str, value: object, why: str) -> ConfigError:
        """Return the error of a field that would make another recording than was meant."""
        return ConfigError(f"{self.where}{name}={value!r} of {self.tool}: {why}")


Translate = Callable[[Draft, str, Any], None]


@dataclass(frozen=True)
class Field:
    """A field of another tool's configuration."""

    tool: str
    section: str
    """empty for the top"""
    name: str
    becomes: str
    """option of probe, or a dash"""
    remark: str
    """how it is done, or what is not"""
    translate: Translate


@dataclass(frozen=True)
class Translation:
    """Another tool's configuration as options of probe."""

    options: Mapping[str, Any]
    folder: str
    """where recordings go, or empty"""
    said: str
    """what is not done as the configuration says, or empty"""


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Return True if a configuration has fields that only another tool knows."""
    level = config.get("level")
    return (
        _COMMON in config
        or (isinstance(level, str) and level != "mix" and level in LEVELS)
        or not _TELLING.isdisjoint(config)
    )


def translated(config: Mapping[str, Any], where: str = "") -> Translation:
    """Return the options that another tool's configuration means.

    Parameters
    ----------
    config
        as its file has it
    where
        the file, to be named in messages

    Raises
    ------
    ConfigError
        a field has a value that its tool does not know, or asks for a recording that probe cannot make
    """
    where = f"{where}: " if where else ""
    ours = sorted(_OURS & config.keys())
    if ours:
        theirs = sorted(config.keys() & (_TELLING | {_COMMON}))
        raise ConfigError(
            f"{where}{ours[0]!r} is an option of probe, {', '.join(map(repr, theirs)) or 'its level'} of another tool: use one form"
        )
    draft = Draft(DUMP if _COMMON in config else MINDSTUDIO, where)
    for section, values in _sections(config, draft):
        _translate(draft, section, values)
    said = f"{where}{draft.tool}: {'; '.join(draft.notes)} (docs/reference/other-tools.md)" if draft.notes else ""
    return Translation(draft.options, draft.folder, said)


def _sections(config: Mapping[str, Any], draft: Draft) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects that count: of mindstudio-probe the top and the section of its task."""
    task = ""
    if draft.tool == DUMP:
        inner = [(name, config.get(name, {})) for name in (_COMMON, _E2E)]
        rest = {name: value for name, value in config.items() if name not in (_COMMON, _E2E)}
        found = [*inner, ("", rest)]
    else:
        task = str(config.get("task") or "statistics")
        top = {name: value for name, value in config.items() if not (name in TASKS and isinstance(value, Mapping))}
        found = [("", {**top, "task": config.get("task") or task}), (TASK_SECTION, config.get(task, {}))]
    for name, values in found:
        if not isinstance(values, Mapping):
            raise draft.refuse(task if name == TASK_SECTION else name, values, "expected an object")
    return found


def _translate(draft: Draft, section: str, values: Mapping[str, Any]) -> None:
    known = {row.name: row for row in FIELDS if (row.tool, row.section) == (draft.tool, section)}
    for name, row in known.items():
        if name in values:
            row.translate(draft, name, values[name])
    unknown = [name for name in values if name not in known]
    if unknown:
        draft.notes.append(f"unknown field {', '.join(map(str, unknown))}: ignored")


# ---- what becomes of a field ---------------------------------------------------------------------------


def _is_set(value: object) -> bool:
    return value not in (None, "", [], {}, False)


def _nothing(draft: Draft, name: str, value: Any) -> None:
    """It is so in any case, or it is about what probe does not do at all."""


def _said(what: str) -> Translate:
    def translate(draft: Draft, name: str, value: Any) -> None:
        if _is_set(value):
            draft.notes.append(f"{name}: {what}")

    return translate


def _refused(what: str) -> Translate:
    def translate(draft: Draft, name: str, value: Any) -> None:
        if _is_set(value):
            raise draft.refuse(name, value, what)

    return translate


def _task(draft: Draft, name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in TASKS:
        raise draft.refuse(name, value, f"expected one of {', '.join(TASKS)}")
    task, remark = TASKS[value]
    if task is None:
        raise draft.refuse(name, value, f"probe has no such task: {remark}")
    draft.options["task"] = task
    if value != task:
        draft.notes.append(f"task {value} is recorded as {task}: {remark}")


def _level(draft: Draft, name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or value not in LEVELS:
        raise draft.refuse(name, value, f"expected one of {', '.join(LEVELS)}")
    level = LEVELS[value]
    if level is None:
        raise draft.refuse(name, value, "probe records modules and operations, not kernels: use L0, mix or L1")
    if value == "debug":
        draft.options["modules"] = ["!*"]
    draft.options["level"] = level


def _folder(draft: Draft, name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise draft.refuse(name, value, "expected a folder")
    draft.folder = str(value or "")


def _rank(draft: Draft, name: str, value: Any) -> None:
    found: list[int] = []
    for each in _list_of(draft, name, value):
        between = _BETWEEN.fullmatch(each.strip()) if isinstance(each, str) else None
        if between and int(between[1]) <= int(between[2]) < _MOST_RANKS:
            found += range(int(between[1]), int(between[2]) + 1)
        elif isinstance(each, int) and not isinstance(each, bool) and each >= 0:
            found.append(each)
        else:
            raise draft.refuse(name, value, f'{each!r} is no rank; expected for example [0, "4-6"]')
    draft.options["ranks"] = found or None


def _step(draft: Draft, name: str, value: Any) -> None:
    draft.options["steps"] = _list_of(draft, name, value) or None


def _iteration(draft: Draft, name: str, value: Any) -> None:
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise draft.refuse(name, value, 'expected "all", or for example "0|5-8|100-120"')
    draft.options["steps"] = None if value == "all" else value


def _saved_data(draft: Draft, name: str, value: Any) -> None:
    if not isinstance(value, str) or value not in _SAVED:
        raise draft.refuse(name, value, f"expected one of {', '.join(_SAVED)}")
    draft.options["task"] = _SAVED[value]


def _devices(draft: Draft, name: str, value: Any) -> None:
    if value != _ALL_DEVICES:
        _rank(draft, name, value)
        draft.notes.append(f"{name}: taken as ranks")


def _dump_mode(draft: Draft, name: str, value: Any) -> None:
    if value == 1:
        raise draft.refuse(name, value, "probe records modules, not kernels: use 0, and modules= of probe.start()")
    if value not in (0, None):
        draft.notes.append(f"{name}={value!r}: all modules are recorded")


def _texts(draft: Draft, name: str, value: Any) -> list[str]:
    found = _list_of(draft, name, value)
    if not all(isinstance(each, str) for each in found):
        raise draft.refuse(name, value, "expected a list of names")
    return found


def _list_of(draft: Draft, name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise draft.refuse(name, value, "expected a list; [] means all")
    return [*value]


def _chosen(draft: Draft, name: str, value: Any) -> list[str]:
    """Return patterns for names of mindstudio-probe: of modules, or a part of one."""
    patterns, operations = [], []
    for each in filter(None, _texts(draft, name, value)):
        module = _MODULE.fullmatch(each)
        if module:
            path = module["path"].replace("[", "[[]")  # the only sign of a glob that a path may have
            patterns += [path, f"{path}.*"]
        elif _API.match(each):
            operations.append(each)
        else:
            patterns.append(f"~{each}")
    if operations and not patterns:
        raise draft.refuse(name, value, f"{operations[0]} is an operation, and probe records modules: name modules")
    if operations:
        draft.notes.append(f"{name}: {', '.join(operations)} not recorded (operations)")
    return patterns


def _list(draft: Draft, name: str, value: Any) -> None:
    patterns = _chosen(draft, name, value)
    if patterns and "modules" not in draft.options:
        draft.options["modules"] = patterns


def _tensor_list(draft: Draft, name: str, value: Any) -> None:
    patterns = _chosen(draft, name, value)
    if patterns and draft.options.get("modules") != ["!*"]:
        draft.options["tensors"] = patterns


def _scope(draft: Draft, name: str, value: Any) -> None:
    """What runs between two modules runs inside the innermost module that has both."""
    ends = _texts(draft, name, value)
    if not ends:
        return
    if len(ends) != 2:
        raise draft.refuse(name, value, "expected the names of two modules")
    found = [_MODULE.fullmatch(end) for end in ends]
    paths = [module["path"].split(".") for module in found if module]
    parts = os.path.commonprefix(paths) if len(paths) == 2 else []
    common = ".".join(parts)
    if common and "modules" not in draft.options:
        draft.options["modules"] = [common, f"{common}.*"]
    draft.notes.append(f"scope: all of {common or 'the model'} is recorded")


_PHASES = {"forward": ["init", "forward", "loss"], "backward": ["init", "backward", "gradient"]}


def _data_mode(draft: Draft, name: str, value: Any) -> None:
    modes = set(_texts(draft, name, value)) - {"all"}
    unknown = modes - {"forward", "backward", "input", "output"}
    if unknown:
        raise draft.refuse(
            name, value, f"{min(unknown)!r} is not known; expected all, forward, backward, input, output"
        )
    directions = modes & _PHASES.keys()
    if len(directions) == 1:
        draft.options["phases"] = _PHASES[directions.pop()]
    if len(modes & {"input", "output"}) == 1:
        draft.notes.append("data_mode: inputs and outputs are both recorded")


def _dump_enable(draft: Draft, name: str, value: Any) -> None:
    if value is False:
        raise draft.refuse(name, value, "it would record nothing, and probe does not watch the file: leave it out")
    if value:
        draft.notes.append("dump_enable: the file is not watched for changes")


# ---- the table -----------------------------------------------------------------------------------------

_NONE = "–"
_ALL_IN_FULL = "whole tensors are recorded"


def _rows(tool: str, section: str, *rows: tuple[str, str, str, Translate]) -> tuple[Field, ...]:
    return tuple(Field(tool, section, *row) for row in rows)


FIELDS = (
    *_rows(
        MINDSTUDIO, "",
        ("task", "`task`", "see the table of tasks", _task),
        ("dump_path", "folder of `path`", "made if it is missing; holds one HDF5 file for each rank and run", _folder),
        ("rank", "`ranks`", '`[]` is all; `"4-6"` is a range', _rank),
        ("step", "`steps`", '`[]` is all; `"4-6"` is a range; steps count from 0', _step),
        ("level", "`level`", "see the table of levels", _level),
        ("async_dump", _NONE, "always so: values are written by a thread of their own, within bounded memory", _nothing),
        ("dump_enable", _NONE, "`true` is named: the file is not watched; `false` is an error", _dump_enable),
        ("extra_info", _NONE, "the module tree is always recorded, call stacks never", _nothing),
        ("precision", _NONE, "always high: statistics are accumulated in float64", _nothing),
        ("risk_level", _NONE, "chooses among operations, which are not recorded", _nothing),
        ("custom_op_namespaces", _NONE, "named: operations are not recorded", _said("operations are not recorded")),
        ("load", _NONE, "an error: it changes the training", _refused("it replaces inputs of modules, which probe does not do")),
        ("enable_dataloader", _NONE, "named: steps end at `probe.step()`", _said("steps end at probe.step(), not at the data loader")),
        ("seed", _NONE, "named: call `probe.seed_all`", _said("call probe.seed_all()")),
        ("is_deterministic", _NONE, "named: call `probe.seed_all`", _said("call probe.seed_all()")),
        ("acl_config", _NONE, "an error: it is for kernels", _refused("probe records modules, not kernels")),
    ),
    *_rows(
        MINDSTUDIO, TASK_SECTION,
        ("list", "`modules`", "`[]` is all; a module's name is that module and what is inside it, any other text is part of a path or class; "
         "operations are named, or an error if there is nothing else", _list),
        ("scope", "`modules`", "`[]` is all; named: the innermost module that holds both ends is recorded, all of it; `list` comes first", _scope),
        ("tensor_list", "`tensors`", "as `list`: these in full, statistics of the others", _tensor_list),
        ("data_mode", "`phases`", "`forward` is `init`, `forward`, `loss`; `backward` is `init`, `backward`, `gradient`; all (default) is also "
         "`update`; `input` or `output` alone is named: both are recorded", _data_mode),
        ("summary_mode", _NONE, "always all: statistics, and a hash in the place of `md5` and `xor`", _nothing),
        ("bench_path", _NONE, "named: record both sides and compare them", _said("record both sides, then probe compare")),
        ("diff_nums", _NONE, "only read with `bench_path`", _nothing),
        ("slice", _NONE, "named: whole tensors are recorded", _said(_ALL_IN_FULL)),
        ("request_id", _NONE, "named: all requests are recorded", _said("all requests are recorded")),
        ("device", _NONE, "always so: statistics are computed where the tensor is", _nothing),
        ("file_format", _NONE, "always HDF5", _nothing),
        ("check_mode", _NONE, "NaN and Inf are always counted", _nothing),
        ("overflow_nums", _NONE, "NaN and Inf are always counted, in every step", _nothing),
        ("white_list", _NONE, "only read with the task `acc_check`", _nothing),
        ("black_list", _NONE, "only read with the task `acc_check`", _nothing),
        ("error_data_path", _NONE, "only read with the task `acc_check`", _nothing),
    ),
    *_rows(
        DUMP, _COMMON,
        ("path", "folder of `path`", "made if it is missing; holds one HDF5 file for each rank and run", _folder),
        ("iteration", "`steps`", '`"all"`, or for example `"0|5-8|100-120"`, which `steps=` takes too', _iteration),
        ("saved_data", "`task`", "`statistic` is `statistics`; `tensor` and `full` are `tensor`", _saved_data),
        ("support_device", "`ranks`", "`[0,1,2,3,4,5,6,7]` is all; others are taken as ranks, and named", _devices),
        ("dump_mode", _NONE, "0 is all; 1 (a list of kernels) is an error; 2 (`set_dump`) is named: all modules are recorded", _dump_mode),
        ("kernels", _NONE, "only read with `dump_mode` 1", _nothing),
        ("input_output", _NONE, "1 and 2 are named: inputs and outputs are both recorded", _said("inputs and outputs are both recorded")),
        ("op_debug_mode", _NONE, "3 and 4 are named: everything is recorded, NaN and Inf are always counted", _said("everything is recorded, with counts of NaN and Inf")),
        ("net_name", _NONE, "the recording has the class of the model", _nothing),
        ("statistic_category", _NONE, "always all statistics", _nothing),
        ("file_format", _NONE, "always HDF5", _nothing),
        ("overflow_number", _NONE, "NaN and Inf are always counted", _nothing),
        ("initial_iteration", _NONE, "an error if it is not 0: steps count from 0", _refused("steps count from 0: subtract it from iteration")),
    ),
    *_rows(
        DUMP, _E2E,
        ("enable", _NONE, "always so: what is recorded is complete when its step ends", _nothing),
        ("trans_flag", _NONE, "always so: values have the layout that the program sees", _nothing),
        ("stat_calc_mode", _NONE, "always so: statistics are computed where the tensor is", _nothing),
        ("device_stat_precision_mode", _NONE, "always high: statistics are accumulated in float64", _nothing),
        ("sample_mode", _NONE, "named: whole tensors are recorded", _said(_ALL_IN_FULL)),
        ("sample_num", _NONE, "only read with `sample_mode`", _nothing),
        ("save_kernel_args", _NONE, "named: kernels are not recorded", _said("kernels are not recorded")),
    ),
)  # fmt: skip
"""every field, in the order in which it is translated"""

_TELLING = {"dump_path", "rank", "step", "async_dump", "dump_enable", "extra_info", *TASKS}
"""fields that only mindstudio-probe has"""
