"""Fits the joint head: a linear map from the output of each encoder to a space of 256 numbers, in which pictures are near their texts.

1. Ridge regression from the square roots of EfficientNet's pooled features to MiniLM embeddings of the labels. The inputs are
   Fluent pictures, mirrored pictures and Google's drawings of the same concepts. The rows of the network's classifier, with
   the names of their classes, are a weak prior. The text side keeps the directions in which the labels differ most.
2. Contrastive training of both maps. In a batch of rotated, scaled and tinted pictures, each picture must be identified by
   its label, its caption or one of its tags, and vice versa. The result is the mean of several runs.

Every fifth concept is held out of both steps. The script prints retrieval on these concepts, and the average over all five ways
to hold out a fifth.

A search penalises pictures that are near many texts, as CSLS does: it subtracts half the mean similarity to the ten nearest
captions from the score. The captions of the fit are shipped for this, with their own penalties.
"""

import json
import zipfile

import numpy as np
from PIL import Image, ImageEnhance

import sources
from pictures import caption, gallery, held_out

DIMENSIONS, RIDGE, PRIOR, NEIGHBOURS = 256, 30.0, 0.3, 10
# Contrastive training: runs, steps per run, batch size, learning rate, temperature, dropout, probability of using a tag
# as the text.
RUNS, STEPS, BATCH, RATE, TEMPERATURE, DROPOUT, TAGS = 4, 300, 512, 5e-4, 0.08, 0.2, 0.4
# Number of augmented views per picture, and the weight of the original picture among all views.
VARIED, ITSELF = 4, 4
# Texts with a higher cosine similarity are not contrasted with each other.
ALIKE = 0.85
CLASS_NAMES = ("pypi", "torchvision", "0.21.0", "torchvision-0.21.0-cp311-cp311-manylinux1_x86_64.whl")


def class_names():
    """The names of the 1,000 ImageNet classes, from a torchvision module that has no dependencies."""
    with zipfile.ZipFile(sources.package(CLASS_NAMES)) as archive:
        module = {}
        exec(archive.read("torchvision/models/_meta.py").decode(), module)
    return list(module["_IMAGENET_CATEGORIES"])


def framed(picture):
    """Puts a transparent picture on white and resizes it to the input of the network, with filtering."""
    ground = Image.new("RGBA", picture.size, "white")
    ground.alpha_composite(picture)
    return ground.convert("RGB").resize((sources.SIDE, sources.SIDE), Image.BILINEAR)


