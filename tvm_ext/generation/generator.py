"""``tvm_ext.Generator``: a compiled decoder with its weights and its cache, which gives logits token by token."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from tvm_ext.artifact.compiled_model import LIBRARY, METADATA, CompiledModel, load_library
from tvm_ext.artifact.destination import as_path
from tvm_ext.artifact.metadata import FORMAT, REMEDY, check_file, file_record
from tvm_ext.backends.registry import backend_of
from tvm_ext.compiler import generate_code, lower, recorded_versions
from tvm_ext.errors import InputError, ModelError, OptionError, OutputError, TargetError
from tvm_ext.generation.arrays import ALIGNMENT, aligned, copied, read_arrays
from tvm_ext.generation.config import DecoderConfig
from tvm_ext.generation.decoder import Decoder
from tvm_ext.generation.layout import Layout
from tvm_ext.generation.module import decoder_module
from tvm_ext.generation.quantization import weight_format
from tvm_ext.pipeline import checked_options
from tvm_ext.relax_utils import plain
from tvm_ext.schedules.cpu.machine import Machine
from tvm_ext.system.threads import with_pool
from tvm_ext.target import resolve_target

WEIGHTS = "weights.bin"
"""File of an artifact that holds the weights, one after the other, as they are read at run time."""

MOST_TOKENS = 512
"""Tokens that are prefilled at once; a longer prompt is taken in parts."""


class Generator:
    """A compiled decoder; it keeps one sequence of tokens, whose keys and values are in its cache.

    Attributes
    ----------
    config : DecoderConfig
    context : int
        Tokens that the cache has room for.
    length : int
        Tokens that are in it.
    """

    def __init__(self, model: CompiledModel, arrays: Sequence[np.ndarray]) -> None:
        self.model = model
        facts = model.metadata["decoder"]
        self.config = DecoderConfig(**facts["config"])
        self.context, self.length = int(facts["context"]), 0
        self._arrays = list(arrays)
        self._weights = [tvm_ffi.from_dlpack(array) for array in arrays]
        # Blocks of positions, or positions, are the second axis.
        self._held = [aligned(tuple(shape), "float32", read_whole=False) for shape in facts["caches"]]
        self._caches = [tvm_ffi.from_dlpack(array) for array in self._held]
        self._token, self._position = aligned((1,), "int64"), aligned((1,), "int64")
        # What every token is computed from, as it is handed over.
        self._one_token = tvm_ffi.from_dlpack(self._token)
        self._given = [tvm_ffi.from_dlpack(self._position), *self._caches, *self._weights]
        self._functions: dict[str, Any] = {}
        self._turn = threading.RLock()
        self._calls = 0  # that changed the cache

    @classmethod
    def compile(
        cls,
        decoder: Any,
        target: Any = None,
        *,
        weights: str = "float32",
        context: int | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Generator:
        """Compile a decoder.

        Parameters
        ----------
        decoder : Decoder, path or torch.nn.Module
            A path is a checkpoint's folder (``config.json`` and ``*.safetensors``); a module is one of
            :mod:`tvm_ext.generation.definitions`, or has a ``config`` as checkpoints do.
        target : optional
            A CPU; see :func:`tvm_ext.target.resolve_target`.
        weights : str
            What weights of products are kept in: ``float32``, ``bfloat16``, ``int8`` or ``int4``; integers share scales
            in groups (``int4-128``; 32 by default), symmetric, or not (``int4-32-asymmetric``).
        context : int, optional
            Tokens that the cache has room for; as many as the model was made for by default, 4096 at most.
        progress : callable, optional
            Called with the name of each step as it begins.

        Raises
        ------
        ModelError, OptionError, TargetError, CompileError
        """
        if isinstance(decoder, str | os.PathLike):
            decoder = Decoder.from_folder(as_path(decoder, ModelError))
        elif not isinstance(decoder, Decoder):
            decoder = Decoder.from_module(decoder)
        config = decoder.config
        if context is None:
            context = min(config.positions, 4096)
        if not isinstance(context, int) or isinstance(context, bool) or not 1 <= context <= config.positions:
            raise OptionError(f"option context: {context!r} is no number of tokens from 1 to {config.positions}")
        resolved = resolve_target(target)
        machine = backend_of(resolved).machine
        found = None if machine is None else machine(resolved)
        if not isinstance(found, Machine):
            raise TargetError(f"decoders are compiled for CPUs, and target {resolved.kind.name} is none")
        form = weight_format(weights)
        report = progress or (lambda step: None)
        layout = Layout(config, form, context, found, decoder.biases)
        report("write kernels")
        module = decoder_module(layout, min(MOST_TOKENS, context))
        start = time.perf_counter()
        lowered, statistics, seconds = lower(module, resolved, checked_options({}), report)
        report("generate code")
        executable = generate_code(lowered, resolved)
        seconds["generate code"] = time.perf_counter() - start
        report("pack weights")
        arrays = [copied(array) for array in layout.arrays(decoder)]
        facts = {
            "config": config.to_json(),
            "weights": str(form),
            "context": context,
            "caches": [list(shape) for shape in layout.caches],
            "tensors": [[list(shape), dtype] for shape, dtype in layout.shapes],
            "bytes_per_token": layout.bytes_per_token(),
        }
        metadata = {
            "format": FORMAT,
            "name": decoder.name,
            "source": decoder.name,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "target": plain(resolved.export()),
            "device": "cpu",
            "inputs": [],
            "outputs": [],
            "versions": recorded_versions(),
            "decoder": facts | {"sha256": _digest(facts)},
            "decisions": {
                "import": [],
                "memory": {},
                "machine": asdict(found),
                "seconds": {name: round(value, 4) for name, value in seconds.items()},
                "statistics": None if statistics is None else vars(statistics) | {},
            },
        }
        return cls(_DecoderModel(executable, metadata, arrays), arrays)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Generator:
        """Load what :meth:`save` wrote.

        Raises
        ------
        ModelError
            If the folder is missing, holds no decoder, or was damaged.
        TargetError
            If its code is for another machine.
        """
        path = as_path(folder, ModelError)
        module, metadata = load_library(path)
        facts = metadata.get("decoder")
        if facts is None:
            raise ModelError(f"{path} holds no decoder; `tvm-ext compile FOLDER` of a checkpoint makes one")
        if WEIGHTS not in metadata["files"]:
            raise ModelError(f"{path / METADATA} is damaged, field files.{WEIGHTS} is missing; {REMEDY}")
        if not isinstance(facts, dict) or facts.get("sha256") != _digest(facts):
            # Kernels were made for these numbers, and would read beside what they are given.
            raise ModelError(f"{path / METADATA} is damaged, field decoder was changed; {REMEDY}")
        check_file(path / WEIGHTS, metadata["files"][WEIGHTS])
        try:
            arrays = list(read_arrays(path / WEIGHTS, facts["tensors"]))
            loaded = _DecoderModel(module, metadata, arrays, path / LIBRARY)
            return cls(loaded, arrays)
        except (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, TypeError, ValueError) as error:
            raise ModelError(f"{path / METADATA} is damaged, field decoder ({error}); {REMEDY}") from None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled or copied, as a compiled model does."""
        raise OutputError(
            "a Generator can be neither pickled nor copied; use save(folder), and tvm_ext.Generator.load(folder) in "
            "each process that runs it"
        )

    def save(self, folder: str | os.PathLike[str], force: bool = False) -> Path:
        """Write ``model.so``, ``metadata.json`` and ``weights.bin``; errors as :meth:`CompiledModel.save`."""
        return self.model.save(folder, force)

    def fork(self) -> Generator:
        """Give another sequence, which begins with the tokens that this one holds, and goes on by itself.

        Weights and code are shared, keys and values of these tokens copied; both caches then grow by the tokens of
        their own. Calls of all such sequences take turns.
        """
        with self._turn:
            other = Generator(self.model, self._arrays)
            other._turn, other.length = self._turn, self.length
            for source, copy in zip(self._held, other._held, strict=True):
                used = -(-self.length * source.shape[1] // self.context)
                copy[:, :used] = source[:, :used]
            return other

    def reset(self) -> None:
        """Forget all tokens."""
        with self._turn:
            self.length = 0
            self._calls += 1

    def prefill(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Take in tokens behind those that are in the cache.

        Parameters
        ----------
        ids : sequence of int
            At least one.

        Returns
        -------
        numpy.ndarray
            Logits of the token after the last, float32 ``[vocabulary]``.

        Raises
        ------
        InputError
            If an id is none of the vocabulary, there is none, or the cache has no room for them; the cache then holds
            what it held.
        """
        with self._turn:
            checked = self._checked(ids, self.length)
            for begin in range(0, len(checked), MOST_TOKENS):
                logits = self._step("prefill", checked[begin : begin + MOST_TOKENS])
        return logits

    def decode(self, token: int) -> np.ndarray:
        """Take in one token; as :meth:`prefill`, by kernels for one."""
        with self._turn:
            checked = self._checked([token], self.length)
            return self._step("decode", checked)

    def generate(self, prompt_ids: Sequence[int], count: int, stop_ids: Sequence[int] = ()) -> Iterator[int]:
        """Forget all tokens, take in a prompt, and give tokens one by one, each the one with the highest logit.

        That happens for the first token; until then the cache holds what it held. There is one cache: what
        :meth:`prefill`, :meth:`decode`, :meth:`reset` or another :meth:`generate` does to it between two tokens ends
        the older sequence.

        Parameters
        ----------
        prompt_ids : sequence of int
        count : int
            Tokens to give, at most.
        stop_ids : sequence of int
            Tokens that end a text; the first of them is the last that is given. Checkpoints call it ``eos_token_id``.

        Raises
        ------
        ModelError
            If a logit is NaN, so that none is the highest.
        InputError
            As :meth:`prefill`; before anything is computed if prompt and new tokens do not fit the cache. For a
            further token of a sequence that another call has ended.
        """
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise InputError(f"count: {count!r} is no number of tokens; give 0 or more")
        prompt = self._checked(prompt_ids, 0)
        stops = frozenset(map(int, self._ids(stop_ids, "stop ids"))) if np.size(stop_ids) else frozenset()
        if len(prompt) + count - 1 > self.context:
            raise InputError(
                f"count: {count} tokens behind a prompt of {len(prompt)} do not fit a cache of {self.context} tokens; "
                "ask for fewer, or compile with a larger context"
            )
        return self._generated(prompt, int(count), stops)

    def _generated(self, prompt: np.ndarray, count: int, stops: frozenset[int]) -> Iterator[int]:
        if not count:
            return
        with self._turn:
            self.reset()
            logits = self.prefill(prompt)
            calls = self._calls
        token = _highest(logits)
        for _ in range(count - 1):
            yield token
            if token in stops:
                return
            with self._turn:
                if self._calls != calls:
                    raise InputError(
                        "generate: another call has changed the cache since the last token; take all tokens before the "
                        "next call, or load a second Generator"
                    )
                logits = self.decode(token)
                calls = self._calls
            token = _highest(logits)
        yield token

    def _checked(self, ids: Any, held: int) -> np.ndarray:
        """Give ids of a prompt as an array; ``held`` tokens are in the cache before them."""
        array = self._ids(ids, "prompt ids")
        if held + array.size > self.context:
            raise InputError(
                f"prompt ids: {array.size} more tokens do not fit the cache, which holds {held} of {self.context}; "
                "call reset(), or compile with a larger context"
            )
        return array

    def _ids(self, ids: Any, what: str) -> np.ndarray:
        """Give ids as an array, each of them a token of the model."""
        try:
            array = np.asarray(ids)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{what}: no array can be made of them: {error}") from None
        whole = array.dtype.kind in "iu" or (
            array.dtype == object and all(isinstance(number, int) and number is not True for number in array.flat)
        )
        if array.ndim != 1 or not array.size or not whole:
            raise InputError(
                f"{what}: {array.dtype}{list(array.shape)} is given where a sequence of at least one whole number "
                "is expected"
            )
        wrong = array[(array < 0) | (array >= self.config.vocabulary)]
        if wrong.size:
            raise InputError(
                f"{what}: {wrong[0]!s:.40} is no token of this model; ids go from 0 to {self.config.vocabulary - 1}"
            )
        return array.astype("int64")

    def _step(self, function: str, ids: np.ndarray) -> np.ndarray:
        self._position[0] = self.length
        if len(ids) == 1:
            self._token[0], given = ids[0], self._one_token
        else:
            tokens = aligned((len(ids),), "int64")
            tokens[:] = ids
            given = tvm_ffi.from_dlpack(tokens)

        def call() -> np.ndarray:
            run = self._functions.get(function)
            if run is None:
                run = self._functions[function] = self.model.virtual_machine[function]
            result = run(given, *self._given)
            return np.array(np.from_dlpack(result)).reshape(-1)

        logits = with_pool(call)
        self.length += len(ids)
        self._calls += 1
        return logits


class _DecoderModel(CompiledModel):
    """The code of a decoder, which is saved with its weights."""

    def __init__(
        self, executable: Any, metadata: Mapping[str, Any], arrays: Sequence[np.ndarray], origin: Path | None = None
    ) -> None:
        super().__init__(executable, metadata, origin)
        self._arrays = arrays

    def _write(self, partial: Path) -> None:
        super()._write(partial)
        with (partial / WEIGHTS).open("wb") as stream:
            for array in self._arrays:
                stream.write(array.reshape(-1).view("uint8").data)
                stream.write(bytes(-array.nbytes % ALIGNMENT))
        self.metadata["files"][WEIGHTS] = file_record(partial / WEIGHTS)
        (partial / METADATA).write_text(json.dumps(self.metadata, indent=2) + "\n", encoding="utf-8")


def _highest(logits: np.ndarray) -> int:
    token = int(logits.argmax())
    if np.isnan(logits[token]):
        raise ModelError(
            f"generate: the logit of token {token} is NaN, so that none is the highest; numbers of the model overflow, "
            "or its weights were damaged"
        )
    return token


def _digest(facts: Mapping[str, Any]) -> str:
    """Give the SHA-256 of what an artifact says of its decoder."""
    text = json.dumps({key: value for key, value in facts.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
