"""Other tools' dumps as recordings: what is read, what a comparison of two says, and never more than was dumped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import probe
from probe.answer.result import Verdict
from probe.checkpoints import Stored, pdparams, safetensors
from probe.compat.reprod_log import ReprodLogger
from probe.dumps.arrays import SUFFIXES
from probe.dumps.importing import import_dump
from probe.dumps.naming import patterns_of, said_by
from probe.errors import ConfigError, ConversionError, ExistsError, FormatError
from probe.testing.recording import Recording
from tests.cli import running
from tests.dumps import making
from tests.dumps.making import CLASSES, FAULTS, as_msprobe, as_named, as_padiff, as_sglang, as_transformers, trained

FORMS: dict[str, Any] = {
    "named": as_named,
    "msprobe": as_msprobe,
    "msprobe-mix": lambda folder, runs: as_msprobe(folder, runs, operations=True),
    "msprobe-mindspore": lambda folder, runs: as_msprobe(folder, runs, framework="mindspore", rank="rank0"),
    "msprobe-statistics": lambda folder, runs: as_msprobe(folder, runs, "statistics"),
    "padiff": as_padiff,
    "ptdbg": making.as_ptdbg,
    "sglang": as_sglang,
    "transformers": as_transformers,
    "padiff-torch": lambda folder, runs: as_padiff(folder, runs, "torch"),
}


def made(form: str, folder: Path, faults: Any = None, **options: Any) -> Path:
    return FORMS[form](folder / ("b" if faults else "a"), trained(faults, **options))


def read(source: Path, **options: Any) -> Recording:
    (path,) = import_dump(source, source.parent / f"{source.name}-read.h5", **options)
    return Recording(path)


def first(answer: probe.Comparison) -> str:
    """Return the path that the first divergence is named by, an operation's module."""
    assert answer.first_divergence is not None, answer
    return answer.first_divergence.a[0].path.partition("/")[0]


# ---- Each form: faults are named, clean pairs are not


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("module", FAULTS)
def test_a_fault_is_named_at_its_module(form: str, module: str, tmp_path: Path) -> None:
    a, b = made(form, tmp_path), made(form, tmp_path, {module: FAULTS[module]})
    answer = probe.compare(a, b)
    if form == "transformers":  # what a module with modules inside returns is seen where the next is given it
        assert (answer.verdict.value, first(answer)) == ("diverged", "" if module == "block" else module)
        return
    assert (answer.verdict.value, first(answer)) == ("diverged", module)
    assert {each.a[0].path for each in answer.divergences} == {answer.first_divergence.a[0].path}


@pytest.mark.parametrize("form", FORMS)
def test_clean_pairs_are_aligned_or_undecided_with_the_reason(form: str, tmp_path: Path) -> None:
    a, b = (FORMS[form](tmp_path / name, trained()) for name in "ab")
    answer = probe.compare(a, b)
    if form == "msprobe-statistics":
        (reason,) = answer.reasons
        assert (answer.verdict.value, reason.code) == ("undecided", "summaries-alone")
        assert reason.facts["count"] == reason.facts["total"] > 20
    else:
        assert answer.verdict.value == "aligned" and answer.left_out
        assert all(row.verdict == "equal" for row in answer.slots)


def test_a_fault_of_the_optimizer_is_one_of_the_update(tmp_path: Path) -> None:
    """The weights of the next step show it; by themselves they would pass for what rounding made of them."""
    a, b = (as_msprobe(tmp_path / name, trained(steps=2, lr=lr)) for name, lr in (("a", 0.1), ("b", 0.2)))
    found = probe.compare(a, b).first_divergence
    assert found is not None and (found.step, found.phase.label) == (0, "update")
    assert probe.compare(a, as_msprobe(tmp_path / "c", trained(steps=2))).verdict.value == "aligned"


