"""Files that are converted: what is written, what is copied, what it costs, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe.checkpoints import Stored, open_checkpoint, write_checkpoint
from probe.commands.cli import main
from probe.conversion import convert_checkpoint
from probe.conversion.structure import Structure
from probe.errors import ConversionError
from tests.published.structures import TORCH, Arrays, as_paddle, equal, state_of, structure
from tests.toy import nn


def written(
    folder: Path, state: Arrays, shards: int = 2, suffix: str = ".safetensors", framework: str = "torch"
) -> Path:
    """Write a checkpoint, its tensors dealt out to shards."""
    folder.mkdir()
    dealt = [[Stored(name, x.dtype, x.shape) for name, x in list(state.items())[i::shards]] for i in range(shards)]
    write_checkpoint(folder, suffix, dealt, state.__getitem__, framework)
    return folder


def values(path: Path) -> Arrays:
    found = open_checkpoint(path)
    return {name: found.read(name) for name in found.tensors}


def test_a_folder_is_converted_with_its_configuration(tmp_path: Path) -> None:
    state = state_of(TORCH, dtype=ml_dtypes.bfloat16)
    source = written(tmp_path / "net", state)
    (source / "config.json").write_text('{"torch_dtype": "bfloat16", "model_type": "bert"}')
    (source / "vocab.txt").write_text("a\nb\n")
    (source / "train.py").write_text("")
    target, plan = convert_checkpoint(source, to="paddle", model=TORCH)
    assert target == tmp_path.resolve() / "net-paddle"
    assert sorted(path.name for path in target.iterdir()) == [
        "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
        "vocab.txt",
    ]  # fmt: skip
    assert json.loads((target / "config.json").read_text()) == {"dtype": "bfloat16", "model_type": "bert"}
    assert equal(values(target), as_paddle(state)) and len(plan.moves) == len(as_paddle(state))
    back, _ = convert_checkpoint(target, tmp_path / "back", to="torch", model="paddle", like=TORCH)
    assert all(values(back)[name].tobytes() == x.tobytes() for name, x in state.items() if "tracked" not in name)


def test_a_folder_becomes_one_file_where_the_target_is_called_like_one(tmp_path: Path) -> None:
    state = state_of(TORCH)
    target, _ = convert_checkpoint(
        written(tmp_path / "net", state, 1), tmp_path / "net.pdparams", to="paddle", model=TORCH
    )
    assert target.is_file() and equal(values(target), as_paddle(state))
    with pytest.raises(
        ConversionError, match="two has its weights in 2 files, and .*two.pdparams is the name of one: give a folder's"
    ):
        convert_checkpoint(written(tmp_path / "two", state), tmp_path / "two.pdparams", to="paddle", model=TORCH)


def test_a_plan_says_in_a_line_what_it_does(tmp_path: Path) -> None:
    _, plan = convert_checkpoint(written(tmp_path / "net", state_of(TORCH), 1), to="paddle", model=TORCH)
    turned = sum(move.action == "transpose" for move in plan.moves)
    assert repr(plan).startswith(f"<Plan of {len(plan.moves)} tensors: {turned} transpose, ")


def test_a_chosen_dtype_stands_in_the_configuration(tmp_path: Path) -> None:
    source = written(tmp_path / "net", state_of(TORCH), 1)
    (source / "config.json").write_text('{"torch_dtype": "float32"}')
    target, _ = convert_checkpoint(source, to="paddle", model=TORCH, dtype="float16")
    assert json.loads((target / "config.json").read_text()) == {"dtype": "float16"}


@pytest.mark.parametrize(("to", "suffix"), [("paddle", ".pdparams"), ("mindspore", ".ckpt")])
def test_files_of_each_framework_there_and_back(tmp_path: Path, to: str, suffix: str) -> None:
    state = state_of(TORCH, dtype=ml_dtypes.bfloat16)
    source = written(tmp_path / "net", state, 1)
    file = source / "model.safetensors"
    there, _ = convert_checkpoint(file, tmp_path / f"net{suffix}", to=to, model=TORCH)
    back, _ = convert_checkpoint(there, tmp_path / "back.safetensors", to="torch", like=TORCH)
    assert all(values(back)[name].tobytes() == x.tobytes() for name, x in state.items() if "tracked" not in name)
    default, _ = convert_checkpoint(file, to=to, model=TORCH)
    assert default == source / f"model-{to}.safetensors"
    with pytest.raises(
        ConversionError, match="cannot tell the format of .*net.txt: expected .safetensors, .pdparams, .ckpt"
    ):
        convert_checkpoint(file, tmp_path / "net.txt", to=to, model=TORCH)
    with pytest.raises(ConversionError, match="exists already: give another place with -o"):
        convert_checkpoint(file, there, to=to, model=TORCH)


def test_tied_weights_that_differ_in_a_file_are_an_error(tmp_path: Path) -> None:
    tied = structure(
        "torch", {"": ("Net", {}), "a": ("Linear", {"weight": (2, 3)}), "b": ("Linear", {"weight": (2, 3)})},
        [("a.weight", "b.weight")],
    )  # fmt: skip
    one = np.ones((2, 3), np.float32)
    source = written(tmp_path / "net", {"a.weight": one, "b.weight": one * 2})
    with pytest.raises(ConversionError, match="a.weight and b.weight are one tensor in one of the models, but differ"):
        convert_checkpoint(source, to="paddle", model=tied)
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_nothing_is_left_where_a_conversion_fails(tmp_path: Path) -> None:
    source = written(tmp_path / "net", state_of(TORCH))
    (source / "config.json").write_text("{")
    with pytest.raises(ConversionError, match="config.json is no JSON"):
        convert_checkpoint(source, to="paddle", model=TORCH)
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


MEMORY = """
import sys
from pathlib import Path
from probe.conversion import convert_checkpoint
from tests.conversion.test_converting_files import large

