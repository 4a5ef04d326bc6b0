"""A space of configurations: knobs, each with an ordered list of choices.

A configuration has three forms: an index, a vector with the index of each knob's choice, and the choices themselves.
Index and vector are related by mixed radix, the first knob fastest. Nothing is enumerated but the choices of each knob.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_ext.errors import TuningError
from tvm_ext.tuners.factorization import factorizations

Vector = tuple[int, ...]
"""Index of the choice of each knob."""


@dataclass(frozen=True)
class Knob:
    """One choice to make.

    Attributes
    ----------
    name : str
        Unique in its space.
    choices : tuple
        Numbers, booleans, or tuples of numbers of equal length; neighbours in the list should be alike. Of anything
        else, such as names, cost models see the place in the list.
    """

    name: str
    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence):
            raise TuningError(f"choices of knob {self.name!r} are {self.choices!r}; expected a tuple of choices")
        if not self.choices:
            raise TuningError(f"knob {self.name!r} has no choices; a space needs at least one choice for each knob")
        lengths = {len(choice) if isinstance(choice, tuple) else 0 for choice in self.choices}
        if len(lengths) > 1:
            raise TuningError(
                f"choices of knob {self.name!r} have {', '.join(map(str, sorted(lengths)))} numbers (0 for none in a "
                "tuple); expected tuples of equal length, or none"
            )

    @classmethod
    def split(cls, name: str, extent: int, parts: int, largest_last: int | None = None) -> Knob:
        """Make the knob that divides a loop of ``extent`` iterations into ``parts`` nested loops."""
        for what, number in (("extent", extent), ("parts", parts)):
            if not isinstance(number, int | np.integer) or number < 1:
                raise TuningError(f"knob {name!r}: {what} is {number!r}; expected a whole number of 1 or more")
        return cls(name, factorizations(extent, parts, largest_last))


class ConfigSpace:
    """The Cartesian product of knobs.

    Parameters
    ----------
    knobs : sequence of Knob
    default : sequence of int, optional
        Vector of the configuration to start from, where one is known to be good.
    cost : callable, optional
        What the rule that made the space estimates: from vectors (n × knobs) to costs (n), of any unit, lower is
        better; infinite where it expects nothing to work.
    family : str
        Which rule made the space: what is learnt of one family says nothing of another.
    context, processor : sequence of float
        Numbers of the kernel, and of the processor it is for, which tell spaces of one family apart. Cost models that
        are trained beforehand see them.

    Attributes
    ----------
    choice_features : tuple of array
        For each knob the features of its choices (choices × features of the knob), float32.

    Raises
    ------
    TuningError
        If a space has no knobs, two knobs have the same name, or the default is not in the space.
    """

    def __init__(
        self,
        knobs: Sequence[Knob],
        default: Sequence[int] | None = None,
        cost: Callable[[np.ndarray], np.ndarray] | None = None,
        family: str = "",
        context: Sequence[float] = (),
        processor: Sequence[float] = (),
    ) -> None:
        if not all(isinstance(knob, Knob) for knob in knobs):
            raise TuningError(f"a space is made of knobs, found {knobs!r}; expected Knob(name, choices) of each")
        if not knobs:
            raise TuningError("the space has no knobs, so there is nothing to tune")
        self.knobs, self.cost, self.family = tuple(knobs), cost, family
        self.context, self.processor = tuple(map(float, context)), tuple(map(float, processor))
        names = [knob.name for knob in self.knobs]
        if len(set(names)) < len(names):
            raise TuningError(f"knobs must have different names, found {', '.join(names)}")
        self.radices = np.array([len(knob.choices) for knob in self.knobs], dtype=np.int64)
        self.size = math.prod(len(knob.choices) for knob in self.knobs)
        strides, stride = [], 1
        for knob in self.knobs:
            strides.append(stride)
            stride *= len(knob.choices)
        # Python's integers where 64 bits do not hold an index.
        self._strides = np.array(strides, dtype=np.int64 if self.size < 2**63 else object)
        self.choice_features = tuple(_feature_rows(knob) for knob in self.knobs)
        self.default = None if default is None else self.check(default)

    def check(self, vector: Sequence[int]) -> Vector:
        """Return the vector as a tuple.

        Raises
        ------
        TuningError
            If it is not in the space; the message names the knob.
        """
        if not isinstance(vector, Sequence | np.ndarray):
            raise TuningError(
                f"a configuration is {vector!r}; expected the index of the choice of each of {len(self.knobs)} knobs"
            )
        if len(vector) != len(self.knobs):
            raise TuningError(f"a configuration of this space has {len(self.knobs)} entries, found {len(vector)}")
        for knob, choice in zip(self.knobs, vector, strict=True):
            if not isinstance(choice, int | np.integer) or not 0 <= choice < len(knob.choices):
                raise TuningError(
                    f"knob {knob.name!r}: choice {choice!r} is not in the range 0 to {len(knob.choices) - 1}"
                )
        return tuple(int(choice) for choice in vector)

    def vector(self, index: int) -> Vector:
        """Give the vector of an index in the range 0 to ``size - 1``."""
        if not 0 <= index < self.size:
            raise TuningError(f"index {index} is not in the range 0 to {self.size - 1}")
        digits = []
        for knob in self.knobs:
            index, digit = divmod(index, len(knob.choices))
            digits.append(int(digit))
        return tuple(digits)

    def vectors(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Give the vectors (n x knobs) of many indices that are known to be in the space."""
        rest = np.asarray(indices, dtype=self._strides.dtype)
        columns = []
        for radix in self.radices.tolist():
            columns.append((rest % radix).astype(np.int64))
            rest = rest // radix
        return np.stack(columns, axis=1)

    def index(self, vector: Sequence[int]) -> int:
        """Give the index of a vector."""
        return int(sum(int(stride) * choice for stride, choice in zip(self._strides, self.check(vector), strict=True)))

    def values(self, vector: Sequence[int]) -> dict[str, Any]:
        """Give the choice of each knob by name."""
        return {knob.name: knob.choices[i] for knob, i in zip(self.knobs, self.check(vector), strict=True)}

    def keys(self, vectors: np.ndarray) -> list[int]:
        """Give the indices of many vectors (n x knobs) that are known to be in the space."""
        return (vectors.astype(self._strides.dtype, copy=False) @ self._strides).tolist()

    def random(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw vectors (count × knobs) uniformly, with replacement."""
        return rng.integers(0, self.radices, size=(count, len(self.knobs)), dtype=np.int64)

    def neighbours(self, vector: Sequence[int]) -> list[Vector]:
        """List the vectors that differ by one step in one knob."""
        vector = self.check(vector)
        found = []
        for position, knob in enumerate(self.knobs):
            for step in (-1, 1):
                if 0 <= vector[position] + step < len(knob.choices):
                    found.append((*vector[:position], vector[position] + step, *vector[position + 1 :]))
        return found

    def changes(self, vectors: np.ndarray) -> np.ndarray:
        """List what differs from a vector (n x knobs) in at most one knob, by any choice (m × knobs)."""
        rows = []
        for position, radix in enumerate(self.radices.tolist()):
            changed = np.repeat(vectors, radix, axis=0)
            changed[:, position] = np.tile(np.arange(radix), len(vectors))
            rows.append(changed)
        return np.concatenate(rows)

    def features(self, vectors: np.ndarray) -> np.ndarray:
        """Give what a cost model sees of vectors (n x knobs): every factor as log2, other numbers as they are."""
        columns = [rows[vectors[:, position]] for position, rows in enumerate(self.choice_features)]
        return np.concatenate(columns, axis=1)

    def signature(self) -> list[list[Any]]:
        """Give name and number of choices of each knob, to tell whether a saved state belongs to this space."""
        return [[knob.name, len(knob.choices)] for knob in self.knobs]


def _feature_rows(knob: Knob) -> np.ndarray:
    """Features of each choice of a knob (choices × features)."""
    try:
        numbers = np.array(knob.choices, dtype=np.float32).reshape(len(knob.choices), -1)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([[np.nan]])
    if not np.isfinite(numbers).all():  # names among numbers, say: all that is known is their order
        return np.arange(len(knob.choices), dtype=np.float32)[:, None]
    return np.log2(numbers) if isinstance(knob.choices[0], tuple) and (numbers > 0).all() else numbers
