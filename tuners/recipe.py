"""What a tuner is made of: one row of the table of recipes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real

from tvm_ext.backends.description import KernelDescription
from tvm_ext.errors import OptionError
from tvm_ext.tuners.cost_model import CostModel, XGBoostModel
from tvm_ext.tuners.explorers import Explorer
from tvm_ext.tuners.initialisers import Initialiser, RandomInitialiser, ValidityInitialiser
from tvm_ext.tuners.samplers import GreedySampler, Sampler
from tvm_ext.tuners.shared_model import Peers, SharedModel
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.tuner import Tuner
from tvm_ext.tuners.validity import Oracle, Validity


@dataclass(frozen=True)
class Recipe:
    """Parts of a tuner; each is made anew for every space.

    Attributes
    ----------
    explorer : callable
        Called with the seed.
    sampler, initialiser, cost_model : callable
        Called without arguments.
    batch, initial, pool : int
    refined_share, random_share : float
        See :class:`~tvm_ext.tuners.tuner.Tuner`.
    validity_bonus, asks_first
        See there; what an oracle of the target is used for, beside the initialiser.
    acquisition : str, optional
        See there; the best predicted are handed to the sampler where it is left out.

    Raises
    ------
    OptionError
        If a number or a share is out of range.
    """

    explorer: Callable[[int], Explorer]
    sampler: Callable[[], Sampler] = GreedySampler
    initialiser: Callable[[], Initialiser] = RandomInitialiser
    cost_model: Callable[[], CostModel] = XGBoostModel
    batch: int = 64
    initial: int = 64
    pool: int = 1
    refined_share: float = 0.0
    random_share: float = 0.05
    validity_bonus: float | None = None
    asks_first: bool = False
    acquisition: str | None = None

    def __post_init__(self) -> None:
        for what, least in (("batch", 1), ("initial", 0), ("pool", 1)):
            number = getattr(self, what)
            if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
                raise OptionError(f"{what} of a recipe is {number!r}; expected a whole number of {least} or more")
        for what in ("refined_share", "random_share"):
            share = getattr(self, what)
            if not isinstance(share, Real) or not 0 <= float(share) <= 1:
                raise OptionError(f"{what} of a recipe is {share!r}; expected a share from 0 to 1")

    @property
    def shares(self) -> bool:
        """Whether the cost model learns from tuners of other spaces."""
        return isinstance(self.cost_model(), SharedModel)

    @property
    def asks(self) -> bool:
        """Whether a validity oracle is asked at all."""
        asking = isinstance(self.initialiser(), ValidityInitialiser)
        return asking or self.asks_first or self.validity_bonus is not None

    def tuner(
        self,
        space: ConfigSpace,
        seed: int = 0,
        peers: Peers | None = None,
        oracle: Oracle | None = None,
        description: KernelDescription | None = None,
    ) -> Tuner:
        """Put the parts to work on a space.

        Parameters
        ----------
        space : ConfigSpace
        seed : int
        peers : Peers, optional
            Whose measurements the cost model learns from, if it can.
        oracle : callable, optional
            Tells which configurations work; not asked by recipes without use for it.
        description : KernelDescription, optional
            What the target says of the kernel; only recipes with a guide look at it.
        """
        return Tuner(
            space,
            self.explorer(seed),
            self.sampler(),
            self.initialiser(),
            self.cost_model(),
            seed=seed,
            batch=self.batch,
            initial=self.initial,
            pool=self.pool,
            refined_share=self.refined_share,
            random_share=self.random_share,
            peers=peers,
            validity=Validity(space, oracle) if self.asks else None,
            validity_bonus=self.validity_bonus,
            asks_first=self.asks_first,
            acquisition=self.acquisition,
        )


def as_recipe(row: Recipe) -> Recipe:
    """Give the parts of a recipe of any kind."""
    return Recipe(**{entry.name: getattr(row, entry.name) for entry in fields(Recipe)})
