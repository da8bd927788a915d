"""Measures NumPy's Fourier transforms and librosa's mel bands, as `benches/sound.rs` does. Needs numpy and librosa."""

import time

import librosa
import numpy as np

ROUNDS = 15


def best(work):
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def signal(n):
    i = np.arange(n, dtype=np.float32)
    return np.sin(i * 0.37) + np.cos(i * i * 1e-5)


def main():
    for lines, n in [(4096, 256), (1024, 1024), (2048, 400), (256, 4096), (64, 16384), (16, 65536), (256, 1009)]:
        x = signal(lines * n).reshape(lines, n).astype(np.float32)
        print(f"rfft {lines} x {n}: NumPy {best(lambda: np.fft.rfft(x)):.3f} ms")
    x = signal(480_000).astype(np.float32)

    def bands():
        mel = librosa.feature.melspectrogram(y=x, sr=16000, n_fft=400, hop_length=160, n_mels=80)
        return librosa.power_to_db(mel)

    print(f"log_mel of 30 s: librosa {best(bands):.3f} ms")


main()
