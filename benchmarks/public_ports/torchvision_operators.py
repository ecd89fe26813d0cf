"""Import this before torchvision.

PyPI has torchvision for CUDA alone; beside PyTorch for CPUs its compiled operators do not load, and registering their
shapes fails as torchvision is imported. The models here use none of them, so declaring the two names is enough.
"""

import torch

DECLARED = torch.library.Library("torchvision", "FRAGMENT")
"""kept: operators are gone with the library that declares them"""
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        DECLARED.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
