"""The table of contents of a compilation: the phases of the pipeline, in order.

What a phase does for a target is up to the target's :class:`~tvm_ext.backends.backend.Backend`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A named step of the pipeline, which the option ``disable`` can leave out.

    Attributes
    ----------
    name : str
    summary : str
        What happens in it.
    where : tuple of str
        Files and folders of the repository that do it; none: passes of TVM alone.
    """

    name: str
    summary: str
    where: tuple[str, ...] = ()


PHASES: tuple[Phase, ...] = (
    Phase(
        "partition",
        "layers that an accelerator beside the CPU runs faster become programs for it, in integers (VTA; calibration "
        "option)",
        ("tvm_ext/backends/vta/model",),
    ),
    Phase(
        "canonicalize",
        "inference form: what is done image by image of an open batch becomes a function for one, quantised operators "
        "become integer arithmetic, products keep weights of few bits, batch norm and constants are folded, the "
        "forms that PyTorch exports become those that kernels are known for (products with batches and heads as axes, "
        "linear layers with what follows them, norms by the root mean square as one operator, masks of shifted "
        "windows), arithmetic is rewritten (rewrite option)",
        ("tvm_ext/shapes", "tvm_ext/quantized", "tvm_ext/passes", "tvm_ext/algebra"),
    ),
    Phase("dispatch", "sampling, sort and scan handed to library kernels"),
    Phase(
        "rewrite",
        "stages of a network run strip by strip and slices of convolutions by themselves (patches option), and "
        "concatenations are taken apart (memory option) where that lowers the peak of memory",
        ("tvm_ext/memory/patches.py", "tvm_ext/memory/relax/rewriting.py"),
    ),
    Phase(
        "layout",
        "convolution chains in the blocked layout NCHW{v}c, weights of convolutions and products packed (CPU)",
        ("tvm_ext/layout",),
    ),
    Phase(
        "legalize",
        "every operator becomes a call of a TIR kernel; concatenations of more than 50 tensors are joined in groups",
        (
            "tvm_ext/passes/wide_concatenations.py",
            "tvm_ext/passes/bounded_indices.py",
            "tvm_ext/passes/named_extents.py",
        ),
    ),
    Phase(
        "fuse",
        "kernels merged with their neighbours: TVM's patterns, or mapping types (fuse option); on a CPU, expansion, "
        "depthwise convolution and projection become one kernel, and so do a convolution and its pooling, and squeeze "
        "and excitation (inverted_residuals option); what precedes a convolution is computed while its input is copied "
        "(prologues option)",
        ("tvm_ext/fusion", "tvm_ext/passes/limit_recomputation.py"),
    ),
    Phase(
        "schedule",
        "tuned schedules from a MetaSchedule database (work_dir option, or the current one), then schedule rules; "
        "quotients of indices that TVM's affine analysis gets wrong are written forwards, or hidden from it",
        (
            "tvm_ext/database",
            "schedules/rule.py",
            "schedules/kernel",
            "schedules/cpu",
            "tvm_ext/passes/forward_indices.py",
            "tvm_ext/passes/hidden_quotients.py",
        ),
    ),
    Phase(
        "order",
        "kernels in the order that needs least memory, in place where they may (memory option)",
        ("tvm_ext/memory/relax/order.py",),
    ),
    Phase(
        "lower",
        "destination-passing calls, explicit allocation; loops over the images of an open batch",
        ("tvm_ext/shapes/batch_loop.py", "tvm_ext/memory/relax/image_segments.py"),
    ),
    Phase(
        "memory",
        "one storage with planned offsets, or storages shared between tensors that never live at once (memory option)",
        ("tvm_ext/memory/relax/arena.py",),
    ),
    Phase(
        "vectorize",
        "marked loops and transcendental functions become vector code, with masked remainders; open kernels with "
        "little to do stay in one thread; denormal numbers are flushed, NaN stays NaN in maxima and minima (CPU)",
        (
            "tvm_ext/passes/vector_code.py",
            "tvm_ext/passes/tile_state.py",
            "tvm_ext/passes/small_work.py",
            "tvm_ext/passes/flush_denormals.py",
            "tvm_ext/passes/lone_lanes.py",
            "schedules/simd",
        ),
    ),
    Phase("finalize", "virtual machine instructions"),
)
