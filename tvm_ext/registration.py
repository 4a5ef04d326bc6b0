"""Names that TVM learns from this package; called by ``import tvm_ext`` and by TVM's ``tvm.backends`` entry point.

Registration must stay cheap and import nothing heavy: it runs inside every ``import tvm``.
"""

from __future__ import annotations

from typing import Any


def _pipeline(**options: Any) -> Any:
    """Build the ``tvm_ext`` Relax pipeline; see :func:`tvm_ext.pipeline.tvm_ext_pipeline`."""
    from tvm_ext.pipeline import tvm_ext_pipeline

    return tvm_ext_pipeline(**options)


def register() -> None:
    """Register the ``tvm_ext`` pipeline; calling it again does nothing."""
    from tvm import relax

    if "tvm_ext" not in relax.pipeline.PIPELINE_MAP:
        relax.register_pipeline("tvm_ext")(_pipeline)
