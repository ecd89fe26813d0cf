"""Hints that say what one side computes, or is given, otherwise: formulas, losses, gradients and inputs."""

from __future__ import annotations

from functools import partial

from probe.diagnosis import formulas
from probe.diagnosis.causes import attention, gates, losses, norms, patterns, ranks, sizes, training
from probe.diagnosis.hint import ACTIVATIONS, GRADIENTS, LOSSES, Hint
from probe.records import Role

COMPUTED = (
    # Formulas that give what was recorded
    Hint(
        "eps", (Role.OUTPUT,),
        "the output of a normalisation is what its input and weight give with another eps; both are solved for",
        norms.eps,
    ),
    Hint(
        "eps outside the root", (Role.OUTPUT,),
        "1/(σ + eps) on one side, 1/√(σ² + eps) on the other",
        norms.eps_outside,
    ),
    Hint(
        "unbiased variance", (Role.OUTPUT,),
        "the squares are divided by n − 1 on one side",
        norms.unbiased_variance,
    ),
    Hint(
        "norm statistics", (Role.OUTPUT,),
        "the mean is not subtracted on one side, or running statistics take the place of the batch's",
        norms.norm_statistics,
    ),
    Hint(
        "norm weight", (Role.OUTPUT,),
        "a normalisation multiplies by its weight, by 1 + weight or by nothing",
        norms.norm_weight,
    ),
    Hint(
        "norm bias", (Role.OUTPUT,),
        "a normalisation does not add its bias on one side",
        norms.norm_bias,
    ),
    Hint(
        "norm groups", (Role.OUTPUT,),
        "channels are normalised in another number of groups",
        norms.norm_groups,
    ),
    Hint(
        "activation", (Role.INPUT, Role.OUTPUT),
        "the tensor is one known function of what was recorded before it on A, another one on B: gelu (erf, "
        "tanh, quick), silu, relu …",
        formulas.activation,
    ),
    Hint(
        "softmax", (Role.OUTPUT,),
        "the probabilities are those of a softmax over another axis, at another temperature, with 1 added to "
        "the sum, or in fewer bits",
        formulas.softmax,
    ),
    Hint(
        "returns its input", (Role.OUTPUT,),
        "one side returns its input bit for bit, and the other does not",
        formulas.returns_input,
    ),
    Hint(
        "gate and up", ACTIVATIONS,
        "f(x) · y of two recorded tensors gives A, f(y) · x gives B",
        gates.exchanged_gate,
    ),
    Hint(
        "order of queries, keys and values", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives A, and B where some are taken for others",
        partial(attention.attention, part="parts"),
    ),
    Hint(
        "causal mask", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives A with a causal mask and B without, or "
        "the other way round",
        partial(attention.attention, part="mask"),
    ),
    Hint(
        "attention scale", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, with other factors on the scores",
        partial(attention.attention, part="scale"),
    ),
    Hint(
        "key and value groups", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, with the key and value heads "
        "repeated in another order",
        partial(attention.attention, part="groups"),
    ),
    Hint(
        "rotary embeddings in attention", ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, which one side turns by the "
        "recorded angles in pairs, backwards or not at all",
        partial(attention.attention, part="rotary"),
    ),
    Hint(
        "rotary", ACTIVATIONS,
        "the angles of rotary embeddings were made with another base, scaling, layout or first position",
        sizes.rotary,
    ),
    Hint(
        "low precision product", (Role.OUTPUT,),
        "x · Wᵀ of the recorded numbers gives one side as they are, and the other one rounded to fewer bits",
        formulas.linear_precision,
    ),
    Hint(
        "output of one rank", (Role.OUTPUT,),
        "under several ranks, x · Wᵀ + b of what this rank holds gives one side, and not the other",
        ranks.output_of_one_rank,
    ),
    Hint(
        "gradient of one rank", (Role.GRAD_INPUT,),
        "under several ranks, what this rank's weight and gradient of the output give is passed back by one side, and not by the other",
        ranks.gradient_of_one_rank,
    ),
    Hint(
        "linear", (Role.OUTPUT,),
        "x · Wᵀ + b of the recorded numbers gives one side; the weight is not transposed, or the bias left "
        "out, on the other",
        formulas.linear,
    ),
    Hint(
        "linear gradient", GRADIENTS,
        "one side's gradient is what the recorded input, weight and gradient of the output give, the other's "
        "is not",
        training.linear_gradient,
    ),
    Hint(
        "gradient passed through", GRADIENTS,
        "one side passes back the gradient of its output unchanged",
        training.straight_through,
    ),
    Hint(
        "residual", (Role.OUTPUT,),
        "a block returns the recorded outputs of its modules with what came in added on one side, and not, or"
        " twice, on the other",
        formulas.residual,
    ),
    Hint(
        "multiple of the input", (Role.OUTPUT,),
        "B − A is a multiple of what the module was given",
        formulas.share_of_input,
    ),
    Hint(
        "running statistics", (Role.BUFFER,),
        "the running mean or variance took another share of the batch's, which is solved for",
        sizes.momentum,
    ),
    # The loss
    Hint(
        "losses added up", LOSSES,
        "what the model returns as its loss agrees in each micro-batch, the number given for the step does not",
        losses.added_up,
    ),
    Hint(
        "shift of the labels", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, at other positions",
        partial(losses.loss, part="shift"),
    ),
    Hint(
        "ignored labels", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, with other labels left out",
        partial(losses.loss, part="ignored"),
    ),
    Hint(
        "label smoothing", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, with other smoothing (0.01 to "
        "0.3)",
        partial(losses.loss, part="smoothing"),
    ),
    Hint(
        "loss reduction", LOSSES,
        "cross entropies of the recorded logits and labels give both losses, divided by other numbers",
        partial(losses.loss, part="reduction"),
    ),
    Hint(
        "loss times a count", LOSSES,
        "the losses are apart by a number of samples, tokens, micro-batches or ranks",
        losses.loss_factor,
    ),
    # Gradients and updates as a whole
    Hint(
        "clipping", GRADIENTS,
        "all gradients are multiplied by one number, or brought to one norm, between backward and the "
        "optimizer",
        training.clipping,
    ),
    Hint(
        "one gradient", (Role.PARAM_GRAD,),
        "the gradient of one parameter is a multiple, while those of others agree",
        training.one_gradient,
    ),
    Hint(
        "gradient of one module", GRADIENTS,
        "a gradient is a multiple from one module on, while those that ran back before it agree",
        training.one_module,
    ),
    Hint(
        "gradient divided by a count", GRADIENTS,
        "a gradient is a multiple by the number of micro-batches, ranks, samples or tokens, or by one over it",
        training.gradient_factor,
    ),
    Hint(
        "weight decay", (*GRADIENTS, Role.DELTA),
        "the difference of two updates is a multiple of the parameter",
        training.weight_decay,
    ),
    # What the model is given
    Hint(
        "one value for another", ACTIVATIONS,
        "of integers: all that differ have one number on A and another one on B",
        patterns.value_for_another,
    ),
    Hint(
        "scale of an input", (Role.INPUT, Role.VALUE),
        "what the model is given on B is A's times one number",
        patterns.scale_of_input,
    ),
)  # fmt: skip
"""what is more specific first"""
