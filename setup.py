"""The packages, and the compiled loop (probe/numbers/kernel); everything else about the distribution stands in setup.cfg.

Every folder below ``probe/`` is a package, and ``layer_mappings/`` is installed as ``probe.layer_mappings``: setup.cfg can say
one of the two only.
The loop is optional: without a C compiler the package installs all the same, and adapters use their framework's operations.
"""

import sysconfig

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

setup(
    packages=[*find_packages(include=["probe", "probe.*"]), "probe.layer_mappings"],
    ext_modules=[KERNEL],
    options={"bdist_wheel": {"py_limited_api": "cp311"} if STABLE else {}},
)
