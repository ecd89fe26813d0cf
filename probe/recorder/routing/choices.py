"""What the routers of a recording chose, and which modules of a model are their counterparts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import ConfigError
from probe.numbers.choices import as_indices, is_choice
from probe.recorder.run import Run
from probe.records import ModuleInfo, Phase, Role
from probe.store.reading.reader import Reader

Router = tuple[int, Role]
"""a module of the other recording that chooses, and whether it returns what it chose or hands it to one inside it"""


class Choices:
    """What the routers of a recording chose."""

    def __init__(self, path: Path) -> None:
        self.reader = Reader(path)
        try:
            self.reader.require_steps()
            self.routers = self._routers()
            self._step, self._tensors = -1, dict[tuple[int, Role, int, int], int]()
        except BaseException:
            self.reader.close()
            raise

    def of(self, step: int, micro: int, number: int, router: Router) -> np.ndarray | None:
        """Return what a router chose in a call, [tokens, k]; None if that is not there."""
        if step != self._step:
            self._step, self._tensors = step, self._tensors_of(step)
        tensor = self._tensors.get((*router, micro, number))
        return None if tensor is None else as_indices(self.reader.values(tensor))

    def _tensors_of(self, step: int) -> dict[tuple[int, Role, int, int], int]:
        """Return the stored choices of a step, by router, pass and call."""
        rows = self.reader.of_step("records", step)
        rows = rows[np.isin(rows["module"], [module for module, _ in self.routers]) & (rows["phase"] == Phase.FORWARD)]
        chosen = [row for row in rows if row["tensor"] >= 0 and is_choice(row, rows, self.reader.shapes)]
        return {(row["module"], Role(row["role"]), row["micro"], row["call"]): int(row["tensor"]) for row in chosen}

    def _routers(self) -> list[Router]:
        """Return the modules that return choices; if none does, those that are given them."""
        reader = self.reader
        rows = reader.of_step("records", int(reader.steps["step"][0]))
        rows = rows[(rows["phase"] == Phase.FORWARD) & np.isin(rows["role"], (Role.OUTPUT, Role.INPUT))]
        for role in (Role.OUTPUT, Role.INPUT):
            of_role = rows[rows["role"] == role]
            found = of_role[[is_choice(each, of_role, reader.shapes) for each in of_role]] if len(of_role) else of_role
            if len(found) and (found["tensor"] >= 0).any():
                return [(int(module), role) for module in np.unique(found["module"][found["tensor"] >= 0])]
            if len(found):
                path = reader.modules[int(found["module"][0])].path
                raise ConfigError(
                    f"{reader.path} has no values of what its routers chose, such as of {path}: "
                    f"record it with task='tensor' (--task tensor), or values of these alone with tensors={['*.' + path.rpartition('.')[2]]}"
                )
        raise ConfigError(
            f"{reader.path} has no choices of experts: no module returns, or is given, indices beside weights of the "
            "same shape"
        )

    def paired(self, run: Run) -> dict[int, Router]:
        """Return the counterparts of routers in models: of equal names, or as many with weights of the same shape.

        Raises ConfigError where there are none.
        """
        by_path = {info.path: index for index, info in enumerate(run.modules)}
        named = [(by_path.get(self._router(each).path), each) for each in self.routers]
        found = {mine: router for mine, router in named if mine is not None}
        if len(found) == len(self.routers):
            return found
        shapes = [_matrix(self.reader.parameters, module) for module, _ in self.routers]
        mine = [
            index for index in range(len(run.modules)) if (shape := _matrix(run.parameters, index)) and shape in shapes
        ]
        if [_matrix(run.parameters, index) for index in mine] == shapes:
            return dict(zip(mine, self.routers, strict=True))
        missing = next(self._router(each).path for at, each in named if at is None)
        known = ", ".join(run.modules[each].path for each in mine[:3]) or run.modules[0].class_name
        raise ConfigError(
            f"routing: router {missing} of {self.reader.path.name} has no counterpart: {len(self.routers)} routers there, "
            f"{len(mine)} modules with weights of their shapes here ({known})"
        )

    def _router(self, router: Router) -> ModuleInfo:
        """Return the module whose code chooses: around one that is given what is chosen."""
        info = self.reader.modules[router[0]]
        return info if router[1] is Role.OUTPUT else self.reader.modules[info.parent]


def _matrix(parameters: Sequence[Any], module: int) -> tuple[int, ...]:
    """Return the sizes of a module's own matrix, in whatever order it lies; ``()`` if it has none."""
    own = [tuple(sorted(each.shape)) for each in parameters if each.module == module and len(each.shape) == 2]
    return own[0] if len(own) == 1 else ()
