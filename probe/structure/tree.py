"""The module tree of a recording: finding modules by relative path, with wrappers stepped over."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence

from probe.records import ModuleInfo

WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "DeepSpeedEngine": "module",
    "Float16Module": "module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "PipelineParallel": "_layers",
    "TensorParallel": "_layers",
    "ShardingParallel": "_layers",
    "BatchNorm3d": "bn2d",
}
"""classes that hold one model and add nothing to what it computes: the name of what they hold"""

_PADDLE_CHILD = "_layers"


class Tree:
    """Modules of one recording, by index, with their children by name.

    Parameters
    ----------
    modules
        as the recording lists them, parents before children; operations, which stand behind them, are none
    operations
        count them among the modules
    wrappers
        modules that hold one other and are wrappers too, though of no class of `WRAPPERS`
    """

    root = 0

    def __init__(
        self, modules: Sequence[ModuleInfo], wrappers: Collection[int] = (), *, operations: bool = False
    ) -> None:
        self._all = list(modules)
        self.modules = [module for module in modules if operations or not module.is_operation]
        self._wrappers = wrappers
        self.children: list[dict[str, int]] = [{} for _ in self._all]
        for index, module in enumerate(self.modules):
            if module.parent >= 0:
                self.children[module.parent][self.name(index)] = index

    def __len__(self) -> int:
        return len(self.modules)

    def name(self, index: int) -> str:
        """Return the last component of a module's path."""
        module = self.modules[index]
        parent = self.modules[module.parent].path if module.parent >= 0 else ""
        return module.path[len(parent) + 1 :] if parent else module.path

    def class_name(self, index: int) -> str:
        """Return the class of a module, or the function of an operation."""
        return self._all[index].class_name

    def parent(self, index: int) -> int:
        """Return the module around a module, −1 around a model; of an operation, the module that calls it."""
        return self._all[index].parent

    def path(self, index: int) -> str:
        """Return the qualified name of a module, or of an operation."""
        return self._all[index].path

    @functools.cached_property
    def by_path(self) -> dict[str, int]:
        """Index of every module by its path."""
        return {module.path: index for index, module in enumerate(self.modules)}

    @property
    def models(self) -> list[int]:
        """The models that were recorded, wrappers left out: of a list of models its members."""
        tops = [index for index, module in enumerate(self.modules) if module.parent < 0]
        if tops and self.class_name(self.root) == "list" and self.children[self.root]:
            tops[:1] = self.children[self.root].values()
        return list(dict.fromkeys(map(self.unwrapped, tops)))

    @property
    def model_names(self) -> tuple[str, ...]:
        """Their classes, each once."""
        return tuple(dict.fromkeys(map(self.class_name, self.models)))

    def steps_to(self, index: int) -> list[str]:
        """Return the names that lead from the root to a module."""
        names = []
        while self.modules[index].parent >= 0:
            names.append(self.name(index))
            index = self.modules[index].parent
        return names[::-1]

    def wrapped(self, index: int) -> str | None:
        """Return the name of what a wrapper holds, or None when the module is no wrapper."""
        class_name, children = self.class_name(index), self.children[index]
        if index in self._wrappers or class_name == "list" and index == self.root and len(children) == 1:
            return next(iter(children))
        name = WRAPPERS.get(class_name)
        if class_name == "DataParallel" and _PADDLE_CHILD in children:
            name = _PADDLE_CHILD
        return name if name in children else None

    def unwrapped(self, index: int) -> int:
        """Return the module inside all wrappers around it."""
        while (name := self.wrapped(index)) is not None:
            index = self.children[index][name]
        return index

    def child(self, index: int, name: str) -> int | None:
        """Return a child by name, looking through wrappers."""
        while name not in self.children[index]:
            inner = self.wrapped(index)
            if inner is None:
                return None
            index = self.children[index][inner]
        return self.children[index][name]

    def resolve(self, index: int, names: Sequence[str]) -> int | None:
        """Return the module at a relative path, looking through wrappers."""
        found: int | None = index
        for name in names:
            found = self.child(found, name)
            if found is None:
                return None
        return found

    def ancestors(self, index: int) -> Iterator[int]:
        """Yield the modules around one, the innermost first."""
        while (index := self.modules[index].parent) >= 0:
            yield index

    def parameter_name(self, module: int, slot: str) -> str:
        """Return the qualified name of a parameter."""
        path = self.path(module)
        return f"{path}.{slot}" if path else slot

    def subtree(self, index: int) -> Iterator[int]:
        """Yield a module and all below it, parents first."""
        yield index
        for child in self.children[index].values():
            yield from self.subtree(child)
