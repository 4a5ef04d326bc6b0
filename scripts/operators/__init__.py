"""The cases of ``scripts/bench_operators.py``, by family."""

from __future__ import annotations

from scripts.operators.case import Case
from scripts.operators.convolutions import CONVOLUTIONS, POOLING
from scripts.operators.elementwise import ELEMENTWISE
from scripts.operators.moves import IMAGES, INDEXED, MOVES
from scripts.operators.products import PRODUCTS, SEQUENCES
from scripts.operators.quantized import QUANTIZED
from scripts.operators.reductions import NORMS, REDUCTIONS

FAMILIES: dict[str, tuple[Case, ...]] = {
    "convolution": CONVOLUTIONS,
    "pooling": POOLING,
    "product": PRODUCTS,
    "sequence": SEQUENCES,
    "element-wise": ELEMENTWISE,
    "reduction": REDUCTIONS,
    "norm": NORMS,
    "move": MOVES,
    "index": INDEXED,
    "image": IMAGES,
    "8-bit": QUANTIZED,
}
