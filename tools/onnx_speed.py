"""Runs ONNX models with onnxruntime and with the example `onnx`, on two CPU threads each, and prints a table.

    cargo build --release --example onnx
    python tools/onnx_speed.py target/release/examples/onnx FOLDER [REPEATS]

Both get the same inputs: noise, integers 0, open sizes of 1 or those of `SHAPES`. Times are medians. Our memory is the
peak of the whole process, the app included; onnxruntime's is what the session adds to its process.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

THREADS = 2
# Open sizes, by model and input.
SHAPES = {
    "modnet": {"input": [1, 3, 256, 256]},
    "basic_pitch": {"*": [1, 43844, 1]},
    "magika": {"*": [1, 2048]},
    "moonshine_tiny_enc": {"*": [1, 48000]},
    "ppocr4_det": {"*": [1, 3, 320, 320]},
    "ppocr4_rec": {"*": [1, 3, 48, 320]},
    "reachy_fk_int8": {"*": [1, 7]},
    "silero_vad6": {"input": [1, 576], "state": [2, 1, 128]},
}


def peak(command, **more):
    """Runs a command. Returns its output and its peak memory in MB."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **more)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    return output, usage.ru_maxrss / 1024, status


def theirs(path, folder, repeats):
    """Runs onnxruntime in this process and prints a line of JSON."""
    import onnxruntime

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    base = resident()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    load = time.perf_counter() - start
    feeds = {port.name: np.load(os.path.join(folder, f"{i}.npy")) for i, port in enumerate(session.get_inputs())}
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    print(json.dumps({"load": load * 1e3, "median": statistics.median(times[1:]) * 1e3, "memory": resident() - base}))


def inputs(path, model, folder):
    import onnxruntime

    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}
    random = np.random.default_rng(0)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    known = SHAPES.get(model, {})
    names = []
    for i, port in enumerate(session.get_inputs()):
        shape = known.get(port.name) or known.get("*") or [n if isinstance(n, int) else 1 for n in port.shape]
        dtype = kinds[port.type]
        value = random.random(shape).astype(dtype) if dtype == np.float32 else np.zeros(shape, dtype)
        if model == "silero_vad6" and port.name == "sr":
            value = np.array(16000, np.int64)
        np.save(os.path.join(folder, f"{i}.npy"), value)
        names.append(port.name)
    return names


def main():
    if sys.argv[1] == "--theirs":
        return theirs(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    binary, models, repeats = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "10"
    print("| model | ours ms | onnxruntime ms | speed | load ms | its load ms | peak MB of the app | MB its session adds | launches |")
    print("|---|---|---|---|---|---|---|---|---|")
    ratios = []
    for file in sorted(os.listdir(models)):
        if not file.endswith(".onnx"):
            continue
        model, path = file[:-5], os.path.join(models, file)
        with tempfile.TemporaryDirectory() as folder:
            try:
                names = inputs(path, model, folder)
            except Exception as error:
                print(f"| {model} | {str(error).splitlines()[0][:60]} |")
                continue
            text, *_ = peak([sys.executable, __file__, "--theirs", path, folder, repeats])
            report = os.path.join(folder, "report.json")
            command = [binary, path, "--backend", "cpu", "--repeat", repeats, "--report", report]
            for i, name in enumerate(names):
                command += ["--input", f"{name}={folder}/{i}.npy"]
            _, memory, status = peak(command, env={**os.environ, "RAYON_NUM_THREADS": str(THREADS)})
            if status or not text:
                print(f"| {model} | failed |")
                continue
            other = json.loads(text)
            with open(report) as stored:
                ours = json.load(stored)
        ratio = other["median"] / ours["median_ms"]
        ratios.append(ratio)
        print(
            f"| {model} | {ours['median_ms']:.2f} | {other['median']:.2f} | {ratio:.2f}× | {ours['load_ms']:.0f} | {other['load']:.0f} "
            f"| {memory:.0f} | {other['memory']:.0f} | {ours['launches']} |", flush=True,
        )
    print(f"\ngeometric mean of the speeds: {statistics.geometric_mean(ratios):.2f}×")


if __name__ == "__main__":
    main()
