"""Ways in which an ONNX file can be damaged, or merely odd; each is a function that changes a model at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto

# Sizes and counts at which arithmetic overflows, memory ends, or loops do not.
EXTREMES = (0, -1, 1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
FLOATS = (0.0, -0.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"))
NAMES = ("", " ", "x", "y", "a" * 5000, "naïve/名前:0", "a b;c\n", "../../x", "%s%n{}", "main", "\x00")
OPERATORS = tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}))

Damage = Callable[[random.Random, onnx.ModelProto], None]


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """List the graph of a model and those inside its nodes."""

    def inside(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from inside(attribute.g)

    yield from inside(model.graph)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for graph in graphs(model) for node in graph.node] + [
        node for function in model.functions for node in function.node
    ]


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    found = [tensor for graph in graphs(model) for tensor in graph.initializer]
    return found + [item.t for node in _nodes(model) for item in node.attribute if item.HasField("t")]


def _values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [value for graph in graphs(model) for value in (*graph.input, *graph.output)]


def attribute_number(draw: random.Random, model: onnx.ModelProto) -> None:
    """Put an extreme number into an attribute."""
    found = [item for node in _nodes(model) for item in node.attribute]
    if not found:
        return
    item = draw.choice(found)
    if item.ints:
        item.ints[draw.randrange(len(item.ints))] = draw.choice(EXTREMES)
    elif item.type == AttributeProto.FLOAT:
        item.f = draw.choice(FLOATS)
    else:
        item.i = draw.choice(EXTREMES)


def attribute_length(draw: random.Random, model: onnx.ModelProto) -> None:
    """Lengthen, shorten or empty a list in an attribute."""
    found = [item for node in _nodes(model) for item in node.attribute if item.ints]
    if not found:
        return
    item = draw.choice(found)
    kept = list(item.ints)
    del item.ints[:]
    item.ints.extend(draw.choice([[], kept[:-1], [*kept, 1], kept * 40]))


def attribute_kind(draw: random.Random, model: onnx.ModelProto) -> None:
    """Change the type of an attribute, with or without what belongs to it."""
    found = [item for node in _nodes(model) for item in node.attribute]
    if not found:
        return
    item = draw.choice(found)
    name = item.name
    if draw.random() < 0.5:
        item.Clear()
        item.name = name
    item.type = draw.choice(list(AttributeProto.AttributeType.values()))
    if draw.random() < 0.5:
        item.s = b"\xff\xfe" if draw.random() < 0.5 else b"nonsense"


def attribute_text(draw: random.Random, model: onnx.ModelProto) -> None:
    """Rename an attribute, drop it, double it, or change its text."""
    found = [(node, item) for node in _nodes(model) for item in node.attribute]
    if not found:
        return
    node, item = draw.choice(found)
    what = draw.randrange(4)
    if what == 0:
        item.name = draw.choice(NAMES)
    elif what == 1:
        node.attribute.remove(item)
    elif what == 2:
        node.attribute.add().CopyFrom(item)
    elif item.type == AttributeProto.STRING:
        item.s = draw.choice([b"", b"NONE", b"\xff", b"ij,jk,kl->zz", b"linear" * 9])


def operator(draw: random.Random, model: onnx.ModelProto) -> None:
    """Make a node one of another operator or domain."""
    node = draw.choice(_nodes(model))
    if draw.random() < 0.8:
        node.op_type = draw.choice(OPERATORS)
    elif draw.random() < 0.5:
        node.domain = draw.choice(["com.microsoft", "ai.onnx.ml", "ai.onnx.preview.training", "nobody", "local"])
    else:
        node.op_type = draw.choice(NAMES)


def wiring(draw: random.Random, model: onnx.ModelProto) -> None:
    """Let a node read or make another tensor: one that is not there, its own, an earlier or a later one."""
    nodes = _nodes(model)
    node = draw.choice(nodes)
    other = draw.choice(nodes)
    pool = [*other.input, *other.output, *NAMES]
    names = node.input if draw.random() < 0.7 else node.output
    what = draw.randrange(4)
    if what == 0 and names:
        names[draw.randrange(len(names))] = draw.choice(pool)
    elif what == 1:
        names.append(draw.choice(pool))
    elif what == 2 and names:
        del names[draw.randrange(len(names))]
    elif len(names) > 1:
        first, second = draw.sample(range(len(names)), 2)
        names[first], names[second] = names[second], names[first]


def order(draw: random.Random, model: onnx.ModelProto) -> None:
    """Drop, double or exchange nodes, initializers, inputs or outputs."""
    graph = draw.choice(list(graphs(model)))
    items = draw.choice([graph.node, graph.initializer, graph.input, graph.output])
    if not items:
        return
    position = draw.randrange(len(items))
    what = draw.randrange(3)
    if what == 0:
        del items[position]
    elif what == 1:
        items.add().CopyFrom(items[position])
    else:
        kept = list(items)
        draw.shuffle(kept)
        copies = [type(item).FromString(item.SerializeToString()) for item in kept]
        del items[:]
        items.extend(copies)


def declared_shape(draw: random.Random, model: onnx.ModelProto) -> None:
    """Change a dimension, the rank or the type of an input or output."""
    value = draw.choice(_values(model))
    tensor = value.type.tensor_type
    what = draw.randrange(5)
    if what < 2 and tensor.shape.dim:
        dim = draw.choice(list(tensor.shape.dim))
        if draw.random() < 0.8:
            dim.dim_value = draw.choice(EXTREMES)
        else:
            dim.dim_param = draw.choice(NAMES)
    elif what == 2:
        tensor.elem_type = draw.choice([*TensorProto.DataType.values(), 99])
    elif what == 3:
        tensor.shape.dim.add().dim_value = draw.choice((1, 2, 0, 2**62))
    elif draw.random() < 0.5:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        value.ClearField("type")


def initializer(draw: random.Random, model: onnx.ModelProto) -> None:
    """Change the shape, dtype, length or place of a tensor's data."""
    tensors = _tensors(model)
    if not tensors:
        return
    tensor = draw.choice(tensors)
    what = draw.randrange(6)
    if what == 0 and tensor.dims:
        tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(EXTREMES)
    elif what == 1:
        tensor.data_type = draw.choice([*TensorProto.DataType.values(), 77])
    elif what == 2:
        tensor.raw_data = tensor.raw_data[: draw.randrange(len(tensor.raw_data) + 1)]
    elif what == 3:
        tensor.raw_data = tensor.raw_data + bytes(draw.randrange(1, 99))
    elif what == 4:
        tensor.float_data.extend([1.0, 2.0])
    else:
        del tensor.dims[:]
        tensor.ClearField("raw_data")


