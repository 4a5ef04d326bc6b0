"""What was trained elsewhere, applied to the space of one kernel on one machine."""

from __future__ import annotations

import numpy as np

from tvm_ext.backends.description import KernelDescription
from tvm_ext.errors import TuningError
from tvm_ext.tuners.glimpse.artefact import Artefact, shipped
from tvm_ext.tuners.glimpse.ensemble import TAU
from tvm_ext.tuners.space import ConfigSpace

TABULATED = 1 << 16
"""Of a space no larger than this everything is computed once."""


class Guide:
    """Prior generator, acquisition function and validity ensemble for one space.

    Parameters
    ----------
    description : KernelDescription
    space : ConfigSpace
    artefact : Artefact, optional
        That of the package for the family of the description if left out.

    Attributes
    ----------
    blueprint : array
        Of the machine (components).
    budget : int
        Trials that the run will have; the acquisition function looks at how many are left.

    Raises
    ------
    TuningError
        If nothing was trained for the family, what was is damaged, or it was trained on spaces, layers or data sheets
        with other columns.
    """

    def __init__(self, description: KernelDescription, space: ConfigSpace, artefact: Artefact | None = None) -> None:
        self.artefact = shipped(description.family) if artefact is None else artefact
        self.description, self.space, self.budget = description, space, 256
        if self.artefact.family != description.family:
            raise TuningError(f"what was trained is for {self.artefact.family}, the kernel is of {description.family}")
        self.blueprint = self.artefact.blueprint.embed(np.array([description.sheet]))[0]
        self._beside = np.concatenate([description.layer, self.blueprint])
        sample = space.vectors([0])
        width = description.features(sample).shape[1] + len(self._beside)
        expected, resources = len(self.artefact.prior.mean), len(self.artefact.ensemble.bias)
        if width != expected:
            raise TuningError(f"the prior was trained on {expected} numbers of a configuration, this space has {width}")
        parts = description.takes_part.shape
        if parts != (resources, len(space.knobs)) or description.usage(sample).shape[1] != resources:
            raise TuningError(
                f"the validity ensemble knows {resources} resources, those of this space are {parts[0]} of "
                f"{parts[1]} knobs, and it has {len(space.knobs)}"
            )
        # Knobs of one choice have no say.
        self._takes_part = description.takes_part & (space.radices > 1)
        self._table: np.ndarray | None = None

    def numbers(self, vectors: np.ndarray) -> np.ndarray:
        """Give of vectors (n x knobs) the prior's logarithm of speed and of odds, and the votes against (n x 3)."""
        if self.space.size > TABULATED:
            return self._numbers(vectors)
        if self._table is None:
            self._table = self._numbers(self.space.vectors(np.arange(self.space.size)))
        return self._table[self.space.keys(vectors)]

    def _numbers(self, vectors: np.ndarray) -> np.ndarray:
        if not len(vectors):
            return np.empty((0, 3))
        rows = self.description.features(vectors)
        outputs = self.artefact.prior(np.concatenate([rows, np.tile(self._beside, (len(rows), 1))], axis=1))
        usage = self.description.usage(vectors)
        against = self.artefact.ensemble.against(self.blueprint, usage, self._takes_part)
        return np.concatenate([outputs.astype(np.float64), against[:, None]], axis=1)

    def density(self, vectors: np.ndarray) -> np.ndarray:
        """Give the prior's logarithm of how likely vectors (n x knobs) are to be the best: speed, and odds to work."""
        numbers = self.numbers(vectors)
        return numbers[:, 0] - np.logaddexp(0.0, -numbers[:, 1])

    def accepted(self, vectors: np.ndarray) -> np.ndarray:
        """Tell which vectors (n x knobs) the validity ensemble lets pass (n)."""
        return self.numbers(vectors)[:, 2] <= TAU + 1e-9
