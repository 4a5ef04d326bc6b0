"""Puts an embedded operator in the place of a multiply-accumulate in a kernel of several blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlock

from tvm_ext.errors import EmbeddingError
from tvm_ext.relax_utils import substitute


@dataclass(frozen=True)
class Stage:
    """A block at the top of a kernel.

    Attributes
    ----------
    statement : Stmt
        Its loops.
    name : str
    reads, writes : tuple of Var
        Buffers.
    """

    statement: Any
    name: str
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]


@dataclass(frozen=True)
class Stages:
    """A kernel as the blocks at its top, in order.

    Attributes
    ----------
    params : tuple of Var
        Buffers of its parameters.
    buffers : tuple of Var
        What it allocates.
    stages : tuple of Stage
    """

    params: tuple[Any, ...]
    buffers: tuple[Any, ...]
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> Stages:
        """Take a kernel apart.

        Raises
        ------
        EmbeddingError
            If it is not made of blocks one behind the other.
        """
        if not isinstance(func.body, s_tir.SBlockRealize):
            raise EmbeddingError("the kernel is not made of blocks")
        root = func.body.block
        body = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
        return cls(tuple(func.params), tuple(root.alloc_buffers), tuple(map(_stage, body)))

    def place(self, block: str) -> int:
        """Place of a stage by its name."""
        return next(at for at, stage in enumerate(self.stages) if stage.name == block)

    def before(self, buffer: Any) -> list[int]:
        """Stages that a buffer is computed by, in order."""
        wanted, found = [buffer], []
        for at in reversed(range(len(self.stages))):
            stage = self.stages[at]
            if any(_has(wanted, written) for written in stage.writes):
                found.append(at)
                wanted += stage.reads
        return found[::-1]

    def sources(self, buffer: Any) -> list[int]:
        """Parameters that a buffer is computed from, by number."""
        reads = [buffer, *(read for at in self.before(buffer) for read in self.stages[at].reads)]
        return [number for number, param in enumerate(self.params) if _has(reads, param)]

    def function(
        self, stages: Sequence[Stage], params: Sequence[Any], buffers: Sequence[Any] = (), attrs: Any = None
    ) -> tirx.PrimFunc:
        """Make a kernel of stages; of the buffers those that are used are allocated."""
        used = [buffer for stage in stages for buffer in (*stage.reads, *stage.writes)]
        kept = [buffer for buffer in (*self.buffers, *buffers) if _has(used, buffer) and not _has(params, buffer)]
        statements = [stage.statement for stage in stages]
        body = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
        root = SBlock([], [], [], "root", body, alloc_buffers=kept)
        return tirx.PrimFunc(list(params), s_tir.SBlockRealize([], True, root), attrs=attrs)

    def onto(self, buffers: Sequence[Any]) -> Stages:
        """Put other buffers in the place of the parameters."""
        values = dict(zip(self.params, buffers, strict=True))

        def mapped(items: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(next((new for old, new in values.items() if old.same_as(item)), item) for item in items)

        stages = tuple(
            Stage(substitute(stage.statement, values), stage.name, mapped(stage.reads), mapped(stage.writes))
            for stage in self.stages
        )
        return Stages(tuple(buffers), self.buffers, stages)


def _stage(statement: Any) -> Stage:
    found: list[Any] = []

    def note(block: Any) -> None:
        found.append(block)

    tvm_ffi.structural_walk(statement, [(SBlock, note)])
    if len(found) != 1:
        raise EmbeddingError("a statement of the kernel is no single block")
    (block,) = found
    reads = tuple(region.source for region in block.reads)
    return Stage(statement, str(block.name_hint), reads, tuple(region.source for region in block.writes))


def _has(items: Sequence[Any], wanted: Any) -> bool:
    return any(item.same_as(wanted) for item in items)
