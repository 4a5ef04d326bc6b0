"""A tuner: suggests configurations, learns from their measurements; knows nothing of what is tuned."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tvm_ext.errors import TuningError
from tvm_ext.tuners.cost_model import CostModel
from tvm_ext.tuners.explorers.base import Exploration, Explorer
from tvm_ext.tuners.initialisers import Initialiser
from tvm_ext.tuners.rescoring import Rescorer
from tvm_ext.tuners.samplers.base import History, Sampler, random_unvisited, unvisited
from tvm_ext.tuners.shared_model import Peers, SharedModel
from tvm_ext.tuners.space import ConfigSpace, Vector

STATE_FORMAT = 1
INCUMBENTS = 4
"""So many of the best measured configurations are refined."""

LEAST_OF_PEERS = 64
"""A cost model does not learn from fewer measurements of its peers."""

GROWTH = 1.25
"""The cost model learns from its peers anew when these have made so many times as many measurements."""


@dataclass(frozen=True)
class Measurement:
    """What became of one configuration.

    Attributes
    ----------
    vector : tuple of int
    seconds : float or None
        Run time; None when the configuration does not work.
    """

    vector: Vector
    seconds: float | None

    @property
    def score(self) -> float:
        """Runs a second; 0 for a configuration that does not work."""
        return 0.0 if self.seconds is None or not self.seconds > 0 else 1.0 / self.seconds


@dataclass
class Effort:
    """What searching has cost so far: iterations, queries of the cost model, steps of the walkers."""

    iterations: int = 0
    queries: int = 0
    converged_queries: int = 0
    steps: float = 0.0

    def add(self, exploration: Exploration) -> None:
        """Count one iteration."""
        self.iterations += 1
        self.queries += exploration.queries
        self.converged_queries += exploration.converged_queries
        self.steps += exploration.steps


@dataclass
class Tuner:
    """Initialiser, explorer, sampler and cost model at work on one space.

    Attributes
    ----------
    space : ConfigSpace
    explorer, sampler, initialiser, cost_model
        The parts; see :mod:`tvm_ext.tuners.recipes`.
    seed : int
        The same seed and the same measurements give the same suggestions.
    batch : int
        Most configurations measured in one iteration.
    pool : int
        The explorer hands so many times the batch to the sampler.
    initial : int
        How many configurations are measured before the cost model is used.
    rescorer : Rescorer, optional
        Takes a second look at what the explorer found.
    peers : Peers, optional
        Tuners of other spaces, whose measurements a :class:`~tvm_ext.tuners.shared_model.SharedModel` learns from. It
        is used from the beginning then: ``initial`` does not count.
    model_seconds : float
        What training the cost model has taken.
    random_share : float
        This share of a batch is replaced by random configurations (ε-greedy).
    refined_share : float
        This share of a batch is replaced by the best predicted of those configurations that differ in one knob from one
        of the best measured ones. The candidates of a search are the best predicted of all, and the model puts what is
        better than it can explain down to chance: a search may stay among thousands of equals, and pass over the
        surroundings of the fastest configuration it has measured.
    """

    space: ConfigSpace
    explorer: Explorer
    sampler: Sampler
    initialiser: Initialiser
    cost_model: CostModel
    seed: int = 0
    batch: int = 64
    initial: int = 64
    pool: int = 1
    random_share: float = 0.05
    refined_share: float = 0.0
    rescorer: Rescorer | None = None
    peers: Peers | None = None
    measurements: list[Measurement] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)
    model_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._history = History()
        self._model_is_current = False
        self._learnt = 0
        if self.peers is not None:
            self.peers.join(self.space, self.measurements)

    def suggest(self, count: int) -> list[Vector]:
        """Propose at most ``count`` configurations that were not suggested before.

        Fewer come back when the sampler needs fewer; none when every configuration of the space was suggested.
        """
        if count < 1 or len(self._history.visited) >= self.space.size:
            return []
        missing = self.initial - len(self.measurements)
        if self._learn_from_peers():
            vectors = self._default()
            if not len(vectors):
                vectors = self._explore(min(count, self.batch))
        elif missing > 0 or not any(row.score > 0 for row in self.measurements):
            vectors = self._first(min(count, missing) if missing > 0 else count)
        else:
            vectors = self._explore(min(count, self.batch))
        self._history.visited.update(self.space.keys(vectors))
        return [tuple(row) for row in vectors.tolist()]

    def update(self, results: Iterable[Measurement]) -> None:
        """Learn from measurements, of suggested configurations or of others.

        Raises
        ------
        TuningError
            If a configuration is not in the space.
        """
        for result in results:
            vector = self.space.check(result.vector)
            self.measurements.append(Measurement(vector, result.seconds))
            self._history.visited.add(self.space.index(vector))
            self._history.record(vector, result.score > 0)
            self._model_is_current = False

    @property
    def best(self) -> Measurement | None:
        """The fastest configuration measured so far; None when none works."""
        return max((row for row in self.measurements if row.score > 0), key=lambda row: row.score, default=None)

    def _default(self) -> np.ndarray:
        """Give the configuration to start from, if there is one that was not suggested yet."""
        default = [] if self.space.default is None else [self.space.default]
        vectors = np.array(default, dtype=np.int64).reshape(-1, len(self.space.knobs))
        return unvisited(self.space, vectors, set(self._history.visited))

    def _first(self, count: int) -> np.ndarray:
        vectors = self._default()
        taken = {*self._history.visited, *self.space.keys(vectors)}
        others = self.initialiser.propose(self.space, count - len(vectors), taken, self._rng)
        return np.concatenate([vectors, others])

    def _explore(self, count: int) -> np.ndarray:
        self._fit()
        ranked = sorted(self.measurements, key=lambda row: -row.score)
        best = self._array([row for row in ranked if row.score > 0][: self.batch])
        pool = self.batch * self.pool * (1 if self.rescorer is None else self.rescorer.pool)
        exploration = self.explorer.explore(
            self.space,
            self.cost_model.scorer(self.space),
            pool,
            self._history.visited,
            best,
            self._rng,
        )
        self.effort.add(exploration)
        vectors, scores = exploration.vectors, exploration.scores
        if self.rescorer is not None:
            measured = [(row.vector, row.score) for row in self.measurements]
            vectors, scores = self.rescorer.best(self.space, measured, vectors, self.batch * self.pool)
        chosen = self.sampler.sample(self.space, vectors, scores, count, self._history, self._rng)[:count]
        taken = set(self._history.visited)
        strangers, refined = int(self.random_share * len(chosen)), round(self.refined_share * len(chosen))
        chosen = unvisited(self.space, chosen[: len(chosen) - strangers - refined], taken)
        if refined and len(best):
            chosen = np.concatenate([chosen, self._refined(best[:INCUMBENTS], refined, taken)])
        missing = max(strangers, 1 - len(chosen))
        return np.concatenate([chosen, random_unvisited(self.space, missing, taken, self._rng)])

    def _refined(self, incumbents: np.ndarray, count: int, taken: set[int]) -> np.ndarray:
        """Give the best predicted changes of single knobs that are not in ``taken``, and add them."""
        around = unvisited(self.space, self._rng.permutation(self.space.changes(incumbents)), set(taken))
        scores = self.cost_model.scorer(self.space)(around) if len(around) else np.empty(0)
        return unvisited(self.space, around[np.argsort(-scores, kind="stable")[:count]], taken)

    def _learn_from_peers(self) -> bool:
        """Train the prior of a shared model if there is more to learn from; tells whether it has one."""
        if self.peers is None or not isinstance(self.cost_model, SharedModel):
            return False
        others = self.peers.others(self.space)
        count = sum(len(rows) for _, rows in others)
        if count >= LEAST_OF_PEERS and count >= GROWTH * self._learnt:
            start = time.perf_counter()
            self.cost_model.learn([self._examples(space, rows) for space, rows in others])
            self._learnt, self._model_is_current = count, False
            self.model_seconds += time.perf_counter() - start
        return self.cost_model.informed

    def _examples(self, space: ConfigSpace, measurements: Sequence[Measurement]) -> tuple[np.ndarray, np.ndarray]:
        return self.cost_model.features(space, self._array(measurements)), np.array([row.score for row in measurements])

    def _array(self, measurements: Sequence[Measurement]) -> np.ndarray:
        """Vectors of measurements (n × knobs)."""
        return np.array([row.vector for row in measurements], dtype=np.int64).reshape(-1, len(self.space.knobs))

    def _fit(self) -> None:
        if not self._model_is_current:
            start = time.perf_counter()
            self.cost_model.fit(*self._examples(self.space, self.measurements))
            self._model_is_current = True
            self.model_seconds += time.perf_counter() - start

    def dump(self) -> str:
        """Give the whole state as JSON; a tuner of the same parts that loads it goes on as this one would."""
        state = {
            "format": STATE_FORMAT,
            "space": self.space.signature(),
            "random": self._rng.bit_generator.state,
            "visited": sorted(self._history.visited),
            "measurements": [[list(row.vector), row.seconds] for row in self.measurements],
            "effort": asdict(self.effort),
            "explorer": self.explorer.dump(),
        }
        return json.dumps(state)

    def load(self, text: str) -> None:
        """Go on from what :meth:`dump` gave.

        Raises
        ------
        TuningError
            If the text is no such state, or one of another space.
        """
        try:
            state = json.loads(text)
            if state["format"] != STATE_FORMAT:
                raise TuningError(f"the tuner's state has format {state['format']}, expected {STATE_FORMAT}")
            if state["space"] != self.space.signature():
                raise TuningError(
                    f"the tuner's state is of a space with knobs {_spell(state['space'])}, "
                    f"this space has {_spell(self.space.signature())}"
                )
            measurements = [Measurement(tuple(vector), seconds) for vector, seconds in state["measurements"]]
            self.measurements.clear()  # peers hold the list
            self._history = History(visited=set(state["visited"]))
            self.update(measurements)
            self._rng.bit_generator.state = state["random"]
            self.effort = Effort(**state["effort"])
            self.explorer.load(state["explorer"])
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise TuningError(
                f"the tuner's state is damaged ({type(error).__name__}: {error}); begin without it"
            ) from None


def _spell(signature: Sequence[Sequence[Any]]) -> str:
    return ", ".join(f"{name} ({choices} choices)" for name, choices in signature)
