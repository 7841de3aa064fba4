#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tensors between a plug-in in C and PyTorch or NumPy, on the CPU and without a copy.

    python3 exchange.py PLUGIN [--with torch|numpy]

PLUGIN is the library that plugin.c became (build/release/examples/libexchange_plugin.so). DLPack
carries the tensors: 1. an array goes to the plug-in, which computes GELU in place; 2. a tensor
of the plug-in's comes back, and lives until Python lets go of it. The exit status is 0 when the
values are as they should be, 1 when not, 77 when neither PyTorch nor NumPy is installed.
"""
import argparse
import ctypes
import importlib
import math
import sys

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
FRESH, USED = b"dltensor", b"used_dltensor"  # a capsule keeps a pointer to its name


class Plugin:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.plugin_error.restype = ctypes.c_char_p
        self.library.plugin_squares.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self.call("plugin_open")

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments) != 0:
            raise RuntimeError(self.library.plugin_error().decode())

    def gelu(self, array):
        """GELU of an array, in place. Who takes a tensor out of a capsule renames it."""
        capsule = array.__dlpack__()
        managed = python.PyCapsule_GetPointer(capsule, FRESH)
        self.call("plugin_gelu", ctypes.c_void_p(managed))
        python.PyCapsule_SetName(capsule, USED)

    def squares(self, rows, columns):
        """0, 1, 4, 9, ... as something that from_dlpack takes."""
        managed = ctypes.c_void_p()
        self.call("plugin_squares", rows, columns, ctypes.byref(managed))
        return Exported(managed)

    def close(self):
        self.library.plugin_close()


class Exported:
    def __init__(self, managed):
        self.managed = managed

    def __dlpack_device__(self):
        return (1, 0)  # kDLCPU

    def __dlpack__(self, **_options):
        return python.PyCapsule_New(self.managed, FRESH, None)


def gelu(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def check(right, text):
    print(("right  " if right else "WRONG  ") + text)
    return right


def exchange(plugin, arrays):
    """Both ways; whether everything was right."""
    inputs = [i / 4 - 1 for i in range(12)]
    mine = arrays.asarray(inputs, dtype=arrays.float32).reshape(3, 4)
    plugin.gelu(mine.T)  # a transposed view: strides travel along
    error = max(abs(float(y) - gelu(x)) for x, y in zip(inputs, mine.flatten()))
    right = check(error < 1e-6, f"GELU in the array's own memory, largest error {error:.1e}")
    other = arrays.from_dlpack(plugin.squares(2, 5))
    right &= check([int(v) for v in other.flatten()] == [i * i for i in range(10)],
                   f"the plug-in's tensor as {type(other).__module__}.{type(other).__name__}")
    return right


def library_of(name):
    for candidate in [name] if name else ["torch", "numpy"]:
        try:
            return importlib.import_module(candidate)
        except ImportError:
            continue
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("plugin", help="the library that plugin.c became")
    parser.add_argument("--with", dest="arrays", choices=["torch", "numpy"],
                        help="instead of the first that is installed")
    options = parser.parse_args()
    arrays = library_of(options.arrays)
    if arrays is None:
        print(f"exchange.py: no {options.arrays or 'torch or numpy'} here", file=sys.stderr)
        return 77
    print(f"{arrays.__name__} {arrays.__version__}")
    plugin = Plugin(options.plugin)
    right = exchange(plugin, arrays)
    plugin.close()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
