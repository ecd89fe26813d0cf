"""The compiled loop (probe/kernel); everything else about the package stands in setup.cfg.

It is optional: without a C compiler the package installs all the same, and adapters use their framework's operations.
"""

import sysconfig

from setuptools import Extension, setup

# Python's stable ABI; builds without the global interpreter lock do not have it yet
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

KERNEL = Extension(
    "probe.kernel._kernel",
    ["probe/kernel/kernel.c"],
    depends=["probe/kernel/passes.h", "probe/kernel/rows.h"],
    extra_compile_args=["-O3", "-Wno-psabi"],
    py_limited_api=STABLE,
    optional=True,
)

setup(ext_modules=[KERNEL], options={"bdist_wheel": {"py_limited_api": "cp311"} if STABLE else {}})