def test_a_dump_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "layer.npy", np.arange(64.0))
    assert probe.compare(tmp_path / "a", tmp_path / "b").verdict is not Verdict.DIVERGED
    np.save(tmp_path / "b" / "layer.npy", 3 * np.arange(64.0))
    assert probe.compare(tmp_path / "a", tmp_path / "b").verdict is Verdict.DIVERGED


def test_weights_of_later_steps_do_not_pass_for_noise_in_statistics(tmp_path: Path) -> None:
    sides = [
        as_msprobe(tmp_path / name, trained(steps=2, lr=lr), "statistics") for name, lr in (("a", 0.1), ("b", 0.9))
    ]
    answer = probe.compare(*sides)
    assert answer.verdict.value == "diverged" and answer.first_divergence.step == 1
    assert "updates-not-recorded" in {fact.code for fact in answer.first_divergence.facts}


@pytest.mark.parametrize("wrong", ["", "bias", "weight"])
def test_a_gradient_that_cancels_out_is_held_against_the_one_beside_it(wrong: str, tmp_path: Path) -> None:
    """No gradient of a module is in the dump; that of a bias before a norm, or of keys, is but what rounding left."""
    sides = []
    for side in range(2):
        noise = np.random.default_rng(side)
        values = {
            "fc.param.weight": np.eye(8, dtype="f4"), "fc.param.bias": np.ones(8, "f4"), "fc.output.0": np.ones((4, 8), "f4"),
            "fc.param_grad.weight": np.outer(np.arange(8), np.arange(8)).astype("f4") * (1.5 if wrong == "weight" and side else 1),
            "fc.param_grad.bias": (noise.normal(size=8) * 1e-6 + (0.1 if wrong == "bias" and side else 0)).astype("f4"),
        }  # fmt: skip
        (tmp_path / f"{side}").mkdir()
        for name, value in values.items():
            np.save(tmp_path / f"{side}" / f"{name}.npy", value)
        sides += import_dump(tmp_path / f"{side}", tmp_path / f"{side}.h5", pattern="{module}.{role}.{slot}")
    answer = probe.compare(*sides)
    found = [(each.phase.label, each.a[0].slot) for each in answer.divergences]
    assert found == ([("gradient", wrong)] if wrong else []) and (answer.verdict is Verdict.ALIGNED) is not bool(wrong)


# ---- Statistics alone


def hidden(folder: Path, task: str) -> probe.Comparison:
    """Compare two dumps of forwards; in one the last module returns its rows in another order."""
    runs = [trained()[0], trained()[0]]
    runs[1].returned["head"] = runs[1].returned["head"][::-1].copy()
    return probe.compare(
        *(as_msprobe(folder / f"{task}{n}", [run], task, backward=False) for n, run in enumerate(runs))
    )


def test_what_statistics_cannot_show_is_never_called_aligned(tmp_path: Path) -> None:
    answer = hidden(tmp_path, "statistics")
    assert answer.verdict.value == "undecided" and "agree in min, max, mean and norm" in str(answer)
    assert first(hidden(tmp_path, "tensor")) == "head"


def test_statistics_against_values_agree(tmp_path: Path) -> None:
    """The sums of a tool have the precision of float32, those of a recording that of float64; zeros are counted here alone."""
    runs = trained()
    runs[0].returned["head"][0] = 0
    answer = probe.compare(as_msprobe(tmp_path / "a", runs), as_msprobe(tmp_path / "b", runs, "statistics"))
    assert answer.verdict.value == "undecided" and [each.code for each in answer.reasons] == ["summaries-alone"]


