"""Writes tests/data/sound.safetensors: what NumPy, SciPy and librosa compute from signals that the tests can make again.

Needs numpy, scipy, librosa and safetensors.
"""

import pathlib

import librosa
import numpy as np
import scipy.fft
import scipy.signal
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).parent.parent / "tests/data/sound.safetensors"


def noise(n, seed):
    """Numbers of 24 bits from -1 to 1. `tests/fourier.rs` has the same function."""
    with np.errstate(over="ignore"):
        v = np.arange(n, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(seed)
        v ^= v >> np.uint32(15)
        v *= np.uint32(0x85EBCA77)
        v ^= v >> np.uint32(13)
        v *= np.uint32(0xC2B2AE3D)
        v ^= v >> np.uint32(16)
    return (v >> np.uint32(8)).astype(np.float64) / 2**23 - 1


def pairs(z):
    return np.stack([z.real, z.imag], -1).astype(np.float32)


def probes(n):
    """Two frequencies of the real and of the complex transform of a length."""
    x = noise(2 * n, n)
    real, full = np.fft.rfft(x[:n]), np.fft.fft(x[0::2] + 1j * x[1::2])
    k = [(n * 5 + 1) % len(real), (n * 11 + 3) % len(real)]
    m = [(n * 5 + 1) % n, (n * 11 + 3) % n]
    return pairs(np.concatenate([real[k], full[m]]))


def main():
    out = {}
    out["every_length"] = np.stack([probes(n) for n in range(1, 4097)])
    long = [4099, 5003, 6007, 7919, 8191, 10007] + [2**k for k in range(13, 21)] + [10000, 44100, 65537, 99225]
    out["long_lengths"] = np.array(long, dtype=np.int32)
    out["long"] = np.stack([probes(n) for n in long])

    for name, window in [("hann", "hann"), ("hamming", "hamming"), ("blackman", "blackman"), ("kaiser", ("kaiser", 8.6))]:
        for n in [1, 2, 33, 64]:
            for periodic in [True, False]:
                kind = "periodic" if periodic else "symmetric"
                values = scipy.signal.get_window(window, n, fftbins=periodic)
                out[f"window/{name}/{kind}/{n}"] = values.astype(np.float32)

    for n in [1, 2, 13, 512, 513, 600, 601]:
        x = noise(2 * n, 100 + n).reshape(2, n)
        for kind in [2, 3]:
            for norm in ["backward", "ortho"]:
                out[f"dct/{kind}/{norm}/{n}"] = scipy.fft.dct(x, type=kind, norm=norm).astype(np.float32)

    for up, down in [(3, 2), (2, 3), (1, 3), (5, 1), (160, 441), (441, 160)]:
        x = noise(500, 200)
        out[f"resample/{up}/{down}"] = scipy.signal.resample_poly(x, up, down).astype(np.float32)

    for htk in [True, False]:
        for norm in [None, "slaney"]:
            m = librosa.filters.mel(sr=16000, n_fft=256, n_mels=20, fmin=50, fmax=7000, htk=htk, norm=norm)
            out[f"mel/{'htk' if htk else 'slaney'}/{'area' if norm else 'height'}"] = m.astype(np.float32)

    # A tone that rises, over noise: no band is silent.
    t = np.arange(16000) / 16000
    x = 0.4 * np.sin(2 * np.pi * (200 * t + 1500 * t * t)) + 0.05 * noise(16000, 300)
    x = x.astype(np.float32)
    out["signal"] = x
    x = x.astype(np.float64)
    mel = librosa.feature.melspectrogram(y=x, sr=16000, n_fft=400, hop_length=160, n_mels=80)
    out["log_mel"] = librosa.power_to_db(mel).T.astype(np.float32)
    out["mfcc"] = librosa.feature.mfcc(y=x, sr=16000, n_fft=400, hop_length=160, n_mels=40, n_mfcc=13).T.astype(np.float32)
    short = x[:1500]
    out["stft"] = pairs(librosa.stft(short, n_fft=256, hop_length=100, win_length=200, pad_mode="reflect").T)
    out["stft_uncentered"] = pairs(librosa.stft(short, n_fft=250, hop_length=77, window="hamming", center=False).T)
    out["istft"] = librosa.istft(
        librosa.stft(short, n_fft=256, hop_length=100) * (1 + 0.5j), n_fft=256, hop_length=100
    ).astype(np.float32)
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, OUT, {"made": "tools/sound.py"})


main()
