"""Layouts with gloo between two processes against one process; faults of parallel code, with module and ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from benchmarks.ranks.__main__ import ranks_in
from benchmarks.ranks.cases import LAYOUTS, whole_of
from benchmarks.ranks.running import train
from benchmarks.ranks.spec import Spec
from probe.comparison.answer import Comparison
from probe.comparison.result import Kind, Verdict
from probe.errors import ProbeError
from probe.ranks.opening import open_reader

STEPS = 2
CLEAN = ("tp2 sequence parallel", "pp2 tied", "ddp2", "fsdp2", "dp2 strided", "ep2 of 4 experts")
FAULTS = {
    "missing-all-reduce": ("tp2", "mlp.linear_fc2", (0, 1)), "norms-not-reduced": ("tp2 sequence parallel", "input_layernorm", (0, 1)),
    "replica-with-other-seed": ("dp2", "input_layernorm", (1,)), "tied-not-reduced": ("pp2 tied", "word_embeddings", (0, 1)),
    "other-checkpoint": ("tp2", "word_embeddings", (1,)), "layer-offset": ("pp2", "decoder.layers.1", (1,)),
    "order-of-experts": ("ep2 of 4 experts", "mlp.experts.local_experts.2", (1,)),
}  # fmt: skip


def name_of(text: str) -> str:
    return text.replace(" ", "-")


def whole(spec: Spec) -> Spec:
    one = whole_of(spec)
    return one.but(name=f"one-{int(one.tied)}-{one.experts}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings, recorded; each in processes that are forked from one."""
    place = tmp_path_factory.mktemp("ranks")
    layouts = {*CLEAN, *(layout for layout, _, _ in FAULTS.values())}
    specs = [LAYOUTS[layout].but(name=name_of(layout)) for layout in sorted(layouts)]
    specs += [LAYOUTS[layout].but(name=fault, fault=fault) for fault, (layout, _, _) in FAULTS.items()]
    specs += [LAYOUTS["dp2"].but(name="alone", options=(("ranks", (0,)),))]
    train(place, [*{whole(spec): None for spec in specs}, *specs])
    return place


def compared(folder: Path, layout: str, name: str) -> Comparison:
    return probe.compare(folder / f"{whole(LAYOUTS[layout]).name}.h5", folder / f"{name}.h5")


@pytest.mark.parametrize("layout", CLEAN)
def test_a_clean_layout_is_aligned_and_compared_whole(folder: Path, layout: str) -> None:
    answer = compared(folder, layout, name_of(layout))
    assert (answer.verdict, answer.coverage.share) == (Verdict.ALIGNED, 1)
    assert answer.runs[0].parameters == answer.runs[1].parameters
    assert answer.coverage.only_a == answer.coverage.only_b == 0
    assert answer.coverage.not_comparable <= 8
    phases = {slot.phase.label for slot in answer.slots if slot.verdict in ("equal", "noise")}
    assert phases >= {"init", "forward", "backward", "gradient", "update"}


@pytest.mark.parametrize("pair", [("tp2", "pp2"), ("fsdp2", "tp2 sequence parallel")])
def test_any_layout_is_compared_with_any_other(folder: Path, pair: tuple[str, str]) -> None:
    answer = probe.compare(*(folder / f"{name_of(layout)}.h5" for layout in pair))
    assert (answer.verdict, answer.coverage.share) == (Verdict.ALIGNED, 1)
    assert answer.runs[0].parameters == answer.runs[1].parameters
    assert answer.coverage.only_a == answer.coverage.only_b == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_module_and_ranks(folder: Path, fault: str) -> None:
    layout, path, ranks = FAULTS[fault]
    first = compared(folder, layout, fault).first_divergence
    assert first is not None and path in first.path
    assert ranks_in(first.facts) == ranks


def test_copies_that_differ_are_a_finding_of_their_own(folder: Path) -> None:
    first = compared(folder, "dp2", "replica-with-other-seed").first_divergence
    assert first is not None and first.kind is Kind.REPLICAS
    (fact,) = (fact for fact in first.facts if fact.code == "copies-differ")
    assert (fact.facts["ranks"], fact.facts["others"], fact.facts["groups"]) == ((1,), (0,), ("dp",))


def test_groups_and_placements_are_seen_without_being_told(folder: Path) -> None:
    with open_reader(folder / "ddp2.h5") as ddp, open_reader(folder / "fsdp2.h5") as fsdp:
        assert dict(ddp.layout.groups["dp"]) == {0: (0, 1), 1: (0, 1)}  # type: ignore[attr-defined]
        assert {info.shape for info in fsdp.parameters} >= {(96, 32), (64, 32)}


def test_one_rank_may_record_alone_and_no_rank_waits_for_it(folder: Path) -> None:
    assert [path.name for path in sorted(folder.glob("alone*"))] == ["alone.rank00000.h5"]
    with probe.open(folder / "alone.rank00000.h5") as run:
        assert run.steps == list(range(STEPS))


def test_a_missing_file_is_named_and_never_aligned(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tp2.rank00001.h5").symlink_to(folder / "tp2.rank00001.h5")
    answer = probe.compare(folder / "one-0-0.h5", tmp_path / "tp2.rank*.h5")
    assert answer.verdict is not Verdict.ALIGNED


def test_a_file_of_another_run_is_named(folder: Path, tmp_path: Path) -> None:
    for rank, name in enumerate(("tp2", "fsdp2")):
        (tmp_path / f"mixed.rank0000{rank}.h5").symlink_to(folder / f"{name}.rank0000{rank}.h5")
    other = tmp_path / "mixed.rank00002.h5"
    other.symlink_to(folder / "tp2.rank00000.h5")
    with pytest.raises(ProbeError, match=r"mixed.rank00002.h5 and .* are both of rank 0"):
        probe.open(tmp_path / "mixed.h5")