@pytest.mark.parametrize(
    "a, b, is_found", [("nan", "nan", False), (1.0, "nan", True), ("inf", "inf", False), (9, 8, True), (9, 9, False)]
)
def test_what_a_summary_says_of_numbers_that_are_none(a: Any, b: Any, is_found: bool, tmp_path: Path) -> None:
    """No tool counts them: one NaN here and two there are no difference, none and one are."""
    sides = []
    for name, value in (("a", a), ("b", b)):
        place = as_msprobe(tmp_path / name, trained(), "statistics", backward=False) / "step0" / "proc1" / "dump.json"
        told = json.loads(place.read_text())
        slot = told["data"]["Module.up.Linear.forward.0"]["input_args"][0]
        slot |= {"Max": float(value), **({} if isinstance(value, float) else {"Mean": None, "Norm": None})}
        slot |= {"dtype": "torch.int64", "Min": 0} if isinstance(value, int) else {}
        place.write_text(json.dumps(told))
        sides.append(place)
    answer = probe.compare(*sides)
    assert (answer.verdict.value == "diverged") is is_found
    assert not is_found or (answer.first_divergence.role.label, answer.first_divergence.step) == ("input", 0)


# ---- What a recording holds of a dump


def test_a_dump_of_msprobe(tmp_path: Path) -> None:
    run = read(made("msprobe-mix", tmp_path, steps=2))
    classes = {module.path: module.class_name for module in run.modules if not module.is_operation}
    assert classes == {"": "Model", **CLASSES}
    operations = [module for module in run.modules if module.is_operation]
    assert [each.path for each in operations] == ["up/linear.0", "block.proj/linear.0", "head/linear.0"]
    assert {(each.class_name, each.arguments, each.file, each.line) for each in operations} == {
        ("torch.nn.functional.linear", '{"3": 1}', "/home/user/model.py", 7)
    }
    assert [path for micro, path, _ in run.called()][:6] == [
        "",
        "up",
        "up/linear.0",
        "block",
        "block.norm",
        "block.proj",
    ]
    steps = trained(steps=2)
    for path in CLASSES:
        for role, values in (("input", "given"), ("output", "returned"), ("grad_output", "back"), ("grad_input", "on")):
            seen = run.one(step=1, path=path, role=role)
            assert np.array_equal(seen.values, getattr(steps[1], values)[path]) and seen.slot == "0"
    for phase, role, step, values in (("init", "param", 0, steps[0].weights), ("update", "param", 0, steps[1].weights),
                                      ("gradient", "param_grad", 1, steps[1].grads)):  # fmt: skip
        assert np.array_equal(
            run.one(phase=phase, role=role, step=step, path="up", slot="bias").values, values["up"]["bias"]
        )
    assert {each.shape for each in run.parameters if each.names == ("up.weight",)} == {(6, 4)}
    delta = run.one(role="delta", path="up", slot="bias")
    assert delta.norm == pytest.approx(0.1 * np.linalg.norm(steps[0].grads["up"]["bias"]), rel=1e-5)


def test_nested_and_named_arguments_have_the_slots_of_a_recording(tmp_path: Path) -> None:
    place = as_msprobe(tmp_path / "a", trained(), "statistics") / "step0" / "proc1" / "dump.json"
    told = json.loads(place.read_text())
    call = told["data"]["Module.head.Linear.forward.0"]
    tensor = call["output"][0]
    call["input_kwargs"] = {
        "mask": {**tensor, "dtype": "torch.bool", "Max": True, "Min": False, "Mean": None, "Norm": None}
    }
    call["output"] = [
        tensor,
        {"weights": {**tensor, "dtype": "torch.bfloat16"}, "n": {"type": "int", "value": 3}},
        None,
    ]
    place.write_text(json.dumps(told))
    run = read(tmp_path / "a")
    assert {(each.slot, each.dtype) for each in run.find(path="head", phase="forward")} == {
        ("0", "float32"), ("mask", "bool"), ("1.weights", "bfloat16")
    }  # fmt: skip


