"""`probe bisect`: from two commands to the operation and its line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probe.commands.bisect_command import recording
from probe.errors import RecordingError

LAYERS = """
import torch
import torch.nn.functional as F
from torch import nn

HEADS, GROUPS, SIZE = 4, 2, 8

def turned(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)

def rotated(x, cos, sin):
    return x * cos + turned(x) * sin

def repeated(x):
    batch, heads, length, size = x.shape
    x = x[:, :, None].expand(batch, heads, HEADS // heads, length, size)
    return x.reshape(batch, HEADS, length, size)

class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.o = nn.Linear(width, HEADS * SIZE), nn.Linear(HEADS * SIZE, width)
        self.k, self.v = nn.Linear(width, GROUPS * SIZE), nn.Linear(width, GROUPS * SIZE)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (each(x).view(batch, length, -1, SIZE).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = repeated(k), repeated(v)
        scores = q @ k.transpose(2, 3)
        scores = scores * SIZE**-0.5
        scores = scores.masked_fill(torch.ones(length, length).tril() == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        out = (weights @ v).transpose(1, 2)
        return self.o(out.reshape(batch, length, -1))

class Feed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        gate = F.gelu(self.gate(x))
        return self.down(gate * self.up(x))

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed = Attention(width), Feed(width)

    def forward(self, x, cos, sin):
        normed = self.norm1(x)
        x = x + self.attention(normed, cos, sin)
        normed = self.norm2(x)
        x = x + self.feed(normed)
        return x

class Model(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed, self.head = nn.Embedding(31, width), nn.Linear(width, 31)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))

    def forward(self, ids):
        angles = torch.arange(ids.shape[1])[:, None] * 100.0 ** -(torch.arange(SIZE) % (SIZE // 2) / SIZE)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.head(x)

torch.manual_seed(0)
model, ids = Model(), torch.randint(0, 31, (2, 9))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""a decoder with attention in lines of its own"""
FAULTS = {
    "scale missing": ("scores * SIZE**-0.5", "scores * 1.0", "layers.0.attention/mul.4", "scores * 1.0"),
    "scale doubled": ("SIZE**-0.5", "SIZE**-0.5 * SIZE**-0.5", "B alone calls before it mul.5", "SIZE**-0.5 *"),
    "causal mask off": ("        scores = scores.masked_fill(", "        (", "A alone calls before it masked_fill.0", "F.softmax"),
    "softmax over another axis": ("scores, dim=-1", "scores, dim=-2", "layers.0.attention/softmax.0", "F.softmax"),
    "softmax in bfloat16": ("F.softmax(scores, dim=-1)", "F.softmax(scores, dim=-1, dtype=torch.bfloat16).float()",
                            "B alone gives it the argument dtype: torch.bfloat16", "F.softmax"),
    "tanh GELU": ("F.gelu(self.gate(x))", "F.gelu(self.gate(x), approximate='tanh')", "layers.0.feed/gelu.0", "F.gelu"),
    "order of key heads": ("x[:, :, None].expand(batch, heads, HEADS // heads,", "x[:, None].expand(batch, HEADS // heads, heads,",
                           "layers.0.attention/expand.0", ".expand("),
    "rotary sign": ("(-second, first)", "(second, -first)", "layers.0.attention/neg.0", "(second, -first)"),
    "residual from the norm": ("x = x + self.attention(", "x = normed + self.attention(", "layers.0/add.0", "x = normed"),
    "graph cut": ("repeated(k), repeated(v)", "repeated(k), repeated(v.detach())", "B alone calls inside it detach.0", "detach"),
    "embeddings scaled": ("self.embed(ids)", "self.embed(ids) * 4.0", "B alone calls before it mul.1", "self.embed(ids) *"),
    "transposed": ("(weights @ v).transpose(1, 2)", "(weights @ v)", "layers.0.attention/reshape.2", "out.reshape"),
}  # fmt: skip
"""by name: what stands in A, and in B, what the answer says, and what stands in the line of B that it names"""
PROGRAM = """
import torch
import torch.nn.functional as F

class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        h = self.up(x) * 0.5
        h = F.gelu(h{how})
        return x + self.down(h)

torch.manual_seed(0)
model = torch.nn.Sequential(Mixed(), Mixed())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range({steps}):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("command", "expected"), [
    ("python train.py --lr 1", "python -m probe.run -o x train.py --lr 1"),
    ("python -u -W ignore -m pkg.train a.py", "python -u -W ignore -m probe.run -o x -m pkg.train a.py"),
    ("torchrun --nproc-per-node 2 'my train.py'", "torchrun --nproc-per-node 2 -m probe.run -o x|my train.py"),
])  # fmt: skip
def test_a_command_is_run_under_probe(command, expected) -> None:
    before, _, last = expected.partition("|")
    assert recording(command, ["-o", "x"]) == [*before.split(), *([last] if last else [])]


def test_a_command_without_a_script_is_refused() -> None:
    with pytest.raises(RecordingError, match="'make train': expected a program such as"):
        recording("make train", [])


def bisect(folder: Path, **commands: str) -> subprocess.CompletedProcess[str]:
    words = [word for side, command in commands.items() for word in (f"--{side}", command)]
    return subprocess.run(
        [sys.executable, "-m", "probe", "bisect", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_two_commands_lead_to_the_line_of_code_and_are_not_run_again(tmp_path) -> None:
    for side, how in (("a", ""), ("b", ", approximate='tanh'")):
        (tmp_path / f"{side}.py").write_text(PROGRAM.format(how=how, steps=3))
    commands = {side: f"{sys.executable} {side}.py" for side in "ab"}
    done = bisect(tmp_path, **commands)
    assert done.returncode == 1, done.stderr
    assert "0/gelu.0  torch.nn.functional.gelu" in done.stdout and "b.py:12" in done.stdout
    assert "gelu by erf, B gelu by tanh" in " ".join(done.stdout.split()), done.stdout
    assert len(done.stdout.splitlines()) <= 25 and done.stderr.count("$ ") == 4
    again = bisect(tmp_path, **commands)
    assert again.stdout == done.stdout and "$ " not in again.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Return a folder for recordings of the right program, which are made once."""
    return tmp_path_factory.mktemp("right")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_functional_code_is_named_with_its_line(name, recorded, tmp_path) -> None:
    right, wrong, said, line = FAULTS[name]
    assert LAYERS.count(right) == 1
    (tmp_path / "a.py").write_text(LAYERS)
    (tmp_path / "b.py").write_text(LAYERS.replace(right, wrong))
    shutil.copytree(recorded, tmp_path / "bisect")
    done = bisect(tmp_path, **{side: f"{sys.executable} {side}.py" for side in "ab"})
    for path in (tmp_path / "bisect").glob("a*.h5"):
        shutil.copy(path, recorded)
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    lines = (tmp_path / "b.py").read_text().splitlines()
    assert said in text and len(done.stdout.splitlines()) <= 25, done.stdout
    named = {int(number) for number in re.findall(r"\bb\.py:(\d+)", text)}
    assert any(line in lines[number - 1] for number in named) and len(named) <= 3, done.stdout


def test_programs_that_agree_are_run_once_and_what_fails_is_told(tmp_path) -> None:
    (tmp_path / "a.py").write_text(PROGRAM.format(how="", steps=2))
    (tmp_path / "b.py").write_text("raise SystemExit(5)")
    agree = bisect(tmp_path, a=f"{sys.executable} a.py", b=f"{sys.executable} -u a.py")
    assert agree.returncode == 0 and agree.stderr.count("$ ") == 2, agree.stderr
    (tmp_path / "bisect" / "b.h5").unlink()
    failed = bisect(tmp_path, a=f"{sys.executable} a.py", b=f"{sys.executable} b.py")
    assert failed.returncode == 3 and "ended with status 5" in failed.stderr
