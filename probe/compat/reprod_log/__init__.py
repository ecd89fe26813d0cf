"""reprod_log 1.0.1 without its blind spots: change the import, keep the script, its files and its logs.

``from probe.compat.reprod_log import ReprodDiffHelper, ReprodLogger, compare``. Other than there, NaN never passes, shapes are neither
broadcast nor transposed, each method is judged by itself, integers do not wrap around, files cannot run code, and what checks
returns whether all passed.
"""

from probe.compat.reprod_log import compare
from probe.compat.reprod_log.files import ReprodDiffHelper, ReprodLogger

__all__ = ["ReprodDiffHelper", "ReprodLogger", "compare"]
