#!/usr/bin/env python3
"""Reads a file that the crate saved, with Python's safetensors, and compares it with the original file.

TENSOR_SAFETENSORS_COPY=/tmp/ours.safetensors cargo test --test suite what_is_saved
python3 scripts/check_safetensors.py /tmp/ours.safetensors      # needs safetensors and numpy from PyPI
"""
import pathlib
import sys

from safetensors.numpy import load_file

theirs = load_file(pathlib.Path(__file__).parent.parent / "tests/data/numpy.safetensors")
ours = load_file(sys.argv[1])
for name, tensor in ours.items():
    expected = theirs[name]
    assert tensor.dtype == expected.dtype and tensor.shape == expected.shape, name
    assert tensor.tobytes() == expected.tobytes(), name
print(f"{len(ours)} tensors are equal")
