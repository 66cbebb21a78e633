"""Speed side by side with Python packages: bench.py [folder of the build] [--pairs N] [--only NAME].

Both sides run in one process each, which measure one block of work on request. Blocks alternate, so that whatever else
the machine does meets both; each pair gives one ratio, time of the peer by ours. Reported is the median of the ratios
with its 95 % interval by order statistics, which assumes nothing of their distribution. Process CPU time on one thread
comes first: it is what other load disturbs least. Outputs and losses are compared before anything is timed.
"""

import argparse
import glob
import json
import math
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from sides import ALLOCATOR, SMALL, open_sides

ROPE_SHAPE = [8, 12, 512, 64]
LINEAR_HEADS, LINEAR_FEATURES = [12, 64], 256
TEXT_BYTES = 10_000_000


def english_paragraphs():
    """(where from, 10 MB of text as paragraphs without line breaks)."""
    data = os.environ.get("ROFORMER_DATA")
    patterns = ("gutenberg/*.txt", "wikitext-2-raw/*.raw")
    files = sorted(f for pattern in patterns for f in glob.glob(os.path.join(data, "text_en", pattern))) if data else []
    source = "Project Gutenberg and WikiText-2" if files else "FOLDOC, repeated"
    files = files or ["build/data/foldoc.txt"] * 2
    paragraphs, size = [], 0
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as text:
            paragraph = []
            for line in [*text.read().replace("\0", " ").split("\n"), ""]:
                if line.strip():
                    paragraph.append(line.strip())
                elif paragraph:
                    paragraphs.append(" ".join(paragraph))
                    size += len(paragraphs[-1].encode()) + 1
                    paragraph = []
                    if size >= TEXT_BYTES:
                        return source, paragraphs
    return source, paragraphs


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(line + "\n" for line in lines)


def read_lines(path):
    with open(path, encoding="utf-8", newline="\n") as lines:
        return lines.read().split("\n")[:-1]


