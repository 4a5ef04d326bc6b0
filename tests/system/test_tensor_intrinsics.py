"""Tensor intrinsics that are imported, and those that are not."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_only_what_is_named_is_imported() -> None:
    script = textwrap.dedent(
        """
        import sys

        from tvm_ext.system.tensor_intrinsics import PACKAGE, only_tensor_intrinsics
        from tvm.s_tir import TensorIntrin

        with only_tensor_intrinsics("x86"):
            import tvm.s_tir.tensor_intrin
        assert PACKAGE not in sys.modules
        assert f"{PACKAGE}.x86" in sys.modules
        assert f"{PACKAGE}.cuda" not in sys.modules
        assert not hasattr(tvm.s_tir, "tensor_intrin")
        assert TensorIntrin.get("dot_16x4_vnni") is not None
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
