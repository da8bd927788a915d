"""Writes tests/data/encoders: outputs of onnxruntime with the original weights, and the tokens of 200 lines by `tokenizers`."""

import json

import numpy as np

import sources
from fit_head import framed

FOLDER = sources.ROOT / "tests" / "data" / "encoders"

TEXTS = [
    "a cat",
    "something to drink",
    "It is raining.",
    "The quick brown fox jumps over the lazy dog, and then it takes a long nap in the warm afternoon sun.",
    "naïve café, Ωμέγα, 東京タワー, 🐙!",
]
PICTURES = ["cat_face.webp", "racing_car.webp"]

ACCENTS = [
    "Crème brûlée à la carte", "El niño comió piña", "Ærøskøbing og Ålesund", "Zażółć gęślą jaźń", "Příliš žluťoučký kůň",
    "Fußgängerübergänge", "İstanbul'da yağmur", "Ελληνικά με τόνους", "Привет, мир!", "شمس و قمر", "שלום עולם", "हिन्दी में एक वाक्य",
]
CJK = [
    "我喜欢喝茶", "東京は雨です", "고양이가 잔다", "漢字とかなとカナ", "中文 and English 混在", "ｆｕｌｌｗｉｄｔｈ", "㍿㌀", "台灣的夜市", "저는 학생입니다",
]
EMOJI = ["🐱", "🐱🐶🦊", "I ❤️ NY", "👩‍🚀 in space", "🏳️‍🌈 flag", "thumbs 👍🏽 up", "🇯🇵", "☔ rain", "1️⃣2️⃣3️⃣", "a🙂b"]
ODD = [
    "", " ", "\t\n", "...", "!!!???", "a" * 120, "don't can't won't", "state-of-the-art", "e-mail: someone@example.com", "https://example.com/a?b=c",
    "3.14159 and 1,000,000", "C++ & C#", "[CLS] [SEP] [MASK]", "##ing", "\u200bzero\u200bwidth", "\u00a0non-breaking", "e\u0301 combining",
    "ALL CAPS SHOUTING", "MiXeD cAsE", "tabs\tand\nnew lines", "“quotes” – dashes — …", "ﬁ ligature ﬂ", "½ ² ³ №", "$5 €6 £7 ¥8", "\u0000null\u0007bell",
    "word " * 600, "日" * 600, "supercalifragilisticexpialidocious antidisestablishmentarianism", "x = y ** 2 if z else None", "<b>html</b> &amp; more",
]


def lines():
    """200 lines: unusual texts, then ordinary captions."""
    chosen = ACCENTS + CJK + EMOJI + ODD
    entries = sources.emoji()
    captions = [", ".join([e["label"], *e.get("tags", [])]) for e in entries]
    return chosen + captions[:: len(captions) // (200 - len(chosen))][: 200 - len(chosen)]


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokens = sources.tokenizer()
    made = [{"text": line, "ids": tokens.encode(line).ids} for line in lines()]
    assert len(made) == 200
    (FOLDER / "tokens.json").write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n")

    text = sources.embed(sources.minilm_session(sources.minilm_weights()), tokens, TEXTS)
    gallery = sources.MODELS.parent / "gallery"
    pictures = [framed(sources.opened((gallery / name).read_bytes())) for name in PICTURES]
    vision = sources.efficientnet_session(sources.efficientnet_weights())
    features, logits = vision.run(["features", "logits"], {"pictures": np.stack([sources.see(p) for p in pictures])})
    tensors = {
        "text": text,
        "pixels": np.stack([np.asarray(p, np.uint8) for p in pictures]),
        "features": features,
        "logits": logits,
    }
    sources.save(tensors, FOLDER / "outputs.safetensors", {f"text.{i}": t for i, t in enumerate(TEXTS)})


if __name__ == "__main__":
    main()
