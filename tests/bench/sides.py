"""Starts the two sides of a comparison, bench.cpp's program and peer.py, under the same conditions."""

import json
import os
import subprocess
import sys

# What apps/roformer.cpp asks of the allocator.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "-1",
    "MALLOC_TOP_PAD_": str(64 << 20),
}

CONDITIONS = {
    # Threads sleep at barriers instead of spinning.
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    # `tokenizers` on the calling thread.
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
}

# The model of step_small.
SMALL = {"dim": 256, "layers": 4, "heads": 4, "ffn": 1024, "vocab": 8000, "dropout": 0.0, "max_length": 512, "lr": 1e-4}


class Side:
    """A process that answers requests."""

    def __init__(self, name, command, threads, matmul, allocator):
        self.name = name
        environment = {**os.environ, **CONDITIONS, **allocator, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        answer = self.ask("setup", threads=threads, matmul=matmul)
        assert answer["threads"] == threads, answer

    def ask(self, what, **request):
        self.process.stdin.write(json.dumps({"do": what, **request}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: ended with status {self.process.wait()} at '{what}'")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{self.name}: {answer['error']}")
        return answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def open_sides(build, threads=1, matmul="highest", allocator=ALLOCATOR):
    """(ours, theirs); `build` is the folder of the build, `allocator` settings of malloc."""
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer.py")
    return (
        Side("bench_program", [os.path.join(build, "tests", "bench_program")], threads, matmul, allocator),
        Side("peer.py", [sys.executable, peer], threads, matmul, allocator),
    )
