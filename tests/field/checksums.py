"""Takes checksums of data of many sizes, and rests between them as a service does: about a twentieth of a CPU. Says "ready", and ends with its standard input."""
import os
import random
import select
import sys
import time
import zlib

SIZES = [int(1000 * 1000 ** (i / 35)) for i in range(36)]
# Rest after a call, in times of what it took, and at least, s.
IDLE, LEAST = 20, 0.002

data = os.urandom(2 * SIZES[-1])
draw = random.Random(18)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    begin = time.perf_counter()
    at, size = draw.randrange(SIZES[-1]), draw.choice(SIZES)
    part = data[at : at + size]
    if zlib.crc32(part) != zlib.crc32(part[size // 2 :], zlib.crc32(part[: size // 2])):
        sys.exit("wrong: the checksum of parts is another one")
    zlib.adler32(part)
    time.sleep(max(LEAST, IDLE * (time.perf_counter() - begin)))