def varied(picture, seed):
    """A picture with a small random rotation, scale, shift, mirroring and tint."""
    rng = np.random.default_rng(seed)
    size = picture.width
    turned = picture.rotate(rng.uniform(-18, 18), Image.BICUBIC)
    side = int(size * rng.uniform(0.65, 1.15))
    place = tuple((size - side) // 2 + int(rng.uniform(-0.08, 0.08) * size) for _ in range(2))
    ground = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    ground.paste(turned.resize((side, side), Image.BILINEAR), place)
    if rng.random() < 0.5:
        ground = ground.transpose(Image.FLIP_LEFT_RIGHT)
    colours = ImageEnhance.Color(ground.convert("RGB")).enhance(rng.uniform(0.6, 1.3))
    colours = ImageEnhance.Brightness(colours).enhance(rng.uniform(0.8, 1.15))
    colours.putalpha(ground.getchannel("A"))
    return colours


def all_tags(entries):
    return sorted({tag for e in entries for tag in e.get("tags", [])})


def features(session, pictures):
    made = []
    for at in range(0, len(pictures), 16):
        batch = np.stack([sources.see(framed(p)) for p in pictures[at : at + 16]])
        made.append(session.run(["features"], {"pictures": batch})[0])
    return np.concatenate(made)


def inputs():
    """Features of all pictures and embeddings of all texts, cached next to the packages."""
    path = sources.CACHE / "head_inputs.npz"
    if path.exists():
        return dict(np.load(path))
    entries = sources.emoji()
    weights = sources.efficientnet_weights()
    vision = sources.efficientnet_session(weights)
    fluent, google = sources.fluent(), sources.google()

    def drawn(entry):
        code = entry["picture"]
        found = next((google[c] for c in (code, f"{code}-fe0f", code.replace("-fe0f", "")) if c in google), None)
        return sources.opened(found or fluent[code])

    plain = [sources.opened(fluent[e["picture"]]) for e in entries]
    mirrored = [p.transpose(Image.FLIP_LEFT_RIGHT) for p in plain]
    made = {
        "plain": features(vision, plain),
        "mirrored": features(vision, mirrored),
        "google": features(vision, [drawn(e) for e in entries]),
        "classifier": weights["_fc.weight"],
    }
    for view in range(VARIED):
        made[f"varied{view}"] = features(vision, [varied(p, [view, i]) for i, p in enumerate(plain)])
    text, tokens = sources.minilm_session(sources.minilm_weights()), sources.tokenizer()
    labels = [e["label"] for e in entries]
    prompts = {
        "label": labels,
        "emoji": [f"an emoji of {label}" for label in labels],
        "caption": [caption(e) for e in entries],
        "tags": all_tags(entries),
        "classes": class_names(),
    }
    made |= {name: sources.embed(text, tokens, texts) for name, texts in prompts.items()}
    np.savez(path, **made)
    return made


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def fit(data, held):
    """Fits the head without the concepts `held`. Returns weight and bias of both sides."""
    seen = np.setdiff1d(np.arange(len(data["plain"])), held)
    start = ridge(data, seen)
    runs = [sharpen(start, data, seen, seed) for seed in range(RUNS)]
    return {name: np.mean([run[name] for run in runs], axis=0) for name in start}


def ridge(data, seen):
    """The starting point of the fit: ridge regression."""
    views = [np.sqrt(data[name]) for name in ("plain", "mirrored", "google")]
    texts = {name: data[name] for name in ("label", "emoji", "caption")}
    centre = np.mean([t[seen].mean(0) for t in texts.values()], axis=0)
    target = unit(np.mean([unit(t - t[seen].mean(0)) for t in texts.values()], axis=0))[seen]

    mean = np.mean([v[seen].mean(0) for v in views], axis=0)
    x = np.concatenate([v[seen] - mean for v in views])
    y = np.concatenate([target] * len(views))
    prior = unit(data["classifier"] - data["classifier"].mean(0)) * np.linalg.norm(x, axis=1).mean()
    names = unit(data["classes"] - data["classes"].mean(0))
    left = x.T @ x + PRIOR * prior.T @ prior + RIDGE * len(views) * np.eye(x.shape[1])
    right = x.T @ y + PRIOR * prior.T @ names
    vision = np.linalg.solve(left, right)

    # The joint space has only the directions in which labels differ most.
    _, _, directions = np.linalg.svd(np.concatenate([target, names]), full_matrices=False)
    kept = directions[:DIMENSIONS]
    text_weight, vision_weight = kept, (vision @ kept.T).T
    return {
        "text.weight": text_weight.astype(np.float32),
        "text.bias": (-text_weight @ centre).astype(np.float32),
        "vision.weight": vision_weight.astype(np.float32),
        "vision.bias": (-vision_weight @ mean).astype(np.float32),
    }


def sharpen(start, data, seen, seed):
    """Contrastive training: Adam on the symmetric cross entropy of the cosine similarities of a batch."""
    rng = np.random.default_rng(seed)
    names = ["plain"] * ITSELF + ["mirrored", "google"] + [f"varied{view}" for view in range(VARIED)]
    views = [np.sqrt(data[name]).astype(np.float32) for name in names]
    texts = [data[name].astype(np.float32) for name in ("label", "emoji", "caption")]
    entries = sources.emoji()
    number = {tag: i for i, tag in enumerate(all_tags(entries))}
    tags = [[number[tag] for tag in e.get("tags", [])] for e in entries]
    head = {name: values.copy() for name, values in start.items()}
    mean, square = ({name: np.zeros_like(values) for name, values in head.items()} for _ in range(2))
    for step in range(1, STEPS + 1):
        batch = rng.choice(seen, BATCH, replace=False)
        x = np.stack([views[rng.integers(len(views))][i] for i in batch])
        t = np.stack([texts[rng.integers(len(texts))][i] for i in batch])
        x = x * (rng.random(x.shape, dtype=np.float32) > DROPOUT) / (1 - DROPOUT)
        # A tag does not contrast pictures that share it.
        apart = np.ones((BATCH, BATCH), bool)
        for at, i in enumerate(batch):
            if tags[i] and rng.random() < TAGS:
                tag = rng.choice(tags[i])
                t[at] = data["tags"][tag]
                apart[:, at] = [tag not in tags[j] for j in batch]
        apart &= unit(t) @ unit(t).T < ALIKE
        np.fill_diagonal(apart, True)

        a = x @ head["vision.weight"].T + head["vision.bias"]
        b = t @ head["text.weight"].T + head["text.bias"]
        cosines = unit(a) @ unit(b).T
        grades = np.where(apart, np.exp((cosines - 1) / TEMPERATURE), 0)
        wrong = grades / grades.sum(1, keepdims=True) + grades / grades.sum(0) - 2 * np.eye(BATCH)
        wrong = (wrong / (2 * BATCH * TEMPERATURE)).astype(np.float32)

        def behind_unit(gradient, y):
            return (gradient - unit(y) * (gradient * unit(y)).sum(1, keepdims=True)) / np.linalg.norm(y, axis=1, keepdims=True)

        ga, gb = behind_unit(wrong @ unit(b), a), behind_unit(wrong.T @ unit(a), b)
        gradients = {
            "vision.weight": ga.T @ x,
            "vision.bias": ga.sum(0),
            "text.weight": gb.T @ t,
            "text.bias": gb.sum(0),
        }
        rate = RATE * 0.5 * (1 + np.cos(np.pi * step / STEPS))
        for name, gradient in gradients.items():
            mean[name] = 0.9 * mean[name] + 0.1 * gradient
            square[name] = 0.98 * square[name] + 0.02 * gradient**2
            size = np.sqrt(square[name] / (1 - 0.98**step)) + 1e-8
            head[name] -= rate * mean[name] / (1 - 0.9**step) / size
    return head


def project(head, side, x):
    x = np.sqrt(x) if side == "vision" else x
    return unit(x @ head[f"{side}.weight"].T + head[f"{side}.bias"])


def popularity(points, others):
    """The penalty of points that are near many others."""
    return 0.5 * np.sort(points @ others.T, axis=1)[:, -NEIGHBOURS:].mean(1)


def ranks(head, data, held, query):
    """The rank of the picture of each held-out concept among all held-out pictures, searched by its text."""
    seen = np.setdiff1d(np.arange(len(data["plain"])), held)
    bank = project(head, "text", data["caption"][seen])
    texts, pictures = project(head, "text", data[query][held]), project(head, "vision", data["plain"][held])
    scores = texts @ pictures.T - popularity(pictures, bank)
    return (scores > np.diag(scores)[:, None]).sum(1)


def figures(rank):
    return f"R@1 {np.mean(rank == 0):.3f}  R@10 {np.mean(rank < 10):.3f}  median rank {np.median(rank) + 1:.0f}"


def main():
    data, entries = inputs(), sources.emoji()
    count = len(entries)
    heads = [(fold, fit(data, fold)) for fold in (np.arange(count)[start::5] for start in range(5))]
    held = held_out(count)
    head = next(head for fold, head in heads if np.array_equal(fold, held))
    for query in ("caption", "label"):
        rank = np.concatenate([ranks(head, data, fold, query) for fold, head in heads])
        print(f"{query}, all five folds: {figures(rank)}")
        print(f"{query}, the held-out fifth: {figures(ranks(head, data, held, query))}")

    seen = np.setdiff1d(np.arange(count), held)
    made = {name: values.astype(np.float16) if values.ndim > 1 else values for name, values in head.items()}
    captions, pictures = project(head, "text", data["caption"][seen]), project(head, "vision", data["plain"][seen])
    made["captions"] = captions.astype(np.float16)
    made["captions.popularity"] = popularity(captions, pictures).astype(np.float32)
    # Image features of the gallery, so that the first search does not wait for the image encoder.
    made["gallery"] = data["plain"][gallery(entries)].astype(np.float16)
    # `save_file` ignores strides, so arrays must be contiguous.
    made = {name: np.ascontiguousarray(values) for name, values in made.items()}
    sources.save(made, sources.MODELS / "head.safetensors")
    labels = [entries[i]["label"] for i in seen]
    (sources.MODELS / "captions.json").write_text(json.dumps(labels, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
