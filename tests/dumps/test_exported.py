"""What `probe export` writes of a recording is read back equal, and what is not in it is said."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

import probe
from probe.checkpoints import Stored, safetensors
from probe.compat.reprod_log import ReprodDiffHelper
from probe.dumps.arrays import load
from probe.dumps.importing import import_dump
from probe.errors import ConfigError, NotRecordedError
from probe.exports.msprobe import export_msprobe
from probe.exports.named import export_named
from probe.exports.reprod import POINTS
from probe.testing.recording import Recording, Seen
from tests.cli.running import run
from tests.dumps.making import FAULTS, as_msprobe, as_padiff, trained
from tests.toy import nn
from tests.toys import gpt, plain_step, record

FORMS: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"}, "mix": {"operations": True}, "forward": {"backward": False},
    "mindspore": {"framework": "mindspore", "operations": True},
}  # fmt: skip
PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "dumps.md").read_text(encoding="utf-8")
BACK = PAGE.partition('--pattern "step_')[2].partition('"')[0].join(("step_", ""))
"""the pattern that the page gives"""


def recorded(source: Path, **options: Any) -> Path:
    (path,) = import_dump(source, source.with_name(f"{source.name}.h5"), **options)
    return path


def of_torch(path: Path) -> Path:
    """Say that a recording of the tests' framework is one of PyTorch."""
    with h5py.File(path, "r+") as file:
        file.attrs["framework"] = "torch"
    return path


def told(path: Path, leave: tuple[str, ...] = ()) -> Counter[tuple[Any, ...]]:
    """Return everything that was seen, but for roles and phases that are left out."""

    def facts(each: Seen) -> tuple[Any, ...]:
        place = (each.step, each.micro, each.phase, each.role, each.path, each.call, each.slot)
        return (*place, each.dtype, each.shape, each.requires_grad, f"{each.norm:.12g}", each.hash)

    seen = Recording(path).seen
    return Counter(facts(each) for each in seen if not {each.role, each.phase} & {*leave})


def tree(path: Path) -> list[Any]:
    run = Recording(path)
    modules = [(each.path, each.class_name, each.parent, each.arguments, each.file, each.line) for each in run.modules]
    places = [(int(call["micro"]), int(call["module"]), int(call["call"]), int(call["caller"])) for call in run.calls]
    return [run.info.framework, modules, places, [(p.names, p.shape, p.axes) for p in run.parameters]]


# ---- mindstudio-probe


@pytest.mark.parametrize("form", FORMS)
def test_a_dump_is_read_back_equal(form: str, tmp_path: Path) -> None:
    first = recorded(as_msprobe(tmp_path / "a", trained(steps=2), **FORMS[form]))
    count, notes = export_msprobe(first, tmp_path / "b")
    again = recorded(tmp_path / "b")
    assert told(first) == told(again) and len(told(first)) > 20  # with the update, which the second step begins with
    assert tree(first) == tree(again)
    said = any("without values" in note for note in notes)
    assert (count > 0, said) == (form != "statistics", form == "statistics")


def test_the_files_of_a_dump(tmp_path: Path) -> None:
    export_msprobe(recorded(as_msprobe(tmp_path / "a", trained(), operations=True)), tmp_path / "b")
    place = tmp_path / "b" / "step0" / "proc0"
    dump, construct, stack = (json.loads((place / f"{n}.json").read_text()) for n in ("dump", "construct", "stack"))
    assert (dump["task"], dump["level"], dump["framework"]) == ("tensor", "mix", "pytorch")
    assert list(construct)[:2] == ["Module.Model.forward.0", "Module.up.Linear.forward.0"]
    assert construct["Functional.linear.0.forward"] == "Module.up.Linear.forward.0"
    assert construct["Module.block.norm.LayerNorm.backward.0"] == "Module.block.Block.backward.0"
    ended = [name for name in dump["data"] if name.startswith("Module.block") and ".forward." in name]
    assert ended[-1] == "Module.block.Block.forward.0"  # behind what is inside it
    linear = dump["data"]["Module.up.Linear.forward.0"]
    assert [type(each) for each in linear.values()] == [list, dict, list, dict]
    names = {path.name for path in (place / "dump_tensor_data").iterdir()}
    assert linear["parameters"]["weight"]["data_name"] == "Module.up.Linear.forward.0.parameters.weight.pt" in names
    assert dump["data"]["Module.up.Linear.parameters_grad.0"]["bias"][0]["data_name"] in names
    assert stack["0"][1][0].startswith("File /home/user/model.py, line 7, in ")


