"""``python -m probe.replaying.two_models.worker < JOB``: record a model that is named, for `probe.replaying.two_models.elsewhere`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from probe.replaying.factories import function_of, model_of
from probe.replaying.prepared import verbs_for
from probe.replaying.two_models.training import Training, record


def main() -> None:
    """Do the job that stands on standard input."""
    job: dict[str, Any] = json.load(sys.stdin)
    model, own = model_of(job["model"])
    micros = [{**own, **plain, **dict(np.load(name))} for name, plain in job["micros"]] or [own]
    loss = None if job["loss"] is None else function_of(job["loss"])
    update = None if job["update"] is None else function_of(job["update"])(model)
    training = Training(model, micros, loss, update, job["steps"], job["backward"])
    begun = None if job["begun"] is None else Path(job["begun"])
    record(training, verbs_for(model, "probe.auto_diff()"), Path(job["path"]), job["modules"], begun)


if __name__ == "__main__":
    main()
