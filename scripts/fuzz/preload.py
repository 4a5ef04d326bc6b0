"""What every worker needs, imported once by the process that they are forked from."""

from __future__ import annotations

import contextlib
import warnings

import onnxruntime.quantization  # noqa: F401

import scripts.fuzz.seeds
import tvm_ext.compiler  # noqa: F401

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")
    import scripts.fuzz.emit  # noqa: F401
