"""Engines that generate text from one decoder, side by side: time to the first token, tokens a second, which tokens."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvm_ext.errors import InputError, MissingPackageError, ModelError, OptionError, candidates, first_line
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.generator import Generator
from tvm_ext.generation.quantization import weight_format
from tvm_ext.system.threads import threads

PEERS = {
    "torch": ("torch",),
    "onnxruntime": ("torch", "onnx", "onnxruntime"),
    "openvino": ("torch", "onnx", "openvino"),
}
"""Engines beside this package, and the packages that each needs: decoders are exported from torch."""

ENGINES = ("tvm_ext", *PEERS)
TURNS = 3
REST_SECONDS = 0.2
"""Pause before an engine's turn, in which the threads of the one before come to rest."""

Step = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class GenerationRow:
    """What one engine took.

    Attributes
    ----------
    engine, version : str
    error : str or None
        Why there are no figures.
    load_seconds : float or None
        Compiling, or exporting and loading.
    first_token_ms : float or None
        From the prompt to the first token (milliseconds, median).
    tokens_per_second : float or None
        Of the tokens after the first (median); None where there are none.
    same_tokens : int or None
        Tokens up to the first that is not the first engine's.
    """

    engine: str
    version: str = ""
    error: str | None = None
    load_seconds: float | None = None
    first_token_ms: float | None = None
    tokens_per_second: float | None = None
    same_tokens: int | None = None


@dataclass(frozen=True)
class GenerationResult:
    """The rows, and what they are of."""

    model: str
    weights: str
    prompt: int
    count: int
    threads: int
    rows: tuple[GenerationRow, ...]

    def json_rows(self) -> list[dict[str, Any]]:
        """Give the rows as they are written."""
        return [asdict(row) for row in self.rows]

    def summary(self) -> dict[str, float]:
        """Give the figures worth quoting."""
        found: dict[str, float] = {}
        for row in self.rows:
            if row.first_token_ms is not None:
                found[f"{row.engine}_first_token_ms"] = row.first_token_ms
            if row.tokens_per_second is not None:
                found[f"{row.engine}_tokens_per_second"] = row.tokens_per_second
        return found


