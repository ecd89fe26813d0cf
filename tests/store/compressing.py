"""Compressions, and what tests of them need: the core runs without hdf5plugin on the oldest numpy."""

from __future__ import annotations

import importlib.util

import pytest

from probe.config import Compression

NEEDS = pytest.mark.skipif(importlib.util.find_spec("hdf5plugin") is None, reason="hdf5plugin is not installed")
COMPRESSIONS = [pytest.param(each, marks=NEEDS, id=each.value) for each in Compression]
