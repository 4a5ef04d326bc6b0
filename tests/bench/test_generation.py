"""``tvm-ext bench --generate``: engines generate from one checkpoint, side by side; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tvm_ext.bench.generation import GenerationRow, _filled, compare_generation
from tvm_ext.cli.main import run

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

from tvm_ext import Generator  # noqa: E402
from tvm_ext.generation.definitions import SIZES, made_up  # noqa: E402

DESCRIBED = {
    "llama-tiny": {
        "model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 211, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    },
    "gpt2-tiny": {
        "model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_layer": 2, "n_inner": 192, "vocab_size": 211,
        "n_positions": 160,
    },
}  # fmt: skip


def checkpoint(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DESCRIBED[name]))
    safetensors.save_file(made_up(SIZES[name]).state_dict(), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny"])
def test_engines_give_the_same_tokens(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnxruntime", "openvino"):
        pytest.importorskip(package)
    folder = checkpoint(tmp_path / "decoder", name)
    assert run(["bench", str(folder), "--generate", "9", "--prompt-length", "5", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["engine"]: row for row in document["rows"]}
    assert list(rows) == ["tvm_ext", "torch", "onnxruntime", "openvino"]
    for row in rows.values():
        assert row["error"] is None
        assert row["same_tokens"] == 9
        assert row["first_token_ms"] > 0
        assert row["tokens_per_second"] > 0
    assert document["summary"]["torch_tokens_per_second"] == rows["torch"]["tokens_per_second"]


def test_weights_of_few_bits(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder = checkpoint(tmp_path / "decoder", "llama-tiny")
    result = compare_generation(folder, 4, prompt=3, weights="int8-32", engines=["tvm_ext", "torch", "onnxruntime"])
    assert result.weights == "int8-32"
    assert [row.error for row in result.rows] == [None, None, None]
    assert all(row.same_tokens is not None and row.same_tokens >= 1 for row in result.rows)


def test_a_compiled_decoder_and_one_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Generator.compile(made_up(SIZES["gpt2-tiny"]), context=20).save(tmp_path / "out")
    assert run(["bench", str(folder), "--generate", "1", "--json", str(tmp_path / "row.json")]) == 5
    assert "1 tokens behind a prompt of 32 do not fit the 20 positions" in capsys.readouterr().err
    assert (
        run(["bench", str(folder), "--generate", "1", "--prompt-length", "7", "--json", str(tmp_path / "r.json")]) == 0
    )
    assert "1 tokens behind 7, weights float32" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert row["tokens_per_second"] is None
    assert row["same_tokens"] == 1
    for engine in ("torch", "onnxruntime"):
        assert run(["bench", str(folder), "--generate", "2", "--engines", engine]) == 2
        assert "give the checkpoint's folder" in capsys.readouterr().err
    assert run(["bench", str(folder), "--generate", "2", "--weights", "int4"]) == 2
    assert "is compiled already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--generate", "0"], 2, "--generate"),
        (["--weights", "int4"], 2, "--weights is for decoders; add --generate COUNT"),
        (["--prompt-length", "4"], 2, "--prompt-length is for decoders"),
        (["--generate", "4", "--engines", "tvm"], 2, "engine 'tvm' does not generate tokens"),
        (["--generate", "4", "--engines", "torch,torch"], 2, "each once"),
        (["--generate", "4", "--threads", "1"], 2, "--threads does not go with --generate"),
        (["--generate", "4", "--input-shape", "x:1"], 2, "--input-shape does not go with --generate"),
        (["--generate", "4", "--memory", "optimal"], 2, "--memory does not go with --generate"),
        (["--generate", "4", "--weights", "int5"], 2, "'int5' is no format of weights"),
        (["--generate", "200"], 5, "do not fit the 160 positions"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkpoint(tmp_path / "decoder", "gpt2-tiny")
    assert run(["bench", str(folder), *arguments]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1 or code == 2


def test_what_is_no_decoder(mlp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(mlp), "--generate", "4"]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["bench", str(tmp_path / "nothing"), "--generate", "4"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_tokens_that_differ_are_counted() -> None:
    measured = {"torch": ([1, 2, 9, 4], 0.5, 0.25)}
    row = _filled(GenerationRow("torch"), measured, [1, 2, 3, 4], 4)
    assert (row.same_tokens, row.first_token_ms, row.tokens_per_second) == (2, 500.0, 12.0)
    assert _filled(GenerationRow("openvino", error="no"), measured, [1], 1) == GenerationRow("openvino", error="no")
    assert np.isfinite(row.tokens_per_second)
