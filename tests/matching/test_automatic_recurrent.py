"""Recurrent layers without a mapping: PaddlePaddle's hold cells, MindSpore's a loop, PyTorch's nothing."""

from __future__ import annotations

import pytest

from probe.mapping import LayerMapping
from probe.matching import match
from probe.matching.automatic.completing import complete
from probe.matching.automatic.outline import Numbers, Outline, weights_of
from probe.records import ModuleInfo, ParameterInfo
from probe.structure.tree import Tree

HIDDEN, WIDTH = 4, 6
SHAPES = {
    "weight_ih_l0": (4 * HIDDEN, WIDTH),
    "weight_hh_l0": (4 * HIDDEN, HIDDEN),
    "bias_ih_l0": (4 * HIDDEN,),
    "bias_hh_l0": (4 * HIDDEN,),
}


def model(framework: str, *, same_weights: bool) -> Outline:
    """Return an embedding, an LSTM and a head, each as a framework has it."""
    at, embedding, head = ("rnn", "embed", "head") if framework == "torch" else ("encoder.lstm", "word_emb", "fc")
    inside = {
        "torch": {},
        "paddle": {f"{at}.0": "RNN", f"{at}.0.cell": "LSTMCell"},
        "mindspore": {f"{at}.rnn": "_DynamicLSTMCPUGPU", f"{at}.dropout_op": "Dropout"},
    }
    classes = {"": "Tagger", embedding: "Embedding", **({} if at == "rnn" else {"encoder": "Encoder"}),
               at: "LSTM", **inside[framework], head: "Linear"}  # fmt: skip
    index = {path: place for place, path in enumerate(classes)}
    modules = [ModuleInfo(path, name, index[path.rpartition(".")[0]] if path else -1) for path, name in classes.items()]
    weights = {(embedding, "weight"): (30, WIDTH), **{(at, slot): shape for slot, shape in SHAPES.items()},
               (head, "weight"): (5, HIDDEN)}  # fmt: skip
    parameters, numbers = [], {}
    for place, ((path, slot), shape) in enumerate(weights.items()):
        again = (f"{at}.0.cell.{slot.removesuffix('_l0')}",) if framework == "paddle" and path == at else ()
        parameters.append(ParameterInfo((f"{path}.{slot}", *again), index[path], slot, shape, "float32", True))
        numbers[index[path], slot] = (
            Numbers(-1.0 - place, 2.0 + place, 0.0, 10.0 + place) if same_weights else None,
            -1,
        )
    tree = Tree(modules)
    return Outline(tree, weights_of(tree, parameters, framework, numbers))


@pytest.mark.parametrize("same_weights", [True, False])
@pytest.mark.parametrize("framework", ["paddle", "mindspore"])
def test_a_layer_is_the_layer_whatever_it_holds(framework: str, same_weights: bool) -> None:
    a, b = model("torch", same_weights=same_weights), model(framework, same_weights=same_weights)
    assert a.core[0] == b.core[0], "what the cells have counts once"
    assert not b.lacks_sizes, "the loop is handed the layer's weights"
    for here, there, turned in ((a, b, False), (b, a, True)):
        certain = match(here.tree, there.tree, LayerMapping(), lambda _: frozenset(), lambda _: frozenset())
        matching = complete(certain, here, there)
        pairs = {(here.tree.path(pair.a), there.tree.path(pair.b)) for pair in matching.pairs if pair.a}
        wanted = {("embed", "word_emb"), ("rnn", "encoder.lstm"), ("head", "fc")}
        assert {pair[::-1] for pair in pairs} == wanted if turned else pairs == wanted