def test_arguments_by_name_inside_lists_and_with_odd_names(tmp_path: Path) -> None:
    dump = as_msprobe(tmp_path / "a", trained(), backward=False)
    path = dump / "step0" / "proc1" / "dump.json"
    data = json.loads(path.read_text())
    call = data["data"]["Module.head.Linear.forward.0"]
    leaf = call["input_args"][0]
    named = {"mask": leaf, "../../x/" + "y" * 300: leaf, "../../x/" + "y" * 299: call["output"][0]}
    call |= {"input_args": [None, [leaf, leaf]], "input_kwargs": named}
    path.write_text(json.dumps(data))
    first = recorded(dump)
    export_msprobe(first, tmp_path / "b")
    assert told(first) == told(recorded(tmp_path / "b"))
    assert all(len(path.name) < 256 for path in tmp_path.rglob("*.pt")) and not [*tmp_path.parent.glob("x*")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "int64", "bool", "uint8", "uint16"])
@pytest.mark.parametrize("framework", ["torch", "mindspore"])
def test_dtypes_keep_their_names_and_values(framework: str, dtype: str, tmp_path: Path) -> None:
    wide = np.array([[0, 1, 2.5, 7], [1, 0, 8, 3]], np.float32)
    arrays = {"x": wide.astype(getattr(ml_dtypes, dtype, dtype)), "y": np.array(3, "f4"), "z": np.zeros((0, 3))}
    stored = [Stored(name, each.dtype, each.shape) for name, each in arrays.items()]
    safetensors.write(tmp_path / "a.safetensors", stored, arrays.values(), "torch")
    first = recorded(tmp_path / "a.safetensors")
    with h5py.File(first, "r+") as file:
        file.attrs["framework"] = framework
    export_msprobe(first, tmp_path / "b")
    again = Recording(recorded(tmp_path / "b"))
    for path, one, other in ((path, Recording(first).one(path=path), again.one(path=path)) for path in "xyz"):
        same_dtype = dtype != "uint16" or framework == "mindspore" or path != "x"  # which torch.save has no storage of
        assert not same_dtype or (one.dtype, one.hash) == (other.dtype, other.hash)
        assert one.shape == other.shape and np.array_equal(one.values.astype("f4"), other.values.astype("f4"))


def test_numbers_that_are_none(tmp_path: Path) -> None:
    numbers = ([1, np.nan], [1, np.inf], [1, -np.inf], [np.inf, -np.inf], [np.inf, np.inf])
    values = {f"x{at}": np.array(each, "f4") for at, each in enumerate(numbers)}
    np.savez(tmp_path / "a.npz", **values)
    export_msprobe(recorded(tmp_path / "a.npz"), tmp_path / "b")
    data = json.loads((tmp_path / "b" / "step0" / "proc0" / "dump.json").read_text())["data"]
    for name, each in values.items():
        said = data[f"Module.{name}.Module.forward.0"]["output"][0]
        with np.errstate(invalid="ignore"):
            wanted = (each.max(), each.min(), each.mean(), np.sqrt((each**2).sum()))
        assert np.array_equal([said[key] for key in ("Max", "Min", "Mean", "Norm")], wanted, equal_nan=True), name


def test_a_training_with_micro_batches_and_what_a_dump_has_no_place_for(tmp_path: Path) -> None:
    def step(model: Any, optimizer: Any, number: int) -> Any:
        plain_step(model, type("None", (), {"step": int, "zero_grad": int})(), number)
        probe.log("logits", np.ones(3))
        return plain_step(model, optimizer, number)

    first = of_torch(record(tmp_path / "a.h5", steps=3, step=step, task="tensor"))
    _, notes = export_msprobe(first, tmp_path / "b")
    left = ("state", "buffer", "value", "grad_total", "delta", "update", "param_grad", "loss")
    assert told(first, left) == told(recorded(tmp_path / "b"), left)
    counts = Counter(each.role for each in Recording(first).seen)
    assert notes[0].startswith("left out, for which a dump has no place: ") and len(notes) == 1
    for what in ("param_grad before the last micro-batch", *(f"{counts[role]} {role}" for role in ("state", "delta"))):
        assert what in notes[0]
    assert '"megatron_micro_step_number": 2' in (tmp_path / "b" / "step0" / "proc0" / "construct.json").read_text()


