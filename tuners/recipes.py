"""The tuners there are: each one row of a table of parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tvm_ext.errors import OptionError
from tvm_ext.tuners.cost_model import CostModel, XGBoostModel
from tvm_ext.tuners.explorers import Evolution, Explorer, RandomSearch, SimulatedAnnealing
from tvm_ext.tuners.explorers.actor_critic import ActorCritic
from tvm_ext.tuners.initialisers import Initialiser, RandomInitialiser, SpaceFillingInitialiser
from tvm_ext.tuners.samplers import AdaptiveSampler, DiversitySampler, GreedySampler, ReducedSampler, Sampler
from tvm_ext.tuners.space import ConfigSpace
from tvm_ext.tuners.tuner import Tuner


@dataclass(frozen=True)
class Recipe:
    """Parts of a tuner; each is made anew for every space.

    Attributes
    ----------
    explorer : callable
        Called with the seed.
    sampler, initialiser, cost_model : callable
        Called without arguments.
    batch, initial : int
        See :class:`~tvm_ext.tuners.tuner.Tuner`.
    """

    explorer: Callable[[int], Explorer]
    sampler: Callable[[], Sampler] = GreedySampler
    initialiser: Callable[[], Initialiser] = RandomInitialiser
    cost_model: Callable[[], CostModel] = XGBoostModel
    batch: int = 64
    initial: int = 64

    def tuner(self, space: ConfigSpace, seed: int = 0) -> Tuner:
        """Put the parts to work on a space."""
        return Tuner(
            space,
            self.explorer(seed),
            self.sampler(),
            self.initialiser(),
            self.cost_model(),
            seed=seed,
            batch=self.batch,
            initial=self.initial,
        )


def _annealing(seed: int) -> Explorer:
    return SimulatedAnnealing()


def _agent(seed: int) -> Explorer:
    return ActorCritic(seed=seed)


def _evolution(seed: int) -> Explorer:
    return Evolution()


def _random(seed: int) -> Explorer:
    return RandomSearch(pool=64)


# Names of the first four: Ahn et al., "Chameleon", ICLR 2020, table 2 (SA, AE, SA+AS, AE+AS).
RECIPES: dict[str, Recipe] = {
    "autotvm_sa": Recipe(_annealing),
    "ppo": Recipe(_agent),
    "sa_as": Recipe(_annealing, AdaptiveSampler),
    "chameleon": Recipe(_agent, AdaptiveSampler),
    "autotvm_diversity": Recipe(_annealing, DiversitySampler),
    "evolution": Recipe(_evolution, initialiser=SpaceFillingInitialiser, batch=16, initial=16),
    "random": Recipe(_random),
    # Controls: as few measurements as adaptive sampling, without its choice of where.
    "sa_greedy_reduced": Recipe(_annealing, ReducedSampler),
    "sa_random_reduced": Recipe(_annealing, lambda: ReducedSampler("random")),
    "ppo_greedy_reduced": Recipe(_agent, ReducedSampler),
    "ppo_random_reduced": Recipe(_agent, lambda: ReducedSampler("random")),
    "sa_as_without_synthesis": Recipe(_annealing, lambda: AdaptiveSampler(synthesis=False)),
    "sa_as_step_1": Recipe(_annealing, lambda: AdaptiveSampler(step=1)),
}


def recipe(name: str, batch: int | None = None, initial: int | None = None) -> Recipe:
    """Look a recipe up, with another batch or another number of first configurations if wanted.

    Raises
    ------
    OptionError
        If there is none of that name; the message lists those there are.
    """
    if name not in RECIPES:
        raise OptionError(f"unknown tuner {name!r}, candidates are {', '.join(RECIPES)}")
    row = RECIPES[name]
    return replace(row, batch=batch or row.batch, initial=initial or row.initial)
