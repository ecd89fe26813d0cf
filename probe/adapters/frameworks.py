"""The frameworks that probe knows, and where their adapters are. None is imported here."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Framework:
    """One framework, and the package of its adapter."""

    name: str
    module: str
    """whose import makes the framework complete"""
    base: str
    """the base class of its modules, ``module:class``"""
    package: str
    """has the modules ``adapter``, ``replaying`` and ``seeding``"""
    stem: str
    """how the classes in them begin: ``TorchAdapter``, ``TorchReplaying``"""

    def is_in_use(self) -> bool:
        """Return True if the program has imported it."""
        return self.base.partition(":")[0] in sys.modules

    def is_of(self, model: object) -> bool:
        """Return True if an object is a module of this framework."""
        module, _, name = self.base.partition(":")
        return module in sys.modules and isinstance(model, getattr(sys.modules[module], name))

    def part(self, name: str) -> ModuleType:
        """Import a module of the adapter's package."""
        return importlib.import_module(f"{self.package}.{name}")

    def part_class(self, name: str) -> Any:
        """Import the class that a module of the adapter's package is for."""
        return getattr(self.part(name), f"{self.stem}{name.title()}")


_KNOWN = (
    Framework("torch", "torch", "torch.nn.modules.module:Module", "probe.adapters.torch", "Torch"),
    Framework("paddle", "paddle", "paddle.nn.layer.layers:Layer", "probe.adapters.paddle", "Paddle"),
    Framework("mindspore", "mindspore", "mindspore.nn.cell:Cell", "probe.adapters.mindspore", "MindSpore"),
)
FRAMEWORKS = {each.name: each for each in _KNOWN}


def register(framework: Framework) -> None:
    """Let probe know one more framework."""
    FRAMEWORKS[framework.name] = framework
