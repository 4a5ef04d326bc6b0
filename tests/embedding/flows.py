"""Small operators and instructions as dataflows, without TVM."""

from __future__ import annotations

import random
import re

from tvm_ext.embedding.dataflow import Access, Axis, Dataflow


def flow(formula: str, dtype: str = "int8", result: str = "int32", **extents: int) -> Dataflow:
    """Read ``C[n,o,h] += A[n,i,2*h+k] * B[o,i,k]``; an index that C lacks is summed over."""
    names = list(extents)
    operands = dict(re.findall(r"([ABC])\[([^\]]*)\]", formula))
    axes = tuple(Axis(name, extent, name not in re.findall(r"\w+", operands["C"])) for name, extent in extents.items())

    def access(tensor: str) -> Access:
        rows = []
        for term in operands[tensor].split(",") if operands[tensor] else ["0"]:
            steps = dict.fromkeys(names, 0)
            for part in term.split("+"):
                factor, _, name = part.strip().rpartition("*")
                if name != "0":
                    steps[name] += int(factor or 1)
            rows.append(tuple(steps.values()))
        shape = tuple(
            1 + sum(step * (extents[name] - 1) for name, step in zip(names, row, strict=True)) for row in rows
        )
        kind = result if tensor == "C" else dtype
        return Access(tensor, kind, shape, tuple(rows), (0,) * len(rows))

    return Dataflow("operator", axes, access("C"), (access("A"), access("B")))


OPERATORS = (
    "C[m,n] += A[m,k] * B[k,n]",
    "C[b,m,n] += A[b,m,k] * B[b,k,n]",
    "C[m] += A[m,k] * B[k]",
    "C[n,o,w] += A[n,i,w+k] * B[o,i,k]",
    "C[w,n,o] += A[2*w+k,n,i] * B[o,i,k]",
    "C[o,w] += A[i,w+2*k] * B[o,i,k]",
    "C[h,w] += A[h+k,w] * B[k]",
    "C[o,h,w] += A[h+k,w+l] * B[o,k,l]",
    "C[c,w] += A[c,w+k] * B[c,k]",
    "C[g,o,w] += A[g,i,w+k] * B[g,o,i,k]",
)
INSTRUCTIONS = (
    "C[x,y] += A[x,z] * B[y,z]",
    "C[x,y] += A[x,z] * B[z,y]",
    "C[x] += A[x,z] * B[z]",
    "C[x] += A[z] * B[x,z]",
    "C[] += A[z] * B[z]",
    "C[x] += A[x] * B[]",
    "C[x,y] += A[x] * B[y]",
    "C[x] += A[x] * B[x]",
    "C[x] += A[x,z] * B[x,z]",
    "C[x,y] += A[x,q,r] * B[q,y,r]",
)


def random_case(seed: int, most: int = 96) -> tuple[Dataflow, Dataflow]:
    """An operator of at most so many multiplications, and an instruction."""
    rng = random.Random(seed)

    def draw(formulas: tuple[str, ...], sizes: tuple[int, ...], limit: int) -> Dataflow:
        formula = rng.choice(formulas)
        names = sorted(set(re.findall(r"[a-z]", formula)))
        while True:
            found = flow(formula, **{name: rng.choice(sizes) for name in names})
            if found.macs <= limit:
                return found

    return draw(OPERATORS, (1, 2, 3, 4, 5, 6), most), draw(INSTRUCTIONS, (1, 2, 2, 4), 16)
