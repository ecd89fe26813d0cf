"""Options: what is understood, and what is refused in which words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.config import RecordConfig
from probe.errors import ConfigError
from probe.records import Phase, Task

NO_STEP = 'is no step; expected for example 3, [0, 10], [0, "10-20"] or "every 100"'


def steps_of(value: object) -> list[int]:
    config = RecordConfig.from_options(steps=value)
    return [step for step in range(25) if config.wants_step(step)]


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, [*range(25)]),
        ([], [*range(25)]),
        (3, [3]),
        ("3", [3]),
        (np.int64(3), [3]),
        ([0, 10], [0, 10]),
        (range(4), [0, 1, 2, 3]),
        (np.arange(0, 25, 8), [0, 8, 16, 24]),
        ("10-12", [10, 11, 12]),
        ("10 - 12", [10, 11, 12]),
        ([0, "10-12", "11-13"], [0, 10, 11, 12, 13]),
        ("7-7", [7]),
        ("every 10", [0, 10, 20]),
        (" every10", [0, 10, 20]),
        (["every 1"], [*range(25)]),
        ([3, "8-10", "every 10"], [0, 3, 8, 9, 10, 20]),
    ],
)
def test_steps(value: object, expected: list[int]) -> None:
    assert steps_of(value) == expected


@pytest.mark.parametrize(
    "value, text",
    [
        (-1, f"steps=-1: -1 {NO_STEP}"),
        (1.5, f"steps=1.5: 1.5 {NO_STEP}"),
        (True, f"steps=True: True {NO_STEP}"),
        ("²", f"steps='²': '²' {NO_STEP}"),
        ([0, [1, 2]], f"steps=[0, [1, 2]]: [1, 2] {NO_STEP}"),
        ("10-", f"steps='10-': '10-' {NO_STEP}"),
        ("every 0", f"steps='every 0': 'every 0' {NO_STEP}"),
        ("every -2", f"steps='every -2': 'every -2' {NO_STEP}"),
        ([0, "every"], f"steps=[0, 'every']: 'every' {NO_STEP}"),
        ("12-10", "steps='12-10': the range '12-10' runs backwards"),
    ],
)
def test_steps_that_make_no_sense(value: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RecordConfig.from_options(steps=value)
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)


def test_when_all_steps_are_over() -> None:
    config = RecordConfig.from_options(steps=[2, "5-7"])
    assert [config.is_over(step) for step in (0, 3, 7, 8, 100)] == [False, False, False, True, True]
    assert not RecordConfig().is_over(10**9)
    assert not RecordConfig.from_options(steps=[3, "every 10"]).is_over(10**9)


@pytest.mark.parametrize(
    "steps, step, expected",
    [
        (None, 0, None),
        ("every 100", 0, None),
        ([0, "every 100"], 5, None),
        (7, 0, 1),
        (7, 7, 1),
        (7, 8, 0),
        ([0, 10], 1, 1),
        ("0-999", 1, 999),
        (["5-9", "0-6", 8], 0, 10),
        (["5-9", "0-6", 8], 6, 4),
        (["0-20", "3-4", "19-30"], 2, 29),
    ],
)
def test_how_many_steps_are_to_come(steps: object, step: int, expected: int | None) -> None:
    assert RecordConfig.from_options(steps=steps).steps_from(step) == expected


@pytest.mark.parametrize(
    "modules, kept",
    [
        (None, ["", "net.0", "net.0.mlp", "head"]),
        ("*", ["", "net.0", "net.0.mlp", "head"]),
        ("net.*", ["net.0", "net.0.mlp"]),
        ("*.mlp", ["net.0.mlp"]),
        ("Linear", ["net.0.mlp", "head"]),
        ("linear", []),
        ("Lin*", []),
        (["!Linear"], ["", "net.0"]),
        (["net.*", "!*.mlp"], ["net.0"]),
        (["!*.mlp", "Linear"], ["head"]),
        (["HEAD"], []),
        ("", [""]),
        ([], ["", "net.0", "net.0.mlp", "head"]),
    ],
)
def test_modules_by_path_or_class(modules: Any, kept: list[str]) -> None:
    config = RecordConfig.from_options(modules=modules)
    classes = {"": "Net", "net.0": "Block", "net.0.mlp": "Linear", "head": "Linear"}
    assert [path for path, name in classes.items() if config.wants_module(path, name)] == kept


def test_tensors_in_full() -> None:
    assert not RecordConfig.from_options().wants_values("a", "A")
    assert RecordConfig.from_options(task="tensor").wants_values("a", "A")
    some = RecordConfig.from_options(tensors=["a.*", "Head"])
    assert some.task is Task.TENSOR
    wanted = [some.wants_values(*m) for m in [("a.b", "X"), ("b", "Head"), ("b", "X"), ("a", "X")]]
    assert wanted == [True, True, False, False]
    with pytest.raises(ConfigError) as caught:
        RecordConfig.from_options(task="structure", tensors="a.*")
    assert str(caught.value) == ("task='structure' records no numbers, but tensors= asks for values: leave one out")
    with pytest.raises(ConfigError) as caught:
        RecordConfig.from_options(task="norms", tensors="a.*")
    assert str(caught.value) == ("task='norms' records norms only, but tensors= asks for values: leave one out")


@pytest.mark.parametrize(
    "value, expected", [(None, None), (False, None), (True, 3.0), (5, 5.0), (np.float32(1.5), 1.5)]
)
def test_the_factor_of_a_loss_jump(value: object, expected: float | None) -> None:
    assert RecordConfig.from_options(on_loss_jump=value).on_loss_jump == expected


MODULES = [
    ("", "Net"), ("model.layers.0", "Block"), ("model.layers.0.mlp", "MLP"), ("model.layers.1", "Block"), ("head", "Linear")
]  # fmt: skip


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, []),
        ({"modules": ["", "*.mlp", "Block", "!nothing"], "tensors": ["head"]}, []),
        ({"modules": "layers.0.mlp"}, ["modules='layers.0.mlp' matches no module; did you mean 'model.layers.0.mlp'?"]),
        ({"modules": ["head", "model.layer.*"]}, ["modules='model.layer.*' matches no module; did you mean "
                                                 "'model.layers.1' or 'model.layers.0' or 'model.layers.0.mlp'?"]),
        ({"modules": ["~Lin", "~MLP", "head", "head.*"]}, []),
        ({"modules": "~relu"}, ["no module has 'relu' in its path or class, upper and lower case apart: it chooses nothing (modules)"]),
        ({"modules": "linear"}, ["modules='linear' matches no module; did you mean 'Linear'?"]),
        ({"tensors": ["xyzzy", "Hed"]}, ["tensors='xyzzy' matches no module",
                                        "tensors='Hed' matches no module; did you mean 'head'?"]),
    ],
)  # fmt: skip
def test_patterns_that_choose_nothing(options: dict[str, Any], expected: list[str]) -> None:
    assert list(RecordConfig.from_options(**options).unmatched(MODULES)) == expected


def test_phases_and_ranks() -> None:
    config = RecordConfig.from_options(phases=["forward", "loss"], ranks=[0, np.int64(3)])
    assert [phase for phase in Phase if config.wants_phase(phase)] == [Phase.FORWARD, Phase.LOSS]
    assert [rank for rank in range(5) if config.wants_rank(rank)] == [0, 3]
    assert RecordConfig.from_options(phases="init").phases == {Phase.INIT}
    assert all(RecordConfig().wants_phase(phase) for phase in Phase) and RecordConfig().wants_rank(9)


POINT = {"module": "A", "after": "x = y", "value": "x", "name": "seen"}


@pytest.mark.parametrize(
    "options, text",
    [
        ({"task": "tensors"}, "task='tensors' is not known; expected 'structure' or 'norms' or 'statistics' or 'tensor'"),
        ({"level": "operator"}, "level='operator' is not known; expected 'module' or 'op' or 'mix' or 'L0' or 'L1'"),
        ({"level": ["module"]}, "level=['module'] is not known; expected 'module' or 'op' or 'mix' or 'L0' or 'L1'"),
        ({"phases": "bakward"}, "phases='bakward' is not known; expected 'init' or 'forward' or 'loss' or "
                                "'backward' or 'gradient' or 'update'"),
        ({"ranks": -1}, "ranks=-1: expected a number, or a list of numbers from 0"),
        ({"ranks": True}, "ranks=True: expected a number, or a list of numbers from 0"),
        ({"ranks": "0"}, "ranks='0': expected a number, or a list of numbers from 0"),
        ({"modules": 3}, "modules=3: expected module paths, globs or class names, as strings"),
        ({"tokens": "7:3"}, "tokens='7:3': expected a range of tokens such as '128:160', ':160' or '128:'"),
        ({"tokens": 4}, "tokens=4: expected a range of tokens such as '128:160', ':160' or '128:'"),
        ({"tensors": ["a", None]}, "tensors=['a', None]: expected module paths, globs or class names, as strings"),
        ({"on_nonfinite": 1}, "on_nonfinite=1: expected True or False"),
        ({"on_loss_jump": 1}, "on_loss_jump=1: expected True, False, or a factor above 1"),
        ({"on_loss_jump": float("nan")}, "on_loss_jump=nan: expected True, False, or a factor above 1"),
        ({"on_loss_jump": 10**400}, f"on_loss_jump={10**400}: expected True, False, or a factor above 1"),
        ({"on_loss_jump": "3"}, "on_loss_jump='3': expected True, False, or a factor above 1"),
        ({"setps": 3}, "unknown option 'setps'; expected one of task, level, steps, ranks, modules, phases, tensors, "
                       "tokens, on_nonfinite, on_loss_jump, batch, compression, points, routing"),
        ({"batch": "id"}, "batch='id' is not known; expected 'hash' or 'all' or 'ids'"),
        ({"compression": "gzip", "task": "tensor"}, "compression='gzip' is not known; expected 'lz4' or 'zstd'"),
        ({"compression": "lz4", "batch": "all"}, "compression='lz4' is for values, and task='statistics' records none: leave it out, "
                                                 "or record with task='tensor'"),
        ({"points": {"module": "A"}}, "points: expected a list of points, each with module, after, value, name"),
        ({"points": [{"module": "A"}]}, "points, entry 1: {'module': 'A'} is no point; expected module, after, value, name, "
                                        "and line if several lines read the same"),
        ({"points": [{**POINT, "name": " "}]}, "points, entry 1: name=' ' is no text"),
        ({"points": [{**POINT, "line": "12"}]}, "points, entry 1: line='12' is no number of a line"),
        ({"points": [POINT, {**POINT, "value": "x +"}]}, "points, entry 2: value='x +' is no expression of Python "
                                                         "(invalid syntax)"),
        ({"routing": 3}, "routing=3: expected the recording whose routers' choices are to be taken"),
        ({"points": "none.yaml"}, "cannot read the configuration none.yaml: No such file or directory"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    for given in ({"config": options}, options):
        with pytest.raises(ConfigError) as caught:
            RecordConfig.from_options(**given)
        assert str(caught.value) == text


@pytest.mark.parametrize("name", ["options.yaml", "options.json", "options"])
def test_a_file_is_overridden_by_arguments(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(json.dumps({"task": "tensor", "steps": [0, "3-4"], "phases": ["forward"]}))
    config = RecordConfig.from_options(tmp_path / name, steps=7, task=None)
    assert config == RecordConfig(Task.TENSOR, steps=(range(7, 8),), phases=frozenset({Phase.FORWARD}))


@pytest.mark.parametrize(
    "name, content, text",
    [
        ("a.yaml", None, "cannot read the configuration {path}: No such file or directory"),
        ("a.yaml", b"task: [", "{path} is not valid YAML: "),
        ("a", b"task: \xff\xfe", "{path} is not valid YAML: "),
        ("a.json", b"{'task': 1}", "{path} is not valid JSON: "),
        ("a.json", b"\xff", "{path} is not valid JSON: "),
        ("a.yaml", b"- task", "{path} holds a list; expected names of options and their values"),
        ("a.yaml", b"stepz: 3", "{path}: unknown option 'stepz'; expected one of task, level, "),
    ],
)
def test_files_that_cannot_be_used(name: str, content: bytes | None, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        RecordConfig.from_options(path)
    assert str(caught.value).startswith(text.format(path=path))


def test_it_is_frozen_and_goes_into_the_file() -> None:
    config = RecordConfig.from_options(
        steps=[1, "2-3", "every 5"], ranks=1, modules="a*", phases="init", tensors="b", on_nonfinite=True,
        on_loss_jump=4, batch="ids", compression="zstd", points=[{**POINT, "line": 3}, POINT],
    )  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.task = Task.TENSOR  # type: ignore[misc]
    assert json.loads(json.dumps(config.as_json())) == {
        "task": "tensor", "level": "module", "steps": [[1, 1], [2, 3], "every 5"], "ranks": [1], "modules": ["a*"],
        "phases": ["init"], "tensors": ["b"], "on_nonfinite": True, "on_loss_jump": 4.0, "batch": "ids",
        "compression": "zstd", "points": [{**POINT, "line": 3}, {**POINT, "line": None}],
    }  # fmt: skip
