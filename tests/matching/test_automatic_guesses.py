"""What names, forms and other layers say where neither a mapping nor values do: parameters, layouts, the norms of a layer."""

from __future__ import annotations

from dataclasses import replace

from probe.mapping import LayerMapping
from probe.matching import Bundle, Matching, match
from probe.matching.automatic.completing import complete
from probe.matching.automatic.outline import Numbers, Outline, Weight, outline
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.layouts import agree_on_groups
from probe.matching.automatic.weights.parameters import match_parameters
from probe.matching.result import View, WeightBundle
from probe.records import ModuleInfo, ParameterInfo
from probe.structure.tree import Tree

H, F = 8, 24
Shapes = dict[str, tuple[str, dict[str, tuple[int, ...]]]]
"""by path: class, and the shapes of the weights"""


def outlined(model: Shapes) -> Outline:
    index = {path: i for i, path in enumerate(model)}
    modules = [
        ModuleInfo(path, kind, index[path.rpartition(".")[0]] if path else -1) for path, (kind, _) in model.items()
    ]
    parameters = [
        ParameterInfo((f"{path}.{slot}",), index[path], slot, shape, "float32", True)
        for path, (_, slots) in model.items() for slot, shape in slots.items()
    ]  # fmt: skip
    return outline(modules, parameters)


def certain(a: Outline, b: Outline) -> Matching:
    return match(a.tree, b.tree, LayerMapping(), lambda _: frozenset(), lambda _: frozenset())


def paired(a: Shapes, b: Shapes) -> dict[str, tuple[str, float]]:
    sides = outlined(a), outlined(b)
    found = complete(certain(*sides), *sides)
    return {sides[0].tree.path(p.a): (sides[1].tree.path(p.b), p.confidence) for p in found.pairs}


# Parameters


def views(a: Shapes, b: Shapes, least: float = 0.6) -> tuple[dict[str, View], dict[str, View]]:
    """Return what the parameters of the only layer of each side are called."""
    sides = outlined(a), outlined(b)
    found = match_parameters(certain(*sides), *sides, least)
    mine, theirs = ({slot: view for (_, slot), view in each.items()} for each in (found.views_a, found.views_b))
    return mine, theirs


def layer(kind: str, **slots: tuple[int, ...]) -> Shapes:
    return {"": ("Model", {}), "fc": (kind, slots)}


LINEAR = layer("Linear", weight=(F, H), bias=(F,))


def test_parameters_of_other_names_are_paired_by_form() -> None:
    assert views(LINEAR, layer("Dense", offset=(F,), matrix=(F, H))) == (
        {}, {"matrix": View("weight", (), 0.85), "offset": View("bias", (), 0.85)},
    )  # fmt: skip


def test_a_matrix_may_lie_turned() -> None:
    assert views(LINEAR, layer("Dense", kernel=(H, F), bias=(F,)))[1] == {"kernel": View("weight", (1, 0), 0.85)}
    assert views(LINEAR, layer("Dense", weight=(H, F), bias=(F,)))[1] == {"weight": View("weight", (1, 0), 0.85)}


def test_what_has_the_usual_name_keeps_it_on_either_side() -> None:
    assert views(layer("Dense", kernel=(H, F), bias=(F,)), LINEAR) == ({"kernel": View("weight", (1, 0), 0.85)}, {})


def test_forms_that_fit_twice_are_taken_in_their_order_and_less_sure() -> None:
    norms = layer("LayerNorm", weight=(H,), bias=(H,)), layer("Norm", scale=(H,), shift=(H,))
    assert views(*norms)[1] == {"scale": View("weight", (), 0.6), "shift": View("bias", (), 0.6)}
    assert views(*norms, least=0.7)[1] == {}


def test_no_guess_where_one_side_has_more_of_a_form() -> None:
    assert views(layer("RMSNorm", weight=(H,)), layer("Norm", scale=(H,), shift=(H,))) == ({}, {})


def test_an_own_class_may_have_a_name_that_the_other_side_has_too() -> None:
    assert views(LINEAR, layer("Linear", weight=(H, F), bias=(F,)))[1] == {"weight": View("weight", (1, 0), 0.85)}
    assert views(LINEAR, LINEAR) == ({}, {})


def measured(kind: str, slot: str, numbers: list[float]) -> Outline:
    """Return a model of Linears that have a weight each of which the largest element is known."""
    names = [f"fc{n}" for n in range(len(numbers))]
    modules = [ModuleInfo("", "Model", -1), *(ModuleInfo(name, "Linear", 0) for name in names)]
    modules[-1] = ModuleInfo(names[-1], kind, 0)
    weights = [(), *(
        (Weight("weight", (F, H), Numbers(-1.0, top, 0.0, 5.0 + top), recorded="weight"),) for top in numbers
    )]  # fmt: skip
    weights[-1] = (replace(weights[-1][0], slot=slot, recorded=slot),)
    return Outline(Tree(modules), weights)


def test_values_decide_whether_it_is_a_pair() -> None:
    a, b = measured("Linear", "weight", [1.0, 2.0, 3.0]), measured("Dense", "kernel", [1.0, 2.0, 3.0])
    assert match_parameters(certain(a, b), a, b, 0.6).views_b == {(3, "kernel"): View("weight", (), 0.98)}
    other = measured("Dense", "kernel", [1.0, 2.0, 7.0])
    assert match_parameters(certain(a, other), a, other, 0.6).views_b == {}


