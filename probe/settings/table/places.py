"""Where settings show: classes of modules, phases, roles, hints."""

from __future__ import annotations

from probe.settings.setting import Place

_VALUES = ("output", "value", "input")
_ATTENTIONS = ("*attention*", "*attn*", "*mha*", "*mla*")
_MLPS = (
    "*mlp*",
    "*feedforward*",
    "*feed_forward*",
    "*ffn*",
    "*act*",
    "*silu*",
    "*gelu*",
    "*swiglu*",
    "*glu*",
    "*expert*",
)

NORM = Place(("*norm*",), ("forward",), _VALUES, hints=("eps", "eps outside the root"))
NORM_KIND = Place(("*norm*",), hints=("norm statistics", "norm weight", "norm bias", "unbiased variance"))
ACTIVATION = Place(_MLPS, ("forward",), _VALUES, hints=("activation", "gate and up"))
ROTARY = Place(
    ("*rotary*", "*rope*", *_ATTENTIONS), ("forward",), _VALUES, hints=("rotary", "rotary embeddings in attention")
)
ATTENTION = Place(_ATTENTIONS, ("forward", "backward"))
HEADS = Place((*_ATTENTIONS, "*linear*", "*dense*"), hints=("key and value groups", "some heads"))
SCALE = Place(_ATTENTIONS, ("forward",), _VALUES, hints=("attention scale",))
WINDOW = Place(
    (*_ATTENTIONS, "*mask*"), ("forward",), _VALUES, hints=("causal mask", "grows with position", "from a position on")
)
DROPOUT = Place(("*dropout*",), hints=("dropout",))
DROPOUT_IN_ATTENTION = Place(("*dropout*", *_ATTENTIONS), ("forward",), hints=("dropout",))
EMBEDDING = Place(("*embed*",), ("forward",))
POSITIONS = Place(("*embed*", "*position*", *_ATTENTIONS), ("forward",))
TIED = Place(("*embed*", "*linear*", "*lm_head*", "*head*"), ("init", "gradient", "update"))
VOCABULARY = Place(("*embed*", "*linear*", "*head*"), kinds=("shape",))
SIZES = Place(kinds=("shape", "missing"))
LAYERS = Place(kinds=("missing",))
BIASES = Place(kinds=("missing", "shape"), hints=("bias", "same vector in every row"))
QKV_BIASES = Place(_ATTENTIONS, ("forward",), _VALUES)
RESIDUAL = Place(("*layer*", "*block*"), ("forward",), _VALUES, hints=("residual",))
ROUTER = Place(("*router*", "*gate*", "*moe*", "*sparsemlp*", "*sparse*"), ("forward", "backward"))
EXPERTS = Place(("*moe*", "*expert*", "*sparse*", "*mlp*"))
LOSS = Place(phases=("loss",))
LABELS = Place(phases=("loss",), hints=("label smoothing",))
SCALED_GRADIENTS = Place(
    phases=("loss", "gradient", "backward"),
    hints=("loss times a count", "loss reduction", "gradient divided by a count"),
)
CLIPPING = Place(phases=("update",), hints=("clipping", "scale of a used gradient"))
UPDATE = Place(phases=("update",), hints=("learning rate",))
DECAY = Place(phases=("update",), hints=("weight decay",))
INITIAL = Place(phases=("init",), hints=("drawn anew", "weight scale"))
DTYPES = Place(kinds=("dtype",), hints=("dtype", "rounded", "low precision product"))
NORM_DTYPE = Place(("*norm*",), hints=("dtype", "rounded"))
SOFTMAX_DTYPE = Place((*_ATTENTIONS, "*softmax*"), hints=("rounded",))
PRODUCTS = Place(
    ("*linear*", "*dense*", "*conv*", *_ATTENTIONS, *_MLPS),
    ("forward", "backward", "gradient"),
    hints=("low precision product",),
)
IDS = Place(kinds=("inputs",), hints=("one value for another", "some ids"))
MASKS = Place(_ATTENTIONS, ("forward",), hints=("padding", "causal mask"))
