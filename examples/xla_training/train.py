# SPDX-License-Identifier: MIT
"""The training: one compiled program. It receives batches from the channel "batches" and sends losses and weights to the
channel "results". train.py BATCHES RESULTS FEATURES OUTPUTS ROWS STEPS EVERY"""

import sys

import jax
import jax.numpy as jnp
import tmesh.xla as xla

batches, results = sys.argv[1:3]
features, outputs, rows, steps, every = map(int, sys.argv[3:])
xla.bind("batches", batches, "recv")
xla.bind("results", results, "send")
X = jax.ShapeDtypeStruct((rows, features), "float32")
Y = jax.ShapeDtypeStruct((rows, outputs), "float32")


def loss_of(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


def step(sequence, weights, number):
    sequence, (x, y) = xla.pop(sequence, (X, Y), channel="batches")
    loss, gradient = jax.value_and_grad(loss_of)(weights, x, y)
    weights = weights - 0.02 * outputs * gradient
    sequence = xla.push(sequence, loss, channel="results")
    # Seal the weights: other processes may read these pages for any time.
    sequence = jax.lax.cond((number + 1) % every == 0,
                            lambda now: xla.push(now, weights, channel="results", seal=True), lambda now: now, sequence)
    return sequence, weights, None


train = jax.jit(lambda weights: xla.scan(step, xla.sequence(), weights, jnp.arange(steps)))
jax.block_until_ready(train(jnp.zeros((features, outputs))))
# End after all messages were received. The slot keeps the last weights.
sys.stdin.read()