def contents(draw: random.Random, model: onnx.ModelProto) -> None:
    """Put extreme numbers into a tensor: shapes, axes, indices and pads, or weights."""
    tensors = [tensor for tensor in _tensors(model) if tensor.raw_data]
    if not tensors:
        return
    tensor = draw.choice(tensors)
    if tensor.data_type == TensorProto.INT64 and len(tensor.raw_data) % 8 == 0:
        values = list(np.frombuffer(tensor.raw_data, "int64"))
        values[draw.randrange(len(values))] = draw.choice(EXTREMES)
        tensor.raw_data = b"".join(int(value).to_bytes(8, "little", signed=True) for value in values)
    else:
        data = bytearray(tensor.raw_data)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.choice((0, 1, 127, 128, 255))
        tensor.raw_data = bytes(data)


def versions(draw: random.Random, model: onnx.ModelProto) -> None:
    """Change operator set or IR version, or whose they are."""
    what = draw.randrange(5)
    if what < 2 and model.opset_import:
        number = draw.choice([*range(6, 29), 0, -1, 99, 2**31, 2**63 - 1, -(2**63)])
        draw.choice(list(model.opset_import)).version = number
    elif what == 2:
        model.ir_version = draw.choice([0, -1, 2, 3, 4, 10, 13, 99, 2**63 - 1])
    elif what == 3 and model.opset_import:
        draw.choice(list(model.opset_import)).domain = draw.choice(["ai.onnx", "nobody", "com.microsoft", "\x01"])
    else:
        model.opset_import.add().version = draw.choice([1, 7, 13, 17])


def external(draw: random.Random, model: onnx.ModelProto) -> None:
    """Say that a tensor's data lie in another file."""
    tensors = _tensors(model)
    if not tensors:
        return
    tensor = draw.choice(tensors)
    tensor.data_location = TensorProto.EXTERNAL
    if draw.random() < 0.5:
        tensor.ClearField("raw_data")
    places = [
        "weights.bin",
        "missing.bin",
        "../weights.bin",
        "/etc/passwd",
        ".",
        "",
        "../../../../etc/passwd",
        "/dev/zero",
    ]
    entries = {
        "location": draw.choice([*places, "weights.bin", "weights.bin"]),
        "offset": draw.choice(["0", "-1", "9999999", "18446744073709551616", "two", "4"]),
        "length": draw.choice(["0", "-5", "64", "99999999999", "1e3", ""]),
    }
    for key, value in entries.items():
        if key == "location" or draw.random() < 0.6:
            tensor.external_data.add(key=key, value=value)


