from __future__ import annotations

import os
import pickle
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontend.onnx.text import graph
from tests.zoo import get
from tvm_ext.errors import ModelError
from tvm_ext.frontend.onnx.model import load_onnx


def scaled(weight: onnx.TensorProto) -> onnx.ModelProto:
    """A model that multiplies by one weight."""
    model = graph("g (float[2,3] x) => (float[2,3] y) { y = Mul (x, w) }")
    model.graph.initializer.append(weight)
    return model


def weight() -> onnx.TensorProto:
    return numpy_helper.from_array(np.arange(6, dtype="float32").reshape(2, 3), "w")


def refused(model: object) -> str:
    with pytest.raises(ModelError) as caught:
        load_onnx(model)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_reads_paths_bytes_and_protos(tmp_path: Path) -> None:
    model = scaled(weight())
    path = tmp_path / "scaled.onnx"
    onnx.save(model, path)
    assert load_onnx(path).proto == model
    assert load_onnx(str(path)).source == str(path)
    assert load_onnx(path.read_bytes()).proto == model
    assert load_onnx(model).proto is model


def test_missing_file(tmp_path: Path) -> None:
    assert refused(tmp_path / "nothing.onnx").endswith("nothing.onnx: no such file; check the path of the model")


def test_folder(tmp_path: Path) -> None:
    assert "is a folder, not an ONNX model; give the path of the .onnx file inside it" in refused(tmp_path)
    (tmp_path / "metadata.json").write_text("{}")
    assert "is a compiled model; give the path of the model that it was compiled from" in refused(tmp_path)


def test_a_file_used_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "cannot be read: Not a directory" in refused(tmp_path / "file" / "model.onnx")


def test_a_path_that_no_system_has() -> None:
    assert "cannot be read" in refused("model\0.onnx")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    assert "is empty; export or download the model again" in refused(tmp_path / "empty.onnx")


def test_larger_than_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as stream:
        stream.truncate(2**31)  # sparse: takes no room on the disk
    message = refused(path)
    assert "has 2.1 GB, more than protobuf can read in one file (2 GB)" in message
    assert "save_as_external_data=True" in message


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "is not an ONNX model, or a truncated or damaged one"),
        (b"plain text\n" * 10, "is not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer; fetch the real file"),
        (b"<!DOCTYPE html><html>", "an HTML or XML page"),
        (b'{"a": 1}', "a JSON text"),
        (pickle.dumps({"a": 1}), "a pickle"),
        (b"\x1f\x8b\x08rest", "gzip-compressed; unpack it first"),
        (b"\x08\x08", "is not an ONNX model, or a damaged one: it holds no graph"),
        (bytes(100), "is not an ONNX model, or a truncated or damaged one"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    message = refused(path)
    assert message.startswith(str(path))
    assert what in message


def test_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", "x")
    assert "a zip archive (a PyTorch checkpoint or .pt2?)" in refused(path)


def test_truncated_file(tmp_path: Path) -> None:
    data = get("tiny_cnn").onnx_model().SerializeToString()
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: len(data) // 2])
    assert f"protobuf cannot read its {len(data) // 2} bytes" in refused(path)


def test_names_that_are_not_text() -> None:
    data = scaled(weight()).SerializeToString().replace(b"Mul", b"M\xff\xfe")
    assert "field op_type of a NodeProto is not valid text; the file is damaged" in refused(data)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("ir_version", 2, "ONNX IR version 2 is not supported, 3 or newer is"),
        ("ir_version", onnx.IR_VERSION + 1, f"IR version {onnx.IR_VERSION + 1} is too new, onnx {onnx.__version__}"),
        ("opset", 6, "operator set version 6 is too old, 7 or newer is needed"),
        ("opset", 999, "operator set version 999 is too new"),
        ("opset", None, "field opset_import does not say which version of the operator set ai.onnx"),
    ],
)
def test_versions(field: str, value: int | None, what: str) -> None:
    model = scaled(weight())
    if field == "ir_version":
        assert value is not None
        model.ir_version = value
    else:
        del model.opset_import[:]
        if value is not None:
            model.opset_import.append(helper.make_opsetid("", value))
    assert what in refused(model)