def test_without_construct_json_paths_tell_which_call_lies_in_which(tmp_path: Path) -> None:
    dump = made("msprobe", tmp_path)
    (dump / "step0" / "proc1" / "construct.json").unlink()
    told = json.loads((dump / "step0" / "proc1" / "dump.json").read_text())
    ended = ["up", "block.norm", "block.proj", "block", "head"]
    told["data"] = {
        f"Module.{name}.{CLASSES[name]}.forward.0": told["data"][f"Module.{name}.{CLASSES[name]}.forward.0"]
        for name in ended
    }
    (dump / "step0" / "proc1" / "dump.json").write_text(json.dumps(told))
    run = read(dump)
    assert [path for _, path, _ in run.called()] == ["", "up", "block", "block.norm", "block.proj", "head"]
    assert any("which call lies in which" in text for _, _, text in run.notes)


def test_megatrons_micro_batches_are_told_apart(tmp_path: Path) -> None:
    dump = made("msprobe", tmp_path)
    place = dump / "step0" / "proc1"
    told, construct = (json.loads((place / name).read_text()) for name in ("dump.json", "construct.json"))
    forwards = {name: said for name, said in told["data"].items() if ".forward." in name}
    again = {f"{name[:-1]}1": said for name, said in forwards.items()}
    told["data"] = forwards | again
    pairs = {name: [parent, 0] for name, parent in construct.items()}
    pairs |= {f"{name[:-1]}1": [parent and f"{parent[:-1]}1", 1] for name, parent in construct.items()}
    for name, said in (("dump.json", told), ("construct.json", {**pairs, "megatron_micro_step_number": 1})):
        (place / name).write_text(json.dumps(said))
    assert {(micro, number) for micro, _, number in read(dump).called()} == {(0, 0), (1, 0)}


def test_a_debug_dump_holds_logged_values(tmp_path: Path) -> None:
    dump = as_msprobe(tmp_path / "a", trained(), "statistics")
    place = dump / "step0" / "proc1"
    told = json.loads((place / "dump.json").read_text())
    tensor = told["data"]["Module.head.Linear.forward.0"]["output"][0]
    (place / "debug.json").write_text(json.dumps({**told, "level": "debug", "data": {"logits.0.debug": tensor}}))
    (place / "dump.json").unlink()
    assert [(each.path, each.role, each.slot) for each in read(dump).seen] == [("", "value", "logits.0.debug")]


def test_ranks_become_files_of_one_recording(tmp_path: Path) -> None:
    for rank in range(2):
        as_msprobe(tmp_path / "a", trained(), rank=f"rank{rank}")
    paths = import_dump(tmp_path / "a", tmp_path / "a.h5")
    assert [path.name for path in paths] == ["a.rank00000.h5", "a.rank00001.h5"]
    assert [(Recording(path).info.rank, Recording(path).info.world_size) for path in paths] == [(0, 2), (1, 2)]


def test_a_dump_of_padiff(tmp_path: Path) -> None:
    run, (step,) = read(made("padiff", tmp_path)), trained()
    assert run.info.framework == "paddle" and [path for _, path, _ in run.called()] == ["", *step.calls()]
    assert np.array_equal(run.one(path="block.norm", role="output").values, step.returned["block.norm"])
    assert np.array_equal(run.one(path="head", role="grad_input").values, step.on["head"])
    (weight,) = [each for each in run.parameters if each.names == ("up.weight",)]
    assert (weight.shape, weight.axes) == ((4, 6), (1, 0))
    assert np.array_equal(run.one(path="up", role="param_grad", slot="weight").values, step.grads["up"]["weight"].T)


def test_two_frameworks_through_two_tools(tmp_path: Path) -> None:
    a = as_msprobe(tmp_path / "a", trained())
    assert first(probe.compare(a, made("padiff", tmp_path, {"block.norm": FAULTS["block.norm"]}))) == "block.norm"


