"""What a program does with its model while it is recorded, and afterwards, works as without probe."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import subprocess
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import probe
from probe.adapters.shared.hooking import CallHook, concealed, nothing
from probe.errors import ProbeWarning
from probe.numbers import kernel as compiled
from probe.testing import Recording

X = torch.arange(12.0).reshape(2, 6) / 12


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
    x = X.clone().to(next(model.parameters()).dtype)  # tracers leave weak references at X
    loss = model(x).square().sum()
    loss.backward()
    if optimizer is not None:
        optimizer.step()
    return loss


# Tracers


def traced(model: nn.Module, folder: Path) -> Any:
    return torch.jit.trace(model.eval(), X)(X)


def exported(model: nn.Module, folder: Path) -> Any:
    return torch.export.export(model.eval(), (X,)).module()(X)


def symbolic(model: nn.Module, folder: Path) -> Any:
    return torch.fx.symbolic_trace(model.eval())(X)


def drawn(model: nn.Module, folder: Path) -> Any:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(folder)) as writer:
        writer.add_graph(model.eval(), X)
    return model(X)


def scripted(model: nn.Module, folder: Path) -> Any:
    return torch.jit.script(model.eval())(X)


TRACERS = {"trace": traced, "add_graph": drawn, "export": exported, "fx": symbolic, "script": scripted}
RUNS_MODULES = (traced, drawn, exported)


@pytest.mark.parametrize("first", [True, False], ids=["before_the_first_forward", "after_it"])
@pytest.mark.parametrize("tracer", TRACERS.values(), ids=TRACERS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_can_be_traced_while_it_is_recorded(
    tracer: Callable[[nn.Module, Path], Any], first: bool, tmp_path: Path
) -> None:
    model = network()
    with torch.no_grad():
        expected = tracer(copy.deepcopy(model), tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        probe.start(model, tmp_path / "a.h5")
        if not first:
            model.eval()(X)
        with torch.no_grad():
            assert torch.equal(tracer(model, tmp_path), expected)
        probe.step()
        model.eval()(X)
        probe.step()
        probe.stop()
    texts = [str(each.message) for each in said if each.category is ProbeWarning]
    assert len(texts) == (tracer in RUNS_MODULES) and all("are not recorded" in text for text in texts)
    assert len(Recording(tmp_path / "a.h5").find(path="0", role="output", step=1)) == 1


# Tensors that are swapped, resized, referred to


def doubled(model: nn.Module) -> None:
    model.double()


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})


SWAPS = {"double": doubled, "load_state_dict": loaded}
MOMENTS = ("before_the_first_forward", "after_a_forward", "after_a_step", "after_stop")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
def test_parameters_can_be_swapped_at_any_moment(
    swap: Callable[[nn.Module], None], moment: str, task: str, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        probe.start(model, tmp_path / "a.h5", task=task)
        if moment == "after_a_forward":
            model(X)
            probe.step()
        if moment in MOMENTS[2:]:
            for _ in range(2):
                probe.step(loss=train(model, optimizer).item())
        if moment == "after_stop":
            probe.stop()
        optimizer.zero_grad()
        swap(model)
        train(model)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def test_gradients_of_swapped_parameters_are_recorded(tmp_path: Path) -> None:
    model = network()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        probe.start(model, tmp_path / "a.h5")
        model.double()
        for _ in range(2):
            train(model)
            probe.step()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    probe.stop()
    found = Recording(tmp_path / "a.h5").find(step=1, phase="gradient", path="0")
    assert {each.slot for each in found} == {"weight", "bias"}


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return [*model.parameters(), *model.buffers(), *states, *gradients]


@pytest.mark.parametrize("kernel", [True, False], ids=["compiled", "operations"])
@pytest.mark.parametrize("task", ["statistics", "tensor", "norms"])
def test_tensors_have_no_weak_references_and_their_storages_can_be_resized(
    task: str, kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "AVAILABLE", kernel and compiled.AVAILABLE)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    passing: list[Tensor] = []
    model[0].register_forward_hook(lambda module, args, output: passing.extend([*args, output]))
    model[1].register_forward_hook(lambda module, args, output: looked.extend(map(weakref.getweakrefcount, passing)))
    looked: list[int] = []
    with probe.capture(model, tmp_path / "a.h5", task=task):
        for _ in range(2):
            train(model, optimizer)
            looked += map(weakref.getweakrefcount, everything(model, optimizer))
            probe.step()
        looked += map(weakref.getweakrefcount, everything(model, optimizer))
        assert all(each.untyped_storage().resizable() for each in [*everything(model, optimizer), *passing])
    assert set(looked) == {0} and not any(map(weakref.getweakrefcount, everything(model, optimizer)))
    assert all(each.untyped_storage().resizable() for each in [*everything(model, optimizer), *passing])
    for each in everything(model, optimizer):
        each.untyped_storage().resize_(0)


# Pickles and copies


def noticed(module: nn.Module, args: Any, output: Any) -> None:
    """A hook of the user's."""


