"""Compiled decoders against plain torch: the same greedy tokens, the same logits; what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import tvm_ext
from tests.commands import Commands
from tvm_ext import Generator
from tvm_ext.bench.decoder_peers import rounded
from tvm_ext.errors import InputError, ModelError, OptionError, OutputError
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.definitions import SIZES, Transformer, made_up
from tvm_ext.generation.quantization import quantized, weight_format

CONTEXT = 150
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
TIE = 1e-3
"""A difference of logits that rounding may turn around; those of these models have a standard deviation of 0.2."""


@pytest.fixture(scope="module")
def llama() -> tuple[Transformer, Generator]:
    """Give a model of torch, and the same compiled."""
    model = made_up(SIZES["llama-tiny"], biases=("qkv",))
    return model, Generator.compile(model, context=CONTEXT)


@pytest.fixture(scope="module")
def artifact(llama: tuple[Transformer, Generator], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save it."""
    return llama[1].save(tmp_path_factory.mktemp("decoder") / "out")


def require_same(model: Transformer, generator: Generator, count: int) -> None:
    """Compare greedy tokens up to the first one where two logits are as good as equal."""
    expected, margins = model.generate(PROMPT, count)
    found = list(generator.generate(PROMPT, count))
    same = next((number for number in range(count) if expected[number] != found[number]), count)
    assert len(found) == count
    assert same == count or margins[same] < TIE, f"token {same} differs"
    assert same >= 10
    assert len(set(expected)) > 4, "a model that repeats one token shows nothing"


def logits_of(model: Transformer, ids: list[int]) -> np.ndarray:
    """Logits behind some tokens."""
    with torch.no_grad():
        result: np.ndarray = model(torch.tensor([ids]))[0][0, -1].numpy()
    return result


def test_greedy_tokens_of_llama(llama: tuple[Transformer, Generator]) -> None:
    require_same(*llama, 128)


def test_logits_however_tokens_come(llama: tuple[Transformer, Generator]) -> None:
    model, generator = llama
    ids = list(np.random.default_rng(0).integers(0, 211, 77))
    expected = logits_of(model, ids)
    for parts in ([77], [1] * 77, [33, 1, 1, 31, 7, 4], [2, 75], [76, 1]):
        generator.reset()
        begin = 0
        for count in parts:
            part = ids[begin : begin + count]
            found = generator.decode(part[0]) if count == 1 else generator.prefill(part)
            begin += count
        np.testing.assert_allclose(found, expected, atol=2e-5)
        assert generator.length == 77


def test_the_cache_is_written_in_place(llama: tuple[Transformer, Generator]) -> None:
    _, generator = llama
    generator.reset()
    generator.prefill(PROMPT)
    before = [np.array(np.from_dlpack(cache)) for cache in generator._caches]
    addresses = [cache.data_ptr() for cache in generator._caches]
    generator.decode(1)
    assert [cache.data_ptr() for cache in generator._caches] == addresses
    heads, size = generator.config.kv_heads, generator.config.head_size
    for old, cache in zip(before, generator._caches, strict=True):
        changed = np.count_nonzero(old != np.from_dlpack(cache))
        assert 0 < changed <= heads * size


def test_a_full_cache_is_refused(llama: tuple[Transformer, Generator]) -> None:
    _, generator = llama
    generator.reset()
    with pytest.raises(InputError, match=r"151 more tokens do not fit the cache, which holds 0 of 150"):
        generator.prefill([1] * 151)
    generator.prefill([1] * 149)
    last = generator.decode(2)
    assert np.isfinite(last).all()
    with pytest.raises(InputError, match="1 more tokens do not fit the cache, which holds 150 of 150"):
        generator.decode(2)
    assert generator.length == 150
    with pytest.raises(InputError, match="count: 141 tokens behind a prompt of 11 do not fit a cache of 150"):
        next(generator.generate(PROMPT, 141))
    assert len(list(generator.generate(PROMPT, 140))) == 140


