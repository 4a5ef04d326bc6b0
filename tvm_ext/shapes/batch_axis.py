"""Which tensors hold a batch of independent images, and the proof that a kernel treats every image by itself.

A tensor whose shape has one dimension ``c * n`` (``n`` being the open batch, ``c`` a number) holds ``n`` images of
``c`` rows each along that axis; one without ``n`` belongs to all images. A kernel is *image-wise* when row ``r`` of
image ``i`` of what it writes depends on image ``i`` of what it reads and on nothing else that tells images apart. It
then computes for ``n`` images what it computes for one, ``n`` times.

The proof is on the body of the unscheduled kernel: in each block the one loop of ``c * n`` iterations is written as
``i * c + r``; every access along the axis of images has to be ``i * d + e`` with ``0 <= e < d``, and once ``i * d`` is
taken away from those accesses neither ``i`` nor ``n`` may be left anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.prim import expr as prim

from tvm_ext.relax_utils import substitute

_PURE = 2
"""Calls of operators with an effect above it (``TCallEffectKind``) write memory or are not known."""


class MixedImagesError(Exception):
    """A tensor or kernel cannot be divided into images; the text says why."""


@dataclass(frozen=True)
class Images:
    """Where a tensor has its images.

    Attributes
    ----------
    axis : int
    rows : int
        Extent of one image along ``axis``.
    """

    axis: int
    rows: int


@dataclass(frozen=True)
class ImageWise:
    """What the proof found out about a kernel beside that it is image-wise: whether it reduces."""

    reduces: bool


_DIVISIONS = (prim.FloorDiv, prim.FloorMod, prim.Div, prim.Mod)


def images_of(shape: Sequence[Any], batch: tirx.Var) -> Images | None:
    """Find the images in a tensor; None when it belongs to all of them.

    Raises
    ------
    MixedImagesError
        If the batch appears in more than one dimension, or not as a whole multiple.
    """
    found = None
    for axis, extent in enumerate(shape):
        if not uses(extent, batch):
            continue
        if found is not None:
            raise MixedImagesError("two dimensions depend on the batch")
        rows = _rows(extent, batch)
        if rows is None:
            raise MixedImagesError(f"dimension {axis} is {extent}, which is no multiple of the batch")
        found = Images(axis, rows)
    return found


def _rows(extent: Any, batch: tirx.Var) -> int | None:
    """Give ``c`` of an extent ``c * batch``."""
    if _is_divisor(extent, batch):
        return None
    analyzer = tvm.sym.Analyzer()
    rows = analyzer.simplify(substitute(extent, {batch: tirx.const(1, str(batch.ty.dtype))}))
    if not isinstance(rows, prim.IntImm) or int(rows) < 1:
        return None
    return int(rows) if _is_zero(analyzer, extent - batch * rows) else None


def _is_divisor(extent: Any, batch: tirx.Var) -> bool:
    """Whether something is divided by the batch, or by what is computed of it: with some value that may be zero."""

    def interrupt(division: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if uses(division.b, batch) else None

    return tvm_ffi.structural_walk(extent, (_DIVISIONS, interrupt)) is not None


def prove_image_wise(func: tirx.PrimFunc, batch: tirx.Var) -> ImageWise:
    """Prove that a kernel made of blocks treats every image by itself.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        Not scheduled; its buffers have ``batch`` in their shapes. Parameters that are numbers depend on no image.
    batch : tvm.tirx.Var

    Raises
    ------
    MixedImagesError
        If that cannot be shown.
    """
    proof = _Proof(batch)
    for parameter in func.params:
        if tirx.is_buffer_var(parameter):  # any other is a number, the same for all images
            proof.add_buffer(parameter)
    proof.statement(func.body, ())
    return ImageWise(proof.reduces)


def prove_reshape(before: Sequence[Any], after: Sequence[Any], batch: tirx.Var) -> None:
    """Prove that a tensor has its images in the same places of memory when it is taken for one of another shape.

    Raises
    ------
    MixedImagesError
        If that cannot be shown.
    """
    before, after = list(before), list(after)
    old, new = images_of(before, batch), images_of(after, batch)
    if old is None or new is None:
        raise MixedImagesError("the batch gets lost, or appears, in a reshape")
    outside = before[: old.axis], after[: new.axis]
    inside = [*before[old.axis + 1 :], old.rows], [*after[new.axis + 1 :], new.rows]
    if not (_is_same_product(*outside) and _is_same_product(*inside)):
        raise MixedImagesError("a reshape mixes images")


def _is_same_product(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two products are equal; TVM simplifies none of quotients, so that equal factors are left out before."""
    left: list[Any] = []
    right = _factors(other)
    for factor in _factors(one):
        equal = next((index for index, item in enumerate(right) if tvm_ffi.structural_equal(item, factor)), None)
        if equal is None:
            left.append(factor)
        else:
            del right[equal]
    return _is_zero(tvm.sym.Analyzer(), _product(left) - _product(right))


