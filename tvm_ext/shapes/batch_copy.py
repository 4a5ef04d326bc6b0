"""The kernels that copy images from the tensor of all of them, and to it."""

from __future__ import annotations

# mypy: ignore-errors
# (the bodies are TVMScript, whose annotations are values)
from tvm import tirx
from tvm.script import tirx as T


def copy_kernel(outside: int, piece: int, dtype: str, stores: bool) -> tirx.PrimFunc:
    """Make the kernel that copies ``outside`` pieces to, or from, a place in longer rows.

    Parameters
    ----------
    outside : int
        Rows.
    piece : int
        Elements to copy of each row.
    dtype : str
    stores : bool
        Whether to copy to the longer rows.

    Returns
    -------
    tirx.PrimFunc
        Arguments: the pieces ``[outside, piece]``, the rows ``[outside, any]``, the first element in a row (int64).
    """
    rows, columns = tirx.const(outside, "int64"), tirx.const(piece, "int64")

    if stores:

        @T.prim_func(private=True, s_tir=True)
        def store(image: T.Buffer((rows, columns), dtype), whole: T.handle, first: T.int64) -> None:
            extent = T.int64()
            tensor = T.match_buffer(whole, (rows, extent), dtype)
            for i, j in T.grid(rows, columns):
                with T.sblock("store"):
                    row, column = T.axis.remap("SS", [i, j])
                    tensor[row, first + column] = image[row, column]

        return store

    @T.prim_func(private=True, s_tir=True)
    def take(image: T.Buffer((rows, columns), dtype), whole: T.handle, first: T.int64) -> None:
        extent = T.int64()
        tensor = T.match_buffer(whole, (rows, extent), dtype)
        for i, j in T.grid(rows, columns):
            with T.sblock("take"):
                row, column = T.axis.remap("SS", [i, j])
                image[row, column] = tensor[row, first + column]

    return take
