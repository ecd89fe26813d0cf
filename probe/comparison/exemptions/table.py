"""The table of exemptions: what differs by more than rounding and is no fault, by code.

An event that one of them applies to is judged otherwise, or not at all; its code stands at the event
(`SlotResult.exemption`), and ``--why`` shows it.
"""

from __future__ import annotations

EXEMPTIONS = {
    "fixed-rule": "A rule of the user's leaves it out.",
    "needs-values": "A tolerance of the user's asks for values, and statistics were recorded.",
    "no-limit": "What it was computed from is so far off that its limit lets any tensor of that size pass.",
    "other-buffer": "A buffer that differed before the first step, or of a module whose calls are not compared; what uses it is judged.",
    "reordered-inside": "It stands inside a call in which elements have another order, or are split otherwise; what that call returns is judged.",
    "reordered": "Its elements stand in another order inside a call that returns the same, or as they were given to it.",
    "expert-routing": "What experts return that were chosen otherwise, as rounding may choose them.",
    "routed-tokens": "A few tokens that 16 bits may have routed otherwise.",
    "routed-gradients": "Gradients behind a routing that rounding decided otherwise, where the batch was split otherwise.",
    "label-inputs": "Integers that the model is given and hands to no module, usually labels, where nothing shows that they matter.",
    "moved-border": "An output that differs while every consumer agrees: the module does on one side what the code behind it does on the other.",
    "other-size": "Tensors of other sizes from which the same is computed: the same steps in another order.",
    "mask-inside": "A mask that one side alone has put into it; without values nothing else of it can be compared.",
    "residual-inside": "A residual that one side's module adds itself; the sum could not be compared.",
    "other-consumers": "A gradient that other code contributes to on the two sides: behind a mask, a residual inside, or a moved border.",
    "sum-of-parts": "A gradient whose parts were compared.",
    "reduced-over-ranks": "Gradients that one side adds up over ranks within backward and the other behind it; as used they agree.",
    "other-split": "Parameter gradients of another split of the batch, once the weights differ.",
}
"""by code: what is not judged, and why; where it is told by the table of refits, it is also judged by what is left"""

REFITS = {
    "padding": "Positions in padding are left out.",
    "moved-factor": "A factor is left out that the code behind the module makes up for.",
    "mask-inside": "What a mask hides is left out, where one side alone has put it in, or both by other numbers.",
    "moved-border": EXEMPTIONS["moved-border"],
    "residual-inside": "An input is taken for the sum of two, where one side's module adds them itself.",
}
"""what is tried, in this order, on a value of the forward pass that differs by more than its sources explain"""
