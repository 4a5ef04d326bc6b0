"""Annotations of blocks that tell the schedule rules what a block computes, and in which form."""

from __future__ import annotations

KERNEL_ATTRIBUTE = "tvm_ext.kernel"
"""What a block computes."""

OUT_AXES_ATTRIBUTE = "tvm_ext.out_axes"
"""Annotation of a matmul block: for each axis of the stored result, which logical axis it is."""

TILE_ATTRIBUTE = "tvm_ext.tile"
"""Annotation of a matmul block: rows and chunks of columns of the register tile it was rounded up to."""

BATCH_AXES_ATTRIBUTE = "tvm_ext.batch_axes"
"""Annotation of a matmul block: how many of the first logical axes are batch axes; the others but the last are rows."""

USED_ATTRIBUTE = "tvm_ext.used"
"""Annotation of a product by Strassen's algorithm: rows that belong together, as the tokens of a text do, and columns.
More may be computed, which fill up groups."""

PARTS_ATTRIBUTE = "tvm_ext.parts"
"""Annotation of the convolutions of an inverted residual: into how many parts the channels between them are divided; of
a Winograd convolution by strips: into how many those of its result are."""

SHARES_ATTRIBUTE = "tvm_ext.shares"
"""Annotation of a Winograd convolution by strips: whether all threads work on one strip, whose tiles they share."""

OPERAND_ATTRIBUTE = "tvm_ext.operand"
"""Annotation of an attention block: the type that operands of its products are rounded to."""

RECURRENT_ATTRIBUTE = "tvm_ext.recurrent_product"
"""Annotation of a loop over the state of a recurrent layer: around sequences, gates (if several) and a vector."""

ABSENT_TAPS_ATTRIBUTE = "tvm_ext.absent_taps"
"""Annotation of a transposed convolution: for each axis, the places of windows that hold no tap: phase, place, ..."""
