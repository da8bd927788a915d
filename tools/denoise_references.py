"""Makes tests/data/denoise.safetensors: what Open Image Denoise makes of four scenes.

    pip install pyoidn==2.5.1.0 numpy safetensors && python tools/denoise_references.py

The scenes are spheres on a floor with multiplicative noise. `tests/denoise.rs` computes the same images from the same
formulas, so only results are stored: every fourth pixel of every fourth row, in half precision.
"""

from pathlib import Path

import numpy as np
import pyoidn
from safetensors.numpy import save_file

STEP = 4


def number(i):
    """A uniform number in 0..1 of an integer, by a PCG hash."""
    x = (np.asarray(i, np.uint64) * 747796405 + 2891336453) & 0xFFFFFFFF
    word = (((x >> ((x >> np.uint64(28)) + np.uint64(4))) ^ x) * 277803737) & 0xFFFFFFFF
    return (((word >> np.uint64(22)) ^ word).astype(np.float64) + 0.5) / 2.0**32


def dot(a, b):
    return (a * b).sum(-1)


def unit(a):
    return a / np.sqrt(dot(a, a))[..., None]


def spheres(scene):
    for i in range(6):
        n = number(np.arange(7) + 1000 * scene + 10 * i)
        r = 0.3 + 0.5 * n[0]
        yield np.array([4 * n[1] - 2, r, 3.5 * n[2] - 2]), r, 0.1 + 0.8 * n[3:6]


def nearest(origin, direction, scene):
    """Distance to the nearest surface, its normal and its albedo. Infinite distance: the sky."""
    shape = direction.shape[:-1]
    best = np.full(shape, np.inf)
    normal, albedo = np.zeros(shape + (3,)), np.zeros(shape + (3,))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = -origin[..., 1] / direction[..., 1]
    hit = t > 1e-4
    best = np.where(hit, t, best)
    place = origin + direction * np.where(hit, t, 0)[..., None]
    # The shift keeps pixels off the edges, where rounding would decide.
    checker = (np.floor(place[..., 0] + 0.37) + np.floor(place[..., 2])) % 2
    albedo = np.where(hit[..., None], np.where(checker[..., None] == 0, 0.8, 0.3), albedo)
    normal = np.where(hit[..., None], np.array([0.0, 1.0, 0.0]), normal)
    for centre, r, colour in spheres(scene):
        offset = origin - centre
        b = dot(offset, direction)
        c = dot(offset, offset) - r * r
        d = b * b - c
        t = -b - np.sqrt(np.maximum(d, 0))
        hit = (d > 0) & (t > 1e-4) & (t < best)
        best = np.where(hit, t, best)
        place = origin + direction * np.where(hit, t, 0)[..., None]
        normal = np.where(hit[..., None], (place - centre) / r, normal)
        albedo = np.where(hit[..., None], colour, albedo)
    return best, normal, albedo


def render(scene, height, width):
    """Noisy colour, albedo, normal and clean colour."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    u = (x + 0.5 - width / 2) / height * 2
    v = -(y + 0.5 - height / 2) / height * 2
    direction = unit(np.stack([u, v - 0.15, np.full_like(u, -1.6)], -1))
    origin = np.broadcast_to(np.array([0.0, 1.0, 4.0]), direction.shape)
    distance, normal, albedo = nearest(origin, direction, scene)
    solid = np.isfinite(distance)
    place = origin + direction * np.where(solid, distance, 0)[..., None]
    light = unit(np.array([0.5, 0.8, 0.4 + 0.1 * scene]))
    shadow, _, _ = nearest(place + normal * 1e-3, np.broadcast_to(light, place.shape), scene)
    lit = np.maximum(dot(normal, light), 0) * ~np.isfinite(shadow)
    sky = np.stack([0.4 + 0 * v, 0.6 + 0 * v, 1.0 + 0.3 * v], -1)
    clean = np.where(solid[..., None], albedo * (0.15 + 1.2 * lit)[..., None], sky)
    i = ((y * width + x) * 4).astype(np.uint64)[..., None] + np.arange(4, dtype=np.uint64) + np.uint64(77777 * (scene + 1))
    n = number(i)
    noise = -np.log(n[..., :3]) * np.where(n[..., 3:] < 0.002, 20.0, 1.0)
    return [image.astype(np.float32) for image in (clean * noise, albedo, normal, clean)]


def main():
    stored = {}
    cases = [(0, 256, 256), (1, 256, 256), (2, 256, 256), (3, 360, 640)]
    for scene, height, width in cases:
        color, albedo, normal, clean = render(scene, height, width)
        for name, quality in (("small", "fast"), ("base", "high")):
            if name == "base" and scene not in (0, 3):
                continue
            out = pyoidn.denoise(color, albedo=albedo, normal=normal, hdr=True, quality=quality)
            stored[f"{name}.{scene}"] = out[::STEP, ::STEP].astype(np.float16)
    # The odd ones: size, and what is wrong with the colour.
    for name, height, width in (("1x1", 1, 1), ("17x33", 17, 33), ("1x1920", 1, 1920), ("bad", 48, 48), ("black", 32, 32)):
        color, albedo, normal, _ = render(1, height, width)
        if name == "bad":
            color[5, 6] = np.nan
            color[30, 30, 1] = -np.inf
            color[40:43, 9:12] = -3
            albedo[3, 3], albedo[7, 7], albedo[9, 9] = np.nan, 9, np.inf
            normal[3, 3], normal[7, 7], normal[9, 9] = np.nan, 9, -np.inf
        if name == "black":
            color[:] = 0
        out = pyoidn.denoise(color, albedo=albedo, normal=normal, hdr=True, quality="fast")
        stored[name] = out.astype(np.float16)
    color, albedo, normal, _ = render(1, 48, 48)
    color[5, 6, 1] = np.inf
    stored["inf"] = pyoidn.denoise(color, albedo=albedo, normal=normal, hdr=True, quality="fast")
    path = Path(__file__).parent.parent / "tests" / "data" / "denoise.safetensors"
    save_file(stored, path, {"source": "pyoidn 2.5.1.0 (Open Image Denoise 2.5.1)"})
    print(path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
