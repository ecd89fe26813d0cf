"""An encoder and a decoder in two hands: other arguments at the same places, masks that are added elsewhere, tied weights under other names."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import probe
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison

torch = pytest.importorskip("torch")

import next_words  # noqa: E402
from facts import one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402

WORDS, HIDDEN, HEADS, LENGTH = 40, 32, 4, 12
HIDING = -1e9


def attend(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None) -> Tensor:
    q, k, v = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2)
    scores = scores if added is None else scores + added
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def later(length: int) -> Tensor:
    return torch.full((length, length), HIDING).triu(1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, hidden: Tensor, mask: Tensor | None, bias: Tensor | None, memory: Tensor | None = None) -> Tensor:
        source = hidden if memory is None else memory
        added = None if bias is None else bias if mask is None else bias + mask
        return self.o(attend(self.q(hidden), self.k(source), self.v(source), added))


class Block(nn.Module):
    """Hands on the mask first, then the table of positions."""

    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention() if crosses else None

    def forward(self, hidden: Tensor, mask: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        hidden = hidden + self.own(hidden, mask, bias)
        return hidden if self.cross is None else hidden + self.cross(hidden, None, None, memory)


class Model(nn.Module):
    """Owns its words in a module that is never called, as T5 of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.words = nn.Embedding(WORDS, HIDDEN), nn.Embedding(WORDS, HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        self.words.weight = self.head.weight = self.shared.weight
        self.near, self.far = nn.Embedding(2 * LENGTH, HEADS), nn.Embedding(2 * LENGTH, HEADS)
        self.encoder, self.decoder = Block(False), nn.ModuleList([Block(True), Block(True)])

    def forward(self, ids: Tensor) -> Tensor:
        apart = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None] + LENGTH
        near, far = (table(apart).permute(2, 0, 1)[None] for table in (self.near, self.far))
        hidden = self.words(ids)
        memory = self.encoder(hidden, torch.zeros(1, 1, 1, LENGTH), near)
        for block in self.decoder:
            hidden = block(hidden, later(LENGTH), far, memory)
        return self.head(hidden)