def _factors(extents: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    waiting = [tirx.const(extent, "int64") if isinstance(extent, int) else extent for extent in extents]
    while waiting:
        extent = waiting.pop()
        if isinstance(extent, prim.Mul):
            waiting += [extent.a, extent.b]
        else:
            found.append(extent)
    return found


def _product(extents: Sequence[Any]) -> Any:
    total = tirx.const(1, "int64")
    for extent in extents:
        total = total * extent
    return total


def uses(expression: Any, variable: tirx.Var) -> bool:
    """Whether a variable occurs in an expression or statement."""

    def interrupt(found: Any) -> Any:
        return tvm_ffi.VisitInterrupt(True) if found.same_as(variable) else None

    return tvm_ffi.structural_walk(expression, (tvm.ir.Var, interrupt)) is not None


def _is_zero(analyzer: Any, expression: Any) -> bool:
    simple = analyzer.simplify(expression)
    return isinstance(simple, prim.IntImm) and int(simple) == 0


class _Proof:
    def __init__(self, batch: tirx.Var) -> None:
        self.batch = batch
        self.reduces = False
        self._images: dict[Any, Images | None] = {}

    def add_buffer(self, buffer: Any) -> None:
        if len(buffer.strides or ()):
            raise MixedImagesError(f"buffer '{buffer.name}' has strides")
        self._images[buffer] = images_of(buffer.shape, self.batch)

    def statement(self, statement: Any, loops: tuple[Any, ...]) -> None:
        """Prove a tree of loops and blocks."""
        if isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                self.statement(part, loops)
        elif isinstance(statement, tirx.For):
            if statement.kind != tirx.ForKind.SERIAL or not _is_zero(tvm.sym.Analyzer(), statement.min):
                raise MixedImagesError("it is scheduled already")
            self.statement(statement.body, (*loops, statement))
        elif isinstance(statement, s_tir.SBlockRealize):
            block = statement.block
            if not (isinstance(statement.predicate, prim.IntImm) and int(statement.predicate)):
                raise MixedImagesError(f"block '{block.name_hint}' has a predicate")
            if block.match_buffers:
                raise MixedImagesError(f"block '{block.name_hint}' renames buffers")
            for buffer in block.alloc_buffers:
                self.add_buffer(buffer)
            if not block.iter_vars and not loops:
                self.statement(block.body, ())
            else:
                self._block(statement, loops)
        else:
            raise MixedImagesError(f"it holds a {type(statement).__name__} outside of blocks")

    def _block(self, realize: Any, loops: tuple[Any, ...]) -> None:
        block = realize.block
        values = {axis.var: value for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)}
        self.reduces |= any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars)
        analyzer = tvm.sym.Analyzer()
        image = tirx.Var("image", str(self.batch.ty.dtype))
        analyzer.bind(image, tvm.ir.Range.from_min_extent(tirx.const(0, str(self.batch.ty.dtype)), self.batch))
        in_image: dict[Any, Any] = {}
        for loop in loops:
            if not uses(loop.extent, self.batch):
                analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))
                continue
            rows = _rows(loop.extent, self.batch)
            if rows is None or in_image:
                raise MixedImagesError(f"block '{block.name_hint}' has no single loop over the images")
            row = tirx.Var("row", str(loop.loop_var.ty.dtype))
            analyzer.bind(row, tvm.ir.Range.from_min_extent(tirx.const(0, str(row.ty.dtype)), rows))
            in_image = {loop.loop_var: image * rows + row if rows > 1 else image}
        reader = _Reader(self, block.name_hint, analyzer, image if in_image else None)
        for part in (block.init, block.body):
            if part is not None:
                reader.statement(substitute(substitute(part, values), in_image))

    def images(self, buffer: Any) -> Images | None:
        """Give the images of a buffer."""
        if buffer not in self._images:
            raise MixedImagesError(f"buffer '{buffer.name}' is declared inside")
        return self._images[buffer]


