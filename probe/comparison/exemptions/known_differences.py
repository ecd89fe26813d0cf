"""Where frameworks do other things under the same name: the table, each row of it found by experiment.

``tests/<framework>/test_known_differences_<framework>.py`` has the experiment of every row for every framework; what
it sees must be what the row says. What turned out to be the same everywhere has no row: the defaults of Dropout, ELU,
Hardsigmoid, GroupNorm, LSTM, of the reductions of BCE, KLDiv, L1 and MSE, bilinear Upsample, Nesterov's momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from probe.comparison.result import Kind
from probe.records import Phase, Role

VERIFIED = {"torch": "2.13.0", "paddle": "3.3.1", "mindspore": "2.10.0"}
"""versions that the experiments were made with, on the CPU"""


@dataclass(frozen=True, slots=True)
class Habit:
    """What one framework does."""

    classes: tuple[str, ...]
    """globs of class names"""
    does: str
    instead: str = ""
    """what to set there to get what another one does"""


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """A row of the table."""

    name: str
    about: str
    """how the sentence begins that goes on with what each framework does"""
    habits: Mapping[str, Habit]
    """by framework"""
    phases: tuple[Phase, ...]
    """of the findings that it explains"""
    roles: tuple[Role, ...] = ()
    """of these findings; empty for all"""
    kinds: tuple[Kind, ...] = ()
    """of these findings; empty for all"""
    slots: str = "*"
    """glob"""
    settings: tuple[str, ...] = ()
    """names of a setting of the optimizer: where both sides have recorded the same, it explains nothing"""
    is_of_optimizer: bool = False
    """the classes are those of optimizers, not of modules"""
    is_one_sided: bool = False
    """it explains only what one side lacks, or where it is zero"""
    first_step: int = 0
    """it explains nothing before this step"""
    advice: str = ""
    """what to do where nothing can be set"""


_FORWARD, _UPDATE = (Phase.FORWARD, Phase.LOSS), (Phase.UPDATE,)
_OUTPUT, _WEIGHT = (Role.OUTPUT, Role.VALUE), (Role.PARAM,)
_BATCHNORM = {
    "torch": ("BatchNorm?d", "SyncBatchNorm"),
    "paddle": ("BatchNorm", "BatchNorm?D", "SyncBatchNorm"),
    "mindspore": ("BatchNorm?d", "SyncBatchNorm"),
}
_EPS, _DECAY, _RHO = ("eps", "epsilon"), ("weight_decay", "coeff"), ("alpha", "rho", "decay")


def _of_output(name: str, about: str, advice: str = "", **habits: Habit) -> KnownDifference:
    return KnownDifference(name, about, habits, _FORWARD, _OUTPUT, advice=advice)


def _of_weights(name: str, about: str, **habits: Habit) -> KnownDifference:
    advice = "load one side's initial weights into the other"
    return KnownDifference(name, about, habits, (Phase.INIT,), _WEIGHT, (Kind.INIT,), advice=advice)


def _of_update(
    name: str, about: str, settings: tuple[str, ...] = (), advice: str = "", **habits: Habit
) -> KnownDifference:
    roles = (Role.DELTA, Role.STATE)
    return KnownDifference(name, about, habits, _UPDATE, roles, settings=settings, is_of_optimizer=True, advice=advice)


EXACT = 1e-6
"""relative difference up to which sums over the same numbers in another order are equal"""
KNOWN_DIFFERENCES: tuple[KnownDifference, ...] = (
    # What modules compute
    KnownDifference(
        "batchnorm-momentum",
        "BatchNorm's momentum is",
        {
            "torch": Habit(_BATCHNORM["torch"], "the weight of the new batch"),
            "paddle": Habit(_BATCHNORM["paddle"], "the weight of the old value"),
            "mindspore": Habit(
                _BATCHNORM["mindspore"], "the weight of the old value", "momentum=0.9 for PyTorch's 0.1"
            ),
        },
        _FORWARD,
        (Role.BUFFER,),
        slots="*mean*",
        advice="m on one side is 1 − m on the other: PyTorch's 0.1 is the others' 0.9",
    ),
    KnownDifference(
        "batchnorm-variance",
        "BatchNorm's running variance, of n values in a channel,",
        {
            "torch": Habit(_BATCHNORM["torch"], "divides by n − 1"),
            "paddle": Habit(_BATCHNORM["paddle"], "divides by n"),
            "mindspore": Habit(_BATCHNORM["mindspore"], "divides by n − 1"),
        },
        _FORWARD,
        (Role.BUFFER,),
        slots="*var*",
        advice="it cannot be set: it is a factor n/(n − 1) that only evaluation sees",
    ),
    _of_output(
        "layernorm-eps",
        "LayerNorm's eps is by default",
        torch=Habit(("LayerNorm",), "1.0e-05", "eps"),
        paddle=Habit(("LayerNorm",), "1.0e-05", "epsilon"),
        mindspore=Habit(("LayerNorm",), "1.0e-07", "epsilon"),
    ),
    KnownDifference(
        "instancenorm-affine",
        "InstanceNorm by default",
        {
            "torch": Habit(("InstanceNorm?d",), "has no parameters", "affine=True"),
            "paddle": Habit(("InstanceNorm?D",), "has weight and bias", "weight_attr=False, bias_attr=False"),
            "mindspore": Habit(("InstanceNorm?d",), "has weight and bias", "affine=False"),
        },
        (Phase.INIT, *_FORWARD),
        (Role.PARAM, Role.OUTPUT),
    ),
    _of_output(
        "avgpool-padding",
        "average pooling by default",
        torch=Habit(("AvgPool?d",), "counts the padding", "count_include_pad=False"),
        paddle=Habit(("AvgPool?D",), "leaves the padding out", "exclusive=False"),
        mindspore=Habit(("AvgPool?d",), "counts the padding", "count_include_pad=False"),
    ),
    _of_output(
        "pool-stride",
        "a pooling's stride is by default",
        torch=Habit(("AvgPool?d", "MaxPool?d"), "the kernel's size", "stride=1"),
        paddle=Habit(("AvgPool?D", "MaxPool?D"), "the kernel's size", "stride=1"),
        mindspore=Habit(("AvgPool?d", "MaxPool?d"), "1", "stride=kernel_size"),
    ),
    _of_output(
        "pool-ceil",
        "with ceil_mode, of windows that hold nothing but padding, pooling",
        "choose a size or a padding where there are none",
        torch=Habit(("AvgPool?d", "MaxPool?d"), "drops them"),
        paddle=Habit(("AvgPool?D", "MaxPool?D"), "keeps them"),
        mindspore=Habit(("AvgPool?d", "MaxPool?d"), "drops them"),
    ),
    _of_output(
        "conv-padding",
        "a convolution's padding is by default",
        torch=Habit(("Conv?d",), "none", "padding='same'"),
        paddle=Habit(("Conv?D",), "none", "padding='SAME'"),
        mindspore=Habit(("Conv?d",), "as much as keeps the size", "pad_mode='valid' or 'pad'"),
    ),
    _of_output(
        "conv-transposed-padding",
        "a transposed convolution's padding is by default",
        torch=Habit(("ConvTranspose?d",), "none", "padding"),
        paddle=Habit(("Conv?DTranspose",), "none", "padding"),
        mindspore=Habit(("Conv?dTranspose",), "as much as keeps the size", "pad_mode='valid' or 'pad'"),
    ),
    KnownDifference(
        "conv-bias",
        "of a bias, a convolution by default",
        {
            "torch": Habit(("Conv*",), "has one", "bias=False"),
            "paddle": Habit(("Conv*",), "has one", "bias_attr=False"),
            "mindspore": Habit(("Conv*",), "has none", "has_bias=True"),
        },
        (Phase.INIT,),
        kinds=(Kind.MISSING,),
        slots="bias",
    ),
    _of_output(
        "cross-entropy-axis",
        "the axis of CrossEntropyLoss that holds the classes is by default",
        torch=Habit(("CrossEntropyLoss",), "the second", "logits.movedim(-1, 1)"),
        paddle=Habit(("CrossEntropyLoss",), "the last", "axis=1"),
        mindspore=Habit(("CrossEntropyLoss",), "the second", "logits.movedim(-1, 1)"),
    ),
    _of_output(
        "softmax-axis",
        "the default axis of Softmax, for 3-dimensional input, is",
        torch=Habit(("Softmax", "LogSoftmax"), "the first", "dim=-1"),
        paddle=Habit(("Softmax", "LogSoftmax"), "the last", "axis"),
        mindspore=Habit(("Softmax", "LogSoftmax"), "the last", "axis"),
    ),
    _of_output(
        "gelu-form",
        "GELU's form is by default",
        torch=Habit(("GELU",), "erf", "approximate='tanh'"),
        paddle=Habit(("GELU",), "erf", "approximate=True"),
        mindspore=Habit(("GELU",), "tanh", "approximate=False"),
    ),
    _of_output(
        "leaky-relu-slope",
        "LeakyReLU's slope is by default",
        torch=Habit(("LeakyReLU",), "0.01", "negative_slope"),
        paddle=Habit(("LeakyReLU",), "0.01", "negative_slope"),
        mindspore=Habit(("LeakyReLU",), "0.2", "alpha"),
    ),
    _of_output(
        "upsample-cubic",
        "the coefficient of bicubic Upsample is",
        "it cannot be set; bilinear and nearest are the same in all",
        torch=Habit(("Upsample",), "−0.75"),
        paddle=Habit(("Upsample",), "−0.75"),
        mindspore=Habit(("Upsample",), "−0.5"),
    ),
    _of_output(
        "smooth-l1-reduction",
        "SmoothL1Loss's reduction is by default",
        torch=Habit(("SmoothL1Loss",), "mean", "reduction='none'"),
        paddle=Habit(("SmoothL1Loss",), "mean", "reduction='none'"),
        mindspore=Habit(("SmoothL1Loss",), "none", "reduction='mean'"),
    ),
    _of_output(
        "smooth-l1-threshold",
        "SmoothL1Loss with a threshold (beta, delta) other than 1",
        torch=Habit(("SmoothL1Loss",), "divides by it", "HuberLoss"),
        paddle=Habit(("SmoothL1Loss",), "is Huber's", "is_huber=False"),
        mindspore=Habit(("SmoothL1Loss",), "divides by it", "HuberLoss"),
    ),
    _of_output(
        "ctc-input",
        "CTCLoss takes",
        torch=Habit(("CTCLoss",), "log-probabilities", "log_softmax before it"),
        paddle=Habit(("CTCLoss",), "logits", "no log_softmax before it"),
        mindspore=Habit(("CTCLoss",), "log-probabilities", "LogSoftmax before it"),
    ),
    KnownDifference(
        "embedding-padding",
        "for padding_idx, Embedding",
        {
            "torch": Habit(("Embedding",), "gives its row, no gradient"),
            "paddle": Habit(("Embedding",), "gives zeros, no gradient"),
            "mindspore": Habit(("Embedding",), "gives its row, learns"),
        },
        (*_FORWARD, Phase.GRADIENT),
        (Role.OUTPUT, Role.PARAM_GRAD),
        advice="set that row to 0 on both sides, and keep it so where it learns",
    ),
    # What weights begin with
    _of_weights(
        "linear-init",
        "the weights of a Linear are drawn by default from",
        torch=Habit(("Linear",), "U(±1/√in), bias drawn"),
        paddle=Habit(("Linear",), "Xavier's U(±√(6/(in+out))), bias 0"),
        mindspore=Habit(("Dense",), "U(±1/√in), bias drawn"),
    ),
    _of_weights(
        "conv-init",
        "the weights of a convolution are drawn by default from",
        torch=Habit(("Conv?d",), "U(±1/√in), bias drawn"),
        paddle=Habit(("Conv?D",), "N(0, √(2/in)), bias 0"),
        mindspore=Habit(("Conv?d",), "U(±1/√in), bias drawn"),
    ),
    _of_weights(
        "embedding-init",
        "the weights of an Embedding are drawn by default from",
        torch=Habit(("Embedding",), "N(0, 1.00)"),
        paddle=Habit(("Embedding",), "Xavier's U(±√(6/(in+out)))"),
        mindspore=Habit(("Embedding",), "N(0, 0.01)"),
    ),
    # What optimizers do
    _of_update(
        "rmsprop-eps",
        "RMSProp adds eps",
        advice="take an eps so small that it does not show",
        torch=Habit(("RMSprop",), "outside the root"),
        paddle=Habit(("RMSProp",), "inside the root"),
        mindspore=Habit(("RMSProp",), "inside the root", "mindspore.experimental.optim.RMSprop"),
    ),
    _of_update(
        "rmsprop-start",
        "RMSProp's mean square begins with",
        torch=Habit(("RMSprop",), "0"),
        paddle=Habit(("RMSProp",), "0"),
        mindspore=Habit(("RMSProp",), "1", "mindspore.experimental.optim.RMSprop"),
    ),
    _of_update(
        "rmsprop-decay",
        "RMSProp's decay is by default",
        _RHO,
        torch=Habit(("RMSprop",), "0.99", "alpha"),
        paddle=Habit(("RMSProp",), "0.95", "rho"),
        mindspore=Habit(("RMSProp",), "0.9", "decay"),
    ),
    _of_update(
        "adam-eps",
        "Adam's eps is",
        advice="take an eps so small that it does not show: in MindSpore it counts 1/√(1 − beta2^t) times as much",
        torch=Habit(("Adam",), "added to √v, corrected"),
        paddle=Habit(("Adam",), "added to √v, corrected"),
        mindspore=Habit(("Adam",), "added to √v, not corrected"),
    ),
    _of_update(
        "adamw-correction",
        "of AdamW's eps and bias correction:",
        torch=Habit(("AdamW",), "added to √v, corrected"),
        paddle=Habit(("AdamW",), "added to √v, corrected"),
        mindspore=Habit(("AdamWeightDecay",), "no correction of the moments", "mindspore.experimental.optim.AdamW"),
    ),
    _of_update(
        "adamw-decay",
        "AdamW's weight decay is by default",
        _DECAY,
        torch=Habit(("AdamW",), "0.01", "weight_decay"),
        paddle=Habit(("AdamW",), "0.01", "weight_decay"),
        mindspore=Habit(("AdamWeightDecay",), "0", "weight_decay"),
    ),
    _of_update(
        "adamw-eps",
        "AdamW's eps is by default",
        _EPS,
        torch=Habit(("AdamW",), "1e-08", "eps"),
        paddle=Habit(("AdamW",), "1e-08", "epsilon"),
        mindspore=Habit(("AdamWeightDecay",), "1e-06", "eps"),
    ),
    _of_update(
        "adagrad-start",
        "Adagrad's sum of squares begins by default with",
        ("initial_accumulator_value", "accum"),
        torch=Habit(("Adagrad",), "0", "initial_accumulator_value"),
        paddle=Habit(("Adagrad",), "0", "initial_accumulator_value"),
        mindspore=Habit(("Adagrad",), "0.1", "accum"),
    ),
    _of_update(
        "adagrad-eps",
        "Adagrad's eps is by default",
        _EPS,
        torch=Habit(("Adagrad",), "1e-10", "eps"),
        paddle=Habit(("Adagrad",), "1e-06", "epsilon"),
    ),
    _of_update(
        "adadelta-defaults",
        "Adadelta's defaults are",
        _RHO,
        torch=Habit(("Adadelta",), "rho 0.9, lr 1.0", "rho, lr"),
        paddle=Habit(("Adadelta",), "rho 0.95, lr 0.001", "rho, learning_rate"),
        mindspore=Habit(("Adadelta",), "rho 0.9, lr 1.0", "rho, learning_rate"),
    ),
    _of_update(
        "sgd-momentum",
        "momentum is",
        ("momentum",),
        torch=Habit(("SGD",), "an option of SGD, by default 0", "momentum"),
        paddle=Habit(("SGD", "Momentum"), "a class of its own, Momentum, by default 0.9", "Momentum(momentum=…)"),
        mindspore=Habit(("SGD", "Momentum"), "an option of SGD, by default 0", "momentum"),
    ),
    KnownDifference(
        "clipping",
        "gradients are clipped",
        {
            "torch": Habit(("*",), "before the step, by its own call", "clip_grad_norm_"),
            "paddle": Habit(("*",), "inside the step, by grad_clip", "grad_clip"),
        },
        _UPDATE,
        (Role.PARAM_GRAD,),
        is_of_optimizer=True,
    ),
    KnownDifference(
        "cleared-gradients",
        "clearing gradients leaves",
        {
            "torch": Habit(("*",), "None: the optimizer passes it over", "zero_grad(set_to_none=False)"),
            "paddle": Habit(("*",), "zeros: the optimizer goes on moving it", "clear_grad(set_to_zero=False)"),
        },
        (Phase.GRADIENT, Phase.UPDATE),
        is_one_sided=True,
        is_of_optimizer=True,
        first_step=1,
    ),
)