def test_a_log_of_reprod_log_keeps_its_order(tmp_path: Path) -> None:
    for name, fault in (("a", 0), ("b", 1e-3)):
        logger = ReprodLogger()
        for at, key in enumerate(("stem", "pooled", "logits", "loss")):
            logger.add(key, np.full((2, 3), at + fault * (at > 0), np.float32))
        logger.save(tmp_path / f"{name}.npy")
    assert [path for _, path, _ in read(tmp_path / "a.npy").called()] == ["", "stem", "pooled", "logits", "loss"]
    assert first(probe.compare(tmp_path / "a.npy", tmp_path / "b.npy")) == "pooled"


# ---- Named tensors

PATTERNS = [
    ("layers.0.mlp.npy", None, ("layers.0.mlp", 0, 0, "output", "0")),
    ("step3/layers.0/mlp.npy", None, ("layers.0.mlp", 3, 0, "output", "0")),
    ("step3/rank0/mlp.npy", None, ("mlp", 3, 0, "output", "0")),
    ("l.0.mlp.2.output.0.npy", "{module}.{call:int}.{role}.{slot}.npy", ("l.0.mlp", 0, 2, "output", "0")),
    ("l.0.mlp.input.mask.npy", "{module}.{role}.{slot}", ("l.0.mlp", 0, 0, "input", "mask")),
    ("grads/l.0.weight.npy", "grads/{module}.{slot}{role=param_grad}", ("l.0", 0, 0, "param_grad", "weight")),
    (
        "rank_1/Net/0/2/Mul.Default_blocks-Block_Mul-op0.0.0.1795895165825345.input.1.DefaultFormat.Float32.npy",
        None,
        ("Default_blocks-Block_Mul-op0", 2, 0, "input", "1"),
    ),
    (
        "20260101120000/0/Net/1/3/Add.Default_Add-op0.4.0.1795895165825345.output.0.ND.npy",
        None,
        ("Default_Add-op0", 3, 0, "output", "0"),
    ),
    ("Add.Default_Add-op0.4.0.1795895165825345.output.0.NCHW.npy", None, ("Default_Add-op0", 0, 0, "output", "0")),
    ("7-mlp.npy", r"(?P<step>\d)-(?P<module>\w+)\.npy", ("mlp", 7, 0, "output", "0")),
]  # fmt: skip


@pytest.mark.parametrize("name, pattern, told", PATTERNS, ids=[each[0] for each in PATTERNS])
def test_patterns(name: str, pattern: str | None, told: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "a" / name
    path.parent.mkdir(parents=True)
    np.save(path, np.ones(3, np.float32))
    (seen,) = read(tmp_path / "a", pattern=pattern).seen
    assert (seen.path, seen.step, seen.call, seen.role, seen.slot) == told


@pytest.mark.parametrize("pattern, text", [("{layer}.npy", "{layer} is not known"), ("a.npy", "needs a {module}"),
                                           ("(?P<module>[.npy", "cannot be read"), ("{module}{role=x}", "a role of"),
                                           ("x/{module}", "no tensor with a name")])  # fmt: skip
def test_patterns_that_say_nothing(pattern: str, text: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises((ConfigError, ConversionError), match=text.replace("{", r"\{")):
        read(tmp_path, pattern=pattern)


def test_a_pattern_is_for_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds none"):
        read(made("msprobe-statistics", tmp_path), pattern="{module}")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".pdparams", ".npy"])
def test_files_of_many_tensors(suffix: str, tmp_path: Path) -> None:
    values = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    path = tmp_path / f"x{suffix}"
    if suffix == ".npz":
        np.savez_compressed(path, **values)
    elif suffix == ".npy":
        np.save(path, values, allow_pickle=True)  # type: ignore[arg-type]
    elif suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save({"b": torch.tensor(values["b"]), "inner": {"a": torch.tensor(values["b"]).T}, "n": 3}, path)
        values = {"b": values["b"], "inner.a": values["a"]}
    else:
        stored = [Stored(name, value.dtype, value.shape) for name, value in values.items()]
        {".safetensors": safetensors, ".pdparams": pdparams}[suffix].write(path, stored, values.values(), "paddle")
    run = read(path)
    assert [path for _, path, _ in run.called()] == ["", *values]
    assert all(np.array_equal(run.one(path=name).values, value) for name, value in values.items())


