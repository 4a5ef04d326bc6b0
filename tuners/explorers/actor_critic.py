"""Reinforcement learning as explorer: an actor-critic agent walks through the space, trained by PPO."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_ext.tuners.candidates import BestCandidates
from tvm_ext.tuners.explorers.base import Exploration, Score
from tvm_ext.tuners.explorers.ppo import ACTIONS, Agent, Hyperparameters, Rollout
from tvm_ext.tuners.space import ConfigSpace

NOISE = 16
"""Random numbers are drawn for so many steps at once."""


@dataclass
class ActorCritic:
    """Adaptive exploration: episodes of walks, one step up or down or none in every knob at a time.

    After the walks the cost model scores every configuration they reached; these scores are the rewards. Networks are
    kept from one iteration to the next. ``parallel`` episodes are walked side by side before the agent is updated.

    Attributes
    ----------
    episodes, steps : int
        Episodes in one iteration, most steps of an episode.
    parallel : int
        Episodes between two updates of the agent; 1 is the source's.
    still : float
        An episode ends when this share of the knobs stays where it is, by choice or at the end of its range.
    elite : float
        This share of the episodes begins at the best measured configurations, the others at random ones.
    patience : int
        The search ends when the candidates have not changed for so many steps of all ``episodes``.

    References
    ----------
    Ahn et al., "Chameleon: Adaptive Code Optimization for Expedited Deep Neural Network Compilation", ICLR 2020,
    section 3.2 and tables 7 and 9. Where episodes begin and end, ends of ranges, and the normalised state are not in
    the paper.
    """

    episodes: int = 128
    steps: int = 500
    parallel: int = 16
    still: float = 0.875
    elite: float = 0.5
    patience: int = 50
    hyperparameters: Hyperparameters = field(default_factory=Hyperparameters)
    seed: int = 0
    _agent: Agent | None = field(default=None, repr=False)

    def explore(
        self,
        space: ConfigSpace,
        score: Score,
        count: int,
        excluded: Collection[int],
        best: np.ndarray,
        rng: np.random.Generator,
    ) -> Exploration:
        """See :class:`Explorer`."""
        agent = self._agent = self._agent or Agent(len(space.knobs), self.seed, self.hyperparameters)
        found = BestCandidates(count, excluded)
        queries = changed_at = 0
        for first in range(0, self.episodes, self.parallel):
            rollout, reached = self._walk(space, agent, self._starts(space, best, first, rng), rng)
            rollout.rewards = score(reached)
            queries += len(reached)
            if found.offer(space, reached, rollout.rewards):
                changed_at = queries
            agent.update(rollout, rng)
            if queries - changed_at >= self.patience * self.episodes:
                break
        return Exploration(*found.ranked(len(space.knobs)), queries, queries / self.episodes, changed_at)

    def _starts(self, space: ConfigSpace, best: np.ndarray, first: int, rng: np.random.Generator) -> np.ndarray:
        """First configurations of the episodes from number ``first`` on that are walked side by side."""
        count = min(self.parallel, self.episodes - first)
        points = space.random(rng, count)
        chosen = int(self.elite * count) if len(best) else 0
        number = int(self.elite * first) + np.arange(chosen)
        points[:chosen] = best[number % max(len(best), 1)]
        return points

    def _walk(
        self, space: ConfigSpace, agent: Agent, points: np.ndarray, rng: np.random.Generator
    ) -> tuple[Rollout, np.ndarray]:
        """Walk an episode from each point; gives what the agent saw and did, and the vectors reached, step by step."""
        # One column an episode that is still walked.
        points = np.ascontiguousarray(points.T)
        last, scale = space.radices[:, None] - 1, (1.0 / space.radices[:, None]).astype(np.float32)
        enough = int(np.ceil(self.still * len(space.knobs)))
        alive = np.arange(points.shape[1])
        state = points.astype(np.float32) * scale
        states, actions, following, owners, ended, reached = [], [], [], [], [], []
        noise: list[np.ndarray] = []
        for step in range(self.steps):
            if not noise:
                noise = list(rng.gumbel(size=(NOISE, ACTIONS, *points.shape)).astype(np.float32))
            action = agent.act(state, noise.pop()[..., : alive.size])
            moved = np.minimum(np.maximum(points + action, 0), last)
            following_state = moved.astype(np.float32) * scale
            over = (moved == points).sum(axis=0) >= enough
            if step == self.steps - 1:
                over[:] = True
            states.append(state)
            actions.append(action)
            following.append(following_state)
            owners.append(alive)
            ended.append(over)
            reached.append(moved)
            points, state = moved, following_state
            if over.any():
                alive, points, state = alive[~over], points[:, ~over], state[:, ~over]
                if not alive.size:
                    break
        columns = (np.concatenate(rows, axis=1).T for rows in (states, actions, following, reached))
        before, directions, after, vectors = columns
        return Rollout(before, directions + 1, after, np.concatenate(owners), np.concatenate(ended)), vectors

    def dump(self) -> dict[str, Any]:
        """Give the networks and the state of their optimiser."""
        return {"agent": None if self._agent is None else self._agent.dump()}

    def load(self, state: dict[str, Any]) -> None:
        """Go on with these networks."""
        self._agent = None if state["agent"] is None else Agent.from_dump(state["agent"])
