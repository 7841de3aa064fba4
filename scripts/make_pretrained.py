#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the files of tests/pretrained from published weights and their reference outputs.

    scripts/make_pretrained.py FOLDER [--out tests/pretrained]

FOLDER holds weights/NETWORK.safetensors, weights/reference/*.npy, and what the networks are run
on; a file that is missing is named. Needs nothing but Python. Each network becomes two files:

    NETWORK.txt   a comment, then a line for each array in the order of the other file,
                      name dtype rank size size ...
    NETWORK.bin   their elements, little-endian, row-major, without gaps

dtype is f32, u8 or s16. The weights keep their names and bits; behind them come the outputs
("logits", "probabilities") and the inputs ("images", "samples").
"""
import argparse
import ast
import hashlib
import json
import pathlib
import struct
import sys
import wave

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = {"f32": 4, "u8": 1, "s16": 2}
LICENCES = ["Apache-2.0.txt", "BSD-2-Clause-pytorch_resnet_cifar10.txt", "MIT-silero-vad.txt"]


class Array:
    def __init__(self, name, dtype, shape, data):
        self.name, self.dtype, self.shape, self.data = name, dtype, list(shape), data
        count = SIZES[dtype]
        for size in self.shape:
            count *= size
        if count != len(data):
            raise ValueError(f"{name}: {len(data)} bytes, expected {count}")


def safetensors(path):
    """A length, a header in JSON, then the tensors' bytes, which the header's offsets count from."""
    raw = path.read_bytes()
    length, = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8:8 + length])
    header.pop("__metadata__", None)
    arrays = []
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if t["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {t['dtype']}, expected F32")
        begin, end = (8 + length + offset for offset in t["data_offsets"])
        arrays.append(Array(name, "f32", t["shape"], raw[begin:end]))
    return arrays


def npy(path, name):
    """NumPy's format 1.0: magic, version, a length, a Python dict, then the elements."""
    raw = path.read_bytes()
    if raw[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError(f"{path}: not an npy file of version 1.0")
    begin = 10 + struct.unpack_from("<H", raw, 8)[0]
    header = ast.literal_eval(raw[10:begin].decode("latin-1"))
    dtype = {"<f4": "f32", "|u1": "u8"}[header["descr"]]
    if header["fortran_order"]:
        raise ValueError(f"{path}: expected C order")
    return Array(name, dtype, header["shape"], raw[begin:])


def cifar_images(path, name, count):
    """The first records of CIFAR-10's binary layout, without their labels."""
    record = 1 + 3 * 32 * 32
    raw = path.read_bytes()[:count * record]
    pixels = b"".join(raw[at + 1:at + record] for at in range(0, len(raw), record))
    return Array(name, "u8", [count, 3, 32, 32], pixels)


def samples(path, name):
    with wave.open(str(path), "rb") as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, 16000):
            raise ValueError(f"{path}: expected mono, 16 bits, 16 kHz")
        count = file.getnframes()
        return Array(name, "s16", [count], file.readframes(count))


def networks(folder):
    """Each network's name and arrays."""
    weights, reference = folder / "weights", folder / "weights" / "reference"
    logits = npy(reference / "resnet20_cifar10_logits.npy", "logits")
    yield "resnet20_cifar10", safetensors(weights / "resnet20_cifar10.safetensors") + [
        logits, cifar_images(folder / "images" / "caltech10-test.bin", "images", logits.shape[0])]
    yield "mobilenet025_vww96", safetensors(weights / "mobilenet025_vww96.safetensors") + [
        npy(reference / "mobilenet025_vww96_logits.npy", "logits"),
        npy(reference / "mobilenet025_vww96_input_u8.npy", "images")]
    yield "silero_vad_16k", safetensors(weights / "silero_vad_16k.safetensors") + [
        npy(reference / "silero_vad_16k_probs.npy", "probabilities"),
        samples(folder / "audio" / "speech_8s_16k.wav", "samples")]


def write(path, data):
    path.write_bytes(data)
    print(f"{hashlib.sha256(data).hexdigest()}  {path.name}  {len(data):,} bytes")


def write_network(out, name, arrays):
    lines = [f"# the arrays of {name}.bin, made by scripts/make_pretrained.py; README.md has more"]
    for a in arrays:
        lines.append(" ".join(map(str, [a.name, a.dtype, len(a.shape)] + a.shape)))
    write(out / f"{name}.txt", "".join(line + "\n" for line in lines).encode())
    write(out / f"{name}.bin", b"".join(a.data for a in arrays))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "pretrained")
    args = parser.parse_args()
    try:
        made = list(networks(args.folder))
        licences = {name: (args.folder / "LICENSES" / name).read_bytes() for name in LICENCES}
    except FileNotFoundError as error:
        sys.exit(f"make_pretrained.py: there is no file {error.filename}")
    except (ValueError, KeyError, struct.error, wave.Error, EOFError) as error:
        sys.exit(f"make_pretrained.py: {error}")
    (args.out / "LICENSES").mkdir(parents=True, exist_ok=True)
    for name, arrays in made:
        write_network(args.out, name, arrays)
    for name, text in licences.items():
        write(args.out / "LICENSES" / name, text)


if __name__ == "__main__":
    main()
