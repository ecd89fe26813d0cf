"""What the whole-run mode looks at when it is not told."""

from __future__ import annotations

import pytest

from probe.records import ModuleInfo
from probe.structure.blocks import main_blocks


def tree(*paths: str) -> list[ModuleInfo]:
    """Make a module tree from its paths, parents first."""
    found = [ModuleInfo("", "Net", -1)]
    for path in paths:
        parents = [i for i, m in enumerate(found) if not m.path or path.startswith(f"{m.path}.")]
        found.append(ModuleInfo(path, "Module", max(parents, key=lambda i: len(found[i].path))))
    return found


LAYERS = (
    "model",
    "model.layers",
    "model.layers.0",
    "model.layers.0.mlp",
    "model.layers.1",
    "model.layers.1.mlp",
    "head",
)


@pytest.mark.parametrize(
    "paths, expected",
    [
        ((), [""]),
        (("fc1", "act", "act.inner", "fc2"), ["", "fc1", "act", "fc2"]),
        (LAYERS, ["", "model.layers.0", "model.layers.1"]),
        (("0", "1", "2", "2.fc"), ["", "0", "1", "2"]),
        (("enc", "enc.0", "enc.1", "dec", "dec.0", "dec.1", "dec.2", "x", "x.0"),
         ["", "enc.0", "enc.1", "dec.0", "dec.1", "dec.2"]),
        (("layers", "layers.0", "layers.1", "layers.0.e", "layers.0.e.0", "layers.0.e.1", "layers.0.e.2"),
         ["", "layers.0", "layers.1"]),
        (("towers", "towers.a", "towers.b"), ["", "towers"]),
        (("one", "one.0", "other", "other.1", "other.2"), ["", "one", "other"]),
    ],
)  # fmt: skip
def test_the_elements_of_outermost_lists(paths: tuple[str, ...], expected: list[str]) -> None:
    modules = tree(*paths)
    assert sorted(modules[i].path for i in main_blocks(modules, [0])) == sorted(expected)


def test_each_model_of_a_list_has_its_own() -> None:
    modules = [
        ModuleInfo("", "list", -1), ModuleInfo("0", "Net", 0), ModuleInfo("0.h", "L", 1), ModuleInfo("0.h.0", "B", 2),
        ModuleInfo("0.h.1", "B", 2), ModuleInfo("1", "Net", 0), ModuleInfo("1.fc", "B", 5),
    ]  # fmt: skip
    assert main_blocks(modules, [1, 5]) == {1, 3, 4, 5, 6}


def test_a_tree_of_any_depth() -> None:
    modules = [ModuleInfo(".".join(["a"] * depth), "Module", depth - 1) for depth in range(3000)]
    assert main_blocks(modules, [0]) == {0, 1}