def test_float8_keeps_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.float8_e4m3fn.npy", np.linspace(-3, 3, 5).astype(ml_dtypes.float8_e4m3fn))
    found = read(tmp_path).one(role="output")
    assert found.dtype == "float8_e4m3fn" and float(found.values.max()) == 3.0
    np.save(tmp_path / "b.npy", np.ones(3).astype(ml_dtypes.float8_e4m3fnuz))
    with pytest.raises(FormatError, match=r"\|V1, no numbers"):
        read(tmp_path / "b.npy")


@pytest.mark.parametrize("name", ["a", "Mul.a.0.0.1795895165825345.output.0.DefaultFormat.BFloat16"])
def test_bfloat16_keeps_its_name(name: str, tmp_path: Path) -> None:
    """Its limits are those of 8 bits: as float32 rounding would be a finding."""
    np.save(tmp_path / f"{name}.npy", np.ones(3, np.float32 if "BFloat16" in name else ml_dtypes.bfloat16))
    assert read(tmp_path).one(path="a").dtype == "bfloat16"


def test_statistics_of_mindspores_dump(tmp_path: Path) -> None:
    head, rows = (
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,{}L2Norm Value",
        [],
    )
    for at, name in enumerate(("fc-Dense_MatMul-op0", "head_Add-op0")):
        rows.append(f'MatMul,Default_{name},0,0,17958951658253{at:02},output,0,24,{{}},"(2,3)",{at + 1}.5,-1,{{}}{{}},')
    sides = {"a": ("", "float32", "", 3.0), "b": ("Avg Value,", "Float32", "0.5,", 3.1)}
    for side, (column, dtype, mean, norm) in sides.items():
        place = tmp_path / side / "rank_0" / "Net" / "0" / "4"
        place.mkdir(parents=True)
        lines = [head.format(column), rows[0].format(dtype, mean, 3.0), rows[1].format(dtype, mean, norm)]
        (place / "statistic.csv").write_text("\n".join(lines) + "\n")
    run = read(tmp_path / "a")
    assert [(each.step, each.path, each.shape, each.norm) for each in run.seen] == [
        (4, "Default_fc-Dense_MatMul-op0", (2, 3), 3.0), (4, "Default_head_Add-op0", (2, 3), 3.0)
    ]  # fmt: skip
    assert first(probe.compare(tmp_path / "a", tmp_path / "b")) == "Default_head_Add-op0"
    assert probe.compare(tmp_path / "a" / "rank_0", tmp_path / "a").verdict.value == "undecided"


def test_mindspores_dump_is_ordered_by_its_timestamps(tmp_path: Path) -> None:
    """Kernels of graph mode, and a fault in the second of them: file names in the order of the alphabet would blame the first."""
    for side, fault in (("a", 0), ("b", 1e-3)):
        place = tmp_path / side / "rank_0" / "Net" / "0" / "0"
        place.mkdir(parents=True)
        for at, (kind, name) in enumerate(
            (("MatMul", "fc1-Dense_MatMul-op0"), ("GeLU", "act-GELU_GeLU-op0"), ("Add", "head_Add-op0"))
        ):
            values = np.full((2, 3), 1 + at + fault * (at > 0), np.float32)
            np.save(
                place
                / f"{kind}.Default_network-Net_{name}.0.0.17958951658253{at:02}.output.0.DefaultFormat.Float32.npy",
                values,
            )
    run = read(tmp_path / "a")
    assert run.info.framework == "mindspore" and not any("the order of calls" in text for _, _, text in run.notes)
    assert first(probe.compare(tmp_path / "a", tmp_path / "b")) == "Default_network-Net_act-GELU_GeLU-op0"


