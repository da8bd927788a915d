"""Fits the joint head: one linear map of each encoder's output into a space of 256 numbers, in which a picture lies near its words.

The vision side is a ridge regression from the square roots of EfficientNet's pooled features to MiniLM embeddings of the labels. It sees
Fluent pictures, mirrored ones, Google's drawings of the same concepts, and as a weak prior the rows of the network's own classifier with
the names of their classes. Every fifth concept is left out of it; retrieval is reported on those, and averaged over all five ways to
leave a fifth out. The text side keeps the directions that the labels differ in most.

When searching, a picture that is near many texts is a worse answer than one that is near few: half its mean similarity to the ten
captions nearest to it is taken off its score (as CSLS does). The captions of the fit are shipped for that, and its pictures for the other direction.
"""

import json
import zipfile

import numpy as np
from PIL import Image

import sources
from pictures import caption, gallery, held_out

DIMENSIONS, RIDGE, PRIOR, NEIGHBOURS = 256, 30.0, 0.3, 10
CLASS_NAMES = ("pypi", "torchvision", "0.21.0", "torchvision-0.21.0-cp311-cp311-manylinux1_x86_64.whl")


def class_names():
    """The names of the thousand classes; torchvision lists them in a module that needs nothing else."""
    with zipfile.ZipFile(sources.package(CLASS_NAMES)) as archive:
        module = {}
        exec(archive.read("torchvision/models/_meta.py").decode(), module)
    return list(module["_IMAGENET_CATEGORIES"])


def framed(picture):
    """A picture with transparency as the network sees it: on white, resized with filtering."""
    ground = Image.new("RGBA", picture.size, "white")
    ground.alpha_composite(picture)
    return ground.convert("RGB").resize((sources.SIDE, sources.SIDE), Image.BILINEAR)


def features(session, pictures):
    made = []
    for at in range(0, len(pictures), 16):
        batch = np.stack([sources.see(framed(p)) for p in pictures[at : at + 16]])
        made.append(session.run(["features"], {"pictures": batch})[0])
    return np.concatenate(made)


def inputs():
    """Features of all pictures and embeddings of all texts, kept beside the packages."""
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
    text, tokens = sources.minilm_session(sources.minilm_weights()), sources.tokenizer()
    labels = [e["label"] for e in entries]
    prompts = {
        "label": labels,
        "emoji": [f"an emoji of {label}" for label in labels],
        "caption": [caption(e) for e in entries],
        "classes": class_names(),
    }
    made |= {name: sources.embed(text, tokens, texts) for name, texts in prompts.items()}
    np.savez(path, **made)
    return made


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def fit(data, held):
    """The head as `weight, bias` of both sides, fitted without the concepts `held`."""
    seen = np.setdiff1d(np.arange(len(data["plain"])), held)
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

    # The directions in which labels differ most; the space has no more.
    _, _, directions = np.linalg.svd(np.concatenate([target, names]), full_matrices=False)
    kept = directions[:DIMENSIONS]
    text_weight, vision_weight = kept, (vision @ kept.T).T
    return {
        "text.weight": text_weight.astype(np.float32),
        "text.bias": (-text_weight @ centre).astype(np.float32),
        "vision.weight": vision_weight.astype(np.float32),
        "vision.bias": (-vision_weight @ mean).astype(np.float32),
    }


def project(head, side, x):
    x = np.sqrt(x) if side == "vision" else x
    return unit(x @ head[f"{side}.weight"].T + head[f"{side}.bias"])


def ranks(head, data, held, query):
    """The rank of each held-out concept's picture among all held-out ones when its text is searched for."""
    seen = np.setdiff1d(np.arange(len(data["plain"])), held)
    bank = project(head, "text", data["caption"][seen])
    texts, pictures = project(head, "text", data[query][held]), project(head, "vision", data["plain"][held])
    hub = np.sort(bank @ pictures.T, axis=0)[-NEIGHBOURS:].mean(0)
    scores = texts @ pictures.T - 0.5 * hub
    return (scores > np.diag(scores)[:, None]).sum(1)


def figures(rank):
    return f"R@1 {np.mean(rank == 0):.3f}  R@10 {np.mean(rank < 10):.3f}  median rank {np.median(rank) + 1:.0f}"


def main():
    data, entries = inputs(), sources.emoji()
    count = len(entries)
    folds = [np.arange(count)[start::5] for start in range(5)]
    for query in ("caption", "label"):
        rank = np.concatenate([ranks(fit(data, fold), data, fold, query) for fold in folds])
        print(f"{query}, all five folds: {figures(rank)}")
    held = held_out(count)
    head = fit(data, held)
    for query in ("caption", "label"):
        print(f"{query}, the held-out fifth: {figures(ranks(head, data, held, query))}")

    seen = np.setdiff1d(np.arange(count), held)
    made = {name: values.astype(np.float16) if values.ndim > 1 else values for name, values in head.items()}
    made["captions"] = project(head, "text", data["caption"][seen]).astype(np.float16)
    made["pictures"] = project(head, "vision", data["plain"][seen]).astype(np.float16)
    # What the vision encoder makes of the gallery, so that the first search need not wait for it.
    made["gallery"] = data["plain"][gallery(entries)].astype(np.float16)
    # The writer takes memory as it lies, transposed or not.
    made = {name: np.ascontiguousarray(values) for name, values in made.items()}
    sources.save(made, sources.MODELS / "head.safetensors")
    labels = [entries[i]["label"] for i in seen]
    (sources.MODELS / "captions.json").write_text(json.dumps(labels, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
