"""Answers questions, one a line, with the standard library of CPython. A question checks itself where it can."""
import gc
import hashlib
import json
import re
import sys
import threading
import zlib


def documents(seed):
    state = seed * 2654435761 % 2**32
    rows = []
    for number in range(120):
        state = (state * 1103515245 + 12345) % 2**31
        rows.append({"id": number, "name": f"n{state % 997}", "values": [state % k for k in range(1, 9)], "ok": state % 3 == 0})
    return rows


class Node:
    def __init__(self, key):
        self.key, self.left, self.right, self.self = key, None, None, self

    def insert(self, key):
        node = self
        while True:
            side = "left" if key < node.key else "right"
            below = getattr(node, side)
            if below is None:
                setattr(node, side, Node(key))
                return
            node = below

    def walk(self):
        if self.left:
            yield from self.left.walk()
        yield self.key
        if self.right:
            yield from self.right.walk()


def raising(depth):
    if depth == 0:
        raise KeyError("deep")
    return raising(depth - 1) + 1


def answer(seed):
    rows = documents(seed)
    text = json.dumps(rows, sort_keys=True)
    if json.loads(text) != rows:
        return "wrong: JSON does not read back"
    packed = zlib.compress(text.encode(), 6)
    if zlib.decompress(packed).decode() != text:
        return "wrong: zlib does not read back"
    words = re.findall(r'"name": "(n\d+)"', text)
    if len(words) != len(rows):
        return "wrong: the expression found %d names" % len(words)
    tree = Node(rows[0]["values"][7])
    for row in rows[1:]:
        for value in row["values"]:
            tree.insert(value * 31 % 101 + row["id"] * 7)
    keys = list(tree.walk())
    if keys != sorted(keys):
        return "wrong: the tree is not in order"
    caught = 0
    for depth in range(20):
        try:
            raising(depth)
        except KeyError:
            caught += 1
    if caught != 20:
        return "wrong: %d of 20 exceptions were caught" % caught
    sums = [0] * 4

    def add(index):
        for number in range(500):
            sums[index] += number * (index + 1)

    threads = [threading.Thread(target=add, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if sums != [124750 * (index + 1) for index in range(4)]:
        return "wrong: the threads' sums are %r" % sums
    tree = None
    gc.collect(1)
    digest = hashlib.sha256((text + repr(keys) + repr(words)).encode()).hexdigest()
    return "ok " + digest


print("ready", flush=True)
for line in sys.stdin:
    print(answer(int(line)), flush=True)
