"""The packages, the long description and the compiled loop (probe/numbers/kernel); setup.cfg has everything else of the distribution.

Every folder below ``probe/`` is a package, and ``layer_mappings/`` is installed as ``probe.layer_mappings``: setup.cfg can say
one of the two only.
The loop is optional: without a C compiler the package installs all the same, and adapters use their framework's operations.
The long description is README.md without pictures and links to files of the repository, which a package index does not have.
"""

import re
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

# Python's stable ABI; builds without the global interpreter lock do not have it yet
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

KERNEL = Extension(
    "probe.numbers.kernel._kernel",
    ["probe/numbers/kernel/kernel.c"],
    depends=[
        f"probe/numbers/kernel/{name}.h"
        for name in ("passes", "rows", "careful", "packing", "pieces", "pairs", "pair_loop", "hash")
    ],
    extra_compile_args=["-O3", "-Wno-psabi"],
    py_limited_api=STABLE,
    optional=True,
)

README = re.sub(r"!\[[^\]]*\]\([^)]*\)\n+", "", Path(__file__).with_name("README.md").read_text(encoding="utf-8"))

setup(
    long_description=re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", README),
    packages=[*find_packages(include=["probe", "probe.*"]), "probe.layer_mappings"],
    ext_modules=[KERNEL],
    options={"bdist_wheel": {"py_limited_api": "cp311"} if STABLE else {}},
)
