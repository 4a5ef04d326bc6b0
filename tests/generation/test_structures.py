"""Decoders of every structure, compiled, against the same in plain torch: logits, however tokens come, and tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext import Generator
from tvm_ext.bench.decoder_peers import rounded
from tvm_ext.errors import ModelError
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.definitions import SIZES, Transformer, made_up
from tvm_ext.generation.layout import Layout
from tvm_ext.generation.module import decoder_module
from tvm_ext.generation.quantization import weight_format
from tvm_ext.schedules.compute.weight_words import WeightFormat
from tvm_ext.schedules.cpu import decoder_kernels
from tvm_ext.schedules.cpu.machine import machine_of

CONTEXT = 83
SMALL = {
    "layers": 2, "hidden": 40, "heads": 4, "kv_heads": 2, "head_size": 10, "inner": 31, "vocabulary": 97,
    "positions": 90, "tied": False,
}  # fmt: skip
LAYERED = {"norm": "layer", "gated": False}
ALL_BIASES = ("qkv", "output", "up", "down", "logits")

QUICK: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "windows, caps, norms on both sides": (
        {"layers": 3, "norms": "both", "head_norms": "heads", "windows": [17, 0, 5], "score_cap": 2.0, "logit_cap": 3.0,
         "window_rates": [1.0, 0.3, 0.1, 0.03, 0.01], "rates": [0.9, 0.2, 0.05, 0.0, 0.0], "rotary_gain": 1.3,
         "activation": "gelu"}, (),
    ),
    "ALiBi, centred norms, networks beside attention": (
        LAYERED | {"positional": "alibi", "slopes": [0.5, 0.25, 0.06, 0.004], "embedding_norm": True,
                   "residual": "parallel", "activation": "exact_gelu"}, ALL_BIASES,
    ),
    "experts": (
        {"layers": 3, "experts": 5, "chosen": 2, "expert_inner": 23, "shared_inner": 19, "plain": [False, True, False],
         "norms": "after", "head_norms": "whole"}, (),
    ),
}  # fmt: skip
SLOW: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "learnt positions, rectifiers": (LAYERED | {"positional": "learnt", "activation": "relu"}, ALL_BIASES),
    "one norm for both": (
        {"norm": "layer", "residual": "shared", "head_norms": "heads", "turned": [True, False], "windows": [7, 0],
         "kv_heads": 1}, ("output",),
    ),
    "biases and norms behind": ({"norms": "both", "activation": "squared_relu"}, ("output", "up", "down")),
    "rounded slopes": (
        LAYERED | {"positional": "alibi", "slopes": [0.5, 0.25, 0.06, 0.004], "slopes_rounded": True,
                   "slope_gain": 0.3, "windows": [0, 31]}, (),
    ),
    "one expert of three": (
        {"experts": 3, "chosen": 1, "expert_inner": 130, "normalised": True, "activation": "gelu"}, ("qkv",),
    ),
    "all experts": ({"experts": 4, "chosen": 4, "expert_inner": 7, "residual": "parallel"}, ()),
}  # fmt: skip


def logits_of(model: Transformer, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        result: np.ndarray = model(torch.tensor([ids]))[0][0].numpy()
    return result


def check(model: Transformer, generator: Generator, tolerance: float = 1e-4) -> None:
    """Compare logits however tokens come, and tokens until the cache is full; the tolerance is in standard deviations.

    Data that meets integers is rounded to 16 bits, which moves logits of such small models by some 2e-4.
    """
    ids = [int(token) for token in np.random.default_rng(0).integers(0, model.config.vocabulary, CONTEXT)]
    expected = logits_of(model, ids)
    deviation = float(expected.std())
    for parts in ([CONTEXT], [3, *[1] * (CONTEXT - 3)], [17, 33, 1, CONTEXT - 51]):
        generator.reset()
        begin = 0
        for count in parts:
            part = ids[begin : begin + count]
            found = generator.decode(part[0]) if count == 1 else generator.prefill(part)
            begin += count
            np.testing.assert_allclose(found, expected[begin - 1], rtol=0, atol=tolerance * deviation)
    for prompt in ([5], [3, 1, 4], ids[:17]):
        count = CONTEXT - len(prompt) + 1
        tokens, margins = model.generate(prompt, count)
        found_tokens = list(generator.generate(prompt, count))
        same = next((number for number in range(count) if tokens[number] != found_tokens[number]), count)
        assert same == count or margins[same] < 10 * tolerance * deviation


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_logits_and_tokens(name: str) -> None:
    fields, biases = (QUICK | SLOW)[name]
    model = made_up(DecoderConfig(**SMALL | fields), seed=3, biases=biases)
    check(model, Generator.compile(model, context=CONTEXT))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["bfloat16", "int8", "int4-64-asymmetric"])
def test_experts_of_few_bits(text: str) -> None:
    config = DecoderConfig(**SMALL | {"experts": 5, "chosen": 2, "expert_inner": 70, "shared_inner": 19})
    model = made_up(config, seed=1)
    generator = Generator.compile(model, weights=text, context=CONTEXT)
    if text == "bfloat16":
        with torch.no_grad():
            for name, value in model.named_parameters():
                if value.ndim > 1 and not any(part in name for part in ("embed", "router", "shared_gate")):
                    value.copy_(value.bfloat16().float())
    else:
        rounded(model, weight_format(text))
    check(model, generator, 1e-4 if text == "bfloat16" else 1e-3)


@pytest.mark.parametrize("threads", ["several", "one"])
def test_shared_out_or_not(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products stay in the calling thread; here all loops are shared out, or as few as can be."""
    enough = {"several": 1, "one": 1 << 62}[threads]
    monkeypatch.setattr(decoder_kernels, "operations_worth_a_fork", lambda machine: enough)
    config = DecoderConfig(**SMALL | {"experts": 5, "chosen": 2, "expert_inner": 70, "plain": [False, True]})
    model = made_up(config, seed=5)
    check(model, Generator.compile(model, context=CONTEXT))


