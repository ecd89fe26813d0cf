"""The table of settings: data, and nothing else. `docs/reference/settings.md` is made from it."""

from __future__ import annotations

from probe.settings.setting import Setting
from probe.settings.table.environment import ENVIRONMENT
from probe.settings.table.moe import MOE
from probe.settings.table.optimizer import OPTIMIZER
from probe.settings.table.structure import STRUCTURE
from probe.settings.table.training import TRAINING

TABLE: tuple[Setting, ...] = (*STRUCTURE, *MOE, *OPTIMIZER, *TRAINING, *ENVIRONMENT)
"""what is likelier to explain a difference stands first"""
BY_NAME: dict[str, Setting] = {row.name: row for row in TABLE}
