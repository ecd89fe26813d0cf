"""Points inside the code of modules: what is recorded of them, that the training does not notice, what is refused."""

from __future__ import annotations

import functools
import inspect
import os
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.checkpoint import checkpoint

import probe
from probe.errors import ConfigError, ProbeWarning
from probe.testing import Recording


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    probe.stop()


class Base(nn.Module):
    def around(self, x):
        return x + 1


def decorated(method):
    return functools.wraps(method)(lambda *args, **kwargs: method(*args, **kwargs))


def made_in(factor):
    class Block(Base):
        """Code with a variable of the function around it, super(), a name of its own, a decorator, blocks, a loop."""

        def __init__(self):
            super().__init__()
            self.layer, self.__bias, self.fails = nn.Linear(4, 4), 0.5, False

        @decorated
        def forward(self, x):
            "What it says."
            h = super().around(self.layer(x)) * factor
            for turn in range(2):  # twice
                h = torch.tanh(
                    h + turn  # as it is
                )
            if self.training:
                pairs = {"both": (h + self.__bias, [h.sum()])}
                h = pairs["both"][0]
            x = x * 2
            x = x * 2
            if self.fails: x = x[99, 99]  # fmt: skip # noqa: E701
            return h + x * 0.25

    return Block


Block = made_in(1.5)
LINES = {name: number for number, name in enumerate(map(str.strip, Path(__file__).read_text().splitlines()), 1)}
TWICE = LINES["x = x * 2"]
FIRST = "h = super().around(self.layer(x)) * factor"


def point(after=FIRST, value="h", name="seen", module="Block", **more) -> dict[str, Any]:
    return {"module": module, "after": after, "value": value, "name": name, **more}


SEVERAL = [point(), point("h = torch.tanh(", "(h.T * 2, turn)", "turned"), point("x = x*2", "x", line=TWICE),
           point('h = pairs["both"][0]', "self._Block__bias + h"),
           point('pairs={"both": (h+self.__bias, [h.sum()])}', "pairs")]  # fmt: skip


class Net(nn.Module):
    def __init__(self, how="plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.first, self.second, self.act = how, Block(), Block(), nn.Identity()
        self.act.forward = lambda x: x
        if how == "instance":
            forward = self.second.forward
            self.second.forward = functools.update_wrapper(functools.partial(lambda call, x: call(x), forward), forward)

    def forward(self, x):
        if self.how.startswith("checkpoint"):
            x = checkpoint(self.first, x, use_reentrant=self.how == "checkpoint reentrant")
        return self.second(self.second(self.first(x)))


def own_code():
    return inspect.unwrap(Block.forward).__code__


def train(how="plain", path=None, steps=2, **options):
    """Train, recorded or not; return the losses and the weights."""
    net = Net(how)
    model = torch.compile(net, backend="eager", fullgraph=True) if how == "compiled" else net
    optimizer, losses = torch.optim.AdamW(net.parameters(), 1e-2), []
    if path is not None:
        probe.start(model, path, quiet=True, **options)
    for step in range(steps):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step)).requires_grad_()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if path is not None:
            probe.step(loss=loss)
    probe.stop()
    return losses, [each.detach().clone() for each in net.parameters()]


@pytest.mark.parametrize("level", ["module", "mix"])
@pytest.mark.parametrize("how", ["plain", "instance", "checkpoint", "checkpoint reentrant", "compiled"])
def test_a_training_is_bitwise_the_same_and_the_code_is_put_back(how, level) -> None:
    own = own_code()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)
        plain, recorded = train(how), train(how, "a.h5", points=SEVERAL, level=level, task="tensor")
    assert plain[0] == recorded[0] and all(map(torch.equal, plain[1], recorded[1]))
    assert own_code() is own and "__probe_point__" not in globals()
    run = Recording("a.h5")
    assert bool(run.find(role="value")) is (how != "compiled")
    assert any("did not reach the point 'seen'" in text for _, _, text in run.notes) is (how == "compiled")
    assert not any("/T" in path for _, path, _ in run.called())  # an expression is no operation of the module


def test_values_are_those_behind_the_line_each_time_that_it_runs() -> None:
    train(path="a.h5", steps=1, points=[*SEVERAL, point(module="second", name="alone")], task="tensor")
    run = Recording("a.h5")
    slots = [(s.path, s.call, s.slot) for s in run.find(phase="forward", role="value")]
    names = ["seen", "turned.0", "turned~2.0", "seen~2.both.0", "seen~2.both.1.0", "seen~3", "seen~4"]
    inside = [("second", call, name) for call in (0, 1) for name in [names[0], "alone", *names[1:]]]
    assert slots == [("first", 0, name) for name in names] + inside
    one = functools.partial(run.one, path="first", phase="forward")
    made = torch.from_numpy((run.one(path="first.layer", role="output", phase="forward").values + 1) * 1.5)
    assert (one(slot="seen").values == made.numpy()).all() and (
        one(slot="turned.0").values == made.tanh().numpy().T * 2
    ).all()
    assert (one(slot="seen~4").values == one(role="input").values * 4).all()
    assert run.find(role="grad_output", slot="seen") and not run.find(role="grad_output", slot="turned.0")