def test_small_decoders_do_not_fork() -> None:
    """What each parallel loop of a token has to do is known to be too little, but for attention, where it is noted."""
    machine = machine_of(tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "num-cores": 2}))
    tiny, large = (
        parallel_loops(decoder_module(Layout(config, WeightFormat(), 64, machine, frozenset()), 64))
        for config in (SIZES["llama-tiny"], SIZES["qwen-0.5b"])
    )
    assert set(tiny) == {"attend"}
    assert "word_product" in large
    assert "norm" not in large


def parallel_loops(mod: tvm.IRModule) -> list[str]:
    """Give the kernels of ``decode`` that have parallel loops, without the numbers of their names."""
    called: list[tvm.ir.GlobalVar] = []
    call_tir = tvm.ir.Op.get("relax.call_tir")

    def call(node: Any) -> None:
        if node.op == call_tir:
            called.append(node.args[0])

    tvm_ffi.structural_walk(mod["decode"].body, [(tvm.ir.Call, call)])
    names = []
    for name in called:
        found: list[Any] = []
        collect = lambda loop, found=found: found.append(loop.kind)  # noqa: E731
        tvm_ffi.structural_walk(mod[name].body, [(tirx.For, collect)])
        if tirx.ForKind.PARALLEL in found:
            names.append(name.name_hint.rstrip("0123456789"))
    return names


def test_tokens_are_told_to_experts_that_they_want() -> None:
    """Only a share of the weights of experts is read for a token."""
    config = DecoderConfig(**SMALL | {"experts": 8, "chosen": 2, "expert_inner": 64, "layers": 1})
    dense = DecoderConfig(**SMALL | {"inner": 128, "layers": 1})
    read = [
        Generator.compile(made_up(each), context=8).model.metadata["decoder"]["bytes_per_token"]
        for each in (config, dense)
    ]
    assert read[1] < read[0] < 1.2 * read[1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "batch"}, "norm 'batch' is not known; candidates are rms, layer"),
        ({"windows": [3]}, "field windows has 1 numbers where there are 2 blocks"),
        ({"slopes": [1.0] * 4}, "slopes belong to positional 'alibi'"),
        ({"positional": "alibi"}, "slopes belong to positional 'alibi'"),
        ({"experts": 3, "chosen": 4, "expert_inner": 5}, "4 of 3 experts of 5 elements"),
        ({"experts": 3}, "None of 3 experts"),
        ({"norms": "after", "residual": "shared"}, "need a serial residual"),
        ({"score_cap": -1.0}, "field score_cap is -1.0"),
        ({"rates": [1.0, float("nan"), 0.0, 0.0, 0.0]}, "holds what is no finite number"),
    ],
)
def test_structures_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        DecoderConfig(**SMALL | fields)
