"""Everything that can be wrong from outside: one line that says what and where, an exit code, nothing left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.commands import Commands, real_command


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_model(path: Path, nodes: list[onnx.NodeProto], domains: tuple[str, ...] = ("",)) -> Path:
    """Save a model from x: float32[2,3] to y with the given nodes."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    opsets = [helper.make_opsetid(domain, 17 if domain == "" else 1) for domain in domains]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", [x], [y]), opset_imports=opsets), path)
    return path


class TestModelFile:
    def test_from_nothing(self, tmp_path: Path) -> None:
        real_command("compile", tmp_path / "gone.onnx", "-o", tmp_path / "out").error(3, "gone.onnx: no such file")
        assert names(tmp_path) == []

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "no such file; check the path"),
            (b"", "is empty; export or download the model again"),
            (b"hello, world\n", "not an ONNX model"),
            (b"\x89PNG\r\n\x1a\n" + bytes(64), "not an ONNX model"),
            (b"PK\x03\x04" + bytes(64), "a zip archive"),
            (bytes(1000), "not an ONNX model"),
        ],
    )
    def test_missing_or_foreign(self, commands: Commands, tmp_path: Path, content: bytes | None, message: str) -> None:
        model = tmp_path / "model.onnx"
        if content is not None:
            model.write_bytes(content)
        commands("compile", model, "-o", tmp_path / "out").error(3, str(model), message)
        assert not (tmp_path / "out").exists()

    def test_a_folder(self, commands: Commands, tmp_path: Path) -> None:
        commands("compile", tmp_path, "-o", tmp_path / "out").error(3, f"{tmp_path} is a folder, not an ONNX model")

    @pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.98])
    def test_truncated(self, commands: Commands, mlp_path: Path, tmp_path: Path, share: float) -> None:
        content = mlp_path.read_bytes()
        (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
        commands("compile", tmp_path / "model.onnx", "-o", tmp_path / "out").error(3, "model.onnx")
        assert names(tmp_path) == ["model.onnx"]

    def test_truncated_torch_program(self, commands: Commands, tmp_path: Path) -> None:
        pytest.importorskip("torch", reason="PyTorch is not installed")
        (tmp_path / "model.pt2").write_bytes(b"PK\x03\x04" + bytes(100))
        commands("compile", tmp_path / "model.pt2", "-o", tmp_path / "out").error(3, "model.pt2")
        commands("compile", tmp_path / "gone.pt2", "-o", tmp_path / "out").error(3, "gone.pt2")


class TestUnknownOperator:
    def test_all_are_listed_by_node(self, commands: Commands, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Frobnicate", ["x"], ["a"], name="first", domain="com.example"),
            helper.make_node("Relu", ["a"], ["b"], name="fine"),
            helper.make_node("Defenestrate", ["b"], ["y"], name="second", domain="com.example"),
        ]
        model = save_model(tmp_path / "model.onnx", nodes, ("", "com.example"))
        line = commands("compile", model, "-o", tmp_path / "out").error(4, str(model), "Frobnicate", "first")
        assert "Defenestrate" in line
        assert "second" in line
        assert names(tmp_path) == ["model.onnx"]

    def test_one_that_onnx_does_not_have(self, commands: Commands, tmp_path: Path) -> None:
        model = save_model(tmp_path / "model.onnx", [helper.make_node("Reluu", ["x"], ["y"], name="node")])
        commands("compile", model, "-o", tmp_path / "out").error(4, "Reluu", "node")


class TestInputs:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--input-shape", "nope:4,32"], "nope"),
            (["--input-shape", "x:4,33"], "x"),
            (["--input-shape", "x:4"], "x"),
            (["--input-shape", "x:99999999999999999999,32"], "x"),
        ],
    )
    def test_shapes_that_do_not_fit_the_model(
        self, commands: Commands, mlp_path: Path, tmp_path: Path, arguments: list[str], message: str
    ) -> None:
        commands("compile", mlp_path, "-o", tmp_path / "out", *arguments).error(5, message)
        assert names(tmp_path) == []

    def test_a_dimension_left_open(self, commands: Commands, tmp_path: Path) -> None:
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
        model = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
        commands("compile", model, "-o", tmp_path / "out").error(
            5, "leaves dimensions of its inputs open", "--input-shape x:"
        )

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            ("x", np.zeros((4, 33), "float32"), "input x: float32[4,32]: dimension 1 must be 32, found float32[4,33]"),
            ("x", np.zeros(32, "float32"), "input x: float32[4,32]: expected 2 dimensions, found float32[32]"),
            ("x", np.zeros((4, 32)), "found dtype float64; convert it with numpy.asarray(value, 'float32')"),
            ("X", np.zeros((4, 32), "float32"), "the model has no input 'X', did you mean 'x'?"),
            ("nope", np.zeros((4, 32), "float32"), "the model has no input 'nope'; expected x: float32[4,32]"),
        ],
    )
    def test_arrays_that_do_not_fit(
        self, commands: Commands, artifact: Path, tmp_path: Path, name: str, array: np.ndarray, message: str
    ) -> None:
        np.save(tmp_path / "array.npy", array)
        arguments = ["run", artifact, "--input", f"{name}={tmp_path}/array.npy", "-o", tmp_path / "out.npz"]
        commands(*arguments).error(5, message)
        assert names(tmp_path) == ["array.npy"]

    def test_array_files_that_are_none(self, commands: Commands, artifact: Path, tmp_path: Path) -> None:
        (tmp_path / "text.npy").write_text("hello")
        commands("run", artifact, "--input", tmp_path / "gone.npy").error(5, "gone.npy: No such file or directory")
        commands("run", artifact, "--input", tmp_path / "text.npy").error(5, "text.npy cannot be read as NumPy data")


