"""What was trained on other machines and layers, in one file that NumPy reads."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import TuningError
from tvm_ext.tuners.archives import DAMAGES, read_arrays, spelled
from tvm_ext.tuners.glimpse.blueprint import Blueprint
from tvm_ext.tuners.glimpse.ensemble import ValidityEnsemble
from tvm_ext.tuners.glimpse.networks import Network

FORMAT = 1
SHIPPED = {"vta.conv2d": "vta_conv2d.npz"}
"""Families that something was trained for, and its file; ``scripts/glimpse/train.py`` writes it."""


@dataclass(frozen=True)
class Artefact:
    """Trained parts for one family of kernels.

    Attributes
    ----------
    family : str
    blueprint : Blueprint
    prior : Network
        From numbers of a configuration, of its layer and of the machine to the logarithm of its relative speed and to
        that of the odds that it works.
    acquisition : Network
        From what is known of a candidate while tuning to its worth; see :mod:`.acquisition`.
    ensemble : ValidityEnsemble
    notes : mapping
        What it was trained on.
    """

    family: str
    blueprint: Blueprint
    prior: Network
    acquisition: Network
    ensemble: ValidityEnsemble
    notes: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Write the file."""
        about = {
            "format": FORMAT,
            "family": self.family,
            "fields": list(self.blueprint.fields),
            "notes": dict(self.notes),
        }
        tables: dict[str, Any] = {
            "about": np.array(json.dumps(about)),
            **{f"blueprint/{name}": getattr(self.blueprint, name) for name in _BLUEPRINT},
            **self.prior.arrays("prior"),
            **self.acquisition.arrays("acquisition"),
            "ensemble/weights": self.ensemble.weights,
            "ensemble/bias": self.ensemble.bias,
        }
        np.savez_compressed(path, **tables)

    @classmethod
    def load(cls, path: Path) -> Artefact:
        """Read a file.

        Raises
        ------
        TuningError
            If it cannot be read, is damaged, or of another format.
        """
        try:
            arrays = read_arrays(path)
            about = json.loads(str(arrays["about"]))
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}, expected {FORMAT}")
            blueprint = Blueprint(tuple(about["fields"]), *(arrays[f"blueprint/{name}"] for name in _BLUEPRINT))
            ensemble = ValidityEnsemble(arrays["ensemble/weights"], arrays["ensemble/bias"])
            made = cls(
                about["family"], blueprint, Network.of(arrays, "prior"), Network.of(arrays, "acquisition"), ensemble,
                about["notes"],
            )  # fmt: skip
            if blueprint.components.shape[1] != len(blueprint.fields):
                raise ValueError("a blueprint of other columns")
            if ensemble.weights.shape != (blueprint.size, len(ensemble.bias)):
                raise ValueError("an ensemble of another blueprint")
            if not np.isfinite(ensemble.weights).all() or made.prior.biases[-1].shape != (2,):
                raise ValueError("an ensemble or a prior that nothing can be read off")
        except DAMAGES as error:
            raise TuningError(f"{path}: nothing trained can be read from it ({spelled(error)})") from None
        return made


_BLUEPRINT = ("offset", "mean", "scale", "components")


@lru_cache(maxsize=4)
def shipped(family: str) -> Artefact:
    """Give what comes with the package for a family.

    Raises
    ------
    TuningError
        If nothing was trained for it, or the file is damaged.
    """
    if family not in SHIPPED:
        raise TuningError(f"nothing was trained for kernels of {family}; there is something for {', '.join(SHIPPED)}")
    with importlib.resources.as_file(importlib.resources.files("tvm_ext.tuners.glimpse") / SHIPPED[family]) as path:
        return Artefact.load(path)
