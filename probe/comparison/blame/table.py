"""The table of blame: who answers for a value of the forward pass that is wrong by itself, and in which order that is asked.

A row is a function of a `Case`. The first that fits adds the finding, and its code stands there (`Divergence.blame`).
"""

from __future__ import annotations

from probe.comparison.blame import values
from probe.comparison.blame.case import Case, Row, answer
from probe.comparison.blame.order import order_of_layers
from probe.comparison.blame.unpaired_calls import (
    between_models,
    maker_of_inputs,
    uncalled_by_caller,
    uncalled_module,
    unpaired_call,
)
from probe.comparison.ledger.known import Walk
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Rule
from probe.comparison.steps.step_half import Event, Node

_CHANGES = (
    Row("order-of-layers", "Layers that stand, or run, at other places in B.", order_of_layers),
    Row("uncalled-module", "A module that both sides have and one alone called since the last value that agrees.", uncalled_module),
    Row("unpaired-call", "The only call without a counterpart since the last value that agrees, or the layers that one side has more.", unpaired_call),
)  # fmt: skip

INPUT = (
    Row("between-models", "What the program does between models, or pipeline stages, that it calls in turn.", between_models),
    Row("model-input", "The batch: an input of the model.", values.input_of_the_model),
    Row("handed-on-batch", "The batch: the call is handed what the model was given, on both sides.", values.handed_on_batch),
    *_CHANGES,
    Row("missing-input", "An input of the model that one side alone is given, and that the caller gets there.", values.missing_input_of_caller),
    Row("unknown-before", "Nobody: of no caller is it known whether it began right.", values.unknown_before),
    Row("uncalled-by-caller", "A module that the caller's own code calls on one side only, and whose weights the other side uses nowhere.", values.uncalled_since_place_began),
    Row("caller", "The own code of the innermost caller that began right.", values.caller_of_input),
)  # fmt: skip
"""for an input of a call, in the order in which they are asked"""

OUTPUT = (
    Row("loss", "The loss function: the model returns the loss, and all else that it returns agrees.", values.loss_alone),
    Row("missing-parameter", "A parameter that one side's module alone has.", values.missing_parameter),
    Row("missing-input", "An input of the model that one side alone is given, and that the module gets there.", values.missing_input_of_module),
    Row("maker-of-inputs", "The caller, whose own code makes inputs in another form on each side, so that they could not be compared.", maker_of_inputs),
    *_CHANGES[1:],
    Row("uncalled-by-caller", "A module that this one's own code calls on one side only, and whose weights the other side uses nowhere.", uncalled_by_caller),
    Row("module", "The module that returned it.", values.own_code),
)  # fmt: skip
"""for what a call returned"""


def blame_input(walk: Walk, node: Node, event: Event, rule: Rule = tolerance.FORWARD) -> None:
    """Add the finding for an input that is wrong though what it was made from is right."""
    answer(INPUT, Case(walk, node, event, rule))


def blame_output(walk: Walk, node: Node, event: Event) -> None:
    """Add the finding for an output that is wrong though what it was made from is right."""
    answer(OUTPUT, Case(walk, node, event, tolerance.FORWARD))


def blame_changes(walk: Walk, node: Node, event: Event) -> bool:
    """Blame another order of layers, or what one side alone calls, for an input; tell whether there is such a change."""
    return node.parent is not None and answer(_CHANGES, Case(walk, node, event, tolerance.FORWARD))
