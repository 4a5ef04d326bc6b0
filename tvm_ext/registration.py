"""Names that TVM learns from this package; called by ``import tvm_ext`` and by TVM's ``tvm.backends`` entry point.

Registration must stay cheap and import nothing heavy: it runs inside every ``import tvm``.
"""

from __future__ import annotations

from typing import Any

from tvm_ext import errors

# Target tags tvm-ext/vta-BATCHxBLOCKxBLOCK: programs for VTA are made and started by a CPU, so TVM sees an LLVM target.
# The first is what "vta" alone means.
VTA_SHAPES = ("1x16x16", "1x32x32", "2x16x16", "4x8x8", "8x8x8")
# Boards, whose tags are vta-BOARD as well; the version is that of the instruction set of the published bitstream.
VTA_BOARDS = ("pynq", "pynq-0.0.1", "ultra96", "ultra96-0.0.1", "zcu104", "de10nano", "de10nano-0.0.1")

# Hexagon DSPs with HVX, by the names LLVM has for them.
HEXAGON_PROCESSORS = ("v66", "v67", "v68", "v69", "v71", "v73", "v75")

# GPUs by NVIDIA that there are figures of (tvm_ext.schedules.cuda.machine), as tags nvidia/NAME.
CUDA_PRODUCTS = {
    "t4": "sm_75", "a100": "sm_80", "a10": "sm_86", "rtx-3090": "sm_86", "orin": "sm_87", "l4": "sm_89",
    "rtx-4090": "sm_89", "h100": "sm_90", "h200": "sm_90", "b200": "sm_100", "b300": "sm_103", "rtx-5090": "sm_120",
}  # fmt: skip


def _pipeline(**options: Any) -> Any:
    """Build the ``tvm_ext`` Relax pipeline; see :func:`tvm_ext.pipeline.tvm_ext_pipeline`."""
    from tvm_ext.pipeline import tvm_ext_pipeline

    return tvm_ext_pipeline(**options)


def register() -> None:
    """Register the ``tvm_ext`` pipeline, target tags and error classes; calling it again changes nothing."""
    import tvm_ffi
    from tvm import relax
    from tvm.target import register_tag

    if "tvm_ext" not in relax.pipeline.PIPELINE_MAP:
        relax.register_pipeline("tvm_ext")(_pipeline)
    for name in (*VTA_SHAPES, *VTA_BOARDS):
        config = {"kind": "llvm", "keys": ["vta", "cpu"], "device": "vta", "model": f"vta-{name}"}
        short = f"vta-{name}" if name in VTA_BOARDS else "vta" if name == VTA_SHAPES[0] else None
        for tag in filter(None, (f"tvm-ext/vta-{name}", short)):
            register_tag(tag, config, override=True)
    for version in HEXAGON_PROCESSORS:
        features = [f"+hvx{version}", "+hvx-length128b"]
        processor = {"mtriple": "hexagon", "mcpu": f"hexagon{version}", "mattr": features, "num-cores": 1}
        register_tag(f"hexagon-{version}", {"kind": "llvm", "keys": ["hexagon", "cpu"]} | processor, override=True)
    for name, arch in CUDA_PRODUCTS.items():
        register_tag(f"nvidia/{name}", {"kind": "cuda", "arch": arch, "model": name}, override=True)
    # A pass written in Python is called from C++, where an exception of a class it does not know becomes RuntimeError.
    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.TvmExtError | errors.TvmExtWarning):
            tvm_ffi.register_error(f"tvm_ext.{name}", value)