@pytest.mark.parametrize("ids", [[], [-1], [211], [1, 2, 10**30], [1.5], [[1]], "ab", [1, [2]], None, [True]])
def test_bad_ids_are_refused(llama: tuple[Transformer, Generator], ids: object) -> None:
    _, generator = llama
    generator.reset()
    with pytest.raises(InputError, match=r"^prompt ids: "):
        generator.prefill(ids)  # type: ignore[arg-type]
    assert generator.length == 0


def test_generators_are_not_copied(llama: tuple[Transformer, Generator]) -> None:
    for call in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(OutputError, match=r"neither pickled nor copied; use save\(folder\), and tvm_ext.Generator"):
            call(llama[1])


def test_texts_end_with_stop_ids(llama: tuple[Transformer, Generator]) -> None:
    _, generator = llama
    tokens = list(generator.generate(PROMPT, 20))
    place = next(number for number in range(3, 20) if tokens[number] not in tokens[:number])
    assert list(generator.generate(PROMPT, 20, [210, tokens[place]])) == tokens[: place + 1]
    assert list(generator.generate(PROMPT, 1, tokens)) == tokens[:1]
    for wrong in ([211], [-1], [1.5], 3, None):
        with pytest.raises(InputError, match=r"^stop ids: "):
            generator.generate(PROMPT, 3, wrong)  # type: ignore[arg-type]


def test_no_token_is_chosen_of_nan(llama: tuple[Transformer, Generator]) -> None:
    model, generator = llama
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    weights["model.norm.weight"] = np.full(64, np.nan, "float32")
    with pytest.raises(ModelError, match=r"weight 'model.norm.weight' holds NaN or infinite numbers"):
        Decoder(model.config, weights)
    number = next(n for n, array in enumerate(generator._arrays) if array.shape == (64,))
    kept = generator._arrays[number].copy()
    generator._arrays[number][:] = 1e38
    try:
        with pytest.raises(ModelError, match="NaN, so that none is the highest"):
            list(generator.generate(PROMPT, 3))
    finally:
        generator._arrays[number][:] = kept


@pytest.mark.parametrize("count", [-1, 1.5, True, "3"])
def test_bad_counts_are_refused(llama: tuple[Transformer, Generator], count: object) -> None:
    with pytest.raises(InputError, match=r"^count: "):
        next(llama[1].generate(PROMPT, count))  # type: ignore[arg-type]
    assert list(llama[1].generate(PROMPT, 0)) == []


def test_sequences_that_take_turns_are_refused_and_never_mixed(llama: tuple[Transformer, Generator]) -> None:
    _, generator = llama
    alone = list(generator.generate(PROMPT, 6))
    first, second = generator.generate(PROMPT, 6), generator.generate([7, 7], 6)
    assert list(first) == alone
    assert list(second) == list(generator.generate([7, 7], 6))
    calls = (lambda: generator.prefill([1]), lambda: generator.decode(1), generator.reset,
             lambda: next(generator.generate([1], 1)))  # fmt: skip
    for call in calls:
        older = generator.generate(PROMPT, 6)
        assert [next(older), next(older)] == alone[:2]
        call()
        with pytest.raises(InputError, match="another call"):
            next(older)
    assert list(generator.generate(PROMPT, 6)) == alone


def test_saved_and_loaded(llama: tuple[Transformer, Generator], artifact: Path) -> None:
    _, generator = llama
    loaded = Generator.load(artifact)
    assert list(loaded.generate(PROMPT, 20)) == list(generator.generate(PROMPT, 20))
    with pytest.raises(ModelError, match="holds a decoder"):
        tvm_ext.load(artifact)


def test_damaged_weights_are_refused(artifact: Path, tmp_path: Path) -> None:
    loaded = Generator.load(artifact)
    copy = loaded.save(tmp_path / "copy")
    content = bytearray((copy / "weights.bin").read_bytes())
    content[100] ^= 1
    (copy / "weights.bin").write_bytes(content)
    with pytest.raises(ModelError, match="SHA-256"):
        Generator.load(copy)
    (copy / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"weights\.bin"):
        Generator.load(copy)


