"""Both trees as one list of rows."""

from __future__ import annotations

from probe.matching import Bundle, Matching, Pair, Reason
from probe.matching.result import Direction
from probe.records import ModuleInfo
from probe.report.html.rows import State, merged
from probe.structure.tree import Tree


def tree(*paths: str, classes: dict[str, str] | None = None) -> Tree:
    places = {path: index for index, path in enumerate(paths)}
    return Tree([
        ModuleInfo(path, (classes or {}).get(path, "M"), places[path.rpartition(".")[0]] if path else -1) for path in paths
    ])  # fmt: skip


def shown(
    a: Tree, b: Tree, pairs: dict[str, str], called: tuple[set[str], set[str]] = (set(), set()), **more: object
) -> list[str]:
    found = [Pair(a.by_path[left], b.by_path[right], Reason.MAPPED) for left, right in pairs.items()]
    matching = Matching(tuple(found), (), (), Direction.A_TO_B, **more)
    rows = merged(matching, a, b, *({path: State.UNMATCHED for path in paths} for paths in called))
    side = lambda of, index: of.path(index) or "root" if index >= 0 else "-"  # noqa: E731
    return [f"{'  ' * row.depth}{side(a, row.a)} | {side(b, row.b)} {row.state}" for row in rows]


def test_what_b_alone_has_stands_behind_what_it_follows() -> None:
    a = tree("", "m", "m.x", "m.y", "head")
    b = tree("", "first", "x", "new", "new.inner", "y", "out", "last")
    found = shown(a, b, {"": "", "m.x": "x", "m.y": "y", "head": "out"}, ({"m"}, {"new", "last"}))
    assert found == [
        "root | root paired",
        "  - | first uncalled",
        "  m | - unmatched",
        "    m.x | x paired",
        "    - | new unmatched",
        "      - | new.inner uncalled",
        "    m.y | y paired",
        "  head | out paired",
        "  - | last unmatched",
    ]


def test_what_follows_a_holder_that_b_alone_has_follows_what_is_in_it() -> None:
    a = tree("", "model", "model.words", "model.layers", "model.norm", "head")
    b = tree(
        "",
        "embedding",
        "embedding.words",
        "rotary",
        "decoder",
        "decoder.layers",
        "decoder.dropout",
        "decoder.norm",
        "out",
    )
    pairs = {
        "": "",
        "model.words": "embedding.words",
        "model.layers": "decoder.layers",
        "model.norm": "decoder.norm",
        "head": "out",
    }
    found = shown(a, b, pairs, (set(), {"embedding", "rotary", "decoder", "decoder.dropout"}))
    assert found == [
        "root | root paired",
        "  - | embedding unmatched",
        "  model | - uncalled",
        "    model.words | embedding.words paired",
        "    - | rotary unmatched",
        "    - | decoder unmatched",
        "    model.layers | decoder.layers paired",
        "    - | decoder.dropout unmatched",
        "    model.norm | decoder.norm paired",
        "  head | out paired",
    ]


def test_parts_wrappers_and_what_is_ignored() -> None:
    a = tree("", "module", "module.qkv", "module.rope", classes={"": "DistributedDataParallel"})
    b = tree("", "q", "k", "rope", classes={})
    parts = Bundle("B", a.by_path["module.qkv"], (b.by_path["q"], b.by_path["k"]))
    found = shown(a, b, {"module": "", "module.qkv": "q"}, bundles=(parts,),
                  ignored_a=frozenset({3}), ignored_b=frozenset({3}))  # fmt: skip
    assert found == [
        "root | - passed over",
        "  module | root paired",
        "    module.qkv | q paired",
        "    - | k part",
        "    - | rope ignored",
        "    module.rope | - ignored",
    ]


def test_very_deep_trees() -> None:
    deep = tree("", *[".".join("x" * (n + 1)) for n in range(3000)])
    assert len(shown(deep, deep, {"": ""})) == 6001


def test_children_stand_in_the_order_of_their_first_calls() -> None:
    a = tree("", "layers", "layers.0", "layers.0.mlp", "layers.0.extra", "layers.0.norm", "norm", "embed", "unused")
    b = tree("", "late", "early", "norm")
    found = [Pair(0, 0, Reason.MAPPED), Pair(a.by_path["norm"], b.by_path["norm"], Reason.MAPPED)]
    called = [a.by_path[path] for path in ("", "embed", "layers.0", "layers.0.norm", "layers.0.mlp", "norm")]
    begins = ({module: when for when, module in enumerate(called)}, {0: 0, 2: 1, 3: 2, 1: 3})
    rows = merged(Matching(tuple(found), (), (), Direction.A_TO_B), a, b, {}, {}, begins)
    names = [a.path(row.a) if row.a >= 0 else f"B: {b.path(row.b)}" for row in rows]
    assert names == [
        "", "B: early", "embed", "unused", "layers", "layers.0", "layers.0.norm", "layers.0.mlp", "layers.0.extra", "norm", "B: late",
    ]  # fmt: skip
