"""Winograd's minimal filtering for convolutions of stride 1 with 3 x 3 taps over rows and columns, in blocked layout.

A tile of ``m x m`` outputs needs ``(m + 2)^2`` multiplications for each pair of channels instead of ``9 m^2``. Input
tiles are transformed (:func:`winograd_input`), each of the ``(m + 2)^2`` positions is a product of matrices over the
channels, and the products are transformed back (:func:`winograd_output`). Taps along the depth of a volume lengthen the
sums of the products (:func:`winograd_product`).

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx
from tvm.ir import Expr

from tvm_ext.schedules.annotations import KERNEL_ATTRIBUTE, PARTS_ATTRIBUTE, SHARES_ATTRIBUTE
from tvm_ext.schedules.compute.bfloat16 import BITS, rounded
from tvm_ext.schedules.compute.layout import full, in_channels
from tvm_ext.schedules.compute.matmul import matmul
from tvm_ext.schedules.compute.winograd_transforms import KERNEL, combine, transforms


def tiles(extents: Sequence[int], outputs: int) -> tuple[int, int]:
    """Count the tiles along the rows and columns of an output."""
    return -(-extents[0] // outputs), -(-extents[1] // outputs)


def winograd_input(
    data: te.Tensor, padding: Sequence[int], out_extents: Sequence[int], outputs: int, rows: int
) -> te.Tensor:
    """Cut the input into overlapping tiles and transform them.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, [D,] H, W, v)``.
    padding : sequence of int
        Before each spatial axis, then after each of them.
    out_extents : sequence of two int
        Rows and columns of the output of the convolution.
    outputs : int
        ``m``: outputs of a tile along an axis.
    rows : int
        Tiles to give, at least those there are; the ones beyond are zero.

    Returns
    -------
    te.Tensor
        Shape ``(n * n, rows, [padded D,] C)``, ``n = m + 2``; tiles are counted row by row, image by image.
    """
    batch, chunks, *depth, height, width, lanes = (int(extent) for extent in data.shape)
    *front, top, left = (int(before) for before in padding[: len(padding) // 2])
    planes = [extent + before + int(padding[3]) for extent, before in zip(depth, front, strict=True)]
    size = outputs + KERNEL - 1
    _, _, matrix = transforms(outputs)
    tile_rows, tile_columns = tiles(out_extents, outputs)
    per_image = tile_rows * tile_columns

    def element(*index: tirx.Var) -> Expr:
        p, *plane, c, x, y, i = index
        image, tile = (p // per_image, p % per_image) if batch > 1 or rows > per_image else (0, p)
        h = tile // tile_columns * outputs + x - top
        w = tile % tile_columns * outputs + y - left
        inside = [h >= 0, h < height, w >= 0, w < width]
        place = [z - before for z, before in zip(plane, front, strict=True)]
        for z, extent in zip(place, depth, strict=True):
            inside += [z >= 0, z < extent]
        if rows > batch * per_image:
            inside.append(p < batch * per_image)
        return tirx.if_then_else(tirx.all(*inside), data[image, c, *place, h, w, i], tirx.const(0, data.dtype))

    shape = (rows, *planes, chunks, size, size, lanes)
    tile = te.compute(shape, element, name="tile", attrs={KERNEL_ATTRIBUTE: "winograd_tile"})
    half = te.compute(
        shape,
        lambda *index: combine(matrix, index[-3], lambda k: tile[*index[:-3], k, *index[-2:]]),
        name="half",
        attrs={KERNEL_ATTRIBUTE: "winograd_half"},
    )

    def transformed(*index: tirx.Var) -> Expr:
        b, *place, c = index
        return combine(matrix, b % size, lambda k: half[*place, c // lanes, b // size, k, c % lanes])

    return te.compute(
        (size * size, rows, *planes, chunks * lanes),
        transformed,
        name="transformed",
        attrs={KERNEL_ATTRIBUTE: "winograd_input"},
    )


def winograd_product(
    transformed: te.Tensor,
    weight: te.Tensor,
    weight_shape: Sequence[int],
    tile: Sequence[int],
    lanes: int,
    depth: Sequence[int] = (),
) -> te.Tensor:
    """Multiply the transformed tiles with the transformed filters, position by position.

    Parameters
    ----------
    transformed : te.Tensor
        Shape ``(n * n, rows, [D,] C)``.
    weight : te.Tensor
        Filters as :func:`transform_weight` gives them, of ``weight_shape``, their columns packed.
    tile, lanes
        See :func:`tvm_ext.schedules.compute.matmul.matmul`.
    depth : sequence of int
        ``OD`` for volumes: a row of the product is then a tile in one plane of the output, and its sums go over the
        planes that this one depends on, which lie side by side.

    Returns
    -------
    te.Tensor
        Shape ``(n * n, rows [* OD], K)``.
    """
    if depth:
        out_depth, channels = int(depth[0]), int(transformed.shape[-1])
        positions, rows, reduction = int(transformed.shape[0]), int(transformed.shape[1]), int(weight_shape[1])
        planes = transformed
        transformed = te.compute(
            (positions, rows * out_depth, reduction),
            lambda b, m, k: planes[b, m // out_depth, m % out_depth + k // channels, k % channels],
            name="windows",
        )
    axes, shape = (0, 1, 2), [int(extent) for extent in transformed.shape]
    return matmul(transformed, weight, shape, weight_shape, axes, (), axes, tile, lanes, copy_rows=False)


def winograd_output(product: te.Tensor, out_shape: Sequence[int], outputs: int, out_channels: int = 0) -> te.Tensor:
    """Transform the products back and put the tiles together.

    Parameters
    ----------
    product : te.Tensor
        Shape ``(n * n, rows [* OD], K)``.
    out_shape : sequence of int
        ``(N, K / v, [OD,] OH, OW, v)``.
    outputs : int
        ``m``.
    out_channels : int
        ``K`` where it does not fill the blocks: lanes beyond it become zero. 0: all.
    """
    batch, chunks, *depth, height, width, lanes = (int(extent) for extent in out_shape)
    size = outputs + KERNEL - 1
    matrix, _, _ = transforms(outputs)
    tile_rows, tile_columns = tiles((height, width), outputs)

    def element(*index: tirx.Var) -> Expr:
        n, c, *plane, th, tw, x, y, i = index
        position = (n * tile_rows + th) * tile_columns + tw
        row = position * depth[0] + plane[0] if depth else position
        return combine(matrix, x, lambda k: product[k * size + y, row, c * lanes + i])

    half = te.compute(
        (batch, chunks, *depth, tile_rows, tile_columns, outputs, size, lanes),
        element,
        name="half",
        attrs={KERNEL_ATTRIBUTE: "winograd_half"},
    )
    tile = te.compute(
        (batch, chunks, *depth, tile_rows, tile_columns, outputs, outputs, lanes),
        lambda *index: combine(matrix, index[-2], lambda k: half[*index[:-2], k, index[-1]]),
        name="tile",
        attrs={KERNEL_ATTRIBUTE: "winograd_output"},
    )

    def stored(*index: tirx.Var) -> Expr:
        position = index[-3:-1]
        value = tile[*index[:-3], *(p // outputs for p in position), *(p % outputs for p in position), index[-1]]
        return value if full(out_channels, lanes) else in_channels(index, value, out_channels, tile)

    return te.compute((batch, chunks, *depth, height, width, lanes), stored, name="store")


def winograd_strips(
    data: te.Tensor,
    weight: te.Tensor,
    padding: Sequence[int],
    out_shape: Sequence[int],
    outputs: int,
    strip: int,
    weight_shape: Sequence[int],
    tile: Sequence[int],
    out_channels: int = 0,
    parts: int = 1,
    shares: bool = False,
) -> te.Tensor:
    """Convolve images or volumes strip by strip, so that what is between the transforms is no more than one needs.

    Parameters
    ----------
    data : te.Tensor
        Shape ``(N, C / v, [D,] H, W, v)``.
    weight : te.Tensor
        Filters as :func:`transform_weight` gives them, of ``weight_shape``, their columns packed. ``uint16`` is
        bfloat16 in pairs, for which tiles are rounded, too, as they are transformed by ``steady`` matrices.
    padding, outputs, out_channels
        See :func:`winograd_input` and :func:`winograd_output`.
    out_shape : sequence of int
        ``(N, K / v, [OD,] OH, OW, v)``.
    strip : int
        Rows of tiles in a strip, which is of one image, and of all planes of a volume.
    tile : sequence of two int
        Register tile of the products; where ``OD`` is more than one, its rows divide that.
    parts : int
        Parts of the result's channels; a task computes one of a strip.
    shares : bool
        Whether the tiles of a strip are transformed once, by all threads; otherwise each task transforms them.
    """
    batch, chunks, *depth, height, width, lanes = (int(extent) for extent in data.shape)
    out_chunks, *out_depth, out_height, out_width = (int(extent) for extent in out_shape[1:-1])
    *front, top, left = (int(before) for before in padding[: len(padding) // 2])
    planes = [extent + before + int(padding[3]) for extent, before in zip(depth, front, strict=True)]
    deep = out_depth[0] if out_depth else 1
    size = outputs + KERNEL - 1
    rounds = str(weight.dtype) == BITS
    back, _, matrix = transforms(outputs, rounds)
    products = len(matrix)
    tile_rows, tile_columns = tiles((out_height, out_width), outputs)
    strips = -(-tile_rows // strip)  # of an image
    used = strip * tile_columns
    rows = used if deep > 1 else -(-used // int(tile[0])) * int(tile[0])

    def element(s: tirx.Var, p: tirx.Var, *rest: tirx.Var) -> Expr:
        *plane, c, x, y, i = rest
        image, at = (0, s) if batch == 1 else (s // strips, s % strips)
        h = (at * strip + p // tile_columns) * outputs + x - top
        w = p % tile_columns * outputs + y - left
        inside = [h >= 0, h < height, w >= 0, w < width, *([p < used] if rows > used else [])]
        place = [z - before for z, before in zip(plane, front, strict=True)]
        for z, extent in zip(place, depth, strict=True):
            inside += [z >= 0, z < extent]
        return tirx.if_then_else(tirx.all(*inside), data[image, c, *place, h, w, i], tirx.const(0, data.dtype))

    shape = (batch * strips, rows, *planes, chunks, size, size, lanes)
    cut = te.compute(shape, element, name="cut", attrs={KERNEL_ATTRIBUTE: "winograd_tile"})
    half = te.compute(
        (*shape[:-3], products, size, lanes),
        lambda *index: combine(matrix, index[-3], lambda k: cut[*index[:-3], k, *index[-2:]]),
        name="half",
        attrs={KERNEL_ATTRIBUTE: "winograd_half"},
    )

    def transformed_at(s: tirx.Var, b: tirx.Var, *place: tirx.Var) -> Expr:
        *tile_at, c = place
        at = s, *tile_at, c // lanes
        value = combine(matrix, b % products, lambda k: half[*at, b // products, k, c % lanes])
        return rounded(value) if rounds else value

    transformed = te.compute(
        (batch * strips, products * products, rows, *planes, chunks * lanes),
        transformed_at,
        name="transformed",
        attrs={KERNEL_ATTRIBUTE: "winograd_input", PARTS_ATTRIBUTE: parts, SHARES_ATTRIBUTE: int(shares)},
    )
    left_operand = transformed if not depth else _windows(transformed, deep, int(weight_shape[1]))
    whole = [int(extent) for extent in left_operand.shape]
    axes = (0, 1, 2, 3)
    product = matmul(left_operand, weight, whole, weight_shape, axes, (), axes, tile, lanes, copy_rows=False)

    def combined(n: tirx.Var, c: tirx.Var, *rest: tirx.Var) -> Expr:
        *plane, th, tw, x, y, i = rest
        row = th % strip * tile_columns + tw
        row = row * deep + plane[0] if plane else row
        at = th // strip if batch == 1 else n * strips + th // strip
        return combine(back, x, lambda k: product[at, k * products + y, row, c * lanes + i])

    places = (batch, out_chunks, *out_depth, strips * strip, tile_columns, outputs)
    back_half = te.compute(
        (*places, products, lanes),
        combined,
        name="back_half",
        attrs={KERNEL_ATTRIBUTE: "winograd_back_half"},
    )
    result = te.compute(
        (*places, outputs, lanes),
        lambda *index: combine(back, index[-2], lambda k: back_half[*index[:-2], k, index[-1]]),
        name="tile",
        attrs={KERNEL_ATTRIBUTE: "winograd_output"},
    )

    def stored(*index: tirx.Var) -> Expr:
        *outer, h, w, i = index
        value = result[*outer, h // outputs, w // outputs, h % outputs, w % outputs, i]
        return value if full(out_channels, lanes) else in_channels(index, value, out_channels, result)

    return te.compute((batch, out_chunks, *out_depth, out_height, out_width, lanes), stored, name="put_together")


def _windows(transformed: te.Tensor, depth: int, reduction: int) -> te.Tensor:
    """Give, for each plane of a volume's result, the planes that it depends on, one after another, as rows.

    ``(strips, positions, tiles, planes, C)`` to ``(strips, positions, tiles * depth, taps * C)``; in memory the planes
    lie side by side.
    """
    strips, positions, rows, _, channels = (int(extent) for extent in transformed.shape)
    return te.compute(
        (strips, positions, rows * depth, reduction),
        lambda s, b, m, k: transformed[s, b, m // depth, m % depth + k // channels, k % channels],
        name="windows",
    )