class Mixer(nn.Module):
    """The same, for which `masked` says whether the table of positions holds the mask."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: Tensor, table: Tensor | None, source: Tensor | None = None) -> Tensor:
        source = x if source is None else source
        q = self.wq(x) * (0.5 if self.fault == "scale" else 1.0)
        return self.wo(attend(q, self.wk(source), self.wv(source), table))


class Layer(nn.Module):
    """Is handed the table of positions first, then the memory."""

    def __init__(self, crosses: bool, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.first, self.second = Mixer(fault), Mixer("") if crosses else None

    def forward(self, x: Tensor, table: Tensor, memory: Tensor | None = None) -> Tensor:
        table = table if self.second is None else table + later(LENGTH)
        table = table * 1.1 if self.fault == "table" else table
        x = x + self.first(x, table)
        if self.second is None or memory is None:
            return x
        return x + self.second(x, None, memory.detach() if self.fault == "cut" else memory)


class Port(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.tok, self.out = nn.Embedding(WORDS, HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)
        if fault != "untied":
            self.out.weight = self.tok.weight
        self.table_a, self.table_b = nn.Embedding(2 * LENGTH, HEADS), nn.Embedding(2 * LENGTH, HEADS)
        self.enc, self.dec = Layer(False), nn.ModuleList([Layer(True), Layer(True, fault)])

    def forward(self, ids: Tensor) -> Tensor:
        apart = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None] + LENGTH
        near, far = (table(apart).permute(2, 0, 1)[None] for table in (self.table_a, self.table_b))
        x = self.tok(ids)
        memory = self.enc(x, near)
        for layer in self.dec:
            x = layer(x, far, memory)
        return self.out(x)


MAP = {
    "TopLayer": {
        "tok": "words",
        "out": "head",
        "table_a": "near",
        "table_b": "far",
        "enc": "encoder",
        "dec": "decoder",
    },
    "Layer": {"first": "own", "second": "cross"},
    "Mixer": {"wq": "q", "wk": "k", "wv": "v", "wo": "o"},
}
NAMES = (
    ("tok.", "words."), ("out.", "head."), ("table_a.", "near."), ("table_b.", "far."), ("enc.", "encoder."), ("dec.", "decoder."),
    ("first.", "own."), ("second.", "cross."), ("wq.", "q."), ("wk.", "k."), ("wv.", "v."), ("wo.", "o."),
)  # fmt: skip


record = functools.partial(next_words.record, batch=3, length=LENGTH, words=WORDS)


def compared(folder: Path, task: str, fault: str = "") -> Comparison:
    torch.manual_seed(0)
    model, port = Model(), Port(fault)
    state = model.state_dict()
    renamed = {}
    for name in port.state_dict():
        theirs = name
        for mine, its in NAMES:
            theirs = theirs.replace(mine, its)
        renamed[name] = state[theirs]
    port.load_state_dict(renamed)
    return probe.compare(record(model, folder / "a.h5", task), record(port, folder / "b.h5", task), MAP)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_two_hands_of_one_model_are_aligned(tmp_path: Path, task: str) -> None:
    result = compared(tmp_path, task)
    assert result.verdict is Verdict.ALIGNED, result.divergences
    known = "agrees where that masks nothing" if task == "tensor" else "is not judged: its values were not recorded"
    assert f"the input 2 of decoder.0.own holds a mask in B only, and {known}" in result.warnings


def test_a_mask_of_minus_infinity_in_a_table_that_is_not_judged_is_no_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "HIDING", -float("inf"))
    result = compared(tmp_path, "statistics")
    assert result.verdict is Verdict.ALIGNED, result.doubts
    said = "the input 2 of decoder.0.own holds a mask in B only, and is not judged: its values were not recorded"
    assert said in result.warnings


def test_a_tied_weight_is_compared_though_the_module_that_owns_it_has_no_counterpart(tmp_path: Path) -> None:
    result = compared(tmp_path, "statistics")
    of_words = {
        (slot.phase.label, slot.role.label, slot.path_b)
        for slot in result["words"]
        if slot.role.label.startswith("param")
    }
    assert {("init", "param", "tok"), ("gradient", "param_grad", "tok"), ("update", "param_grad", "tok")} <= of_words
    assert not any(text.startswith("weights that were not compared") for text in result.warnings)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("fault", "place", "said"),
    [
        ("scale", "decoder.1.own", "the input 0 of decoder.1.own.o differs, what was there before it agrees"),
        ("cut", "decoder.1", "the input 3 of decoder.1.cross needs a gradient on A only"),
    ],
)
def test_behind_a_mask_faults_are_found(tmp_path: Path, fault: str, place: str, said: str, task: str) -> None:
    first = compared(tmp_path, task, fault).divergences[0]
    assert first.a[0].path == place
    assert said in first.evidence


def test_weights_that_are_not_tied_are_found(tmp_path: Path) -> None:
    first = compared(tmp_path, "statistics", "untied").divergences[0]
    assert first.evidence[0] == "weight gets a gradient on B only"
    assert first.hint == "weight is tied to shared.weight on A, not on B"


def test_a_table_that_is_wrong_where_nothing_is_masked_is_found_in_its_values(tmp_path: Path) -> None:
    first = compared(tmp_path, "tensor", "table").divergences[0]
    assert first.a[0].path == "decoder.1"
    assert first.evidence == ("the input 2 of decoder.1.own differs, what was there before it agrees",)


class Scored(nn.Module):
    """Looks its table up behind its projection, or before it; neither needs the other."""

    def __init__(self, before: bool, fault: bool = False) -> None:
        super().__init__()
        self.before, self.fault = before, fault
        self.project, self.table = nn.Linear(HIDDEN, HIDDEN), nn.Embedding(2 * LENGTH, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(LENGTH) + 3 * self.fault
        if self.before:
            looked_up = self.table(places)
            return self.project(x) * looked_up
        return self.project(x) * self.table(places)


class Whole(nn.Module):
    def __init__(self, before: bool, fault: bool = False) -> None:
        super().__init__()
        self.first, self.scored = nn.Linear(HIDDEN, HIDDEN), Scored(before, fault)

    def forward(self, x: Tensor) -> Tensor:
        return self.scored(self.first(x))


def test_calls_in_an_order_that_does_not_matter_are_not_swapped(tmp_path: Path) -> None:
    files = []
    for name, before, fault in (("a", False, False), ("b", True, True)):
        torch.manual_seed(0)
        model = Whole(before, fault)
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(probe.make_inputs({"x": f"float32[3,{LENGTH},{HIDDEN}]"}, seed=0, to="torch")["x"]).sum().backward()
            probe.step()
        files.append(tmp_path / f"{name}.h5")
    first = probe.compare(*files).divergences[0]
    assert first.evidence[0] == "the input 0 of scored.table differs, what was there before it agrees"
    assert [ref.path for ref in first.a] == ["scored"]


# Tables that modules hand on, with masks in them


class Table(nn.Module):
    """Returns what is added to scores, and hides what comes later by a number."""

    def __init__(self, hiding: float, after: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.hiding, self.after = nn.Parameter(torch.randn(LENGTH, LENGTH)), hiding, after

    def forward(self, x: Tensor) -> Tensor:
        return (
            self.weight + torch.full((LENGTH, LENGTH), self.hiding).triu(self.after) if self.hiding else self.weight * 1
        )


class OwnTable(Table):
    """The same in another hand."""


class Attending(nn.Module):
    """Hides what the table does not."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.table, self.head = nn.Embedding(WORDS, HIDDEN), table, nn.Linear(HIDDEN, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        added = self.table(x)
        added = added if self.table.hiding else added + later(LENGTH)
        return self.head(attend(x, x, x, added))


LOWEST = torch.finfo(torch.float32).min
TABLE = "the output 0 of table holds {}, and "


@pytest.mark.parametrize(
    ("mine", "theirs", "what"),
    [
        (Table(0.0), OwnTable(LOWEST), "a mask in B only"),
        (Table(-1e9), OwnTable(LOWEST), "masks of other numbers"),
        (Table(-1e9), Table(-float("inf")), "masks of other numbers"),
    ],
    ids=["one side", "both", "infinite"],
)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_tables_hide_by_another_number_is_left_out(
    mine: Table, theirs: Table, what: str, task: str, tmp_path: Path
) -> None:
    files = [record(Attending(each), tmp_path / f"{name}.h5", task) for name, each in (("a", mine), ("b", theirs))]
    found = probe.compare(*files)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    known = "agrees where that masks nothing" if task == "tensor" else "is not judged: its values were not recorded"
    assert TABLE.format(what) + known in found.warnings


def test_tables_that_hide_other_places_are_a_fault(tmp_path: Path) -> None:
    models = {"a": Attending(Table(-1e9)), "b": Attending(OwnTable(LOWEST, after=2))}
    first = probe.compare(*(record(each, tmp_path / f"{name}.h5", "tensor") for name, each in models.items()))
    assert first.first_divergence is not None and first.first_divergence.path == "table"
