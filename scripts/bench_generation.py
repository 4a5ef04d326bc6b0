"""Measure decoders token by token: bandwidth, peers with the same shapes and bits, prefill, the same tokens as torch.

Run: python scripts/bench_generation.py [--quick] [--models NAMES] [--formats NAMES] [--folder FOLDER] [--keep FILE]

Models have made-up weights of a fixed seed. The peers run the same torch model exported to ONNX, its weights in blocks
of MatMulNBits. Exported and compiled models are kept in the folder, so that a second run begins with measuring. All
engines have as many threads as the machine has cores, and take turns; figures are medians.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np

from scripts.generation_peers import peers
from scripts.results import add_json_option, add_keep_option, kept_or, result_path, store
from tvm_ext import Generator
from tvm_ext.bench.decoder_peers import exported, rounded
from tvm_ext.bench.peak import MultiplyAdds, Read
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.definitions import SIZES, made_up
from tvm_ext.generation.quantization import weight_format
from tvm_ext.system.threads import physical_cores, with_pool
from tvm_ext.target import native_target

MODELS = {
    "gpt2-124m": SIZES["gpt2-124m"],
    "llama-168m": DecoderConfig(12, 1024, 16, 4, 64, 2816, 32000, 2048, tied=False),
}
FORMATS = ("float32", "int8-32", "int4-32")
CONTEXT, PAST, BURST, TURNS, STEPS, TOKENS = 1024, 32, 8, 6, 128, 512
PROMPT = [int(token) for token in np.random.default_rng(7).integers(0, 1000, PAST)]
TIE = 2e-3
"""Share of the standard deviation of logits below which the first two are a tie."""


def prepared(name: str, text: str, folder: Path) -> tuple[Generator, Path]:
    """Compile and export a model, or find that done in the folder."""
    out, file = folder / f"{name}-{text}", folder / f"{name}-{text}-onnx" / "model.onnx"
    if not out.exists():
        Generator.compile(made_up(MODELS[name]), weights=text, context=CONTEXT).save(out)
    if not file.exists():
        exported(made_up(MODELS[name]), weight_format(text), PAST, file)
    return Generator.load(out), file


def times(contenders: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """Give milliseconds a run: contenders in turns, some runs each, after a pause in which threads come to rest."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, run in contenders.items():
            time.sleep(0.2)
            for number in range(BURST):
                start = time.perf_counter()
                run()
                if turn and number:  # the first wakes threads up
                    seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * median(values) for name, values in seconds.items()}


def measured(name: str, text: str, folder: Path, turns: int) -> dict[str, Any]:
    """Measure one model in one format."""
    generator, file = prepared(name, text, folder)
    generator.prefill(PROMPT)
    position = generator.length

    def step() -> None:
        generator.length = position
        generator.decode(5)

    target, cores = native_target(), physical_cores()
    read = Read(target, 256 << 20, cores)
    contenders = {"tvm_ext": step, "read": lambda: with_pool(read.once), **peers(file, cores)}
    row: dict[str, Any] = {
        "kind": "speed",
        "model": name,
        "weights": text,
        **{k: round(v, 3) for k, v in times(contenders, turns).items()},
    }
    nbytes = generator.model.metadata["decoder"]["bytes_per_token"]
    row["bytes"], row["gigabytes_per_second"] = nbytes, round(nbytes / row["tvm_ext"] / 1e6, 3)
    row["read_gigabytes_per_second"] = round(read.nbytes / row["read"] / 1e6, 3)
    row["bandwidth_share"] = round(row["gigabytes_per_second"] / row["read_gigabytes_per_second"], 4)
    others = {key: row[key] for key in ("onnxruntime", "openvino") if key in row}
    row["best_peer"] = min(others, key=lambda key: others[key])
    row["vs_best_peer"] = round(row["tvm_ext"] / others[row["best_peer"]], 4)
    row |= prefill(generator, target, cores)
    print(row, flush=True)
    return row