def nesting(draw: random.Random, model: onnx.ModelProto) -> None:
    """Give a node a graph, deeply nested or one that captures what is not there; let functions call each other."""
    node = draw.choice(_nodes(model))
    what = draw.randrange(4)
    if what == 0:
        whole = onnx.GraphProto.FromString(model.graph.SerializeToString())  # a message cannot copy what it is part of
        node.attribute.add(name="body", type=AttributeProto.GRAPH).g.CopyFrom(whole)
    elif what == 1:
        node.op_type = draw.choice(["If", "Loop", "Scan", "SequenceMap"])
        for name in ("then_branch", "else_branch", "body"):
            attribute = node.attribute.add(name=name, type=AttributeProto.GRAPH)
            attribute.g.node.add(op_type="Identity", input=["missing"], output=["inner"])
            attribute.g.output.add(name="inner")
    elif what == 2:
        function = model.functions.add(name="again", domain="local")
        function.input.append("v")
        function.output.append("w")
        function.node.add(op_type="again", domain="local", input=["v"], output=["w"])
        function.opset_import.add(domain="local", version=1)
        model.opset_import.add(domain="local", version=1)
        node.op_type, node.domain = "again", "local"
    else:
        inner = onnx.GraphProto()
        inner.CopyFrom(model.graph)
        for _ in range(draw.choice((3, 12, 30))):
            outer = onnx.GraphProto(name="deep")
            outer.node.add(op_type="If", input=["x"], output=["y"]).attribute.add(
                name="then_branch", type=AttributeProto.GRAPH
            ).g.CopyFrom(inner)
            inner = outer
        node.attribute.add(name="then_branch", type=AttributeProto.GRAPH).g.CopyFrom(inner)


def sparse(draw: random.Random, model: onnx.ModelProto) -> None:
    """Add what few models have: sparse initializers, metadata, quantisation notes, device settings."""
    what = draw.randrange(3)
    if what == 0:
        tensor = model.graph.sparse_initializer.add()
        tensor.values.name = draw.choice(NAMES)
        tensor.dims.extend([3, draw.choice(EXTREMES)])
    elif what == 1:
        model.metadata_props.add(key=draw.choice(NAMES), value=draw.choice(NAMES))
    else:
        model.graph.value_info.add().CopyFrom(draw.choice(_values(model)))
        model.graph.value_info[-1].type.tensor_type.elem_type = 7


STRUCTURE: tuple[Damage, ...] = (
    attribute_number, attribute_length, attribute_kind, attribute_text, operator, wiring, order, declared_shape,
    initializer, contents, versions, external, nesting, sparse,
)  # fmt: skip


def damaged_bytes(draw: random.Random, data: bytes) -> bytes:
    """Flip bits, cut off, take out, double or put in bytes."""
    changed = bytearray(data)
    what = draw.randrange(5)
    if what < 2:
        for _ in range(draw.randint(1, 6)):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    elif what == 2:
        del changed[draw.randrange(len(changed)) :]
    else:
        start = draw.randrange(len(changed))
        part = changed[start : start + draw.randint(1, 40)]
        if what == 3:
            del changed[start : start + len(part)]
        else:
            place = draw.randrange(len(changed))
            changed[place:place] = part
    return bytes(changed)


def damaged(seed: int, models: dict[str, bytes], folder: Path) -> tuple[Path, str]:
    """Write one damaged model.

    Parameters
    ----------
    seed : int
        Same seed, same file.
    models : dict from str to bytes
        Sound models.
    folder : path
        Where the file goes, with data beside it that tensors may refer to.

    Returns
    -------
    tuple
        The file, and words for what was done.
    """
    draw = random.Random(seed)
    name = draw.choice(sorted(models))
    data = models[name]
    done = [name]
    if draw.random() < 0.75:
        model = onnx.ModelProto.FromString(data)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            damage = draw.choice(STRUCTURE)
            done.append(damage.__name__)
            if _nodes(model) and _values(model):
                damage(draw, model)
        data = model.SerializeToString()
    else:
        done.append("bytes")
        data = damaged_bytes(draw, data)
    path = folder / "model.onnx"
    path.write_bytes(data)
    beside = folder / "weights.bin"
    if not beside.exists():
        beside.write_bytes(bytes(range(256)) * 4)
    return path, " ".join(done)