def process_time(command, **options):
    """Of a process from start to end."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, **{"stdout": subprocess.DEVNULL, **options})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"cpu": cpu, "wall": time.perf_counter() - start}


def median_interval(values, level=0.95):
    """Median, and the order statistics that enclose it with at least that probability."""
    values, n = sorted(values), len(values)
    rank, tail = 0, 0.0  # the largest rank with P(fewer than rank values below the median) <= (1 - level) / 2
    while tail + math.comb(n, rank) / 2**n <= (1 - level) / 2:
        tail += math.comb(n, rank) / 2**n
        rank += 1
    low = max(rank - 1, 0)
    return statistics.median(values), values[low], values[n - 1 - low]


class Bench:
    def __init__(self, build, pairs, folder):
        self.build, self.pairs, self.folder = build, pairs, folder
        self.rows, self.rates = [], []

    def path(self, name):
        return os.path.join(self.folder, name)

    def compare(self, name, ours, theirs, threads, matmul, target=None, pairs=None):
        """ours and theirs: functions that measure one block. target: what the ratio should be, "≥ 5"."""
        pairs = pairs or self.pairs
        print(f"{name}, {threads} thread(s), products: {matmul} ...", end="", file=sys.stderr, flush=True)
        for warm_up in (ours, theirs, ours, theirs):
            warm_up()
        blocks = []
        for pair in range(pairs):
            first, second = (ours, theirs) if pair % 2 == 0 else (theirs, ours)
            one, two = first(), second()
            blocks.append((one, two) if pair % 2 == 0 else (two, one))
        for clock in ("cpu", "wall"):
            median, low, high = median_interval([b[clock] / a[clock] for a, b in blocks])
            self.rows.append(
                {
                    "name": name,
                    "threads": threads,
                    "matmul": matmul,
                    "clock": clock,
                    "ratio": median,
                    "interval": [low, high],
                    "ours_ms": 1e3 * statistics.median(a[clock] for a, _ in blocks),
                    "theirs_ms": 1e3 * statistics.median(b[clock] for _, b in blocks),
                    "target": target,
                    "pairs": pairs,
                }
            )
        print(" CPU {:.2f}, wall {:.2f}".format(*(row["ratio"] for row in self.rows[-2:])), file=sys.stderr, flush=True)

    def block(self, side, what, count):
        """A function that measures one block; times are per repetition."""
        return lambda: {clock: time / count for clock, time in side.ask(what, count=count).items()}

    def same_results(self, what, ours, theirs, inputs, limit):
        """Loads the inputs into both sides; the largest difference of their results, which must be below the limit."""
        for side in (ours, theirs):
            side.ask(f"{what}_load", inputs=inputs)
            side.ask(f"{what}_save", path=self.path(side.name))
        differences = theirs.ask("compare", ours=self.path(ours.name), theirs=self.path(theirs.name))
        worst = max(differences.values())
        if not worst < limit:
            raise SystemExit(f"{what}: the results differ by {worst:.1e} of the largest value: {differences}")
        return worst

    def rope(self, threads):
        ours, theirs = open_sides(self.build, threads)
        inputs = self.path("rope.safetensors")
        theirs.ask("rope_make", shape=ROPE_SHAPE, inputs=inputs)
        # Their angles are float64 rounded to float32, as ours: what remains is the rounding of two products and a sum.
        worst = self.same_results("rope", ours, theirs, inputs, limit=1e-6)
        block = self.block(ours, "rope", 10)
        self.compare("rope / Hugging Face", block, self.block(theirs, "rope", 5), threads, "-", target="≥ 5")
        self.compare("rope / four copy_", block, self.block(ours, "copy", 10), threads, "-")
        ours.close()
        theirs.close()
        return worst

    def linear_inputs(self, side, length):
        inputs = self.path(f"linear-{length}.safetensors")
        shape = [1, LINEAR_HEADS[0], length, LINEAR_HEADS[1]]
        side.ask("linear_make", shape=shape, features=LINEAR_FEATURES, inputs=inputs)
        return inputs

    def performer(self, threads):
        """Causal linear attention against performer-pytorch: time, and what it grows to with the length."""
        ours, theirs = open_sides(self.build, threads)
        inputs = self.linear_inputs(theirs, 4096)
        # They add 1e-6 to the keys summed for the denominator, which is 0.1 and more in the first rows already.
        worst = self.same_results("linear", ours, theirs, inputs, limit=2e-5)
        pairs = min(self.pairs, 9)  # a pass of theirs takes half a minute
        name = "performer, 4,096 tokens / performer-pytorch"
        block = self.block(ours, "linear", 3)
        self.compare(name, block, self.block(theirs, "linear", 1), threads, "-", target="≥ 20", pairs=pairs)
        ours.close()
        theirs.close()
        return worst

    def performer_lengths(self):
        """Our pass over 65,536 tokens by that over 8,192: 8 if it is linear."""
        pairs = [open_sides(self.build) for _ in range(2)]
        for (ours, theirs), length in zip(pairs, (8192, 65536)):
            ours.ask("linear_load", inputs=self.linear_inputs(theirs, length))
            theirs.close()
        blocks = [self.block(ours, "linear", count) for (ours, _), count in zip(pairs, (4, 1))]
        name = "performer, ours, 65,536 / 8,192 tokens"
        self.compare(name, *blocks, 1, "-", target="≤ 8.5", pairs=min(self.pairs, 9))
        for ours, _ in pairs:
            ours.close()

    def performer_memory(self, allocator):
        """MB of the most resident memory in two passes, inputs included, above that of the idle process, which has loaded
        its libraries and nothing else. Fresh processes: nothing is left over from before."""
        most = []
        sides = open_sides(self.build, allocator=allocator)
        inputs = self.path("linear-4096.safetensors")
        for side in sides:
            idle = side.ask("memory")["now"]
            side.ask("linear_load", inputs=inputs)
            side.ask("linear", count=2)
            most.append((side.ask("memory")["peak"] - idle) / 1e6)
            side.close()
        return most

    def step_small(self, threads, matmul, dropouts):
        ours, theirs = open_sides(self.build, threads, matmul)
        model = {**SMALL, "family": "roformer"}
        files = {"folder": self.path("model"), "batches": self.path("batches.safetensors")}
        theirs.ask("step_make", **model, **files, batch=8, length=128, batch_count=8)
        weights = self.path("model/model.safetensors")
        losses = []
        for side in (ours, theirs):
            side.ask("step_load", **model, weights=weights, batches=files["batches"])
            losses.append([side.ask("loss")["loss"], *side.ask("losses", count=5)["losses"]])
        worst = max(abs(a / b - 1) for a, b in zip(*losses))
        if not worst < (1e-5 if matmul == "highest" else 1e-4):
            raise SystemExit(f"step_small: the losses before and in training differ: {losses}")
        for dropout in dropouts:
            for side in (ours, theirs):
                side.ask("step_load", **{**model, "dropout": dropout}, weights=weights, batches=files["batches"])
            self.compare(
                f"step_small, dropout {dropout}",
                self.block(ours, "step", 2),
                self.block(theirs, "step", 2),
                threads,
                matmul,
                target="≥ 1.5" if dropout > 0 else None,
            )
        ours.close()
        theirs.close()
        return worst

    def wordpiece(self, paragraphs):
        """Returns what was left out, in words."""
        text = self.path("text.txt")
        write_lines(text, paragraphs)
        vocab = "build/models/minilm/vocab.txt"
        vocab_name = "BERT's vocabulary"
        if not os.path.exists(vocab):  # `make models` was not run
            vocab, vocab_name = self.path("vocab.txt"), "vocabulary made from the text"
            command = [os.path.join(self.build, "roformer"), "train-tokenizer", "wordpiece", vocab, text]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ours, theirs = open_sides(self.build)

        def load_and_compare(lines):
            write_lines(text, lines)
            for side in (ours, theirs):
                side.ask("tokenize_load", vocab=vocab, text=text)
                side.ask("tokenize_save", path=self.path(side.name))
            results = [read_lines(self.path(side.name)) for side in (ours, theirs)]
            if [len(lines)] * 2 != [len(result) for result in results]:
                raise SystemExit(f"tokenize: {len(lines)} lines in, {[len(r) for r in results]} out")
            return results[0], [i for i, (one, two) in enumerate(zip(*results)) if one != two]

        our_ids, different = load_and_compare(paragraphs)
        # The two tokenizers of transformers are not equal; ours follows the slow one, to the letter.
        slow = theirs.ask("tokenize_slowly", vocab=vocab, lines=[paragraphs[i] for i in different])["ids"]
        for i, ids in zip(different, slow):
            if our_ids[i] != " ".join(map(str, ids)):
                raise SystemExit(f"tokenize: neither of transformers' tokenizers gives our ids for: {paragraphs[i]}")
        if different:
            left_out = set(different)
            _, again = load_and_compare([line for i, line in enumerate(paragraphs) if i not in left_out])
            assert not again, again
        name = f"WordPiece, {vocab_name} / tokenizers, encode_batch_fast"
        self.compare(name, self.block(ours, "tokenize", 1), self.block(theirs, "tokenize", 1), 1, "-", target="≥ 1")
        ours.close()
        theirs.close()
        return (
            f"WordPiece: ids of all {len(paragraphs) - len(different)} paragraphs equal; left out before: "
            f"{len(different)} for which tokenizers differs from transformers' slow tokenizer, whose ids are ours"
        )

    def sentencepiece(self, paragraphs):
        """Both as programs, text in and ids out, less the time for an empty text. Returns what was done, in words."""
        peer = shutil.which("spm_encode")
        if not peer:
            return "SentencePiece: not measured, there is no spm_encode (Debian package sentencepiece)"
        program = os.path.join(self.build, "roformer")
        text, empty, model, config = (self.path(n) for n in ("spm.txt", "empty.txt", "bpe.model", "bpe.yaml"))
        write_lines(text, paragraphs)
        write_lines(empty, [])
        command = [program, "train-tokenizer", "bpe", model, text, "--vocab-size", "8000", "--memory", "2"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        write_lines(config, [f"tokenizer: {{type: sentencepiece, model: {json.dumps(model)}}}"])
        commands = (
            [program, "tokenize", config, "--no-special", "--threads", "1"],
            [peer, f"--model={model}", "--output_format=id"],
        )
        results = []
        for number, command in enumerate(commands):
            path = self.path(f"spm-{number}.txt")
            with open(path, "w") as out:
                process_time([*command, text], stdout=out)
            results.append(read_lines(path))
        if results[0] != results[1] or len(results[0]) != len(paragraphs):
            raise SystemExit("tokenize: the ids of SentencePiece differ from spm_encode's")

        def block(command):
            starts = [process_time([*command, empty]) for _ in range(9)]
            start = {clock: statistics.median(s[clock] for s in starts) for clock in ("cpu", "wall")}
            return lambda: {clock: t - start[clock] for clock, t in process_time([*command, text]).items()}

        self.compare("SentencePiece BPE, 8,000 pieces / spm_encode", *map(block, commands), 1, "-")
        return f"SentencePiece: ids of all {len(paragraphs)} paragraphs equal"

    def machine(self, threads, matmul):
        ours, theirs = open_sides(self.build, threads, matmul)
        theirs.close()
        for name, request, amount in (
            ("memcpy", {"bytes": 64 << 20}, (64 << 20) / 1e9),
            ("gemm", {"size": 1024}, 2 * 1024**3 / 1e9),
        ):
            blocks = [ours.ask(name, count=3, **request) for _ in range(12)][2:]
            rate = {"name": name, "threads": threads, "matmul": matmul}
            for clock in ("cpu", "wall"):
                rate[clock] = statistics.median(3 * amount / block[clock] for block in blocks)
            self.rates.append(rate)
        ours.close()


RATES = {"memcpy": "memcpy of 64 MiB, GB/s copied", "gemm": "product 1024 x 1024 x 1024, GFLOP/s"}


def markdown(bench):
    if bench.rows:
        columns = "what threads float32_products clock ours,_ms peer,_ms peer_/_ours 95_%_interval target".split()
        print("| " + " | ".join(columns).replace("_", " ") + " |\n" + "|---" * len(columns) + "|")
    for row in bench.rows:
        low, high = row["interval"]
        target = row["target"] or ""
        print(
            f"| {row['name']} | {row['threads']} | {row['matmul']} | {row['clock']} | {row['ours_ms']:.2f} "
            f"| {row['theirs_ms']:.2f} | {row['ratio']:.2f} | {low:.2f} – {high:.2f} | {target} |"
        )
    if bench.rates:
        print("\n| machine | threads | float32 products | per CPU second | per second |\n|---|---|---|---|---|")
    for rate in bench.rates:
        name = RATES[rate["name"]]
        print(f"| {name} | {rate['threads']} | {rate['matmul']} | {rate['cpu']:.1f} | {rate['wall']:.1f} |")


def processor():
    with open("/proc/cpuinfo") as lines:
        return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", nargs="?", default="build/release", help="folder of the build")
    parser.add_argument("--pairs", type=int, default=31, help="pairs of blocks for each row (at least 6)")
    parser.add_argument("--only", choices=("rope", "performer", "step_small", "tokenize", "machine"), help="only this part")
    arguments = parser.parse_args()
    if arguments.pairs < 6:
        parser.error("--pairs: fewer than 6 pairs give no 95 % interval")

    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"The load of this machine is {load:.1f}: other work disturbs these times.\n", file=sys.stderr)
    checks, notes = {}, []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.build, arguments.pairs, folder)
        wanted = lambda part: arguments.only in (None, part)
        for threads in sorted({1, cores}):
            if wanted("rope"):
                checks[f"rope, {threads} threads"] = bench.rope(threads)
            if wanted("step_small"):
                checks[f"step_small, {threads} threads"] = bench.step_small(threads, "highest", (0.1, 0.0))
            if wanted("machine"):
                bench.machine(threads, "highest")
        # The faster route for products on AMD processors (trainer.matmul_precision), for both sides.
        if wanted("step_small"):
            checks["step_small, medium"] = bench.step_small(1, "medium", (0.1,))
        if wanted("performer"):
            checks["performer"] = bench.performer(1)
            bench.performer_lengths()
            for name, allocator in (("settings of the program", ALLOCATOR), ("none", {})):
                ours, theirs = bench.performer_memory(allocator)
                notes.append(
                    f"Memory of performer above the idle process, allocator settings: {name}: ours {ours:.0f} MB, "
                    f"performer-pytorch {theirs:.0f} MB, {theirs / ours:.1f} times (target ≥ 10)"
                )
        if wanted("tokenize"):
            source, paragraphs = english_paragraphs()
            notes.append(f"Text: {source}, {sum(len(p.encode()) + 1 for p in paragraphs) / 1e6:.1f} MB")
            notes.append(bench.wordpiece(paragraphs))
            notes.append(bench.sentencepiece(paragraphs))
        if wanted("machine"):
            bench.machine(1, "medium")

    print(f"{processor()}, {cores} core(s), load {load:.1f} before; {arguments.pairs} pairs per row\n")
    markdown(bench)
    if checks:
        print("\nLargest relative difference of results: " + "; ".join(f"{k} {v:.1e}" for k, v in checks.items()))
    if notes:
        print("\n" + ".\n".join(notes) + ".")
    report = {"processor": processor(), "cores": cores, "load": load, "checks": checks, "notes": notes}
    with open("build/bench.json", "w") as out:
        json.dump({**report, "rows": bench.rows, "rates": bench.rates}, out, indent=2)


if __name__ == "__main__":
    main()