def hooked(model: nn.Module) -> nn.Module:
    model[0].register_forward_hook(noticed)
    return model


def saved(model: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    return buffer.getvalue()


class InC(pickle.Pickler):
    """Tensors stand for their values: their own pickles hold addresses."""

    def persistent_id(self, value: object) -> object:
        return value.tolist() if isinstance(value, Tensor) else None


class InPython(pickle._Pickler):
    persistent_id = InC.persistent_id


def pickled(model: nn.Module, protocol: int = 4, kind: type = InC) -> bytes:
    buffer = io.BytesIO()
    kind(buffer, protocol).dump(model)
    return buffer.getvalue()


WRITERS: dict[str, Callable[[nn.Module], bytes]] = {
    **{f"pickle{protocol}": functools.partial(pickled, protocol=protocol) for protocol in range(2, 6)},
    "python": functools.partial(pickled, kind=InPython),
    "save": saved,
    "deepcopy": lambda model: pickled(copy.deepcopy(model)),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_recorded_model_has_the_bytes_of_one_that_is_not(write: Callable[[nn.Module], bytes], tmp_path: Path) -> None:
    def written(path: Path | None) -> list[bytes]:
        torch.manual_seed(0)
        number = torch.utils.hooks.RemovableHandle.next_id
        model = hooked(network())
        if path is not None:
            probe.start(model, path)
        found = [write(model)]
        train(model)
        model[1].register_forward_hook(noticed)
        found.append(write(model))
        probe.stop()
        torch.utils.hooks.RemovableHandle.next_id = number
        return [*found, write(model)]

    assert written(tmp_path / "a.h5") == written(None)


def test_a_pickled_model_needs_no_probe(tmp_path: Path) -> None:
    model = network()
    with probe.capture(model, tmp_path / "a.h5"):
        train(model)
        (tmp_path / "model.pt").write_bytes(saved(model))
    code = "import sys; sys.modules['probe'] = None; import torch; torch.load('model.pt', weights_only=False)(torch.ones(2, 6))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_what_is_concealed_is_in_its_table_and_nowhere_else() -> None:
    hook, others = CallHook(nothing, nothing), OrderedDict({1: "a", 2: "b"})
    others.mine = 3
    table, flags = copy.copy(others), OrderedDict({5: True})
    table.mine, table[5] = 3, hook
    plain = [pickle.dumps(others, protocol) for protocol in range(6)]
    reveal = concealed(hook, [table, flags, {}], lambda: SimpleNamespace(remove=nothing))
    assert [pickle.dumps(table, protocol) for protocol in range(6)] == plain
    assert pickle.dumps(flags) == pickle.dumps(OrderedDict())
    assert list(copy.deepcopy(table)) == [1, 2] and copy.deepcopy(table).mine == 3
    assert list(table.values()) == ["a", "b"] and table[5] is hook and len(table.items()) == 3
    reveal()
    assert list(table.values()) == ["a", "b", hook] and vars(table) == {"mine": 3} and not vars(flags)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # behind the registration
        concealed(hook, [table, flags, {}], interrupted)
    assert (table, flags) == (others, {})


# The user's own modes


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Flops(FlopCounterMode):
    def __init__(self) -> None:
        super().__init__(display=False)

    @property
    def seen(self) -> dict[Any, Any]:
        return {str(place): dict(counts) for place, counts in self.get_flop_counts().items()}


class Both(Functions):
    """With a dispatch mode inside."""

    def __enter__(self) -> Any:
        self.inner = Operations().__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.inner.__exit__(*error)
        self.seen += self.inner.seen


MODES = {"functions": Functions, "operations": Operations, "flops": Flops, "both": Both}


@pytest.mark.parametrize("task", ["statistics", "tensor", "norms"])
@pytest.mark.parametrize("kernel", [True, False], ids=["compiled", "operations"])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_users_modes_see_nothing_of_probe(
    mode: Callable[[], Any], kernel: bool, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "AVAILABLE", kernel and compiled.AVAILABLE)

    def seen(path: Path | None) -> Any:
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
        with mode() as watching:
            if path is not None:
                probe.start(model, path, task=task)
            for _ in range(2):
                loss = train(model, optimizer)
                optimizer.zero_grad()
                if path is not None:
                    probe.log("own", loss)
                    probe.step(loss=loss)
            probe.stop()
        return watching.seen

    assert seen(tmp_path / "a.h5") == seen(None)


def test_a_subclass_of_tensors_sees_nothing_of_probe(tmp_path: Path) -> None:
    class Watching(Tensor):
        seen: list[str] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.seen.append(getattr(func, "__name__", str(func)))
            return super().__torch_function__(func, types, args, kwargs)

    def seen(path: Path | None) -> list[str]:
        torch.manual_seed(0)
        model = network()
        Watching.seen = []
        if path is not None:
            probe.start(model, path)
        model(X.as_subclass(Watching)).square().sum().backward()
        probe.stop()
        return Watching.seen

    assert seen(tmp_path / "a.h5") == seen(None)


# Objects that raise what they like


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 2)

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        return modules[name]  # KeyError

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class StrangeConfig(nn.Linear):
    @property
    def config(self) -> Any:
        raise RuntimeError("not configured yet")


@pytest.mark.parametrize("kind", [Strange, lambda: StrangeConfig(6, 2)], ids=["getattr", "property"])
def test_a_module_may_raise_anything_where_it_is_asked_for_attributes(kind: Callable[[], Any], tmp_path: Path) -> None:
    model = kind()
    with probe.capture(model, tmp_path / "a.h5"):
        model(X).sum().backward()
    assert Recording(tmp_path / "a.h5").find(role="output")


@pytest.mark.parametrize("rate", [torch.tensor(0.1), torch.tensor(0.1, device="meta"), torch.tensor(0.1 + 0j)])
def test_an_option_of_an_optimizer_may_be_any_tensor(rate: Tensor, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.param_groups[0]["mine"] = rate
    with probe.capture(model, tmp_path / "a.h5"):
        train(model, optimizer)
        probe.step()


class Rows(nn.Module):
    """Hands the rows of one tensor on, each a view that is gone when the next one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(len(x)):
            self.row(x[number])
        return x


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_views_that_come_and_go_are_told_apart(task: str, tmp_path: Path) -> None:
    x = torch.arange(24.0).reshape(8, 3)
    with torch.no_grad(), probe.capture(model := Rows(), tmp_path / "a.h5", task=task):
        model(x)
    given = probe.open(tmp_path / "a.h5")["row"].input
    assert [record.max for record in given] == x.amax(1).tolist()


class Strided(nn.Module):
    """Hands on views that begin at one place of one memory and are of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for stride in (1, 2, 3):
            self.row(torch.as_strided(x, (8,), (stride,)))
        return x


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_views_of_one_place_that_come_and_go_are_told_apart(task: str, tmp_path: Path) -> None:
    x = torch.arange(24.0)
    with torch.no_grad(), probe.capture(model := Strided(), tmp_path / "a.h5", task=task):
        model(x)
    given = probe.open(tmp_path / "a.h5")["row"].input
    assert [record.max for record in given] == [7.0, 14.0, 21.0]