GRAPH_MODE = {
    "up": "up-Linear_BiasAdd", "block.norm": "block-Block_norm-LayerNorm_LayerNorm", "block": "block-Block_Add",
    "block.proj": "block-Block_proj-Linear_BiasAdd", "head": "head-Linear_BiasAdd",
}  # fmt: skip
"""the last kernel of each module"""


@pytest.mark.parametrize("module", ["", *FAULTS])
def test_statistics_of_graph_mode_against_a_recording_of_torch(module: str, tmp_path: Path) -> None:
    """Paired by a mapping; two of a Dense's kernels have no partner."""
    (a,) = import_dump(as_msprobe(tmp_path / "torch", trained(), backward=False), tmp_path / "a.h5")
    b = making.as_graph_mode(tmp_path / "b", trained({module: FAULTS[module]} if module else {}))
    mapping = {"TopLayer": {name: f"Default_network-Net_{kernel}-op0" for name, kernel in GRAPH_MODE.items()}}
    answer = probe.compare(a, b, mapping=mapping)
    if module:
        assert (answer.verdict.value, first(answer)) == ("diverged", module)
        assert answer.first_divergence.b[0].path == mapping["TopLayer"][module]
    else:
        assert (answer.verdict.value, [each.code for each in answer.reasons]) == ("undecided", ["summaries-alone"])


def test_functions_of_ptdbg_have_their_line_and_arguments(tmp_path: Path) -> None:
    run = read(making.as_ptdbg(tmp_path / "a", trained(steps=2), functions=True))
    operations = [each for each in run.modules if each.is_operation]
    assert [each.path for each in operations] == ["/linear.0", "/linear.1", "/linear.2"]
    assert {(each.class_name, each.arguments, each.file, each.line) for each in operations} == {
        ("torch.nn.functional.linear", '{"3": 1}', "/home/user/model.py", 7)
    }
    steps = trained(steps=2)
    weight = run.one(step=1, path="/linear.1", role="input", slot="1")
    assert np.array_equal(weight.values, steps[1].weights["block.proj"]["weight"])
    assert np.array_equal(run.one(step=1, path="up", role="grad_output").values, steps[1].back["up"])
    assert run.info.rank == 0 and {module.path for module in run.modules if not module.is_operation} == {"", *CLASSES}


def test_ptdbg_without_values_has_statistics_alone(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.01)):
        place = tmp_path / name / "rank0"
        place.mkdir(parents=True)
        line = ["Torch_add_0_forward_output", 0, [], "torch.float32", [2, 3], [3.0 * factor, -1.0, 0.5, 4.0 * factor]]
        empty = ["Torch_add_0_forward_input.0", 0, [], "torch.bool", [2, 3], [[], [], []]]
        (place / "dump.pkl").write_text("".join(f"{json.dumps(each)}\n" for each in (empty, line)))
    assert probe.compare(tmp_path / "a", tmp_path / "b").verdict is Verdict.DIVERGED
    assert probe.compare(tmp_path / "a" / "rank0", tmp_path / "a" / "rank0" / "dump.pkl").verdict is Verdict.UNDECIDED


def test_a_dump_of_sglang(tmp_path: Path) -> None:
    steps = trained(steps=2)
    run = read(as_sglang(tmp_path / "a", steps))
    assert "source=SGLang" in running.run("info", tmp_path / "a").stdout
    assert [path for _, path, _ in run.called()[:6]] == ["", "up", "block", "block.norm", "block.proj", "head"]
    assert np.array_equal(run.one(step=1, path="up", role="output").values, steps[1].returned["up"])
    bias = run.one(step=0, path="block.proj", role="param", phase="init", slot="bias")
    assert np.array_equal(bias.values, steps[0].weights["block.proj"]["bias"])
    gradient = run.one(step=1, path="up", role="param_grad", slot="weight")
    assert np.array_equal(gradient.values, steps[1].grads["up"]["weight"])
    assert {each.slot for each in run.find(step=0, path="", role="input")} == {"input_ids"}
    assert any("left out: 2 tensors" in text for _, _, text in run.notes)  # computed again for the backward pass


