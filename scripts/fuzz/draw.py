"""Draws graphs with NNSmith: its operators and its search for graphs that fit together, with awkward sizes."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # NNSmith misses a package for drawings
    import z3
    from nnsmith.abstract.dtype import DTYPE_GEN_COMPLEX, DType
    from nnsmith.abstract.op import FULL_OPERATOR_SETS
    from nnsmith.abstract.tensor import AbsTensor
    from nnsmith.gir import GraphIR
    from nnsmith.graph_gen import SymbolicGen

    from scripts.fuzz import extra_operators  # noqa: F401  (its classes register themselves)

SIDES = (
    1,
    1,
    1,
    2,
    2,
    3,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    13,
    15,
    16,
    17,
    24,
    30,
    31,
    32,
    33,
    34,
    56,
    63,
    64,
    65,
    127,
    128,
    200,
)
"""Sizes that are tried for each symbol of a graph; mostly those around the widths of vectors."""

ATTRIBUTES = (1, 1, 1, 2, 2, 3, 3, 3, 4, 5, 7, 8, 16, 17, 30, 33, 64)
"""The same for attributes of operators: strides, kernels, channels."""

EFFORT = 300_000
"""Steps of the solver for one question (counted work, so that a seed gives the same graph on a busy machine)."""

OFTEN = ("NCHWConv2d", "Product", "Dense", "BatchNorm2d", "Add", "Mul", "ReLU", "Softmax", "ReduceMean", "Conv1d")
"""Operators that models are made of; each is as likely as three others."""

DTYPES = (DType.float32, DType.float64, DType.int32, DType.int64, DType.bool)
RARE_DTYPES = (*DTYPES, DType.float16, DType.int8, DType.uint8)


class SizedGenerator(SymbolicGen):
    """NNSmith's generator; what is left open when the graph stands gets sizes from :data:`SIDES`.

    The solver by itself answers with ones and with numbers that no model has.
    """

    def __init__(self, opset: list[type], seed: int, *, sides: tuple[int, ...], **kwargs: Any) -> None:
        super().__init__(opset, seed, **kwargs)
        self.solver.set("rlimit", EFFORT)
        self.sides = sides

    def make_concrete(self) -> GraphIR:
        """Choose a value for every symbol, in random order, each time one that the rest still has a solution for."""
        symbols = sorted(
            {symbol for expression in self.solver.assertions() for symbol in _symbols(expression)}, key=str
        )
        random.shuffle(symbols)
        for symbol in symbols:
            for value in random.sample(ATTRIBUTES if str(symbol).startswith("op") else self.sides, 3):
                self.solver.push()
                self.solver.add(symbol == value)
                if self.check_sat() == z3.sat:
                    break
                self.solver.pop()
        return super().make_concrete()


def _symbols(expression: Any) -> Iterator[Any]:
    if z3.is_const(expression):
        if expression.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            yield expression
        return
    for child in expression.children():
        yield from _symbols(child)


@contextlib.contextmanager
def _zero_sizes(allowed: bool) -> Iterator[None]:
    """Let tensors be empty while a graph is drawn; NNSmith by itself wants at least one element everywhere."""
    kept = AbsTensor.gt_zero, AbsTensor.sym_gt_conc_ge_zero
    if allowed:
        AbsTensor.gt_zero = AbsTensor.sym_gt_conc_ge_zero = AbsTensor.ge_zero
    try:
        yield
    finally:
        AbsTensor.gt_zero, AbsTensor.sym_gt_conc_ge_zero = kept


def draw_graph(seed: int) -> GraphIR:
    """Draw a concrete graph.

    Raises
    ------
    Exception
        Whatever NNSmith raises where its search leads nowhere; the seed has no graph then.
    """
    choice = random.Random(seed)
    empty = choice.random() < 0.03
    opset = [operator for name in ("core", "fuzz") for operator in FULL_OPERATOR_SETS[name]]
    for operator in opset:  # ONNX has complex numbers, but no operators for them
        for field in ("in_dtypes", "out_dtypes"):
            kept = [types for types in getattr(operator, field) if not set(types) & set(DTYPE_GEN_COMPLEX)]
            setattr(operator, field, kept)
    opset += [operator for operator in opset for _ in range(2) if operator.__name__ in OFTEN]
    if choice.random() < 0.5:  # a few kinds of operators, so that long chains of them come about
        names = {operator.__name__ for operator in choice.sample(opset, 12)}
        opset = [operator for operator in opset if operator.__name__ in names]
    with _zero_sizes(empty):
        generator = SizedGenerator(
            opset,
            seed,
            sides=(0, *SIDES) if empty else SIDES,
            init_fp=choice.random() < 0.8,
            forward_prob=choice.choice((0.5, 0.7, 0.9)),
            rank_choices=choice.choice(((4,), (4,), (3,), (2,), (0, 1, 2, 3, 4, 5))),
            dtype_choices=choice.choice(((DType.float32,), (DType.float32,), DTYPES, RARE_DTYPES)),
            max_elem_per_tensor=2**15,
        )
        generator.abstract_gen(max_node_size=choice.choice((2, 3, 4, 5, 6, 8, 10, 14)), max_gen_millisec=20_000)
        return generator.make_concrete()
