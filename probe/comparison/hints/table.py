"""The hints: what an error looks like, what to check, and the test that holds it against what was recorded.

Where several fit as well, the first of them is said first: what is more specific stands before what is less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from probe.comparison.hints import attention, formulas, losses, norms, orders, patterns, places, sizes, training
from probe.comparison.hints.evidence import Evidence
from probe.comparison.hints.grades import Found
from probe.records import Role

_ACTIVATIONS = (Role.INPUT, Role.OUTPUT, Role.VALUE)
_WEIGHTS = (Role.PARAM,)
_GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL, Role.PARAM_GRAD)
_LOSSES = (Role.OUTPUT, Role.VALUE)


@dataclass(frozen=True, slots=True)
class Hint:
    """One sort of mistake."""

    name: str
    roles: tuple[Role, ...]
    """what kinds of tensors it is for"""
    looks_like: str
    """how the error shows itself"""
    check: str
    """what to look at: it goes behind “look at”"""
    test: Callable[[Evidence], Found | None]


HINTS = (
    # Formulas that give what was recorded
    Hint(
        "eps", (Role.OUTPUT,),
        "the output of a normalisation is what its input and weight give with another eps; both are solved for",
        "eps in the settings of this module",
        norms.eps,
    ),
    Hint(
        "eps outside the root", (Role.OUTPUT,),
        "1/(σ + eps) on one side, 1/√(σ² + eps) on the other",
        "where eps is added in this normalisation",
        norms.eps_outside,
    ),
    Hint(
        "unbiased variance", (Role.OUTPUT,),
        "the squares are divided by n − 1 on one side",
        "var(unbiased=) or correction= in this normalisation",
        norms.unbiased_variance,
    ),
    Hint(
        "norm statistics", (Role.OUTPUT,),
        "the mean is not subtracted on one side, or running statistics take the place of the batch's",
        "whether this is an RMSNorm or a LayerNorm, and whether it runs in training or evaluation mode",
        norms.norm_statistics,
    ),
    Hint(
        "norm weight", (Role.OUTPUT,),
        "a normalisation multiplies by its weight, by 1 + weight or by nothing",
        "how this normalisation uses its weight (zero-centred gamma, elementwise_affine)",
        norms.norm_weight,
    ),
    Hint(
        "norm bias", (Role.OUTPUT,),
        "a normalisation does not add its bias on one side",
        "how this normalisation uses its bias",
        norms.norm_bias,
    ),
    Hint(
        "norm groups", (Role.OUTPUT,),
        "channels are normalised in another number of groups",
        "num_groups",
        norms.norm_groups,
    ),
    Hint(
        "activation", (Role.INPUT, Role.OUTPUT),
        "the tensor is one known function of what was recorded before it on A, another one on B: gelu (erf, "
        "tanh, quick), silu, relu …",
        "which activation function, and which approximation of it, the configuration names",
        formulas.activation,
    ),
    Hint(
        "softmax", (Role.OUTPUT,),
        "the probabilities are those of a softmax over another axis, at another temperature, with 1 added to "
        "the sum, or in fewer bits",
        "axis, scale and dtype of this softmax",
        formulas.softmax,
    ),
    Hint(
        "returns its input", (Role.OUTPUT,),
        "one side returns its input bit for bit, and the other does not",
        "whether this module is left out on that side, or replaced by an Identity",
        formulas.returns_input,
    ),
    Hint(
        "causal mask", _ACTIVATIONS,
        "attention over the recorded queries, keys and values gives A with a causal mask and B without, or "
        "the other way round",
        "is_causal and the attention mask",
        partial(attention.attention, part="mask"),
    ),
    Hint(
        "attention scale", _ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, with other factors on the scores",
        "what the scores are divided by: √head size",
        partial(attention.attention, part="scale"),
    ),
    Hint(
        "key and value groups", _ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, with the key and value heads "
        "repeated in another order",
        "repeat_kv: repeat_interleave against repeat",
        partial(attention.attention, part="groups"),
    ),
    Hint(
        "rotary embeddings in attention", _ACTIVATIONS,
        "attention over the recorded queries, keys and values gives both, which one side turns by the "
        "recorded angles in pairs, backwards or not at all",
        "rotate_half, the layout of the rotary halves, and whether queries and keys are both turned",
        partial(attention.attention, part="rotary"),
    ),
    Hint(
        "rotary", _ACTIVATIONS,
        "the angles of rotary embeddings were made with another base, scaling, layout or first position",
        "rope_theta, rope_scaling and the position ids",
        sizes.rotary,
    ),
    Hint(
        "low precision product", (Role.OUTPUT,),
        "x · Wᵀ of the recorded numbers gives one side as they are, and the other one rounded to fewer bits",
        "autocast, TensorFloat-32 (allow_tf32) and casts around this layer",
        formulas.linear_precision,
    ),
    Hint(
        "linear", (Role.OUTPUT,),
        "x · Wᵀ + b of the recorded numbers gives one side; the weight is not transposed, or the bias left "
        "out, on the other",
        "how this layer uses its weight and bias",
        formulas.linear,
    ),
    Hint(
        "linear gradient", _GRADIENTS,
        "one side's gradient is what the recorded input, weight and gradient of the output give, the other's "
        "is not",
        "custom autograd functions, gradient hooks and fused kernels of that side's layer",
        training.linear_gradient,
    ),
    Hint(
        "gradient passed through", _GRADIENTS,
        "one side passes back the gradient of its output unchanged",
        "this module's backward (a straight-through estimator, a missing factor)",
        training.straight_through,
    ),
    Hint(
        "residual", (Role.OUTPUT,),
        "a block returns the recorded outputs of its modules with what came in added on one side, and not, or"
        " twice, on the other",
        "residual connections of this block",
        formulas.residual,
    ),
    Hint(
        "multiple of the input", (Role.OUTPUT,),
        "B − A is a multiple of what the module was given",
        "residual connections of this block, and how they are scaled",
        formulas.share_of_input,
    ),
    Hint(
        "running statistics", (Role.BUFFER,),
        "the running mean or variance took another share of the batch's, which is solved for",
        "momentum (PaddlePaddle's and MindSpore's is 1 − PyTorch's) and the biased variance",
        sizes.momentum,
    ),
    # The loss
    Hint(
        "losses added up", _LOSSES,
        "what the model returns as its loss agrees in each micro-batch, the number given for the step does not",
        "how the losses of micro-batches are added up, weighted and divided for probe.step(loss=…), and not at the loss function",
        losses.added_up,
    ),
    Hint(
        "shift of the labels", _LOSSES,
        "cross entropies of the recorded logits and labels give both losses, at other positions",
        "whether labels are shifted once: in the batch, or in the model",
        partial(losses.loss, part="shift"),
    ),
    Hint(
        "ignored labels", _LOSSES,
        "cross entropies of the recorded logits and labels give both losses, with other labels left out",
        "ignore_index and the padding of the labels",
        partial(losses.loss, part="ignored"),
    ),
    Hint(
        "label smoothing", _LOSSES,
        "cross entropies of the recorded logits and labels give both losses, with other smoothing (0.01 to "
        "0.3)",
        "label_smoothing",
        partial(losses.loss, part="smoothing"),
    ),
    Hint(
        "loss reduction", _LOSSES,
        "cross entropies of the recorded logits and labels give both losses, divided by other numbers",
        "reduction of the loss: sum or mean, over all tokens or over those that count",
        partial(losses.loss, part="reduction"),
    ),
    Hint(
        "loss times a count", _LOSSES,
        "the losses are apart by a number of samples, tokens, micro-batches or ranks",
        "reduction of the loss: sum or mean, and over what",
        losses.loss_factor,
    ),
    # Gradients and updates as a whole
    Hint(
        "clipping", _GRADIENTS,
        "all gradients are multiplied by one number, or brought to one norm, between backward and the "
        "optimizer",
        "max_norm, and what it is the norm of",
        training.clipping,
    ),
    Hint(
        "one gradient", (Role.PARAM_GRAD,),
        "the gradient of one parameter is a multiple, while those of others agree",
        "hooks on this parameter, custom autograd functions, and what uses it twice: it is neither accumulation nor the loss",
        training.one_gradient,
    ),
    Hint(
        "gradient of one module", _GRADIENTS,
        "a gradient is a multiple from one module on, while those that ran back before it agree",
        "a factor in this module's backward: hooks on gradients, custom autograd functions, what is added or called twice; "
        "it is neither accumulation nor the loss",
        training.one_module,
    ),
    Hint(
        "gradient divided by a count", _GRADIENTS,
        "a gradient is a multiple by the number of micro-batches, ranks, samples or tokens, or by one over it",
        "accumulation, reduction over ranks (sum or mean) and reduction of the loss",
        training.gradient_factor,
    ),
    Hint(
        "weight decay", (*_GRADIENTS, Role.DELTA),
        "the difference of two updates is a multiple of the parameter",
        "the weight decay of this parameter's group",
        training.weight_decay,
    ),
    # What the model is given
    Hint(
        "one value for another", _ACTIVATIONS,
        "of integers: all that differ have one number on A and another one on B",
        "ignore_index and the padding of labels, padding and special tokens of ids",
        patterns.value_for_another,
    ),
    Hint(
        "scale of an input", (Role.INPUT, Role.VALUE),
        "what the model is given on B is A's times one number",
        "the scale of this input and its preprocessing: mean and standard deviation, division by 255, units",
        patterns.scale_of_input,
    ),
    # Multiples of the value
    Hint(
        "sign", (*_ACTIVATIONS, *_WEIGHTS, *_GRADIENTS, Role.DELTA),
        "B is −A",
        "the sign: maximize=, the sign of the loss, a swapped difference",
        patterns.sign,
    ),
    Hint(
        "doubled or halved", (*_ACTIVATIONS, *_WEIGHTS),
        "B is twice A, or half of it",
        "what is added or called twice, averaged, or split in two",
        patterns.doubled,
    ),
    Hint(
        "gradient doubled or halved", _GRADIENTS,
        "B is twice A, or half of it, from the loss on",
        "accumulation, reduction of the loss, world size",
        patterns.doubled,
    ),
    Hint(
        "known factor", _ACTIVATIONS,
        "B is A times a root of the width or of the head size, √2, or 1/(1 − p)",
        "scaling of embeddings and scores, and dropout",
        patterns.known_scale,
    ),
    Hint(
        "learning rate", (Role.DELTA,),
        "one update is a multiple of the other",
        "the learning rate and its schedule",
        training.learning_rate,
    ),
    Hint(
        "one number", (*_ACTIVATIONS, *_WEIGHTS, *_GRADIENTS, Role.BUFFER),
        "all elements of one side are one number: 0, 1 …",
        "whether this was loaded, or computed, at all",
        sizes.one_number,
    ),
    Hint(
        "uniform scale", (Role.INPUT, Role.OUTPUT),
        "B is A times one number, or the error is parallel to the value",
        "eps, a scale or a weight",
        patterns.uniform_scale,
    ),
    Hint(
        "weight scale", _WEIGHTS,
        "B is A times one number",
        "how this weight is initialised, loaded or converted",
        patterns.uniform_scale,
    ),
    Hint(
        "gradient scale", _GRADIENTS,
        "B is A times one number",
        "a factor in backward, the loss scale, and how the loss is reduced",
        patterns.uniform_scale,
    ),
    # Additions
    Hint(
        "bias", (Role.OUTPUT,),
        "B − A is the module's recorded bias, or minus it",
        "whether the bias is added, once",
        patterns.bias,
    ),
    Hint(
        "counted from another number", _ACTIVATIONS, "B − A is one number, of integers",
        "position ids and offsets: where each side begins to count (at 0, at 1, behind the padding)",
        patterns.counted_on,
    ),
    Hint(
        "constant shift", _ACTIVATIONS,
        "B − A is one number",
        "a bias, a constant that is added, a mean that is subtracted",
        patterns.constant_shift,
    ),
    Hint(
        "same vector in every row", _ACTIVATIONS,
        "B − A is the same in all rows",
        "a bias, or an embedding that is added to all positions",
        patterns.shift_by_column,
    ),
    # The same numbers elsewhere
    Hint(
        "transposed", (*_ACTIVATIONS, *_WEIGHTS),
        "A with two axes swapped is B, or A read in the other order",
        "how this tensor is transposed, reshaped or converted",
        orders.transposed,
    ),
    Hint(
        "shifted position", _ACTIVATIONS, "B has at each position what A has at another one",
        "position ids, the shift of the labels and the padding side",
        orders.shifted,
    ),
    Hint(
        "permuted", (*_ACTIVATIONS, *_WEIGHTS),
        "A with the indices of one axis in another order is B; the order is solved for",
        "the order of the parts (q, k, v; gate, up), of heads and of rotary halves in how this is stored",
        orders.permuted,
    ),
    Hint(
        "drawn anew", _WEIGHTS,
        "weights of the same spread without anything else in common",
        "whether this weight was loaded, or drawn with another seed",
        sizes.redrawn,
    ),
    # The form of the elements
    Hint(
        "dropout", _ACTIVATIONS,
        "some elements are zero on one side alone, the others larger; or other ones on each side",
        "dropout: switch it off on both sides, or give both the same random numbers",
        patterns.dropout,
    ),
    Hint(
        "cut off", _ACTIVATIONS,
        "one side has no values beyond a bound",
        "clamping, saturation and the range of the dtype",
        patterns.clamp,
    ),
    Hint(
        "rounded", (*_ACTIVATIONS, *_WEIGHTS, *_GRADIENTS),
        "the numbers of one side have fewer bits than their dtype",
        "casts and autocast around this module, and the dtype in which it was saved",
        sizes.precision,
    ),
    Hint(
        "dtype", (*_ACTIVATIONS, *_GRADIENTS),
        "the two tensors have other dtypes",
        "casts, autocast and the dtype that this module keeps",
        sizes.dtype,
    ),
    # Where the error sits
    Hint(
        "single elements", (*_ACTIVATIONS, *_WEIGHTS, *_GRADIENTS),
        "at most one element in 1,000",
        "an index that is written to, a damaged value, a tie that was broken otherwise",
        places.few_elements,
    ),
    Hint(
        "padding", _ACTIVATIONS,
        "all of the error is where a mask that the model was given is 0",
        "whether padding is masked alike; it may not matter",
        places.padding,
    ),
    Hint(
        "some ids", _ACTIVATIONS,
        "all rows of some token ids differ, no others",
        "padding_idx, special tokens and the size of the vocabulary",
        places.some_tokens,
    ),
    Hint(
        "last position", _ACTIVATIONS,
        "only the last position",
        "the shift of labels or inputs, and what is appended",
        places.last_position,
    ),
    Hint(
        "first position", _ACTIVATIONS,
        "only the first position",
        "the begin-of-sequence token, attention sinks and what is prepended",
        places.first_position,
    ),
    Hint(
        "positions alone", (Role.OUTPUT,),
        "some positions of a linear layer, a norm or an activation, which treat each position by itself",
        "what handles rows apart here: the tiles of a kernel and their rest, a split sequence, memory that is changed in place",
        places.positions_alone,
    ),
    Hint(
        "looks ahead", _ACTIVATIONS,
        "in attention, the last position agrees and the error grows towards the first one",
        "the causal mask",
        patterns.looks_ahead,
    ),
    Hint(
        "grows with position", _ACTIVATIONS,
        "the first position agrees and the error grows with the position",
        "rotary or other position embeddings (base, scaling, offset), and what the scores are multiplied by: "
        "neither changes the first position",
        patterns.growth,
    ),
    Hint(
        "from a position on", _ACTIVATIONS,
        "all positions from one on differ, none before it",
        "the attention window (sliding_window), the mask, the length of a cache or of the longest sequence, the scaling of "
        "long positions",
        places.from_position,
    ),
    Hint(
        "some positions", _ACTIVATIONS,
        "a few positions",
        "the mask, special tokens and position ids",
        places.some_positions,
    ),
    Hint(
        "some samples", _ACTIVATIONS,
        "a part of the batch",
        "the mask of these samples, and how the batch is split or gathered",
        places.some_samples,
    ),
    Hint(
        "some heads", (*_ACTIVATIONS, *_WEIGHTS, *_GRADIENTS),
        "whole heads",
        "masks of heads, key and value groups, and the order of heads in the weight",
        places.some_heads,
    ),
    Hint(
        "some rows", (*_WEIGHTS, *_GRADIENTS),
        "a few rows of a weight",
        "padding of the vocabulary or of sizes, and how the weight is put together",
        places.some_rows,
    ),
    Hint(
        "some columns", (*_ACTIVATIONS, *_WEIGHTS, *_GRADIENTS),
        "a few indices of the last axis",
        "padding of sizes, outlier channels, and how shards are put together",
        places.some_columns,
    ),
    # Multiples that differ
    Hint(
        "scale of columns", (*_ACTIVATIONS, *_WEIGHTS),
        "B is A times one number for each column",
        "a weight or scale by channel",
        patterns.scale_by_column,
    ),
    Hint(
        "scale of rows", _ACTIVATIONS,
        "B is A times one number for each row",
        "a normalisation, its eps, or a router's probability",
        patterns.scale_by_row,
    ),
)  # fmt: skip
"""what is more specific first"""
OF_NUMBERS = tuple(hint for hint in HINTS if hint.roles is _LOSSES)
"""those for a single number"""