@pytest.mark.parametrize("after", [
    "for turn in range(2):", "if self.training:", "if self.fails: x = x[99, 99]", "h=torch.tanh( h + turn)", '"What it says."'
])  # fmt: skip
def test_lines_are_found_by_their_code(after) -> None:
    train(path="a.h5", steps=1, points=[point(after, "x")])
    assert {s.path for s in Recording("a.h5").find(role="value", phase="forward")} == {"first", "second"}


CODE = "points: made_in.<locals>.Block.forward of "
HERE = f"made_in.<locals>.Block.forward ({__file__})"


@pytest.mark.parametrize(("given", "said"), [
    (point("x = x * 3"), f"points: 'seen': 'x = x * 3' is no line of {HERE}; the nearest are\n  {TWICE}: x = x * 2\n"),
    (point("else:"), f"points: 'seen': 'else:' is no line of {HERE}; the nearest are\n"),
    (point("x = x * 2"), f"points: 'seen': 'x = x * 2' stands in lines {TWICE - 1} and {TWICE} of {HERE}: "),
    (point("x = x * 2", line=1), f"points: 'seen': 'x = x * 2' is not line 1 of {HERE}, but {TWICE - 1} and {TWICE}"),
    (point("return h + x * 0.25"), f"points: 'seen': 'return h + x * 0.25' ends what runs in {HERE}: nothing runs"),
    (point(module="Blok"), "points: the model has no module 'Blok'; did you mean 'Block'?"),
    (point(module="Linear"), f"points: 'seen': '{FIRST}' is no line of Linear.forward ("),
    (point(module="act"), "points: 'act': forward of Identity is no function of Python with a name"),
    (point(value="await h"), f"{CODE}{__file__}: a value cannot be evaluated there ("),
    (point(value="Block"), f"{CODE}{__file__} does not use Block of the function around it"),
])  # fmt: skip
def test_what_is_refused(given, said) -> None:
    own = own_code()
    with pytest.raises(ConfigError) as caught:
        probe.start(Net(), "a.h5", points=[point(), given])
    assert str(caught.value).startswith(said)
    assert not Path("a.h5").exists() and own_code() is own


def test_code_of_a_file_that_was_changed_is_refused() -> None:
    file, names = Path("layer.py").absolute(), {"__name__": "layer"}
    file.write_text(
        "from torch import nn\n\n\nclass Layer(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    )
    exec(compile(file.read_text(), str(file), "exec"), names)
    file.write_text(file.read_text().replace("* 2", "* 3"))
    with pytest.raises(ConfigError, match="is not what runs: was the file changed"):
        probe.start(names["Layer"](), "a.h5", points=[point("return x * 3", "x", module="Layer")])


def test_an_expression_that_fails_is_one_note() -> None:
    with pytest.warns(ProbeWarning):
        recorded = train(path="a.h5", points=[point(value="h / missing"), point(value="factor", name="number")])
    assert recorded[0] == train()[0]
    failed, number = (text for _, _, text in Recording("a.h5").notes if "the point" in text)
    assert failed.startswith("the point 'seen' is not recorded: h / missing failed (NameError(")
    assert number == "the point 'number' is not recorded: factor holds no tensor"


@pytest.mark.parametrize("given", [{"points": "points.yaml"}, {"config": "probe.yaml"}])
def test_points_come_from_a_file(given) -> None:
    Path("points.yaml").write_text(yaml.safe_dump([point()]))
    Path("probe.yaml").write_text("points: points.yaml\n")
    train(path="a.h5", **given)
    assert probe.open("a.h5").info.config["points"] == [{**point(), "line": None}]
    assert Recording("a.h5").find(role="value")


def test_tracebacks_have_the_lines_of_the_file() -> None:
    net = Net()
    net.first.fails = True
    probe.start(net, "a.h5", points=SEVERAL, quiet=True)
    with pytest.raises(IndexError) as caught:
        net(torch.ones(3, 4))
    last = [each for each in traceback.extract_tb(caught.tb) if each.filename == __file__][-1]
    assert last.line.startswith("if self.fails: x =") and last.lineno == LINES[last.line]


def test_another_model_is_not_recorded_and_a_recording_may_end_in_the_middle_of_a_call() -> None:
    net, other = Net(), Block()
    net.first.layer.forward = lambda x, forward=net.first.layer.forward: (probe.stop(), forward(x))[1]
    probe.start(net, "a.h5", points=[point()], quiet=True)
    other(torch.ones(3, 4))
    assert torch.equal(net(torch.ones(3, 4)), Net()(torch.ones(3, 4)))
    assert not Recording("a.h5").find(role="value")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
def test_a_forked_process_records_and_has_its_own_code_back() -> None:
    own = own_code()
    probe.start(Net(), "a.h5", points=[point()], quiet=True)
    child = os.fork()
    if not child:
        train(path="b.h5", steps=1, points=[point(name="child")])
        os._exit(own_code() is not own)
    assert os.waitpid(child, 0)[1] == 0
    assert {s.slot for s in Recording("b.h5").find(role="value")} == {"child"}