class _Reader:
    """Reads the statements of one block; takes the image away from every access."""

    def __init__(self, proof: _Proof, name: str, analyzer: Any, image: tirx.Var | None) -> None:
        self._proof = proof
        self._name = name
        self._analyzer = analyzer
        self._image = image
        self._fault = ""

    def statement(self, statement: Any) -> None:
        """Look at a statement, or raise."""
        if isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                self.statement(part)
        elif isinstance(statement, tirx.IfThenElse):
            self._expression(statement.condition)
            self.statement(statement.then_case)
            if statement.else_case is not None:
                self.statement(statement.else_case)
        elif isinstance(statement, tirx.BufferStore):
            if self._proof.images(statement.buffer) is None and self._image is not None:
                raise MixedImagesError(f"block '{self._name}' writes what belongs to all images in a loop over them")
            self._access(statement.buffer, statement.indices)
            self._expression(statement.value)
        else:
            raise MixedImagesError(f"block '{self._name}' holds a {type(statement).__name__}")

    def _expression(self, expression: Any) -> Any:
        """Check what an expression reads; give it with a name in place of every element that it reads."""
        callbacks = [(tvm.ir.TensorLoad, self._load), (tvm.ir.Call, self._call)]
        # An exception would come out of TVM as another one.
        named = tvm_ffi.structural_mutate(expression, callbacks)
        if self._fault:
            raise MixedImagesError(self._fault)
        if self._tells_apart(named):
            raise MixedImagesError(f"block '{self._name}' computes with the number of an image, or of all of them")
        return named

    def _tells_apart(self, expression: Any) -> bool:
        return uses(expression, self._proof.batch) or (self._image is not None and uses(expression, self._image))

    def _load(self, load: Any, mutator: Any) -> Any:
        try:
            self._access(load.source, load.indices)
        except MixedImagesError as error:
            self._fault = self._fault or str(error)
        return tirx.Var("element", str(load.ty.dtype))

    def _call(self, call: Any, mutator: Any) -> Any:
        effect = call.op.get_attr("TCallEffectKind") if isinstance(call.op, tvm.ir.Op) else None
        if effect is None or int(effect) > _PURE:
            self._fault = self._fault or f"block '{self._name}' calls {getattr(call.op, 'name', call.op)}"
        return mutator.default_mutate(call)

    def _access(self, buffer: Any, indices: Sequence[Any]) -> None:
        images = self._proof.images(buffer)
        for axis, index in enumerate(indices):
            callbacks = [(tvm.ir.TensorLoad, self._load), (tvm.ir.Call, self._call)]
            place = self._analyzer.simplify(tvm_ffi.structural_mutate(index, callbacks))
            if images is not None and axis == images.axis:
                place = self._row(place, images, buffer)
            if self._tells_apart(place):
                raise MixedImagesError(f"block '{self._name}' accesses '{buffer.name}' by the number of an image")
        if self._fault:
            raise MixedImagesError(self._fault)

    def _row(self, index: Any, images: Images, buffer: Any) -> Any:
        """Give the row inside the image that an index stands for."""
        if self._image is None:
            raise MixedImagesError(f"block '{self._name}' accesses '{buffer.name}' outside of the loop over images")
        row = self._analyzer.simplify(index - self._image * images.rows)
        if uses(row, self._image) or not self._analyzer.can_prove(tirx.all(row >= 0, row < images.rows)):
            raise MixedImagesError(f"block '{self._name}' accesses '{buffer.name}' in another image")
        return row