def prefill(generator: Generator, target: Any, cores: int) -> dict[str, float]:
    """Take in 512 tokens at once; multiply-adds of products and of attention over the tokens before."""
    config = generator.config
    ids = np.random.default_rng(8).integers(0, config.vocabulary, TOKENS)
    seconds, rates = [], []
    peak = MultiplyAdds(target, cores)
    for _ in range(3):
        rates.append(with_pool(lambda: peak.rate(0.15)))
        generator.reset()
        start = time.perf_counter()
        generator.prefill(ids)
        seconds.append(time.perf_counter() - start)
    blocks = sum(
        int(np.prod(shape))
        for name, shape, _ in config.shapes()
        if len(shape) == 2 and (".h." in f".{name}" or ".layers." in name)
    )
    attention = config.layers * config.heads * config.head_size * TOKENS * (TOKENS + 1)
    flops = 2 * (TOKENS * blocks + attention + config.vocabulary * config.hidden)
    return {
        "prefill_milliseconds": round(1e3 * median(seconds), 1),
        "prefill_gflops": round(flops / median(seconds) / 1e9, 2),
        "peak_gflops": round(median(rates) / 1e9, 2),
        "peak_share": round(flops / median(seconds) / median(rates), 4),
    }


def same(name: str, text: str, folder: Path) -> dict[str, Any]:
    """Compare greedy tokens with those of torch in float32, with the weights that integers stand for."""
    generator, _ = prepared(name, text, folder)
    model = rounded(made_up(MODELS[name]), weight_format(text))
    expected, margins = model.generate(PROMPT, STEPS)
    found = list(generator.generate(PROMPT, STEPS))
    first = next((number for number in range(STEPS) if expected[number] != found[number]), STEPS)
    deviation = float(np.std(generator.prefill([expected[0]]))) if generator.length < CONTEXT else 1.0
    row = {
        "kind": "tokens", "model": name, "weights": text, "steps": STEPS,
        "same_steps": first, "distinct_tokens": len(set(expected)),
        "margin": 0.0 if first == STEPS else margins[first] / deviation,
    }  # fmt: skip
    row["same"] = int(first == STEPS or row["margin"] < TIE)
    print(row, flush=True)
    return row


def summary_of(rows: list[dict[str, Any]], tokens: list[dict[str, Any]]) -> dict[str, float]:
    """Sum up: geometric means."""

    def mean(key: str, chosen: list[dict[str, Any]]) -> float:
        return round(geometric_mean([row[key] for row in chosen]), 4)

    summary = {
        "decode_bandwidth_share": mean("bandwidth_share", rows),
        "decode_vs_best_peer": mean("vs_best_peer", rows),
        "prefill_peak_share": mean("peak_share", rows),
        "generation_cases": len(rows),
    }
    for text in sorted({row["weights"] for row in rows}):
        chosen, short = [row for row in rows if row["weights"] == text], text.partition("-")[0]
        summary[f"decode_bandwidth_share_{short}"] = mean("bandwidth_share", chosen)
        summary[f"decode_vs_best_peer_{short}"] = mean("vs_best_peer", chosen)
        summary[f"prefill_peak_share_{short}"] = mean("peak_share", chosen)
    if tokens:
        summary["same_tokens"] = round(sum(row["same"] for row in tokens) / len(tokens), 4)
        summary["same_tokens_cases"] = len(tokens)
    return summary


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="which, comma-separated")
    parser.add_argument("--formats", default=",".join(FORMATS), help="which formats of weights, comma-separated")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "generation", help="where models are kept")
    parser.add_argument("--prepare", action="store_true", help="compile and export only")
    parser.add_argument("--quick", action="store_true", help="fewer turns, for the screen")
    add_keep_option(parser)
    add_json_option(parser, "dynamic")
    arguments = parser.parse_args()
    names, texts = arguments.models.split(","), arguments.formats.split(",")
    whole = (set(names), set(texts)) == (set(MODELS), set(FORMATS)) and not arguments.quick
    path = result_path("dynamic", arguments.json, whole)
    warnings.simplefilter("ignore")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    cases = [(name, text) for name in names for text in texts]
    if arguments.prepare:
        for name, text in cases:
            prepared(name, text, arguments.folder)
        return 0

    def row_of(kind: str, name: str, text: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return kept_or(arguments.keep, {"kind": kind, "model": name, "weights": text}, measure)

    turns = 2 if arguments.quick else TURNS
    rows = [row_of("speed", *case, partial(measured, *case, arguments.folder, turns)) for case in cases]
    # GPT-2 has one matrix for embedding and logits, of which only the second use is rounded: not to be had in torch.
    kept = [(name, text) for name, text in cases if text == "float32" or not MODELS[name].tied]
    tokens = [row_of("tokens", *case, partial(same, *case, arguments.folder)) for case in kept]
    summary = summary_of(rows, tokens)
    print(summary)
    notes = ("milliseconds a token, two threads; peers get the cache as inputs and outputs of 32 tokens",)
    store(path, "dynamic", [*rows, *tokens], summary, part="generation", notes=notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
