"""Being told when a framework has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

FRAMEWORKS = {"torch": "torch", "paddle": "paddle", "mindspore": "mindspore", "probe.adapters.numpy.nn": "numpy"}
"""the module whose import makes a framework complete, and the adapter's name"""


class Imports:
    """Calls back when a framework has been imported; it is there already where ``imported`` is called at once.

    There is no public hook for this. So a finder stands before the others, lets them find the module, and has its loader
    call back once; it touches no other import.

    Parameters
    ----------
    imported
        called with the framework's name; must raise nothing
    """

    def __init__(self, imported: Callable[[str], None]) -> None:
        self._imported = imported
        self._awaited = {name for name in FRAMEWORKS if name not in sys.modules}
        sys.meta_path.insert(0, self)
        for name in FRAMEWORKS.keys() - self._awaited:
            imported(FRAMEWORKS[name])

    def remove(self) -> None:
        """Look at no import any more."""
        self._awaited.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a framework as the other finders do; None for everything else."""
        if name not in self._awaited:
            return None
        self._awaited.discard(name)
        others = (each for each in list(sys.meta_path) if each is not self and hasattr(each, "find_spec"))
        spec = next((found for each in others if (found := each.find_spec(name, path, target)) is not None), None)
        if spec is not None and hasattr(spec.loader, "__dict__"):
            self._follow(spec.loader, name)
        return spec

    def _follow(self, loader: object, name: str) -> None:
        """Have a loader call back behind its next module; it is of this module alone, and as it was afterwards."""
        execute = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            try:
                execute(module)
            except BaseException:
                self._awaited.add(name)
                raise
            self._imported(FRAMEWORKS[name])

        loader.exec_module = exec_module  # type: ignore[attr-defined]
