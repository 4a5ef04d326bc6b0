from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.modules import Mlp, arguments
from tvm_ext.artifact.compiled_model import LIBRARY, METADATA, load
from tvm_ext.artifact.metadata import file_record
from tvm_ext.errors import CompileError, ModelError, TargetError, TvmExtError, TvmExtWarning


class TestDamage:
    def test_what_is_no_artifact(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"nothing is not a folder; `tvm-ext compile MODEL -o FOLDER` makes an"):
            load(tmp_path / "nothing")
        with pytest.raises(ModelError, match=r"is not an artifact \(it has no metadata.json\)"):
            load(tmp_path)
        with pytest.raises(ModelError, match="is not a folder"):
            load(tmp_path / ("x" * 300))

    def test_missing_library(self, copied: Path) -> None:
        (copied / LIBRARY).unlink()
        with pytest.raises(ModelError, match=r"model.so cannot be read: No such file or directory; compile the"):
            load(copied)

    @pytest.mark.parametrize("where", [0, 17, 1000, -1])
    def test_one_flipped_bit_in_the_library(self, copied: Path, where: int) -> None:
        content = bytearray((copied / LIBRARY).read_bytes())
        content[where] ^= 1
        (copied / LIBRARY).write_bytes(content)
        with pytest.raises(ModelError, match=r"model.so is damaged: its SHA-256 is \w+ where metadata.json says"):
            load(copied)

    def test_truncated_library(self, copied: Path) -> None:
        content = (copied / LIBRARY).read_bytes()
        (copied / LIBRARY).write_bytes(content[:1000])
        message = f"its size in bytes is 1000 where metadata.json says {len(content)}"
        with pytest.raises(ModelError, match=message):
            load(copied)

    def test_a_library_that_is_none(self, copied: Path) -> None:
        (copied / LIBRARY).write_text("not a library")
        change(copied, lambda data: data["files"].update({LIBRARY: file_record(copied / LIBRARY)}))
        with pytest.raises(TargetError, match=r"model.so cannot be loaded on this machine: .*(invalid ELF|too short)"):
            load(copied)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is damaged, it is not JSON"),
            (b"{", "is damaged, it is not JSON"),
            (b"\xff\xfe", "is damaged, it is not JSON"),
            (b"[" * 100_000, "is damaged, it is not JSON"),
            (b"[]", "is damaged, it holds no JSON object"),
            (b"{}", "format None is not the one this version reads"),
            (b'{"format": 2}', "format 2 is not the one this version reads"),
            (
                b'{"format": 2}',
                r"reads \(1\), tvm-ext .*: it does not say which tvm-ext wrote it; compile the model again",
            ),
            (b'{"format": 2, "versions": {"tvm-ext": "9.1"}}', "tvm-ext 9.1 wrote it"),
            (b'{"format": 2, "versions": {"tvm-ext": 3}}', "it does not say which"),
            (b'{"format": true}', "format True is not"),
            (b'{"format": 1}', "is damaged, field inputs is missing"),
        ],
    )
    def test_metadata_that_is_none(self, copied: Path, content: bytes, message: str) -> None:
        (copied / METADATA).write_bytes(content)
        with pytest.raises(ModelError, match=message):
            load(copied)

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("inputs", {}, "field inputs is dict where list is needed"),
            ("inputs", [3], r"field inputs\[0\] is not an object"),
            ("outputs", [{}], r"field outputs\[0\].name is missing"),
            ("inputs", [{"name": "x", "shape": [1.5], "dtype": "float32"}], "holds 1.5, which is no dimension"),
            ("inputs", [{"name": "x", "shape": [-1], "dtype": "float32"}], "holds -1, which is no dimension"),
            ("inputs", [{"name": "x", "shape": [2**64], "dtype": "float32"}], "which is no dimension"),
            ("inputs", [{"name": "x", "shape": [True], "dtype": "float32"}], "holds True"),
            ("inputs", [{"name": "x", "shape": [], "dtype": "flout32"}], "dtype is 'flout32', which is no type"),
            ("inputs", [{"name": "x", "shape": [], "dtype": "int8"}] * 2, "inputs names a tensor twice"),
            ("device", "toaster", "device is 'toaster', which TVM does not know"),
            ("target", "llvm", "field target is str where dict is needed"),
            ("target", {}, "field target.kind is missing"),
            ("files", {}, "field files.model.so is missing"),
            ("files", {LIBRARY: 3}, "field files.model.so is not an object"),
            ("files", {LIBRARY: {"bytes": "3"}}, "field files.model.so.bytes is str where int is needed"),
        ],
    )
    def test_one_field(self, copied: Path, key: str, value: object, message: str) -> None:
        change(copied, lambda data: data.update({key: value}))
        with pytest.raises(ModelError, match=message):
            load(copied)

    def test_a_device_that_is_not_here(self, copied: Path) -> None:
        change(copied, lambda data: data.update({"device": "vpi", "target": {"kind": "vpi"}}))
        with pytest.raises(TargetError, match="compiled for vpi, and this machine has no vpi device; compile it for"):
            load(copied).run(arguments(Mlp))

    def test_outputs_that_the_model_does_not_have(self, copied: Path) -> None:
        change(copied, lambda data: data.update({"outputs": []}))
        with pytest.raises(ModelError, match="returns 1 tensors where its metadata lists 0 outputs"):
            load(copied).run(arguments(Mlp))

    def test_inputs_that_the_model_does_not_have(self, copied: Path) -> None:
        change(copied, lambda data: data["inputs"][0].update({"shape": [4, 9]}))
        values = arguments(Mlp)
        with pytest.raises(CompileError, match="the compiled model failed while running: "):
            load(copied).run([np.zeros((4, 9), "float32"), *values[1:]])


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads((folder / METADATA).read_text())
    edit(data)
    (folder / METADATA).write_text(json.dumps(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


@pytest.mark.parametrize(
    "wrong", [{"mcpu": 5}, {"mattr": "+avx2"}, {"mattr": [1, None]}, {"mcpu": {}}, {"kind": "none"}, {"mtriple": 3}]
)
def test_a_target_that_is_none_is_refused(saved: Path, tmp_path: Path, wrong: dict[str, Any]) -> None:
    metadata = json.loads((saved / METADATA).read_text())
    metadata["target"].update(wrong)
    os.link(saved / LIBRARY, tmp_path / LIBRARY)
    (tmp_path / METADATA).write_text(json.dumps(metadata))
    with pytest.raises(ModelError, match="field target is not one that TVM knows"):
        load(tmp_path)


@pytest.mark.parametrize("package", ["apache-tvm", "apache-tvm-ffi"])
def test_code_of_another_tvm_is_warned_of(copied: Path, package: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TvmExtWarning)
        load(copied)
    change(copied, lambda data: data["versions"].update({package: "0.99", "numpy": "0.99"}))
    with pytest.warns(
        TvmExtWarning, match=rf"metadata.json: .* compiled with {package} 0.99 \(here [\d.post]+\), "
    ) as found:
        load(copied)
    assert len(found) == 1


@pytest.mark.parametrize("versions", [None, [], {}, {"apache-tvm": 1}, {"tvm-ext": "0.99"}])
def test_nothing_is_said_of_versions_that_are_not_known(copied: Path, versions: Any) -> None:
    change(copied, lambda data: data.update(versions=versions))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TvmExtWarning)
        load(copied)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.data())
def test_mutated_metadata_gives_a_model_that_runs_or_an_error(saved: Path, tmp_path: Path, data: st.DataObject) -> None:
    metadata = json.loads((saved / METADATA).read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        *path, key = data.draw(st.sampled_from(places(metadata)[1:] or [(None,)]))
        if key is None:
            break
        holder = metadata
        for step in path:
            holder = holder[step]
        if data.draw(st.booleans()):
            del holder[key]
        else:
            holder[key] = data.draw(JSON)
    if not (tmp_path / LIBRARY).exists():
        os.link(saved / LIBRARY, tmp_path / LIBRARY)
    (tmp_path / METADATA).write_text(json.dumps(metadata))
    with contextlib.suppress(TvmExtError):
        assert load(tmp_path).run(arguments(Mlp))