@pytest.mark.parametrize(("field", "value"), [("context", 10**6), ("caches", []), ("config", {}), ("sha256", "")])
def test_changed_metadata_are_refused(artifact: Path, tmp_path: Path, field: str, value: object) -> None:
    copy = Path(shutil.copytree(artifact, tmp_path / "copy"))
    metadata = json.loads((copy / "metadata.json").read_text())
    metadata["decoder"][field] = value
    (copy / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(ModelError, match="field decoder was changed"):
        Generator.load(copy)


def test_command(commands: Commands, artifact: Path, llama: tuple[Transformer, Generator]) -> None:
    prompt = ",".join(map(str, PROMPT))
    expected = list(llama[1].generate(PROMPT, 12))
    result = commands("generate", artifact, "--prompt-ids", prompt, "--count", "12", "--json")
    assert json.loads(result.stdout)["tokens"] == expected
    result = commands("generate", artifact, "--prompt-ids", prompt, "--count", "12")
    assert [int(token) for token in result.stdout.split()] == expected
    commands("generate", artifact, "--prompt-ids", "1,x").error(5, "'x' is no whole number")
    commands("generate", artifact, "--prompt-ids", "1,211").error(5, "211 is no token of this model")
    commands("generate", artifact, "--prompt-ids", "1", "--count", "151").error(5, "do not fit a cache of 150")
    result = commands("generate", artifact, "--prompt-ids", prompt, "--stop-ids", str(expected[0]))
    assert [int(token) for token in result.stdout.split()] == expected[:1]
    commands("generate", artifact, "--prompt-ids", "1", "--stop-ids", "2,").error(5, "stop ids: '' is no whole number")
    commands("run", artifact).error(3, "holds a decoder")


def test_checkpoints_from_the_command_line(commands: Commands, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = made_up(SIZES["llama-tiny"])
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    described = {
        "model_type": "qwen2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 96, "vocab_size": 211, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(described))
    commands("compile", folder, "-o", tmp_path / "out").error(3, "no weights (*.safetensors)")
    safetensors.save_file(model.state_dict(), folder / "model.safetensors")
    commands("compile", folder, "-o", tmp_path / "out", "--weights", "int5").error(2, "'int5' is no format")
    commands("compile", folder, "-o", tmp_path / "out", "--emit", "c").error(2, "--emit is not for decoders")
    commands("compile", folder, "-o", tmp_path / "out", "--context", "513").error(2, "from 1 to 512")
    decoder = Decoder.from_folder(folder)
    for name, weight in model.state_dict().items():
        np.testing.assert_array_equal(decoder.weights[name], weight.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("text", ["int8", "int4", "int4-32-asymmetric", "int4-128"])
def test_integer_weights(text: str) -> None:
    config = SIZES["llama-tiny"]
    config = type(config)(**config.to_json() | {"tied": False})
    generator = Generator.compile(made_up(config), weights=text, context=CONTEXT)
    require_same(rounded(made_up(config), weight_format(text)), generator, 128)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(3, 1, 10), (5, 5, 17 * 2), (7, 7, 8)])
def test_awkward_heads(heads: tuple[int, int, int]) -> None:
    config = SIZES["llama-tiny"]
    names = ("heads", "kv_heads", "head_size")
    config = type(config)(**config.to_json() | dict(zip(names, heads, strict=True)) | {"hidden": 33, "inner": 31})
    model = made_up(config)
    require_same(model, Generator.compile(model, context=CONTEXT), 60)


@pytest.mark.slow
def test_greedy_tokens_of_gpt2() -> None:
    model = made_up(SIZES["gpt2-tiny"], seed=1)  # 25 tokens, none of them by a margin within rounding
    require_same(model, Generator.compile(model, context=CONTEXT), 128)


def test_wrong_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no configuration of a decoder"):
        Generator.compile(torch.nn.Linear(2, 2))
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        Generator.compile(tmp_path)
    model = made_up(SIZES["llama-tiny"])
    with pytest.raises(OptionError, match="option context"):
        Generator.compile(model, context=0)
    with pytest.raises(OptionError, match="groups of 7"):
        Generator.compile(model, weights="int4-7")
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    del weights["model.norm.weight"]
    with pytest.raises(ModelError, match=r"weight 'model.norm.weight' of shape \[64\] is missing"):
        Decoder(model.config, weights)
    with pytest.raises(ModelError, match="where the configuration says"):
        Decoder(model.config, weights | {"model.norm.weight": np.ones(63, "float32")})
    with pytest.raises(ModelError, match="cannot share 3 heads"):
        type(model.config)(**model.config.to_json() | {"kv_heads": 3})


def test_weights_that_have_no_place() -> None:
    model = made_up(SIZES["llama-tiny"], biases=("qkv",))
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    Decoder(model.config, weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    with pytest.raises(ModelError, match=r"'model.layers.0.self_attn.o_proj.scale' belongs to no part"):
        Decoder(model.config, weights | {"model.layers.0.self_attn.o_proj.scale": np.zeros(64, "float32")})
    with pytest.raises(ModelError, match=r"'model.layers.1.self_attn.o_proj.bias' is missing, and others"):
        Decoder(model.config, weights | {"model.layers.0.self_attn.o_proj.bias": np.zeros(64, "float32")})
    del weights["model.layers.1.self_attn.k_proj.bias"]
    with pytest.raises(ModelError, match=r"'model.layers.1.self_attn.k_proj.bias' is missing, and others"):
        Decoder(model.config, weights)


def test_weights_without_integers() -> None:
    weight = np.ones((40, 3), "float32")
    weight[5, 1] = np.nan
    with pytest.raises(ModelError, match="infinite or NaN"):
        quantized(weight, weight_format("int4"))


def test_a_wrong_prompt_leaves_the_cache_as_it_was(llama: tuple[Transformer, Generator]) -> None:
    _, generator = llama
    generator.reset()
    generator.prefill(PROMPT)
    expected = generator.decode(7)
    for wrong in ([], [211], [1] * 151, [10**30]):
        with pytest.raises(InputError):
            generator.generate(wrong, 3)
    with pytest.raises(InputError, match="do not fit a cache"):
        generator.generate(PROMPT, 141)
    assert generator.length == len(PROMPT) + 1
    generator.reset()
    generator.prefill(PROMPT)
    np.testing.assert_array_equal(generator.decode(7), expected)
    with pytest.raises(InputError, match=r"1000000000000000000000000000000 is no token"):
        generator.prefill([10**30])


def test_sequences_that_share_their_beginning(llama: tuple[Transformer, Generator]) -> None:
    model, generator = llama
    for length in (0, 1, 15, 16, 17, 100):
        generator.reset()
        if length:
            generator.prefill([(3 * place) % 211 for place in range(length)])
        beginning = [(3 * place) % 211 for place in range(length)]
        other = generator.fork()
        assert other.length == generator.length == length
        # In turns, of different lengths: neither sees the other's tokens.
        first, second = generator.prefill([7, 8]), other.prefill([9, 10, 11])
        first, second = generator.decode(12), other.decode(13)
        np.testing.assert_allclose(first, logits_of(model, [*beginning, 7, 8, 12]), atol=1e-4)
        np.testing.assert_allclose(second, logits_of(model, [*beginning, 9, 10, 11, 13]), atol=1e-4)
    other.reset()
    assert generator.length == 103
    np.testing.assert_allclose(other.prefill(PROMPT), logits_of(model, PROMPT), atol=1e-4)


def test_weights_of_sequences_are_held_once(llama: tuple[Transformer, Generator]) -> None:
    other = llama[1].fork()
    assert all(own is shared for own, shared in zip(other._arrays, llama[1]._arrays, strict=True))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="pages of the process are not told here")
def test_memory_of_a_cache_follows_the_tokens() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    generator = Generator.compile(made_up(DecoderConfig(4, 128, 8, 8, 64, 96, 211, 16384)), context=16384)
    generator.prefill([1, 2, 3])
    before = resident()
    others = [generator.fork() for _ in range(4)]
    for number, other in enumerate(others):
        other.prefill([number] * 16)
    capacity = 4 * sum(array.nbytes for array in others[0]._held)
    assert capacity == 4 * 256 << 20
    assert resident() - before < capacity // 16
