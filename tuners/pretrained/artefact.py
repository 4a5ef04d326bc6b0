"""Trees that were trained on other kernels, by family of spaces, in one file that NumPy reads."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tvm_ext.errors import MissingPackageError, TuningError
from tvm_ext.tuners.archives import DAMAGES, read_arrays, spelled
from tvm_ext.tuners.shared_model import Structure, structure
from tvm_ext.tuners.space import ConfigSpace

FORMAT = 1
SHIPPED = "cpu_kernels.npz"
"""What ``scripts/pretrain.py`` writes, where it was made for this package."""

LOOP_NEST_FEATURES = 492
"""Of each of TVM's 164 features of a store: its sum over the stores, its maximum, and that of the busiest store."""

LOOP_NESTS: Structure = (("loop nest", LOOP_NEST_FEATURES),)
"""Under this the trees for loop nests are kept."""


@dataclass(frozen=True)
class Trained:
    """Trees for spaces of one structure.

    Attributes
    ----------
    speed, works : xgboost.Booster
        From the features of :class:`~tvm_ext.tuners.pretrained.model.PretrainedModel` to what the rule's cost leaves
        unsaid of the logarithm of a configuration's relative speed, and to the logarithm of the odds that it works.
    costs : bool
        Whether the cost was known when they were trained.
    processors : tuple
        Numbers of the processors that they were trained on (:attr:`.ConfigSpace.processor`); none if that says nothing.
    """

    speed: Any
    works: Any
    costs: bool
    processors: tuple[tuple[float, ...], ...] = ()

    def check_width(self, width: int) -> None:
        """Raise a TuningError unless the trees look at so many numbers of a configuration: others would end the run."""
        for trees in (self.speed, self.works):
            if trees.num_features() != width:
                raise TuningError(
                    f"its trees look at {trees.num_features()} numbers of a configuration where this release has "
                    f"{width}; train anew with scripts/pretrain.py"
                )


@dataclass(frozen=True)
class Pretrained:
    """What was trained, for each structure of spaces.

    Attributes
    ----------
    trained : mapping
    notes : mapping
        What it was trained on.
    """

    trained: Mapping[Structure, Trained]
    notes: Mapping[str, Any] = field(default_factory=dict)

    def of(self, space: ConfigSpace) -> Trained:
        """Give the trees for a space.

        Raises
        ------
        TuningError
            If spaces like it were not seen in training.
        """
        found = self.trained.get(structure(space))
        if found is None:
            knobs = ", ".join(knob.name for knob in space.knobs)
            of_rule = f" of the schedule rule {space.family}" if space.family else ""
            raise TuningError(f"no space{of_rule} with knobs {knobs} was seen in training")
        if found.processors and space.processor not in found.processors:
            raise TuningError("no kernel of such a processor was seen in training")
        if found.costs != (space.cost is not None):
            raise TuningError("the cost that a rule tells was not treated alike in training and in this space")
        return found

    def of_loop_nests(self) -> Trained:
        """Give the trees that look at scheduled loop nests, of any space.

        Raises
        ------
        TuningError
            If there are none.
        """
        if LOOP_NESTS not in self.trained:
            raise TuningError("it has no trees for loop nests")
        found = self.trained[LOOP_NESTS]
        found.check_width(LOOP_NEST_FEATURES)
        return found

    def save(self, path: Path) -> None:
        """Write the file."""
        rows: list[dict[str, Any]] = []
        tables: dict[str, Any] = {}
        for number, (kind, trees) in enumerate(self.trained.items()):
            row: dict[str, Any] = {"structure": [list(knob) for knob in kind], "costs": trees.costs}
            row["processors"] = [list(numbers) for numbers in trees.processors]
            for name in ("speed", "works"):
                raw = bytes(getattr(trees, name).save_raw("ubj"))
                tables[f"{name}_{number}"] = np.frombuffer(raw, dtype=np.uint8)
                row[name] = hashlib.sha256(raw).hexdigest()
            rows.append(row)
        about = json.dumps({"format": FORMAT, "families": rows, "notes": dict(self.notes)})
        np.savez_compressed(path, about=np.array(about), **tables)

    @classmethod
    def load(cls, path: Path) -> Pretrained:
        """Read a file.

        Raises
        ------
        TuningError
            If it cannot be read, is damaged, or of another format.
        MissingPackageError
            If XGBoost is not installed.
        """
        try:
            arrays = read_arrays(path)
            about = json.loads(str(arrays["about"]))
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}, expected {FORMAT}")
            trained = {}
            for number, row in enumerate(about["families"]):
                kind = tuple((str(name), int(width)) for name, width in row["structure"])
                speed, works = (_booster(arrays[f"{name}_{number}"], row[name]) for name in ("speed", "works"))
                processors = tuple(tuple(map(float, numbers)) for numbers in row.get("processors", ()))
                trained[kind] = Trained(speed, works, bool(row["costs"]), processors)
            return cls(trained, about["notes"])
        except DAMAGES as error:
            raise TuningError(
                f"{path}: no pretrained cost model can be read from it ({spelled(error)}); scripts/pretrain.py writes "
                "such files"
            ) from None


def _booster(stored: np.ndarray, digest: str) -> Any:
    try:
        import xgboost
    except ImportError:
        raise MissingPackageError("a pretrained cost model needs XGBoost: pip install tvm-ext[tune]") from None
    raw = stored.tobytes()
    if hashlib.sha256(raw).hexdigest() != digest:  # XGBoost's reader is not made for damaged input
        raise ValueError("the trees are not those that were written")
    booster = xgboost.Booster({"nthread": 1})
    booster.load_model(bytearray(raw))
    return booster


@lru_cache(maxsize=1)
def shipped() -> Pretrained:
    """Give what comes with the package for kernels of CPUs.

    Raises
    ------
    TuningError
        If nothing does, or the file is damaged.
    """
    with importlib.resources.as_file(importlib.resources.files("tvm_ext.tuners.pretrained") / SHIPPED) as path:
        if not path.exists():
            raise TuningError("none comes with this package (tvm-ext tune --pretrained takes one)")
        return Pretrained.load(path)