def test_a_step_behind_a_gap_has_its_own_weights(tmp_path: Path) -> None:
    first = of_torch(record(tmp_path / "a.h5", steps=3, config={"task": "tensor", "step": [0, 2]}))
    export_msprobe(first, tmp_path / "b")
    left = ("state", "buffer", "grad_total", "delta", "update")
    assert told(first, left) == told(recorded(tmp_path / "b"), left)


def test_other_frameworks_are_refused(tmp_path: Path) -> None:
    source = recorded(as_padiff(tmp_path / "a", trained()))
    with pytest.raises(ConfigError, match="is of paddle, no framework of mindstudio-probe: export npy or "):
        export_msprobe(source, tmp_path / "b")
    assert not (tmp_path / "b").exists() and not [*tmp_path.glob(".*")]


def test_weights_without_values_tell_no_update(tmp_path: Path) -> None:
    first = of_torch(record(tmp_path / "a.h5", steps=2, config={"task": "tensor", "tensors": ["layers.0"]}))
    export_msprobe(first, tmp_path / "b")
    assert probe.compare(first, tmp_path / "b").first_divergence is None


def test_without_a_complete_step_nothing_is_exported(tmp_path: Path) -> None:
    a = str(of_torch(side(tmp_path / "a.h5", steps=0)))
    for given in (["msprobe", a], ["npy", a], ["reprod", a, a]):
        assert "a.h5 has no complete step: record one" in run("export", *given, "-o", str(tmp_path / "x")).stderr


# ---- Named tensors


@pytest.mark.parametrize("target", ["tensors", "tensors.safetensors"])
def test_named_tensors_are_read_back_equal(target: str, tmp_path: Path) -> None:
    first = record(tmp_path / "a.h5", steps=2, task="tensor")
    count, notes = export_named(first, tmp_path / target, "." in target)
    seen = Recording(first).seen
    assert count == sum(each.values is not None for each in seen)
    assert notes == [f"left out, without values: {sum(each.role == 'delta' for each in seen)} delta"]
    again, left = recorded(tmp_path / target, pattern=BACK), ("update", "loss", "delta", "value")
    facts = [{(*each[:9], each[11]) for each in told(path, left)} for path in (first, again)]
    assert facts[0] == facts[1]
    times = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy"))
    assert {later - one for one, later in itertools.pairwise(times)} <= {1000}  # clocks of file systems may be coarse
    assert [path for _, path, _ in Recording(again).called()] == [path for _, path, _ in Recording(first).called()]


def test_bfloat16_in_both_formats(tmp_path: Path) -> None:
    values = np.array([1, 2.5, 3], ml_dtypes.bfloat16)
    np.savez(tmp_path / "a.npz", x=values, y=np.arange(3, dtype=np.complex128))
    first = recorded(tmp_path / "a.npz")
    assert export_named(first, tmp_path / "t", False)[1] == ["written as float32: 1 bfloat16"]
    stored = tmp_path / "t/step_0/micro_0/x/call_0/forward/output.0.bfloat16.npy"
    assert load(stored).dtype == np.float32 and np.array_equal(load(stored), values.astype(np.float32))
    assert Recording(recorded(tmp_path / "t", pattern=BACK)).one(path="x").dtype == "bfloat16"
    count, notes = export_named(first, tmp_path / "t.safetensors", True)
    file = safetensors.SafetensorsFile(tmp_path / "t.safetensors")
    assert (count, notes) == (1, ["left out, which safetensors cannot hold: 1 complex128"])
    assert file.read("step_0/micro_0/x/call_0/forward/output.0").tobytes() == values.tobytes()


def test_ranks_stand_in_folders(tmp_path: Path) -> None:
    for rank in range(2):
        as_msprobe(tmp_path / "a", trained(), rank=f"rank{rank}")
    import_dump(tmp_path / "a", tmp_path / "a.h5")
    export_named(tmp_path / "a.h5", tmp_path / "t", False)
    export_msprobe(tmp_path / "a.h5", tmp_path / "d")
    assert sorted(os.listdir(tmp_path / "t")) == sorted(os.listdir(tmp_path / "d" / "step0")) == ["rank0", "rank1"]


