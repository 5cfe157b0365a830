"""Chains of SGD: chain-steps a second on one core, with the covariance accumulated."""

from __future__ import annotations

import time

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import Limit, Measure
from hyperribbon.papers.simulation import simulate_one_layer, simulate_two_layer
from hyperribbon.theory import fluctuations as theory

N, S, CHAINS, STEPS = 100, 10, 128, 2000


def _task(samples: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, samples)) / np.sqrt(N)
    return X, rng.normal(size=N) @ X + 0.1 * rng.normal(size=samples)


def _rate(run, chain_steps: int, repeats: int = 3) -> float:
    """Return the median millions of chain-steps a second of processor time."""
    run()
    rates = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        rates.append(chain_steps / (time.process_time() - begin) / 1e6)
    return float(np.median(rates))


def one_layer() -> list[Limit]:
    limits = []
    with threadpool_limits(1):
        for samples in (110, 200, 1000):
            X, Y = _task(samples)
            for sampling in ("replacement", "without_replacement", "shuffle"):

                def run(X=X, Y=Y, sampling=sampling):
                    simulate_one_layer(
                        X,
                        Y,
                        lr=0.1,
                        batch_size=S,
                        steps=STEPS,
                        chains=CHAINS,
                        burn_in=0,
                        sampling=sampling,
                    )

                limits.append(
                    Limit(
                        f"{sampling}, P = {samples}",
                        _rate(run, STEPS * CHAINS),
                        low=1.0,
                        unit="million chain-steps/s",
                    )
                )
    return limits


def two_layers() -> list[Limit]:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(30, 3000)) / np.sqrt(30), rng.normal(size=(1, 3000))
    W1, W2 = rng.normal(size=(20, 30)) / np.sqrt(30), rng.normal(size=(1, 20)) / np.sqrt(20)
    limits = []
    with threadpool_limits(1):
        for dynamics, steps, chains in (("sgd", 300, 500), ("flow", 20, 200)):

            def run(dynamics=dynamics, steps=steps, chains=chains):
                simulate_two_layer(
                    X,
                    Y,
                    W1,
                    W2,
                    lr=0.1,
                    batch_size=S,
                    record=[steps],
                    chains=chains,
                    dynamics=dynamics,
                )

            limits.append(
                Limit(
                    f"{dynamics}, 30-20-1, P = 3000",
                    _rate(run, steps * chains),
                    unit="million chain-steps/s",
                )
            )
    return limits


def discrete_theory() -> list[Limit]:
    X, Y = _task(1000)
    begin = time.process_time()
    theory.discrete_covariance(X, Y, 0.1, S)
    return [Limit("N = 100, P = 1000", time.process_time() - begin, high=1.0, unit="s")]


ROWS = [
    Measure(name="one-layer chains", run=one_layer),
    Measure(name="two-layer chains", run=two_layers),
    Measure(name="discrete-time covariance", run=discrete_theory),
]
