"""Answers questions, one a line, with NumPy: products, solutions, transforms. A question checks itself."""
import hashlib
import sys

import numpy


def answer(seed):
    random = numpy.random.default_rng(seed)
    left, right = random.integers(-50, 50, (2, 160, 160)).astype(float)
    product = left @ right
    # Whole numbers: exact in floating point, and in 64-bit integers by other code.
    if not numpy.array_equal(product, (left.astype(numpy.int64) @ right.astype(numpy.int64)).astype(float)):
        return "wrong: the product of whole numbers"
    system = left + 4000 * numpy.eye(160)
    solution = numpy.linalg.solve(system, right)
    if not numpy.allclose(system @ solution, right, rtol=0, atol=1e-8):
        return "wrong: the solution does not solve"
    signal = random.integers(-1000, 1000, 4096).astype(float)
    if not numpy.allclose(numpy.fft.irfft(numpy.fft.rfft(signal)), signal, rtol=0, atol=1e-8):
        return "wrong: the transform does not come back"
    single = random.random(20000, dtype=numpy.float32)
    ordered = numpy.sort(single)
    if not (numpy.diff(ordered) >= 0).all():
        return "wrong: the order"
    if not numpy.allclose(numpy.exp(numpy.log(ordered[1:] + 1)), ordered[1:] + 1, rtol=1e-5):
        return "wrong: exp(log(x))"
    digest = hashlib.sha256()
    for part in (product, ordered, numpy.argsort(signal, kind="stable"), numpy.cumsum(product)):
        digest.update(part.tobytes())
    return "ok " + digest.hexdigest()


print("ready", flush=True)
for line in sys.stdin:
    print(answer(int(line)), flush=True)