def test_points_of_sglang_that_were_given_by_hand(tmp_path: Path) -> None:
    folder, tags = tmp_path / "dump_1", "step=0___rank=0___dump_index={}___name={}"
    folder.mkdir()
    for at, name in enumerate(("attn_out___layer_id=0", "attn_out___layer_id=1", "logits", "logits"), 1):
        (folder / f"{tags.format(at, name)}.pt").write_bytes(
            making.torch_file(np.full(3, at, np.float32), is_value=True)
        )
    run = read(folder)
    called = [(path, number) for _, path, number in run.called()]
    assert called == [("", 0), ("layers.0.attn_out", 0), ("layers.1.attn_out", 0), ("logits", 0), ("logits", 1)]


def test_passes_of_sglang() -> None:
    said = said_by("TP0_PP0_Rank3_pid77/Pass00002.pt/model.layers.0.mlp", patterns_of(None), SUFFIXES)
    assert said is not None and (said.step, said.rank, said.module) == (2, 3, "model.layers.0.mlp")


def test_what_transformers_left_out_is_said(tmp_path: Path) -> None:
    folder = as_transformers(tmp_path / "a", trained())
    place = folder / "Net_debug_tree_FULL_TENSORS.json"
    tree = json.loads(place.read_text())
    tree["children"] = [tree["children"][0], *tree["children"][2:], tree["children"][2]]  # pruned, and called twice
    place.write_text(json.dumps(tree))
    run = read(folder)
    assert [(path, number) for _, path, number in run.called()] == [("", 0), ("up", 0), ("head", 0), ("head", 1)]
    (one,) = run.find(path="head", role="output")
    assert one.call == 1 and run.one(path="", role="output").slot == "logits"
    notes = " ".join(text for _, _, text in run.notes)
    assert "2 tensors are left out: a later call" in notes
    assert "5 files are left out, which the tree does not name" in notes


def test_the_order_of_files_is_that_of_their_times_and_is_said(tmp_path: Path) -> None:
    for at, name in enumerate(("stem", "mlp", "head")):
        np.save(tmp_path / f"{name}.npy", np.ones(3))
        os.utime(tmp_path / f"{name}.npy", ns=(at * 10**9, at * 10**9))
    run = read(tmp_path)
    assert [path for _, path, _ in run.called()] == ["", "stem", "mlp", "head"]
    assert any("the order of calls is taken to be that in which" in text for _, _, text in run.notes)


def test_what_a_pattern_does_not_fit_is_said(tmp_path: Path) -> None:
    as_named(tmp_path / "a", trained(), "{module}.npy")
    run = read(tmp_path / "a", pattern="block.{module}")
    assert any(text.startswith("left out: 3 tensors with names") for _, _, text in run.notes)


# ---- Files


def test_a_recording_is_replaced_only_on_request(tmp_path: Path) -> None:
    dump, target = made("named", tmp_path), tmp_path / "a.h5"
    import_dump(dump, target)
    with pytest.raises(ExistsError):
        import_dump(dump, target)
    import_dump(dump, target, overwrite=True)
    before = target.read_bytes()
    (dump / "step0" / "up.npy").write_bytes(b"no array")
    with pytest.raises(FormatError):
        import_dump(dump, target, overwrite=True)
    assert target.read_bytes() == before and not list(tmp_path.glob(".*"))


def test_tensors_are_read_one_at_a_time(tmp_path: Path) -> None:
    """Of 320 MiB not half may be in memory at once."""
    resource = pytest.importorskip("resource")
    for at in range(20):
        np.save(tmp_path / f"x{at}.npy", np.full(4 << 20, at, np.float32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import_dump(tmp_path, tmp_path / "a.h5")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 160 << 10
