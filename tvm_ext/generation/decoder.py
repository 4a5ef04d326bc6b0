"""A decoder-only transformer: its configuration, and its weights by the names that checkpoints use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import MissingPackageError, ModelError, first_line
from tvm_ext.generation.checkpoints import adapted_weights, config_from_checkpoint
from tvm_ext.generation.config import DecoderConfig

_BIASES = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "o_proj": "output", "gate_proj": "up", "up_proj": "up",
    "down_proj": "down", "lm_head": "logits",
}  # fmt: skip
"""Biases that a decoder may come without: all of a kind are there, or none."""


def bias_kind(name: str) -> str:
    """Say which products an optional bias belongs to, by its name."""
    return _BIASES[name.split(".")[-2]]


@dataclass(frozen=True)
class Decoder:
    """A decoder with its weights.

    Attributes
    ----------
    config : DecoderConfig
    weights : mapping from str to numpy.ndarray
        Float32, by the names of :meth:`DecoderConfig.shapes`.
    name : str
    """

    config: DecoderConfig
    weights: Mapping[str, np.ndarray]
    name: str = "decoder"

    def __post_init__(self) -> None:
        """Refuse weights that are missing or have another shape.

        Raises
        ------
        ModelError
        """
        for name, shape, optional in self.config.shapes():
            found = self.weights.get(name)
            if found is None and not optional:
                raise ModelError(f"{self.name}: weight {name!r} of shape {list(shape)} is missing")
            if found is not None and tuple(found.shape) != shape:
                raise ModelError(
                    f"{self.name}: weight {name!r} has shape {list(found.shape)} where the configuration says "
                    f"{list(shape)}"
                )
            if found is not None and found.dtype.kind not in "iub" and not np.isfinite(found).all():
                raise ModelError(
                    f"{self.name}: weight {name!r} holds NaN or infinite numbers, from which no token can be chosen; "
                    "repair the checkpoint"
                )
            if found is not None and found.dtype.kind in "iub":
                raise ModelError(
                    f"{self.name}: weight {name!r} is {found.dtype} where floats were expected; give the checkpoint "
                    "before it was quantised, and ask for integers with the option weights"
                )
        for names in self._optional().values():
            lacking = [name for name in names if name not in self.weights]
            if lacking and len(lacking) < len(names):
                raise ModelError(f"{self.name}: weight {lacking[0]!r} is missing, and others of its kind are there")
        known = {name for name, _, _ in self.config.shapes()} | ({"lm_head.weight"} if self.config.tied else set())
        others = [name for name in self.weights if name not in known]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise ModelError(
                f"{self.name}: weight {others[0]!r}{more} belongs to no part of a decoder of this kind; the model "
                "computes something else"
            )

    def _optional(self) -> dict[str, list[str]]:
        kinds: dict[str, list[str]] = {}
        for name, _, optional in self.config.shapes():
            if optional:
                kinds.setdefault(bias_kind(name), []).append(name)
        return kinds

    @property
    def biases(self) -> frozenset[str]:
        """Kinds of products that have biases: ``qkv``, ``output``, ``up``, ``down``, ``logits``."""
        return frozenset(kind for kind, names in self._optional().items() if names[0] in self.weights)

    def weight(self, name: str) -> np.ndarray | None:
        """Give a weight as float32; None where a bias is not there."""
        found = self.weights.get(name)
        return None if found is None else np.asarray(found, "float32")

    @classmethod
    def from_module(cls, module: Any) -> Decoder:
        """Take a module of torch: one of :mod:`tvm_ext.generation.definitions`, or one with a checkpoint's ``config``.

        Raises
        ------
        ModelError
            If it is no such module.
        """
        config, where = getattr(module, "config", None), type(module).__name__
        weights = {name: value.detach().float().cpu().numpy() for name, value in module.state_dict().items()}
        if isinstance(config, DecoderConfig):
            return cls(config, weights, where)
        if config is None or not hasattr(config, "to_dict"):
            raise ModelError(f"{where} has no configuration of a decoder in its attribute config")
        return cls._of_checkpoint(config.to_dict(), weights, where, where)

    @classmethod
    def from_folder(cls, folder: Path) -> Decoder:
        """Read a checkpoint: ``config.json`` and ``*.safetensors``.

        Raises
        ------
        ModelError
            If a file is missing or damaged, or the model is of another kind.
        MissingPackageError
            If there is no package to read weights with.
        """
        try:
            described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"{folder / 'config.json'} cannot be read: {first_line(error)}") from None
        if not isinstance(described, dict):
            raise ModelError(f"{folder / 'config.json'} holds no object of fields, as the one of a checkpoint does")
        config_from_checkpoint(described, str(folder / "config.json"))  # before the weights are read
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder} has no weights (*.safetensors) beside its config.json")
        try:
            from safetensors import safe_open
        except ImportError:
            raise MissingPackageError("reading *.safetensors needs the package safetensors; install it") from None
        weights: dict[str, np.ndarray] = {}
        for file in files:
            try:
                with safe_open(file, "numpy") as opened:
                    weights |= {name: opened.get_tensor(name) for name in opened.keys()}
            except Exception as error:  # of a class of its own
                raise ModelError(f"{file} cannot be read: {first_line(error)}") from None
        return cls._of_checkpoint(described, weights, str(folder / "config.json"), folder.name)

    @classmethod
    def _of_checkpoint(
        cls, described: Mapping[str, Any], weights: Mapping[str, np.ndarray], where: str, name: str
    ) -> Decoder:
        config = config_from_checkpoint(described, where)
        return cls(config, adapted_weights(described, config, weights, where), name)
