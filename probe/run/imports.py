"""Being told when a framework has been imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from probe.adapters.frameworks import FRAMEWORKS, Framework


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
        present = [each for each in FRAMEWORKS.values() if each.module in sys.modules]
        self._found = {each.module for each in present}
        sys.meta_path.insert(0, self)
        for each in present:
            imported(each.name)

    def remove(self) -> None:
        """Look at no import any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a framework as the other finders do; None for everything else."""
        framework = next((each for each in FRAMEWORKS.values() if each.module == name), None)
        if framework is None or name in self._found or self not in sys.meta_path:
            return None
        self._found.add(name)
        others = (each for each in list(sys.meta_path) if each is not self and hasattr(each, "find_spec"))
        spec = next((found for each in others if (found := each.find_spec(name, path, target)) is not None), None)
        if spec is not None and hasattr(spec.loader, "__dict__"):
            self._follow(spec.loader, framework)
        return spec

    def _follow(self, loader: object, framework: Framework) -> None:
        """Have a loader call back behind its next module; it is of this module alone, and as it was afterwards."""
        execute = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            try:
                execute(module)
            except BaseException:
                self._found.discard(framework.module)
                raise
            self._imported(framework.name)

        loader.exec_module = exec_module  # type: ignore[attr-defined]
