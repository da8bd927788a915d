"""Fits the policy network of the example `crowd` and writes assets/models/crowd.safetensors.

The network imitates a flocking rule (the teacher below). The teacher steers a simulated crowd; every sense that occurs is
a sample. Needs only numpy and safetensors. Runs in about two minutes:

    python3 tools/crowd_policy.py
"""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

# The same numbers as in examples/crowd/senses.rs.
SECTORS = 12
RADIUS = 4.0
SPEED = 6.0
FIELD = np.array([60.0, 36.0])
PILLARS = np.array([[-14.0, 5.0, 3.0], [12.0, -7.0, 4.0], [17.0, 9.0, 2.5], [-18.0, -10.0, 2.0]])
HIDDEN = 128


def directions():
    angle = (np.arange(SECTORS) + 0.5) / SECTORS * 2 * np.pi - np.pi
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def sense(position, velocity, goal):
    """The senses of all agents, [n, 64], in the frame of each agent's heading."""
    n = len(position)
    speed = np.linalg.norm(velocity, axis=1, keepdims=True)
    ahead = np.where(speed > 1e-3, velocity / np.maximum(speed, 1e-3), [1.0, 0.0])
    turn = np.stack([ahead, np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)], axis=1)  # rows: forward, left
    local = lambda world: np.einsum("nij,n...j->n...i", turn, world)

    offset = local(position[None, :, :] - position[:, None, :])
    relative = local(velocity[None, :, :] - velocity[:, None, :]) / SPEED
    distance = np.linalg.norm(offset, axis=2)
    near = (distance < RADIUS) & ~np.eye(n, dtype=bool)
    sector = ((np.arctan2(offset[:, :, 1], offset[:, :, 0]) + np.pi) / (2 * np.pi) * SECTORS).astype(int) % SECTORS

    features = np.zeros((n, SECTORS, 5), np.float32)
    for k in range(SECTORS):
        here = near & (sector == k)
        count = here.sum(axis=1)
        features[:, k, 0] = np.minimum(count / 6, 1)
        features[:, k, 1] = np.where(here, 1 - distance / RADIUS, 0).max(axis=1)
        mean = np.where(here[:, :, None], relative, 0).sum(axis=1) / np.maximum(count, 1)[:, None]
        features[:, k, 2:4] = mean
    for x, y, radius in PILLARS:
        to = local(np.array([x, y]) - position)
        gap = np.linalg.norm(to, axis=1) - radius
        k = ((np.arctan2(to[:, 1], to[:, 0]) + np.pi) / (2 * np.pi) * SECTORS).astype(int) % SECTORS
        close = np.clip(1 - gap / RADIUS, 0, 1)
        rows = np.arange(n)
        features[rows, k, 4] = np.maximum(features[rows, k, 4], close)

    to_goal = local(goal - position)
    length = np.linalg.norm(to_goal, axis=1, keepdims=True)
    own = np.concatenate([speed / SPEED, np.minimum(length / 20, 1), to_goal / np.maximum(length, 1e-3)], axis=1)
    return np.concatenate([own, features.reshape(n, -1)], axis=1).astype(np.float32)


def teach(senses):
    """What the teacher does: forward and left force, boost, colour (3), size, urge to turn."""
    own, f = senses[:, :4], senses[:, 4:].reshape(-1, SECTORS, 5)
    way = directions()
    crowding = f[:, :, 0].sum(axis=1)
    apart = -np.einsum("nk,kd->nd", f[:, :, 1] ** 2, way) * 1.8
    along = np.einsum("nk,nkd->nd", f[:, :, 0], f[:, :, 2:4]) / np.maximum(crowding, 0.2)[:, None] * 1.4
    together = np.einsum("nk,kd->nd", f[:, :, 0] * (1 - f[:, :, 1]), way) / np.maximum(crowding, 1)[:, None] * 0.9
    home = own[:, 2:4] * (0.35 + 0.5 * own[:, 1:2])
    away = -np.einsum("nk,kd->nd", f[:, :, 4] ** 2, way) * 2.6
    force = np.tanh(apart + along + together + home + away)
    boost = np.tanh(1.0 - own[:, 0] - 0.3 * crowding)
    fear = f[:, :, 4].max(axis=1)
    calm = np.exp(-np.linalg.norm(along, axis=1) * 2)
    warm = np.tanh(crowding * 0.5)
    colour = np.stack([0.15 + 0.85 * np.maximum(warm, fear), 0.25 + 0.5 * calm, 1.0 - 0.75 * warm], axis=1)
    size = 0.7 + 0.5 * np.tanh(crowding * 0.3)
    turn = np.tanh(force[:, 1] * 2)
    rest = np.stack([size, turn], axis=1)
    return np.concatenate([force, boost[:, None], colour, rest], axis=1).astype(np.float32)


