"""Names that no one expects, and very many of them: nothing breaks, nothing is lost without a word."""

from __future__ import annotations

import functools
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

import probe
from probe.errors import ProbeWarning
from probe.records import Role
from probe.store.reading.reader import Reader
from probe.testing import Recording, sample
from tests.cli.running import run
from tests.resources import resident
from tests.toy import nn
from tests.toy.tensor import Tensor

NAMES = {
    "slash": "a/b", "slash first": "/a", "dot": ".", "dots": "..", "dotted": "a..b.", "NUL": "a\0b", "newline": "a\nb",
    "long": "x" * 10_000, "emoji": "🔥", "surrogate": "a\ud800b", "empty": "", "percent": "%2F", "quote": "'\"\\",
    "right to left": "\u202eabc", "bracket": "[bold]a[/bold]", "blank": " ",
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    nn.manual_seed(0)
    yield
    probe.stop()


def batch(seed: int = 0) -> Tensor:
    return Tensor(sample((5, 4), seed))


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    return type("Block", (nn.Module,), {"forward": forward})(**members)


def stored(name: str) -> str:
    """Return a name as the file has it: what is no text, or ends text in HDF5, is escaped."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def links(group: h5py.Group) -> int:
    """Count the names of tensors below a group."""
    return sum(links(group[name]) if isinstance(group[name], h5py.Group) else 1 for name in group)


@EVERY
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_name_everywhere(name: str, task: str, tmp_path: Path) -> None:
    """Of modules, parameters, outputs, keywords, what is logged (tensors, numbers), scalars, optimizer states."""

    safe = name if name and "." not in name else "unnamed"  # dots stand between the names of modules

    class Named(nn.SGD):
        def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
            super().update(p, g, group, state)
            state[name] = Tensor(np.ones_like(p))

    def forward(module: nn.Module, x: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        probe.log(name, x)
        return {name: x * vars(module)[safe], "other": kwargs[name] * 1.0}

    def outer(module: nn.Module, x: Tensor) -> Tensor:
        found = vars(module)[safe](x, **{name: x})
        return found[name] + found["other"]

    inner = block(forward, **{safe: nn.Parameter(np.ones(4, np.float32))})
    model = block(outer, **{safe: inner})
    optimizer = Named(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with probe.capture(model, tmp_path / "a.h5", task=task):
            for _ in range(2):
                model(batch()).sum().backward()
                optimizer.step()
                probe.log(name, 2.0)
                probe.step(loss=1.0, **{name: 3.0})
    run = Recording(tmp_path / "a.h5")
    assert not run.notes and [m.path for m in run.modules] == ["", stored(safe)]
    assert [(step, value) for step, of, value in run.scalars if of == stored(name)] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    inside = {(s.role, s.slot) for s in run.seen if s.path == stored(safe) and s.step == 1}
    slot = stored(name)
    assert inside >= {("input", "0"), ("input", slot), ("output", slot), ("output", "other"), ("value", slot)}
    assert inside >= {("param", stored(safe)), ("delta", stored(safe)), ("state", f"{stored(safe)}.{slot}")}
    if task == "tensor":
        value = run.one(path=stored(safe), role="value", step=0)
        assert np.array_equal(value.values, batch().data)
        with h5py.File(tmp_path / "a.h5") as file:
            assert links(file["tree"]) == sum(s.values is not None for s in run.seen)


def leaf(factor: float) -> nn.Module:
    return block(lambda module, x: x * module.weight * factor, weight=nn.Parameter(np.ones(4, np.float32)))


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("", lambda: {"": leaf(3.0)}),
        ("a.b", lambda: {"a": block(lambda module, x: module.b(x), b=leaf(2.0)), "a.b": leaf(3.0)}),
        ("\\ud800", lambda: {"\\ud800": leaf(2.0), "\ud800": leaf(3.0)}),
        ("a\\x00", lambda: {"a\\x00": leaf(2.0), "a\0": leaf(3.0)}),
    ],
    ids=["empty", "dotted", "surrogate", "NUL"],
)
def test_two_modules_of_one_path_are_told_apart(
    path: str, members: Callable[[], dict[str, nn.Module]], tmp_path: Path
) -> None:
    """The root, or an inner module, has the path of another one: both are recorded, and which is which is said."""

    def record(file: Path) -> None:
        inside = members()
        model = block(lambda module, x: functools.reduce(lambda y, each: each(y), inside.values(), x), **inside)
        with pytest.warns(ProbeWarning, match="two modules have the path"), probe.capture(model, file):
            model(batch()).sum().backward()
            probe.step()

    record(tmp_path / "a.h5")
    record(tmp_path / "b.h5")
    run = Recording(tmp_path / "a.h5")
    assert [each.path for each in run.modules].count(path) == 1 and run.modules[-1].path == f"{path}~2"
    assert len(run.find(path=f"{path}~2", role="output")) == 1
    assert all(each.parent < index for index, each in enumerate(probe.open(tmp_path / "a.h5").modules))
    assert probe.compare(tmp_path / "a.h5", tmp_path / "b.h5").verdict.name == "ALIGNED"


# ---- very many ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "count", "steps"), [("dict", 2 * 10**5, 1), ("list", 10**5, 1), ("dict", 2 * 10**5, 50)]
)
def test_more_slots_than_there_is_room_for(
    kind: str, count: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there is room for is recorded; what there is none for is said once, and costs next to nothing."""
    monkeypatch.setattr("probe.store.writing.writer._NAMES_LIMIT", 4 << 20)
    one = Tensor(np.ones(1, np.float32))

    def forward(module: nn.Module, x: Tensor, step: int) -> Any:
        if kind == "list":
            return [one] * count
        return {f"name {step}.{number}": one for number in range(count // steps)}

    model = block(forward)
    began, before = time.process_time(), resident()
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", steps=range(steps)):
        for step in range(steps):
            model(one, step)
            probe.step(loss=step)
    print(f"{kind}: {time.process_time() - began:.1f} s of CPU time, {resident() - before:.0f} MiB more")
    with Reader(tmp_path / "a.h5") as reader:
        kept, recorded = len(reader.slots), int((reader.records["role"] == Role.OUTPUT).sum())
        ((step, _, text),) = reader.notes
        assert len(reader.scalars) == steps
    assert [str(each.message) for each in caught] == [f"probe: {text}"]
    slot = f"{recorded}" if kind == "list" else f"name {step}.{recorded % (count // steps)}"
    expected = f"there are {kept:,} different slots already: tensors with further ones are not recorded"
    assert text == f"{expected}; the first is output {slot} of the root"
    assert recorded == kept - (kind == "dict") and 30_000 < kept < 50_000  # the input's slot is 0
    assert resident() - before < 300


def test_a_million_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.store.writing.writer._NAMES_LIMIT", 10_000)
    model = nn.Sequential(nn.ReLU())
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", task="tensor"):
        for size in range(300):
            model(Tensor(np.zeros((size, 1), np.float32)))
        probe.step()
    run = Recording(tmp_path / "a.h5")
    kept = len({s.shape for s in run.seen})
    expected = f"there are {kept} different shapes already: tensors with further ones are not recorded"
    assert [str(each.message) for each in caught] == [f"probe: {expected}; the first is input 0 of the root"]
    assert [text for _, _, text in run.notes] == [str(caught[0].message).removeprefix("probe: ")]
    assert len(run.calls) == 600 and len(run.seen) == 4 * kept and 50 < kept < 100


def test_long_and_unprintable_names_are_shown_so_that_they_can_be_read(tmp_path: Path) -> None:
    name = "\x1b[31m\n" + "x" * 10_000
    model = block(lambda module, x: x * 1.0)
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5"):
        setattr(model, name, nn.ReLU())
        model(batch())
        probe.step()
    (shown,) = [str(each.message) for each in caught]
    start = "probe: added or replaced after probe.start(), and not recorded: \\x1b[31m\\nxxx"
    assert shown.startswith(start) and " … " in shown and len(shown) < 1100 and shown.isprintable()
    assert Recording(tmp_path / "a.h5").notes[0][2].endswith(name)


# ---- steps that never end ------------------------------------------------------------------------------


def never_ending(path: Path, count: int, work: Callable[[nn.Module, nn.Optimizer], object]) -> tuple[Recording, str]:
    """Do something many times in step 0, and once in step 1; return the recording and what was said."""
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = nn.SGD(model.parameters(), 0.1)
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, path):
        for _ in range(2):
            for _ in range(count):
                work(model, optimizer)
            probe.step(loss=0)
            count = 1
    run = Recording(path)
    said = [str(one.message).removeprefix("probe: ") for one in caught]
    said = [each for each in said if not each.startswith("nothing was recorded")]  # numbers alone, of no module
    assert run.steps["step"].tolist() == [0, 1] and [text for _, _, text in run.notes] == said
    (text,) = [text for _, _, text in run.notes]
    assert text.endswith("what follows in it is not recorded; call probe.step() at the end of each step")
    return run, text.partition(":")[0]


def test_calls_of_a_step_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.forward.CALLS", 100)

    def work(model: nn.Module, optimizer: nn.Optimizer) -> None:
        model(batch()).sum().backward()
        optimizer.step()

    run, text = never_ending(tmp_path / "a.h5", 200, work)
    assert text == "step 0 has 100 module calls" and len(run.calls) == 102
    assert len(run.find(step=0, role="delta")) == 100 and len(run.find(step=1, role="delta")) == 2
    assert (run.calls["end"] >= 0).all() and not run.calls["raised"].any()


def test_a_module_inside_which_the_room_for_calls_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.forward.CALLS", 5)
    run, text = never_ending(tmp_path / "a.h5", 3, lambda model, optimizer: model(batch()))
    assert text == "step 0 has 5 module calls" and (run.calls["end"] >= 0).all()
    assert [len(run.find(step=step, path="", role="output")) for step in (0, 1)] == [2, 1]
    assert [len(run.find(step=step, path="0", role="output")) for step in (0, 1)] == [2, 1]


def test_updates_of_a_step_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.updates._GROUPS", 10)
    run, text = never_ending(tmp_path / "a.h5", 30, lambda model, optimizer: optimizer.step())
    assert text == "step 0 has 10 groups of updated parameters"
    assert [len(run.find(step=step, role="delta", slot="weight")) for step in (0, 1)] == [10, 1]


def test_numbers_of_a_step_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.recorder._SCALARS", 10)
    run, text = never_ending(tmp_path / "a.h5", 30, lambda model, optimizer: probe.log("x", 1.0))
    assert text == "step 0 has 10 logged numbers"
    assert [name for _, name, _ in run.scalars] == ["x"] * 10 + ["loss", "x", "loss"]


# ---- what the commands show ----------------------------------------------------------------------------

DANGEROUS = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
"""what a terminal obeys, and what changes the order of what it shows"""
SHOWN = {
    **NAMES, "title": "\x1b]0;owned\x07", "clear": "\x1b[2J\x1b[H", "8-bit CSI": "\x9b2J", "isolate": "\u2066a\u2069\u200f",
    "carriage return": "a\rALIGNED", "markup": "[red]x[/red][/] [link=https://x]y", "emoji code": ":boom:", "formula": "=cmd|' /C calc'!A0",
    "minus": "-1+1", "TeX": "$x$ \\frac{1}{2}", "HTML": "<img src=x onerror=alert(1)>", "combining": "e\u0301" * 60, "stacked": "a" + "\u0336" * 300,
    "family": "👩‍👩‍👧", "wide": "漢字" * 200, "backslashes": "\\x0a\\u202e", "YAML": "- {a: [b, #c]} | > & * ! %", "template": "{0} %s {x!r} %(a)s",
}  # fmt: skip
DOCUMENTS = {"json", "csv", "yaml"}
"""what is not for reading line by line: names are whole there"""
COMMANDS: dict[str, tuple[list[str], set[int]]] = {
    "compare": (["compare", "a.h5", "b.h5"], {1}),
    "compare, mapped": (["compare", "a.h5", "b.h5", "-lm", "map.yaml"], {1, 3}),
    "compare, json": (["compare", "a.h5", "b.h5", "--format", "json"], {1}),
    "compare, csv": (["compare", "a.h5", "b.h5", "--format", "csv"], {1}),
    "info": (["info", "a.h5"], {0}),
    "show": (["show", "a.h5", "--limit", "0"], {0}),
    "show, nothing": (["show", "a.h5", "none of these"], {3}),
    "map check": (["map", "check", "map.yaml", "a.h5", "b.h5"], {0, 1, 3}),
    "map check, other": (["map", "check", "map.yaml", "a.h5", "c.h5"], {0, 1, 3}),
    "map suggest, yaml": (["map", "suggest", "a.h5", "c.h5"], {0, 3}),
    "curves": (["curves", "a.h5", "b.h5", "--norms"], {1}),
    "curves, json": (["curves", "a.h5", "b.h5", "--format", "json"], {1}),
    "curves, csv": (["curves", "a.h5", "b.h5", "--norms", "--format", "csv"], {1}),
    "curves of logs": (["curves", "a.jsonl", "b.jsonl"], {0, 1, 2}),
    "curves, only": (["curves", "a.h5", "b.h5", "--only", "none of these"], {3}),
    "convert": (["convert", "w.safetensors", "--to", "torch", "--from", "a.h5"], {3}),
    "export tree": (["export", "tree", "a.h5"], {0}),
}


@pytest.fixture(scope="module")
def hostile_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a folder of what the commands are run on, in which everything has a name; each is made once."""
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("hostile")
            for file, factor, called in (("a.h5", 1.0, name), ("b.h5", 0.5, name), ("c.h5", 1.0, f"{name} too")):
                record_hostile(made[name] / file, called, factor)
            write_beside(made[name], name)
        return made[name]

    return folder_of


def record_hostile(path: Path, name: str, factor: float) -> None:
    safe = name if name and "." not in name else f"unnamed{len(name)}"

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        probe.log(name, x)
        return x * vars(module)[safe] * factor

    def outer(module: nn.Module, **given: Tensor) -> Tensor:
        return vars(module)[f"{safe}2"](vars(module)[safe](given[name]))

    def one(factor: float) -> nn.Module:
        made = type("Block", (nn.Module,), {"forward": forward})(**{safe: nn.Parameter(np.ones(4, np.float32))})
        made.__class__.__name__ = stored(name)
        made.factor = factor
        return made

    model = block(outer, **{safe: one(factor), f"{safe}2": one(1.0)})
    optimizer = nn.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe.capture(model, path, task="tensor"):
            for step in range(3):
                model(**{name: batch(step)}).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=factor, **{name: factor})


def write_beside(folder: Path, name: str) -> None:
    """Write a mapping, logs and weights with the name in them."""
    text = stored(name)
    (folder / "map.yaml").write_text(json.dumps({"Block": {text: text, f"{text}2": [f"{text}2"]}}), encoding="utf-8")
    for file, factor in (("a.jsonl", 1.0), ("b.jsonl", 2.0)):
        lines = [json.dumps({"step": step, "loss": factor, text or "x": factor * step}) for step in range(3)]
        (folder / file).write_text("\n".join(lines), encoding="utf-8")
    header = json.dumps({text or "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))


@pytest.mark.parametrize("name", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_lets_a_name_do_anything(
    command: str, name: str, hostile_runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are shown as text, and none floods the screen, at any width, with and without a terminal."""
    monkeypatch.chdir(hostile_runs(name))
    arguments, statuses = COMMANDS[command]
    kind = command.rpartition(", ")[2]
    for width in (80, None) if kind not in DOCUMENTS else (None,):
        result = run(*arguments, width=width)
        shown = result.stdout + result.stderr
        assert result.exit_code in statuses, shown
        assert not DANGEROUS.search(shown), DANGEROUS.findall(shown)
        if kind not in DOCUMENTS:
            assert max(map(len, shown.splitlines())) < 2_100 and len(shown) < 60_000
        if kind == "json":
            assert json.loads(result.stdout)


@pytest.mark.parametrize(
    "name", [name for name in SHOWN.values() if name], ids=[key for key, name in SHOWN.items() if name]
)
def test_a_drafted_mapping_has_the_names_as_they_are(
    name: str, hostile_runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What map suggest prints is the YAML that it writes; what the language of mappings cannot say is an error."""
    monkeypatch.chdir(hostile_runs(name))
    printed, done = (run("map", "suggest", "a.h5", "c.h5", *to) for to in ([], ["-o", "draft.yaml"]))
    if done.exit_code:
        assert printed.stderr == done.stderr and done.stderr.startswith("Error: the draft, line ")
        assert set(name) & set(".{}[]") or len(name) > 1000, "keys of YAML are no longer"
        return
    assert yaml.safe_load(printed.stdout) == yaml.safe_load(Path("draft.yaml").read_text(encoding="utf-8"))
    checked = run("map", "check", "draft.yaml", "a.h5", "c.h5")
    assert re.search(r"^  mapped +2 +2$", checked.stdout, re.MULTILINE), "the modules are pairs by their own names"
    Path("draft.yaml").unlink()


@pytest.mark.parametrize("given", ["\x1b]0;owned\x07", "a\nb", "\u202ea", "[red]x[/red][/]", "x" * 10_000], ids=ascii)
@pytest.mark.parametrize(
    "arguments",
    [["compare", "{}", "{}"], ["compare", "a.h5", "b.h5", "-lm", "{}"], ["compare", "a.h5", "b.h5", "--steps", "{}"],
     ["compare", "a.h5", "b.h5", "--preset", "{}"], ["compare", "a.h5", "b.h5", "-o", "{}.xyz"], ["show", "a.h5", "{}"],
     ["show", "a.h5", "--phase", "{}"], ["curves", "{}", "{}"], ["curves", "a.h5", "b.h5", "--only", "{}"], ["info", "{}"],
     ["map", "check", "{}", "a.h5", "b.h5"], ["map", "tree", "{}", "-o", "t.h5"], ["convert", "{}", "--to", "torch"],
     ["export", "tree", "{}"], ["export", "tensorboard", "{}", "-o", "r"]],
    ids=" ".join,
)  # fmt: skip
def test_no_argument_does_anything_in_an_error(
    arguments: list[str], given: str, hostile_runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile_runs("a"))
    result = run(*(each.format(given) for each in arguments))
    assert result.exit_code == 3 and result.stderr.startswith("Error: ")
    assert not DANGEROUS.search(result.output) and len(result.output) < 5_000
