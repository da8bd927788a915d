"""Writes assets/examples/spectrogram.ogg: tones, chirps, noise and a sentence, for the example `spectrogram`.

Needs numpy, scipy, soundfile, and the program espeak-ng, which speaks the sentence. Everything in the file is synthesised
here; it may be used as the rest of the repository.
"""

import io
import pathlib
import subprocess

import numpy as np
import scipy.signal
import soundfile

RATE = 16000
OUT = pathlib.Path(__file__).parent.parent / "assets/examples/spectrogram.ogg"
SENTENCE = "Tensors in a game. The sound you see is transformed on the device, one frame at a time."


def seconds(length):
    return np.arange(int(length * RATE)) / RATE


def fade(x, attack=0.01, release=0.1):
    t, n = np.arange(len(x)) / RATE, len(x) / RATE
    return x * np.clip(t / attack, 0, 1) * np.clip((n - t) / release, 0, 1)


def note(hz, length, harmonics=6):
    t = seconds(length)
    tone = sum(np.sin(2 * np.pi * hz * k * t) / k**1.3 for k in range(1, harmonics + 1) if hz * k < RATE / 2.2)
    return fade(tone * np.exp(-2.2 * t), release=0.05)


def chirp(start, end, length, method="logarithmic"):
    t = seconds(length)
    return fade(scipy.signal.chirp(t, start, length, end, method=method), release=0.05)


def warble(length):
    t = seconds(length)
    hz = 3000 + 1200 * np.sin(2 * np.pi * 7 * t) + 500 * t
    return fade(np.sin(2 * np.pi * np.cumsum(hz) / RATE) * (0.6 + 0.4 * np.sin(2 * np.pi * 3.5 * t)))


def drum(rng, length=0.35):
    t = seconds(length)
    hit = rng.standard_normal(len(t)) * np.exp(-22 * t)
    return hit + 1.5 * np.sin(2 * np.pi * 90 * t) * np.exp(-9 * t)


def speech():
    wav = subprocess.run(["espeak-ng", "-v", "en-gb", "-s", "150", "--stdout", SENTENCE], check=True, capture_output=True)
    samples, rate = soundfile.read(io.BytesIO(wav.stdout))
    return scipy.signal.resample_poly(samples, RATE, rate)


def main():
    rng = np.random.default_rng(1)
    song = np.zeros(int(17.5 * RATE))

    def put(at, sound, gain):
        at = int(at * RATE)
        sound = sound[: len(song) - at]
        song[at : at + len(sound)] += gain * sound / np.abs(sound).max()

    scale = [220, 277.2, 329.6, 440, 554.4, 659.3, 880, 1108.7, 1318.5, 1760]
    for i, hz in enumerate(scale):
        put(0.2 + 0.22 * i, note(hz, 1.1), 0.3)
    put(3.0, speech(), 0.7)
    put(9.4, chirp(80, 7500, 1.6), 0.35)
    put(11.0, chirp(7500, 80, 1.6), 0.35)
    put(12.4, warble(1.8), 0.3)
    for i in range(8):
        put(12.6 + 0.36 * i, drum(rng), 0.55 if i % 2 == 0 else 0.3)
    for hz in [220, 330, 440, 660, 990]:
        put(15.2, note(hz, 2.2, 9), 0.22)
    song += 0.0015 * rng.standard_normal(len(song))
    soundfile.write(OUT, np.clip(song, -1, 1).astype(np.float32), RATE, format="OGG", subtype="VORBIS")
    print(f"{OUT}: {OUT.stat().st_size} bytes")


main()