class TestWeights:
    def test_too_few_bytes(self) -> None:
        tensor = weight()
        tensor.raw_data = tensor.raw_data[:-1]
        assert "initializer 'w' of shape [2, 3] and dtype float32 should hold 24 bytes but holds 23" in refused(
            scaled(tensor)
        )

    def test_another_shape(self) -> None:
        tensor = weight()
        tensor.dims[0] = 2**40
        assert f"should hold {2**40 * 12} bytes but holds 24" in refused(scaled(tensor))

    def test_negative_shape(self) -> None:
        tensor = weight()
        tensor.dims[0] = -2
        assert "initializer 'w' has the impossible shape [-2, 3]" in refused(scaled(tensor))

    def test_unknown_dtype(self) -> None:
        tensor = weight()
        tensor.data_type = 99
        assert "initializer 'w' has the unknown dtype number 99" in refused(scaled(tensor))

    def test_too_few_values(self) -> None:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], float_data=[1.0, 2.0])
        assert "should hold 6 values but holds 2" in refused(scaled(tensor))

    def test_inside_an_attribute(self) -> None:
        model = graph("g () => (float[3] y) { [fill] y = Constant <value = float[3] {1.0, 2.0, 3.0}> () }")
        model.graph.node[0].attribute[0].t.dims[0] = 4
        assert "attribute 'value' of Constant node 'fill' of shape [4]" in refused(model)

    @pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint16", "int64", "bool", "complex64"])
    @pytest.mark.parametrize("raw", [True, False])
    def test_sound_ones_of_every_kind(self, dtype: str, raw: bool) -> None:
        array = np.ones((2, 3), dtype)
        tensor = numpy_helper.from_array(array, "w")
        if not raw:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            tensor = helper.make_tensor("w", kind, array.shape, array.ravel().tolist())
        np.testing.assert_array_equal(
            numpy_helper.to_array(load_onnx(scaled(tensor)).proto.graph.initializer[0]), array
        )

    @pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
    def test_two_to_a_byte(self, kind: int) -> None:
        load_onnx(scaled(helper.make_tensor("w", kind, [3], [1, 2, 3])))