def test_modules_whose_weights_are_stacked_are_left_out_on_their_own_side_only() -> None:
    """The norm has the number in A that the expert has in B, and in B that of the stacked experts in A."""
    a = outlined({"": ("A", {}), "norm": ("RMSNorm", {"weight": (H,)}), "experts": ("Experts", {"stacked": (1, F, H)})})
    b = outlined({"": ("B", {}), "expert": ("Linear", {"weight": (F, H)}), "norm": ("Norm", {"g": (H,)})})
    bundle = WeightBundle("B", (2, "stacked"), (((1, "weight"),),))
    found = match_parameters(replace(certain(a, b), weight_bundles=(bundle,)), a, b, 0.6)
    assert found.views_b == {(2, "g"): View("weight", (), 0.85)}


# Layouts


def fused(groups: list[int], known: list[bool]) -> tuple[Found, list[str]]:
    """Return what is found of layers whose parts lie in so many groups, and what is said of them."""
    apart: Shapes = {"": ("A", {}), "layers": ("ModuleList", {})}
    whole: Shapes = {"": ("B", {}), "layers": ("ModuleList", {})}
    for n in range(len(groups)):
        apart |= {f"layers.{n}": ("Layer", {}), f"layers.{n}.q": ("Linear", {}), f"layers.{n}.k": ("Linear", {})}
        whole |= {f"layers.{n}": ("Layer", {}), f"layers.{n}.qk": ("Linear", {})}
    a, b = outlined(apart), outlined(whole)
    found = Found(a, b)
    for n, (count, is_known) in enumerate(zip(groups, known, strict=True)):
        parts = tuple(a.tree.by_path[f"layers.{n}.{name}"] for name in "qk")
        found.bundles.append(Bundle("A", b.tree.by_path[f"layers.{n}.qk"], parts, count, is_known=is_known))
    return found, [str(note) for note in agree_on_groups(found)]


def test_the_odd_layer_lies_as_the_others_do() -> None:
    found, said = fused([4, 4, 1, 4], [True] * 4)
    assert [(bundle.groups, bundle.is_known) for bundle in found.bundles] == [(4, True)] * 4
    assert said == [
        "the parts of B's layers.2.qk.weight lie one after the other, those of 3 others of its class in 4 groups: it is "
        "compared as if they lay as in the others"
    ]


def test_a_layer_whose_values_do_not_tell_lies_as_the_others_do() -> None:
    found, said = fused([4, 1, 4], [True, False, True])
    assert [(bundle.groups, bundle.is_known) for bundle in found.bundles] == [(4, True)] * 3
    assert not said


def test_no_layout_is_known_where_layers_are_at_odds() -> None:
    found, said = fused([4, 1], [True, True])
    assert [(bundle.groups, bundle.is_known) for bundle in found.bundles] == [(4, False), (1, False)]
    assert not said


# The norms of a layer


def encoder(flat: bool) -> Shapes:
    norm = {"weight": (H,), "bias": (H,)}
    found: Shapes = {"": ("Model", {}), "layers": ("ModuleList", {})}
    for n in range(2):
        top = f"layers.{n}"
        if flat:  # the norm of the MLP is defined first
            found |= {
                top: ("EncoderLayer", {}), f"{top}.attn": ("Attention", {}), f"{top}.attn.o": ("Linear", {"weight": (H, H)}),
                f"{top}.attn.qkv": ("Linear", {"weight": (3 * H, H)}), f"{top}.up": ("Linear", {"weight": (F, H)}),
                f"{top}.dropout": ("Dropout", {}), f"{top}.down": ("Linear", {"weight": (H, F)}),
                f"{top}.norm2": ("LayerNorm", norm), f"{top}.norm1": ("LayerNorm", norm),
                f"{top}.dropout2": ("Dropout", {}), f"{top}.dropout1": ("Dropout", {}),
            }  # fmt: skip
        else:
            found |= {
                top: ("BertLayer", {}), f"{top}.attention": ("BertAttention", {}),
                f"{top}.attention.qkv": ("Linear", {"weight": (3 * H, H)}), f"{top}.attention.dropout": ("Dropout", {}),
                f"{top}.attention.output": ("BertSelfOutput", {}),
                f"{top}.attention.output.dense": ("Linear", {"weight": (H, H)}),
                f"{top}.attention.output.LayerNorm": ("LayerNorm", norm),
                f"{top}.attention.output.dropout": ("Dropout", {}),
                f"{top}.up": ("Linear", {"weight": (F, H)}), f"{top}.output": ("BertOutput", {}),
                f"{top}.output.dense": ("Linear", {"weight": (H, F)}),
                f"{top}.output.LayerNorm": ("LayerNorm", norm), f"{top}.output.dropout": ("Dropout", {}),
            }  # fmt: skip
    return found


def test_norms_of_a_printed_layer_are_told_by_names_not_by_the_order_of_definition() -> None:
    found = paired(encoder(flat=True), encoder(flat=False))
    for n in range(2):
        assert found[f"layers.{n}.norm1"] == (f"layers.{n}.attention.output.LayerNorm", 0.7)
        assert found[f"layers.{n}.norm2"] == (f"layers.{n}.output.LayerNorm", 0.7)


def test_what_goes_with_a_norm_is_paired_with_it() -> None:
    found = paired(encoder(flat=True), encoder(flat=False))
    for n in range(2):
        assert found[f"layers.{n}.dropout1"] == (f"layers.{n}.attention.output.dropout", 0.65)
        assert found[f"layers.{n}.dropout2"][0] == f"layers.{n}.output.dropout"


def test_norms_whose_names_say_nothing_are_no_sure_pair() -> None:
    model = {path.replace("norm", "x"): what for path, what in encoder(flat=True).items()}
    found = paired(model, encoder(flat=False))
    assert all(found[f"layers.{n}.x2"][1] < 0.6 for n in range(2))
