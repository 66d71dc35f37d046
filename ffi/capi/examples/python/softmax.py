"""Kernels of Warpweft from Python, with nothing but ctypes and NumPy: softmax and a loss on any device, and tensors by DLPack.

usage: python3 softmax.py path/to/libwarpweft.so [device]
"""

import ctypes
import sys
from ctypes import byref, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p

import numpy as np

F32, U32, SET = 1, 10, 0

lib = ctypes.CDLL(sys.argv[1])
lib.ww_last_error.restype = ctypes.c_char_p
name = sys.argv[2] if len(sys.argv) > 2 else "cpu"


class SoftmaxOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("queries", c_size_t), ("causal", c_int32), ("scale", c_float)]


def call(function, *arguments):
    """A status that is not 0 becomes an exception with the library's sentence."""
    if getattr(lib, function)(*arguments) != 0:
        raise ValueError(lib.ww_last_error().decode())


def handle(function, *arguments):
    """What a function makes and gives through its last argument."""
    made = c_void_p()
    call(function, *arguments, byref(made))
    return made


device = handle("ww_device_open", name.encode())
stream = handle("ww_stream_create", device)


class Array:
    """A buffer on the device, with the dtype and shape of a NumPy array."""

    def __init__(self, like):
        self.shape, self.dtype = like.shape, like.dtype
        code = {np.dtype(np.float32): F32, np.dtype(np.uint32): U32}[like.dtype]
        self.buffer = handle("ww_buffer_create", device, c_int32(code), c_size_t(like.size))
        self.data = handle("ww_buffer_data", self.buffer)

    @classmethod
    def of(cls, host):
        host = np.ascontiguousarray(host)
        array = cls(host)
        call("ww_buffer_copy_from_host", stream, array.buffer, c_size_t(0), c_void_p(host.ctypes.data), c_size_t(host.size))
        return array

    def numpy(self):
        host = np.empty(self.shape, self.dtype)
        call("ww_buffer_copy_to_host", stream, self.buffer, c_size_t(0), c_void_p(host.ctypes.data), c_size_t(host.size))
        return host

    def __del__(self):
        call("ww_buffer_destroy", self.buffer)


def softmax_on_the_device(x):
    rows, columns = x.shape
    options = SoftmaxOptions(size=ctypes.sizeof(SoftmaxOptions), scale=2.0)
    a, y = Array.of(x), Array(x)
    call("ww_softmax_forward", stream, c_size_t(rows), c_size_t(columns), byref(options), c_int32(F32), a.data, y.data)
    dy, dx = Array.of(x[::-1]), Array(x)
    call(
        "ww_softmax_backward", stream, c_size_t(rows), c_size_t(columns), byref(options), c_int32(F32),
        dy.data, y.data, c_int32(SET), dx.data,
    )  # fmt: skip
    return y.numpy(), dx.numpy()


# ---- DLPack: a capsule is what one library of Python gives another, around a pointer to the struct --------------------

capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype, capsule_new.argtypes = ctypes.py_object, [c_void_p, ctypes.c_char_p, c_void_p]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]
capsule_name = ctypes.pythonapi.PyCapsule_GetName
capsule_name.restype, capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]


def sizes(shape):
    return (c_int64 * len(shape))(*shape)


def argument_of(array, label, shape, written):
    """The address of a NumPy array's elements, checked by the library through the array's own DLPack capsule."""
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # NumPy before 2.1
        capsule = array.__dlpack__()
    data, kind = c_void_p(), capsule_name(capsule)
    tensor = c_void_p(capsule_pointer(capsule, kind))
    given = [stream, label, tensor, c_int32(F32), c_int32(len(shape)), sizes(shape)]
    if kind == b"dltensor_versioned":
        call("ww_from_dlpack", *given, c_int32(written), byref(data))
    else:
        call("ww_from_dlpack_unversioned", *given, byref(data))
    return data


class Exported:
    """A buffer as NumPy takes it: by the protocol's two methods."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, max_version=None, **_):
        shape = self.array.shape
        if max_version is not None and max_version[0] >= 1:
            function, kind = "ww_buffer_to_dlpack", b"dltensor_versioned"
        else:
            function, kind = "ww_buffer_to_dlpack_unversioned", b"dltensor"
        return capsule_new(handle(function, self.array.buffer, c_int32(len(shape)), sizes(shape)), kind, None)


def softmax_by_dlpack(x):
    """On the CPU a kernel works in NumPy's own memory, and NumPy looks into a buffer's."""
    rows, columns = x.shape
    y = Array(x)
    a = argument_of(x, b"x", x.shape, written=0)
    options = SoftmaxOptions(size=ctypes.sizeof(SoftmaxOptions), scale=2.0)
    call("ww_softmax_forward", stream, c_size_t(rows), c_size_t(columns), byref(options), c_int32(F32), a, y.data)
    seen = np.from_dlpack(Exported(y))
    del y  # the tensor keeps the memory
    for wrong, words in [(x.T, "its strides"), (x.astype(np.float64), "its type"), (x[:1], "its shape")]:
        try:
            argument_of(wrong, b"x", wrong.shape if words != "its shape" else x.shape, written=0)
        except ValueError as error:
            assert "`x`" in str(error) and words in str(error), error
        else:
            raise AssertionError(f"a tensor was taken in spite of {words}")
    return seen


def main():
    x = np.random.default_rng(7).standard_normal((5, 33)).astype(np.float32)
    e = np.exp(2.0 * x.astype(np.float64))
    wanted = e / e.sum(axis=1, keepdims=True)
    y, dx = softmax_on_the_device(x)
    np.testing.assert_allclose(y, wanted, rtol=64 * 2.0**-24)
    dy = x[::-1].astype(np.float64)
    slope = 2.0 * wanted * (dy - (wanted * dy).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(dx, slope, atol=256 * 2.0**-24)
    if name.startswith("cpu"):
        np.testing.assert_array_equal(softmax_by_dlpack(x), y)
    try:
        call("ww_softmax_forward", stream, c_size_t(1), c_size_t(1), None, c_int32(F32), None, None)
    except ValueError as error:
        assert "`x` is null" in str(error), error
    else:
        raise AssertionError("null was taken")
    lib.ww_norm_clip_coefficient.restype = c_double
    assert lib.ww_norm_clip_coefficient(c_double(4.0), c_double(1.0)) == 1.0 / (4.0 + 1e-6)
    call("ww_stream_destroy", stream)
    call("ww_device_close", device)
    print(f"softmax on {name}: all as in NumPy")


main()