def samples(random, agents, steps):
    position = random.uniform(-FIELD / 2, FIELD / 2, (agents, 2))
    velocity = random.normal(0, 3, (agents, 2))
    found = []
    for step in range(steps):
        t = step * 0.05
        goals = np.array([[np.cos(t * 0.4 + a) * 22, np.sin(t * 0.6 + a * 1.7) * 13] for a in (0.0, 2.1, 4.2)])
        goal = goals[np.arange(agents) % 3]
        senses = sense(position, velocity, goal)
        found.append(senses)
        acts = teach(senses)
        speed = np.linalg.norm(velocity, axis=1, keepdims=True)
        ahead = np.where(speed > 1e-3, velocity / np.maximum(speed, 1e-3), [1.0, 0.0])
        left = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
        force = acts[:, :1] * ahead + acts[:, 1:2] * left + acts[:, 2:3] * ahead * 0.5
        # Mistakes, so that the network also learns to recover from them.
        velocity = velocity + (force * 14 + random.normal(0, 6, velocity.shape)) * 0.05
        speed = np.linalg.norm(velocity, axis=1, keepdims=True)
        velocity *= np.clip(speed, 1.0, SPEED) / np.maximum(speed, 1e-3)
        position = position + velocity * 0.05
        outside = np.abs(position) > FIELD / 2
        position = np.where(outside, -position * 0.98, position)
    return np.concatenate(found)


def fit(x, y, random, epochs):
    sizes = [x.shape[1], HIDDEN, HIDDEN, y.shape[1]]
    weights = [random.normal(0, np.sqrt(2 / a), (b, a)).astype(np.float32) for a, b in zip(sizes, sizes[1:])]
    biases = [np.zeros(b, np.float32) for b in sizes[1:]]
    values = weights + biases
    moment, spread, step = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values], 0
    for epoch in range(epochs):
        order, loss = random.permutation(len(x)), 0.0
        rate = 1e-3 * 0.5 * (1 + np.cos(np.pi * epoch / epochs)) + 1e-5
        for at in range(0, len(x) - 511, 512):
            batch = order[at : at + 512]
            layers = [x[batch]]
            for i, (w, b) in enumerate(zip(weights, biases)):
                z = layers[-1] @ w.T + b
                layers.append(np.maximum(z, 0) if i < 2 else z)
            error = layers[-1] - y[batch]
            loss += float((error**2).mean())
            gradient, gradients = error * (2 / error.size), []
            for i in (2, 1, 0):
                gradients.append((gradient.T @ layers[i], gradient.sum(axis=0)))
                gradient = (gradient @ weights[i]) * (layers[i] > 0)
            gradients = [g for g, _ in gradients[::-1]] + [g for _, g in gradients[::-1]]
            step += 1
            for value, m, s, g in zip(values, moment, spread, gradients):
                m += 0.1 * (g - m)
                s += 0.001 * (g * g - s)
                value -= rate * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
        print(f"epoch {epoch}: mean squared error {loss / (len(x) // 512):.5f}")
    return weights, biases


def run(weights, biases, x):
    for i, (w, b) in enumerate(zip(weights, biases)):
        x = x @ w.T + b
        x = np.maximum(x, 0) if i < 2 else x
    return x


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--epochs", type=int, default=30)
    arguments.add_argument("--steps", type=int, default=300)
    arguments = arguments.parse_args()
    random = np.random.default_rng(7)
    crowds = [samples(random, agents, arguments.steps) for agents in (60, 200, 400)]
    x = np.concatenate(crowds)
    x = x[random.permutation(len(x))[:120_000]]
    y = teach(x)
    print(f"{len(x)} samples")
    weights, biases = fit(x, y, random, arguments.epochs)
    test = samples(random, 150, 40)
    error = run(weights, biases, test) - teach(test)
    print(f"on a crowd that it has not seen: mean squared error {(error**2).mean():.5f}")
    root = Path(__file__).resolve().parent.parent
    names = ["hidden1", "hidden2", "out"]
    tensors = {f"{name}.weight": np.ascontiguousarray(w) for name, w in zip(names, weights)}
    tensors |= {f"{name}.bias": b for name, b in zip(names, biases)}
    save_file(tensors, root / "assets/models/crowd.safetensors", {"licence": "MIT OR Apache-2.0", "made by": "tools/crowd_policy.py"})
    # safetensors stores the memory of a strided view, not its rows.
    rows = np.ascontiguousarray(test[:: len(test) // 64][:64])
    save_file({"senses": rows, "acts": run(weights, biases, rows).astype(np.float32)}, root / "tests/data/crowd.safetensors")


if __name__ == "__main__":
    main()