def test_statistics_alone_are_no_named_tensors(tmp_path: Path) -> None:
    recorded(as_msprobe(tmp_path / "a", trained(), "statistics"))
    with pytest.raises(NotRecordedError, match='holds no values, statistics alone: record it with task="tensor"'):
        export_named(tmp_path / "a.h5", tmp_path / "t", False)
    assert sorted(os.listdir(tmp_path)) == ["a", "a.h5"]


# ---- Five acceptance points


def side(path: Path, steps: int = 2, task: str = "tensor", scale: float = 1, **scalars: float) -> Path:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, task=task):
        for number in range(steps):
            loss = float(plain_step(model, optimizer, number).data) * scale
            probe.step(loss=loss, lr=1e-3, **{key: value + number for key, value in scalars.items()})
    return path


def test_all_points_of_the_guide(tmp_path: Path) -> None:
    a, b = side(tmp_path / "a.h5", acc=0.5), side(tmp_path / "b.h5", acc=0.5001)
    done = run("export", "reprod", str(a), str(b), "-o", str(tmp_path / "log"), "--train-threshold", "0.0015")
    assert "forward passed, metric failed, loss passed, bp_align passed, train_align passed" in done.stdout
    found = {*os.listdir(tmp_path / "log")}
    ends = ("torch.npy", "paddle.npy", "diff.log", "diff_log.txt")
    assert found == {"train_align_benchmark.npy", *(f"{point}_{end}" for point in POINTS for end in ends)}
    infos = {n: ReprodDiffHelper().load_info(tmp_path / "log" / n) for n in found if n.endswith(".npy")}
    assert [*infos["bp_align_torch.npy"]] == ["loss_0", "loss_1"] and [*infos["loss_paddle.npy"]] == ["loss"]
    assert infos["metric_torch.npy"] == {"acc": [0.5]} and infos["train_align_benchmark.npy"] == {"acc": [1.5]}
    logits = Recording(a).one(path="", role="output", micro=0, step=0).values
    assert np.array_equal(infos["forward_torch.npy"]["output.0"], logits) and "input.0" in infos["forward_torch.npy"]
    for point in POINTS:
        one, other = (tmp_path / "log" / f"{point}_{end}" for end in ("diff.log", "diff_log.txt"))
        assert one.read_bytes() == other.read_bytes() and b"INFO: diff check " in one.read_bytes()
    assert "check passed: False, value: 9.99" in (tmp_path / "log" / "metric_diff.log").read_text()


@pytest.mark.parametrize(
    "options, status, note",
    [
        ({"task": "statistics"}, 2, "forward: not made, the recordings do not both hold outputs of the whole model with values"),
        ({"steps": 1}, 1, "bp_align: not made, the recordings do not both hold losses of two steps or more"),
        ({"scale": 1.001}, 1, ""),
        ({"acc": None}, 2, "metric: not made, the recordings do not both hold metric that probe.step() was given"),
        ({"f1": 0.5}, 1, ""),
        ({"steps": 3}, 1, ""),
    ],
)  # fmt: skip
def test_what_does_not_pass(options: dict[str, Any], status: int, note: str, tmp_path: Path) -> None:
    """What lacks is said; a loss or a metric on one side only fails."""
    given = {key: value for key, value in {"acc": 0.5, **options}.items() if value is not None}
    a, b = side(tmp_path / "a.h5", acc=0.5), side(tmp_path / "b.h5", **given)
    done = run("export", "reprod", str(a), str(b), "-o", str(tmp_path / "log"))
    assert done.exit_code == status and note in done.stderr and bool(note) is bool(done.stderr)
    only = "".join(path.read_text() for path in (tmp_path / "log").glob("*_diff.log"))
    assert ("on one side only" in only) is (options in ({"f1": 0.5}, {"steps": 3}))


def test_commands_say_what_they_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(as_msprobe(tmp_path / "a", trained(FAULTS)))
    for kind, target in (("msprobe", "dump"), ("npy", "tensors"), ("safetensors", "t.safetensors")):
        done = run("export", kind, "a.h5", "-o", target)
        assert (done.exit_code, done.stdout) == (0, f"{len([*Path('a').rglob('*.pt')])} tensors are in {target}\n")
        assert f"{target} exists already" in run("export", kind, "a.h5", "-o", target).stderr
    assert run("export", "msprobe", "none.h5", "-o", "x").exit_code == 3 and not Path("x").exists()
    assert "there is no folder none" in run("export", "npy", "a.h5", "-o", "none/x").stderr