def peak():  # ru_maxrss would be that of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024

before = peak()
known, to = large(int(sys.argv[3])), sys.argv[2]
sides = {"like": known} if to == "torch" else {"model": known}
target, plan = convert_checkpoint(sys.argv[1], to=to, **sides)
print(peak() - before)
"""


def large(layers: int) -> Structure:
    """Return a model of square weights of 4 MiB, two by two to a shard."""
    return structure(
        "torch", {"": ("Net", {}), **{str(i): ("Linear", {"weight": (1024, 1024)}) for i in range(layers)}}
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("suffix", "to"), [(".safetensors", "paddle"), (".safetensors", "mindspore"), (".pdparams", "torch")]
)
def test_memory_stays_below_two_shards(tmp_path: Path, suffix: str, to: str) -> None:
    layers, shard = 32, 8 * 4 << 20
    state = {f"{i}.weight": np.full((1024, 1024), i, np.float32) for i in range(layers)}
    source = written(tmp_path / "net", state, 4, suffix, "paddle" if to == "torch" else "torch")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", MEMORY, str(source), to, str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert int(done.stdout) < 2 * shard
    assert equal(values(tmp_path / f"net-{to}"), {name: x.T for name, x in state.items()})


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A recording of a model that says to be torch's, with a checkpoint ``net`` beside it."""
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    with probe.capture(model, tmp_path / "a.h5", task="structure"):
        pass
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file.attrs["framework"] = "torch"
        rows = file["modules"][:]
        rows["file"] = b""
        file["modules"][:] = rows
    shapes = {"0.weight": (3, 2), "0.bias": (3,), "1.weight": (3,), "1.bias": (3,)}
    written(tmp_path / "net", {name: np.ones(shape, np.float32) for name, shape in shapes.items()}, 1)
    return tmp_path / "a.h5"


def test_the_command_prints_what_became_of_each(tmp_path: Path, recorded: Path) -> None:
    arguments = ["convert", str(tmp_path / "net"), "--to", "mindspore", "--from", str(recorded), "--dtype", "bfloat16"]
    done = CliRunner().invoke(main, [*arguments, "--allow-extra", "more.*"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["old", "name", "shape", "action", "new", "name", "shape"]
    assert rows[1] == ["0.weight", "[3,", "2]", "cast", "to", "bfloat16", "0.weight", "[3,", "2]"]
    assert rows[3] == ["1.weight", "[3]", "cast", "to", "bfloat16", "1.gamma", "[3]"]
    assert f"4 tensors are in {tmp_path.resolve() / 'net-mindspore'}" in done.stderr
    assert values(tmp_path / "net-mindspore")["1.gamma"].dtype == ml_dtypes.bfloat16
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, "net-mindspore exists already: give another place with -o" in again.output) == (3, True)


def test_the_command_takes_only_one_side_of_two_and_says_when_it_cannot(tmp_path: Path, recorded: Path) -> None:
    arguments = ["convert", str(tmp_path / "net"), "--to", "torch", "-o", str(tmp_path / "new")]
    nothing = CliRunner().invoke(main, arguments)
    assert nothing.exit_code == 3 and "names of tensors do not tell the classes of modules" in nothing.output
    framework = CliRunner().invoke(main, [*arguments, "--from", "mindspore", "--like", str(recorded)])
    assert framework.exit_code == 3 and "1.weight: the torch model has it, the source does not" not in framework.output
    assert "1.weight, 1.bias: the torch model has them, the source does not" in framework.output
    assert "1.weight, 1.bias: in the source, but the torch model has no place for them" in framework.output
    helped = CliRunner().invoke(main, ["convert", "--help"])
    assert "Example: probe convert bert/ --to paddle --from torch.h5" in helped.output


PADDLENLP = """
class Row:
    def __init__(self, source_name, target_name, action=None):
        self.source_name, self.target_name, self.action = source_name, target_name, action

class Config:
    @classmethod
    def from_pretrained(cls, folder):
        return folder

class Llama:
    config_class = Config

    @classmethod
    def _get_name_mappings(cls, config):
        assert config.endswith("net")
        return [Row("0.weight", "fc.weight", "transpose"), Row("0.bias", "fc.bias"), Row("1.weight", "n.weight"),
                Row("1.bias", "n.bias")]
"""


def test_the_command_takes_the_mappings_of_a_class(
    tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "like_paddlenlp.py").write_text(PADDLENLP)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["convert", str(tmp_path / "net"), "--to", "paddle", "--name-mappings"]
    done = CliRunner().invoke(main, [*arguments, "like_paddlenlp:Llama"])
    assert done.exit_code == 0, done.output
    assert {name: x.shape for name, x in values(tmp_path / "net-paddle").items()} == {
        "fc.weight": (2, 3), "fc.bias": (3,), "n.weight": (3,), "n.bias": (3,),
    }  # fmt: skip
    for wrong, text in {
        "like_paddlenlp:Row": "like_paddlenlp:Row has no _get_name_mappings",
        "like_paddlenlp:None_": "cannot import like_paddlenlp:None_",
        "nowhere:Llama": "cannot import nowhere:Llama: No module named 'nowhere'",
    }.items():
        refused = CliRunner().invoke(main, [*arguments, wrong])
        assert refused.exit_code == 3 and text in refused.output