class TestTarget:
    @pytest.mark.parametrize(
        ("target", "message"),
        [
            ("lvm", "unknown target 'lvm': did you mean llvm"),
            ('{"kind": "llvm", "mcpu": "nope"}', "LLVM has no CPU 'nope'"),
            ('{"kind": "llvm", "mtriple": "nope", "mcpu": "nope"}', "LLVM cannot compile for 'nope'"),
            ('{"kind": ', "looks like JSON but cannot be parsed"),
            ("llvm -mcpu=skylake", 'options in a string are not accepted, write {"kind": "llvm"'),
        ],
    )
    def test_unknown(self, commands: Commands, mlp_path: Path, tmp_path: Path, target: str, message: str) -> None:
        commands("compile", mlp_path, "-o", tmp_path / "out", "--target", target).error(6, message)
        assert names(tmp_path) == []

    def test_one_that_this_machine_cannot_link(self, commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
        target = '{"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}'
        arguments = ["compile", mlp_path, "-o", tmp_path / "out", "--target", target]
        nothing = {"CXX": "", "PATH": str(tmp_path)}
        commands(*arguments, environment=nothing).error(10, "no C++ compiler for aarch64-linux-gnu on PATH")
        assert names(tmp_path) == []


class TestOutputFolder:
    def test_that_exists(self, commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.tex").write_text("chapter 1")
        commands("compile", mlp_path, "-o", tmp_path / "out").error(7, "out exists already; give another folder")
        commands("compile", mlp_path, "-o", tmp_path / "out", "--force").error(7, "holds more than an artifact")
        assert (tmp_path / "out" / "thesis.tex").read_text() == "chapter 1"
        assert names(tmp_path) == ["out"]

    def test_that_is_a_file(self, commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("chapter 1")
        for folder in (tmp_path / "out", tmp_path / "out" / "inside"):
            commands("compile", mlp_path, "-o", folder, "--force").error(7, "out", "not a folder")
        assert (tmp_path / "out").read_text() == "chapter 1"

    @pytest.mark.parametrize("folder", ["/proc/out", "/proc/1/out/deep", "/dev/null/out"])
    def test_that_nobody_can_make(self, commands: Commands, mlp_path: Path, folder: str) -> None:
        commands("compile", mlp_path, "-o", folder).error(7, f"cannot create {folder}")

    def test_that_is_found_out_before_the_model_is_read(self, commands: Commands) -> None:
        commands("compile", "/gone.onnx", "-o", "/proc/out").error(7, "cannot create /proc/out")

    def test_on_a_read_only_disk(self, commands: Commands, mlp_path: Path, mount: Callable[..., Path]) -> None:
        disk = mount("size=1m")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        commands("compile", mlp_path, "-o", disk / "out").error(7, "Read-only file system; give another folder")

    def test_dumps_that_cannot_be_written(self, commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
        arguments = ["compile", mlp_path, "-o", tmp_path / "out", "--dump-dir", "/proc/dumps"]
        commands(*arguments).error(7, "option dump_dir: cannot write /proc/dumps/00_partition.py")
        assert names(tmp_path) == []


class TestFullDisk:
    @pytest.mark.parametrize("size", ["4k", "20k", "44k", "64k"])
    def test_compile(self, commands: Commands, mlp_path: Path, mount: Callable[..., Path], size: str) -> None:
        disk = mount(f"size={size}")
        commands("compile", mlp_path, "-o", disk / "out").error(7, "out: No space left on device; ")
        assert names(disk) == []

    def test_limited_file_size(self, commands: Commands, mlp_path: Path, tmp_path: Path) -> None:
        arguments = ["compile", mlp_path, "-o", tmp_path / "out"]
        commands(*arguments, file_size=10_000).error(7, "out: File too large; raise the limit on file sizes")
        assert names(tmp_path) == []

    def test_dumps(self, commands: Commands, mlp_path: Path, tmp_path: Path, mount: Callable[..., Path]) -> None:
        disk = mount("size=8k")
        arguments = ["compile", mlp_path, "-o", tmp_path / "out", "--dump-dir", disk]
        commands(*arguments).error(7, "option dump_dir: cannot write", "No space left on device")
        assert names(tmp_path) == [disk.name]

    def test_outputs_of_a_run(self, commands: Commands, artifact: Path, mount: Callable[..., Path]) -> None:
        disk = mount("size=4k,nr_inodes=1")
        full = "No space left on device; free some space or write elsewhere"
        commands("run", artifact, "-o", disk / "y.npz").error(7, f"cannot write {disk}/y.npz: {full}")
        assert names(disk) == []
        commands("run", artifact, "-o", "/dev/full").error(7, "cannot write /dev/full: No space left on device")
        commands("run", artifact, "-o", "/proc/y.npz").error(7, "cannot write /proc/y.npz: ")
        commands("run", artifact, "-o", disk).error(7, f"cannot write {disk}: it is a folder; give a file name")

    def test_an_output_file_is_replaced_whole_or_not_at_all(
        self, commands: Commands, artifact: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "y.npz").write_text("old")
        commands("run", artifact, "-o", tmp_path / "y.npz", file_size=300).error(7, "y.npz: File too large")
        assert (tmp_path / "y.npz").read_text() == "old"
        assert commands("run", artifact, "-o", tmp_path / "y.npz").code == 0
        assert names(tmp_path) == ["y.npz"]


class TestArtifact:
    def test_what_is_none(self, commands: Commands, tmp_path: Path) -> None:
        commands("run", tmp_path / "gone").error(3, "gone is not a folder; `tvm-ext compile MODEL -o FOLDER` makes an")
        commands("run", tmp_path).error(3, "is not an artifact (it has no metadata.json)")

    @pytest.mark.parametrize("file", ["metadata.json", "model.so"])
    def test_damaged(self, commands: Commands, artifact: Path, tmp_path: Path, file: str) -> None:
        for path in artifact.iterdir():
            content = bytearray(path.read_bytes())
            if path.name == file:
                content[10] ^= 0x80
            (tmp_path / path.name).write_bytes(content)
        commands("run", tmp_path).error(3, f"{file} is damaged", "compile the model again")
