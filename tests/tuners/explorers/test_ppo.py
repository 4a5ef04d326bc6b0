from __future__ import annotations

import json

import numpy as np
import pytest

from tvm_ext.tuners.explorers.networks import Adam, Layers, log_softmax
from tvm_ext.tuners.explorers.ppo import ACTIONS, Agent, Hyperparameters, Rollout


def _in_double(agent: Agent) -> Agent:
    shapes = {name: weights.shape for name, weights in agent.layers.weights.items()}
    agent.layers = Layers._views(shapes, agent.layers.flat.astype(np.float64))
    return agent


@pytest.mark.parametrize("knobs", [1, 5])
def test_gradient_is_that_of_finite_differences(knobs: int) -> None:
    rng = np.random.default_rng(0)
    agent = _in_double(Agent(knobs, 1, Hyperparameters(entropy_coefficient=0.3, value_coefficient=0.7)))
    flat = agent.layers.flat
    flat += 0.3 * rng.standard_normal(flat.size)
    states, actions = rng.random((knobs, 40)), rng.integers(0, ACTIONS, (knobs, 40))
    # Old probabilities that put some ratios beyond the clipping on either side.
    old = agent.log_probabilities(states, actions) + 0.5 * rng.standard_normal((knobs, 40))
    advantages, targets = rng.standard_normal((2, 40))

    def loss() -> float:
        return agent.loss(states, actions, old, advantages, targets)[0]

    gradient = agent.loss(states, actions, old, advantages, targets)[1]
    for position in rng.permutation(flat.size)[:200].tolist():
        kept = flat[position]
        flat[position] = kept + 1e-6
        above = loss()
        flat[position] = kept - 1e-6
        below = loss()
        flat[position] = kept
        assert gradient[position] == pytest.approx((above - below) / 2e-6, abs=1e-6)


def test_actions_are_drawn_with_their_probabilities() -> None:
    rng = np.random.default_rng(0)
    agent = Agent(2, 0)
    flat = agent.layers.flat
    flat += rng.standard_normal(flat.size).astype(np.float32)
    state, count = np.array([[0.3], [0.8]], dtype=np.float32), 20_000
    drawn = agent.act(np.repeat(state, count, axis=1), rng.gumbel(size=(ACTIONS, 2, count)).astype(np.float32))
    for action in range(ACTIONS):
        expected = np.exp(agent.log_probabilities(state, np.full((2, 1), action)))[:, 0]
        np.testing.assert_allclose((drawn == action - 1).mean(axis=1), expected, atol=0.015)


def test_it_learns_which_way_is_up() -> None:
    """Reward for every step up, none for others: after some updates the agent mostly goes up."""
    rng = np.random.default_rng(0)
    agent = Agent(3, 0, Hyperparameters(entropy_coefficient=0.01))
    blank = np.zeros((400, 3), dtype=np.float32)
    for _ in range(60):
        actions = agent.act(blank.T, rng.gumbel(size=(ACTIONS, 3, 400)).astype(np.float32)).T + 1
        rewards = (actions == 2).mean(axis=1).astype(np.float32)
        agent.update(Rollout(blank, actions, blank, np.arange(400), np.ones(400, dtype=bool), rewards), rng)
    assert rewards.mean() > 0.8
    assert agent.values(blank[:1].T)[0] == pytest.approx(rewards.mean(), abs=0.1)

    read = Agent.from_dump(json.loads(json.dumps(agent.dump())))
    rollout = Rollout(blank, actions, blank, np.arange(400), np.ones(400, dtype=bool), rewards)
    agent.update(rollout, np.random.default_rng(1))
    read.update(rollout, np.random.default_rng(1))
    np.testing.assert_array_equal(agent.layers.flat, read.layers.flat)


def test_adam_and_softmax_against_their_definitions() -> None:
    rng = np.random.default_rng(0)
    numbers, adam = rng.random(4), Adam(4, 0.1)
    expected, mean, square = numbers.copy(), np.zeros(4), np.zeros(4)
    for step in range(1, 6):
        gradient = rng.standard_normal(4)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        expected -= 0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + Adam.EPSILON)
        adam.step(numbers, gradient)
    np.testing.assert_allclose(numbers, expected, rtol=1e-5)
    logits = rng.standard_normal((3, 4)) * 50
    np.testing.assert_allclose(np.exp(log_softmax(logits)).sum(axis=0), 1.0)
    np.testing.assert_allclose(np.diff(log_softmax(logits), axis=0), np.diff(logits, axis=0), atol=1e-9)