def socket_at(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


@contextmanager
def edited(path: Path) -> Iterator[TensorProto]:
    """The initializer of the model in a file, written back in the end."""
    model = onnx.ModelProto.FromString(path.read_bytes())
    yield model.graph.initializer[0]
    path.write_bytes(model.SerializeToString())


class TestExternalData:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "model.onnx"
        model = scaled(numpy_helper.from_array(np.ones((200, 300), "float32"), "w"))
        onnx.save(model, path, save_as_external_data=True, location="weights.bin")
        assert (tmp_path / "weights.bin").stat().st_size >= 240_000
        return path

    def test_is_read(self, path: Path) -> None:
        tensor = load_onnx(path).proto.graph.initializer[0]
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), np.ones((200, 300), "float32"))

    def test_missing(self, path: Path) -> None:
        (path.parent / "weights.bin").unlink()
        message = refused(path)
        assert "the data of initializer 'w' should be in" in message
        assert "weights.bin, which is missing; put that file beside the model" in message

    def test_too_short(self, path: Path) -> None:
        with (path.parent / "weights.bin").open("r+b") as stream:
            stream.truncate(1000)
        message = refused(path)
        assert "initializer 'w'" in message
        assert "240000 bytes of shape [200, 300] and dtype float32" in message
        assert "the file has 1000" in message

    @pytest.mark.parametrize(
        ("kind", "make"), [("a pipe", os.mkfifo), ("a socket", socket_at), ("a device", link_to_zero)]
    )
    def test_no_file(self, path: Path, kind: str, make: Callable[[Path], None]) -> None:
        (path.parent / "weights.bin").unlink()
        make(path.parent / "weights.bin")
        assert f"weights.bin, which is {kind}, not a regular file" in refused(path)

    def test_a_file_without_end_is_not_read_to_its_end(self, path: Path) -> None:
        """Half a terabyte of holes, of which the model does not say how much belongs to the tensor."""
        with (path.parent / "weights.bin").open("r+b") as stream:
            stream.truncate(2**39)
        with edited(path) as tensor:
            for index in reversed(range(len(tensor.external_data))):
                if tensor.external_data[index].key != "location":
                    del tensor.external_data[index]
        self.test_is_read(path)

    def test_links(self, path: Path) -> None:
        """The caches of model hubs: links in a folder of names lead to files in another."""
        (path.parent / "blobs").mkdir()
        (path.parent / "names").mkdir()
        for name in ("model.onnx", "weights.bin"):
            os.replace(path.parent / name, path.parent / "blobs" / f"{name}.hash")
            (path.parent / "names" / name).symlink_to(f"../blobs/{name}.hash")
        self.test_is_read(path.parent / "names" / "model.onnx")

    def test_a_file_of_two_names(self, path: Path) -> None:
        os.link(path.parent / "weights.bin", path.parent / "again.bin")
        self.test_is_read(path)

    def test_in_a_function(self, path: Path) -> None:
        constant = helper.make_node("Constant", [], ["k"])
        value = onnx.ModelProto.FromString(path.read_bytes()).graph.initializer[0]
        constant.attribute.append(helper.make_attribute("value", value))
        nodes = [constant, helper.make_node("Mul", ["x", "k"], ["y"])]
        function = helper.make_function("acme", "Scale", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [200, 300]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Scale", ["x"], ["y"], domain="acme")], "g", ends[:1], ends[1:])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
        path.write_bytes(
            helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8).SerializeToString()
        )
        tensor = load_onnx(path).proto.functions[0].node[0].attribute[0].t
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), np.ones((200, 300), "float32"))

    @pytest.mark.parametrize(
        ("field", "value", "expected"),
        [
            ("location", "", "which field location does not name"),
            ("location", "w" * 10_000, "which cannot be read: File name too long"),
            ("location", "a\0b", "a\\x00b', which is missing"),
            ("offset", "-4", "field offset is '-4', not a number of bytes"),
            ("length", "9" * 5000, "field length is '9999"),
            ("length", "239996", "but the model names 239996 bytes from byte 0 on"),
        ],
    )
    def test_odd_fields(self, path: Path, field: str, value: str, expected: str) -> None:
        with edited(path) as tensor:
            next(entry for entry in tensor.external_data if entry.key == field).value = value
        assert expected in refused(path)

    def test_outside_the_folder(self, path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        secret = tmp_path_factory.mktemp("elsewhere") / "weights.bin"
        os.replace(path.parent / "weights.bin", secret)
        with edited(path) as tensor:
            tensor.external_data[0].value = os.path.relpath(secret, path.parent)
        assert "outside of the folder of the model" in refused(path)
        (path.parent / "weights.bin").symlink_to(secret)
        with edited(path) as tensor:
            tensor.external_data[0].value = "weights.bin"
        assert "outside of the folder of the model" in refused(path)

    def test_of_a_model_without_a_folder(self, path: Path) -> None:
        assert "give the path of the model" in refused(path.read_bytes())
        assert "give the path of the model" in refused(onnx.load(path, load_external_data=False))


@pytest.mark.parametrize("version", [-1, 2**31, -(2**63)])
def test_impossible_operator_set_versions(version: int) -> None:
    model = scaled(weight())
    model.opset_import.add(domain="com.acme", version=version)
    assert f"the operator set 'com.acme' the impossible version {version}" in refused(model)
