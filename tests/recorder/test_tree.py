"""The module tree: names, paths, wrappers that are looked through."""

from __future__ import annotations

import pytest

from tests.trees import printed_tree, tree

WRAPPED = [
    ("DistributedDataParallel", "module"),
    ("DataParallel", "module"),
    ("DataParallel", "_layers"),
    ("FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("DeepSpeedEngine", "module"),
    ("Float16Module", "module"),
    ("OptimizedModule", "_orig_mod"),
    ("CheckpointWrapper", "_checkpoint_wrapped_module"),
    ("PipelineParallel", "_layers"),
    ("TensorParallel", "_layers"),
    ("ShardingParallel", "_layers"),
]

NET = {"": "Net", "layers": "ModuleList", "layers.0": "Block", "layers.0.up": "Linear", "layers.1": "Block",
       "layers.1.up": "Linear", "head": "Linear"}  # fmt: skip


def test_children_names_and_paths() -> None:
    net = tree(NET)
    assert len(net) == 7
    assert net.children[net.root] == {"layers": 1, "head": 6}
    assert net.children[2] == {"up": 3}
    assert [net.name(i) for i in range(7)] == ["", "layers", "0", "up", "1", "up", "head"]
    assert net.steps_to(5) == ["layers", "1", "up"]
    assert net.steps_to(net.root) == []
    assert net.by_path["layers.1.up"] == 5
    assert (net.path(5), net.class_name(5)) == ("layers.1.up", "Linear")


def test_a_name_that_begins_like_its_parent_is_not_cut_short() -> None:
    net = tree({"": "Net", "mlp": "MLP", "mlp.mlp": "Linear", "mlp.mlp_2": "Linear"})
    assert net.children[1] == {"mlp": 2, "mlp_2": 3}


def test_subtree_yields_parents_first_and_nothing_beside() -> None:
    net = tree(NET)
    assert list(net.subtree(1)) == [1, 2, 3, 4, 5]
    assert list(net.subtree(6)) == [6]


@pytest.mark.parametrize(("class_name", "name"), WRAPPED)
def test_a_wrapper_is_looked_through(class_name: str, name: str) -> None:
    net = tree({"": class_name, name: "Net", f"{name}.up": "Linear"})
    assert net.wrapped(0) == name
    assert net.unwrapped(0) == 1
    assert net.child(0, "up") == 2
    assert net.resolve(0, ["up"]) == net.resolve(0, [name, "up"]) == 2


def test_wrappers_inside_wrappers_are_looked_through() -> None:
    net = tree({"": "list", "0": "DistributedDataParallel", "0.module": "Float16Module",
                "0.module.module": "OptimizedModule", "0.module.module._orig_mod": "Net",
                "0.module.module._orig_mod.up": "Linear"})  # fmt: skip
    assert net.path(net.unwrapped(net.root)) == "0.module.module._orig_mod"
    assert net.resolve(0, ["up"]) == 5
    assert net.resolve(0, ["0", "module", "up"]) == 5, "some of the names given, others left out"
    assert net.resolve(0, []) == 0


@pytest.mark.parametrize(
    "classes",
    [
        {"": "DistributedDataParallel", "net": "Net"},
        {"": "Net", "module": "Net"},
        {"": "list", "0": "Net", "1": "Net"},
        {"": "list"},
        {"": "Net", "chunks": "list", "chunks.0": "Net"},
    ],
    ids=["wrapper without its child", "no wrapper", "two chunks", "empty list", "list that is not the root"],
)
def test_what_is_no_wrapper_stays(classes: dict[str, str]) -> None:
    net = tree(classes)
    assert all(net.wrapped(i) is None and net.unwrapped(i) == i for i in range(len(net)))


def test_a_child_of_the_wrapper_goes_before_one_inside() -> None:
    net = tree({"": "DeepSpeedEngine", "module": "Net", "module.loss": "Linear", "loss": "Loss"})
    assert net.child(0, "loss") == 3


def test_what_is_not_there_is_none() -> None:
    net = tree(NET)
    assert net.child(0, "up") is None
    assert net.resolve(0, ["layers", "2", "up"]) is None
    assert net.resolve(0, ["layers", "0", "up", "down"]) is None


@pytest.mark.parametrize(
    ("file", "count", "last"),
    [
        ("mindspeed-mm-qwen25vl.txt", 433, "0.module.module.text_decoder.output_layer"),
        ("llamafactory-qwen25vl.txt", 307, "module.lm_head"),
    ],
)
def test_printed_trees_are_read_whole(file: str, count: int, last: str) -> None:
    net = printed_tree(file)
    assert len(net) == count
    assert net.path(count - 1) == last
    assert net.class_name(net.unwrapped(net.root)) in ("VLMModel", "Qwen2_5_VLForConditionalGeneration")


def test_a_deep_tree_is_walked() -> None:
    depth = 300
    paths = [".".join(["a"] * n) for n in range(depth)]
    net = tree(dict.fromkeys(paths, "Net"))
    assert len(list(net.subtree(0))) == depth
    assert net.resolve(0, ["a"] * (depth - 1)) == depth - 1