def compare_generation(
    model: Path,
    count: int,
    *,
    prompt: int = 32,
    weights: str | None = None,
    engines: Sequence[str] | None = None,
    target: Any = None,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> GenerationResult:
    """Generate the same number of tokens behind the same prompt in each engine, in turns.

    Parameters
    ----------
    model : path
        A checkpoint's folder, or an artifact that was compiled of one, which only this package runs.
    count : int
        Tokens to generate, the first included.
    prompt : int
        Tokens before them, drawn at random.
    weights : str, optional
        Format of the weights (see :meth:`tvm_ext.Generator.compile`), float32 by default.
    engines : sequence of str, optional
        Of :data:`ENGINES`; all that are installed by default.
    target : optional
        For this package.
    seed : int
        Of the prompt.
    progress : callable, optional
        Called with an engine's name, how many are done, and how many there are.

    Raises
    ------
    ModelError, OptionError, InputError, MissingPackageError
        If the model is no decoder, an engine is unknown, not installed or cannot run it, or the tokens do not fit.
    """
    if count < 1 or prompt < 1:
        raise InputError(f"a benchmark generates at least 1 token behind at least 1, not {count} behind {prompt}")
    decoder = Decoder.from_folder(model) if (model / "config.json").is_file() else None
    saved = Generator.load(model) if decoder is None else None
    if saved is not None and weights is not None:
        raise OptionError(f"option weights: {model} is compiled already; leave it out, or give the checkpoint's folder")
    chosen = _chosen(engines, decoder is not None, model)
    config = saved.config if saved is not None else decoder.config if decoder is not None else None
    if config is None:
        raise ModelError(f"{model} holds no decoder")
    room = saved.context if saved is not None else config.positions
    if prompt + count > room:
        raise InputError(
            f"{count} tokens behind a prompt of {prompt} do not fit the {room} positions of {model}; ask for fewer"
        )
    text = saved.model.metadata["decoder"]["weights"] if saved is not None else weights or "float32"
    ids = np.random.default_rng(seed).integers(0, config.vocabulary, prompt)
    loaded: dict[str, Callable[[], Step]] = {}
    rows = []
    for done, name in enumerate(chosen):
        if progress:
            progress(f"load {name}", done, len(chosen))
        start = time.perf_counter()
        row = GenerationRow(name, version=_version(name))
        try:
            loaded[name] = _loaded(name, decoder, saved, text, prompt + count, target)
            _generated(loaded[name], ids, min(count, 3))
            row = replace(row, load_seconds=round(time.perf_counter() - start, 3))
        except Exception as error:  # of whatever class an engine has
            if name == "tvm_ext":
                raise
            row = replace(row, error=first_line(error))
            loaded.pop(name, None)
        rows.append(row)
    measured = _measured(loaded, ids, count, progress)
    expected = next(iter(measured.values()))[0] if measured else []
    filled = [_filled(row, measured, expected, count) for row in rows]
    return GenerationResult(str(model), text, prompt, count, threads(), tuple(filled))


def _chosen(engines: Sequence[str] | None, is_checkpoint: bool, model: Path) -> list[str]:
    """Check the engines that were asked for, or choose those that are installed."""
    if engines is None:
        return [name for name in ENGINES if name == "tvm_ext" or (is_checkpoint and not _missing(name))]
    if not engines or len(set(engines)) < len(engines):
        raise OptionError(f"engines: each once, and at least one; candidates are {', '.join(ENGINES)}")
    for name in engines:
        if name not in ENGINES:
            raise OptionError(f"engine {name!r} does not generate tokens, {candidates(name, ENGINES)}")
        if name == "tvm_ext":
            continue
        if not is_checkpoint:
            raise OptionError(f"engine {name} needs the weights of {model}; give the checkpoint's folder")
        if missing := _missing(name):
            raise MissingPackageError(f"engine {name} needs the packages {', '.join(missing)}; install them")
    return list(engines)


def _missing(name: str) -> list[str]:
    return [package for package in PEERS[name] if importlib.util.find_spec(package) is None]


def _version(name: str) -> str:
    return importlib.metadata.version("tvm-ext" if name == "tvm_ext" else name)


def _loaded(
    name: str, decoder: Decoder | None, saved: Generator | None, text: str, context: int, target: Any
) -> Callable[[], Step]:
    """Make an engine ready; gives what begins a sequence."""
    if name != "tvm_ext":
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import
        peers = importlib.import_module("tvm_ext.bench.decoder_peers")
        begin: Callable[[], Step] = getattr(peers, f"{name}_decoder")(decoder, weight_format(text), threads())
        return begin
    generator = saved or Generator.compile(decoder, target, weights=text, context=context)

    def begin_here() -> Step:
        generator.reset()
        return lambda ids: generator.decode(int(ids[0])) if len(ids) == 1 else generator.prefill(ids)

    return begin_here


def _generated(begin: Callable[[], Step], ids: np.ndarray, count: int) -> tuple[list[int], float, float]:
    """Generate tokens; gives them, and the seconds up to the first and from there on."""
    step = begin()
    start = time.perf_counter()
    tokens = [int(step(ids).argmax())]
    first = time.perf_counter()
    while len(tokens) < count:
        tokens.append(int(step(np.array(tokens[-1:])).argmax()))
    return tokens, first - start, time.perf_counter() - first


def _measured(
    loaded: dict[str, Callable[[], Step]],
    ids: np.ndarray,
    count: int,
    progress: Callable[[str, int, int], None] | None,
) -> dict[str, tuple[list[int], float, float]]:
    """Let engines take turns; gives the tokens of each, and medians of seconds."""
    found: dict[str, list[tuple[list[int], float, float]]] = {name: [] for name in loaded}
    for turn in range(TURNS):
        for name, begin in loaded.items():
            if progress:
                progress(f"run {name}", turn, TURNS)
            time.sleep(REST_SECONDS)
            found[name].append(_generated(begin, ids, count))
    return {
        name: (runs[0][0], median(run[1] for run in runs), median(run[2] for run in runs))
        for name, runs in found.items()
    }


def _filled(
    row: GenerationRow, measured: dict[str, tuple[list[int], float, float]], expected: list[int], count: int
) -> GenerationRow:
    if row.engine not in measured:
        return row
    tokens, first, rest = measured[row.engine]
    same = next((place for place in range(count) if tokens[place] != expected[place]), count)
    rate = round((count - 1) / rest, 2) if count > 1 else None
    return replace(row, first_token_ms=round(1e3 * first, 3), tokens_per_second=rate, same_tokens=same)
