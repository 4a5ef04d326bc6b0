"""What builders and runners give, TVM's or ours, as tuners hear it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_ext.tuners.measurement import ErrorKind


def error_kind(message: str) -> ErrorKind | None:
    """Tell from a message of a builder or runner, TVM's or ours, why a candidate has no time; None if it is unclear.

    A candidate that is stopped may be slow, or the machine busy: that says nothing of whether it works.
    """
    if "took longer than" in message or "Timeout" in message:
        return ErrorKind.TIMEOUT
    return ErrorKind.BUILD if message.startswith(("compiling ", "LocalBuilder")) else None


def median_seconds(seconds: Any) -> float | None:
    """Median of times; None when there are none, or they are no times (1e10 marks failures in a database)."""
    values = [float(value) for value in seconds or ()]
    median = float(np.median(values)) if values else None
    return None if median is None or not 0 < median < 1e9 else median
