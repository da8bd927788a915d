"""Writes the shipped pictures: the gallery, and the held-out concepts for measuring retrieval. The bytes are those of the packages."""

import json

import numpy as np

import sources

GALLERY = """
🐱 🐈 🐶 🐕 🐎 🦁 🐘 🐼 🐧 🦉 🐢 🐠 🐙 🦋 🐝 🦀 🐸 🦈 🦅 🐌
🍎 🍌 🍓 🍕 🍔 🍣 🍦 🎂 ☕ 🍺 🍷 🥛 🍞 🧀 🥕 🍿
🏎️ 🚗 🚀 ✈️ 🚲 🚂 ⛵ 🚁 🚒 🏍️ 🚜 🚌
🌧️ ☔ ☀️ ❄️ ⛄ 🌈 ⚡ 🌙 🌊 🌋 🌵 🌻 🌲 🔥 ⭐ 🏔️ 🏝️
🎸 🎹 🎻 🥁 ⚽ 🏀 🎾 💻 📷 📚 🔑 ⏰ 💡 🎁 🛏️ 👑 💎 🏠 🏰 🔨 ✂️ 🎈 👟 🤖 ❤️ 👻 🎃 ⚓ 🧭 ⌚ 🩺
""".split()


def held_out(count):
    """Indices of the concepts that are held out of the fit: every fifth, in the order of emojibase."""
    return np.arange(count)[::5]


def caption(entry):
    """The caption of a concept: its label, then its tags."""
    return ", ".join([entry["label"], *entry.get("tags", [])])


def gallery(entries):
    """Indices of the concepts of the gallery, in the order of the gallery."""

    def bare(text):
        return text.replace("\ufe0f", "")

    by_emoji = {bare(e["emoji"]): i for i, e in enumerate(entries)}
    return [by_emoji[bare(emoji)] for emoji in GALLERY]


def main():
    entries = sources.emoji()
    data = sources.fluent()
    held = set(held_out(len(entries)))
    folder = sources.MODELS.parent / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.webp"):
        old.unlink()
    listed = []
    for index in gallery(entries):
        entry = entries[index]
        name = entry["label"].replace(" ", "_").replace("’", "")
        (folder / f"{name}.webp").write_bytes(data[entry["picture"]])
        listed.append({"name": entry["label"], "file": f"{name}.webp", "held_out": index in held})
    (folder / "gallery.json").write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")

    chosen = [entries[i] for i in sorted(held)]
    pictures = {e["picture"]: np.frombuffer(data[e["picture"]], np.uint8) for e in chosen}
    captions = {e["picture"]: caption(e) for e in chosen}
    sources.save(pictures, sources.MODELS / "held_out.safetensors", captions)
    print(f"{len(listed)} pictures, {sum(p['held_out'] for p in listed)} of them held out; {len(chosen)} concepts held out")


if __name__ == "__main__":
    main()
