"""Checks against the Python packages: check.py [folder of the build]. One line at the end: N passed, N failed."""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))

import numpy
import torch
from safetensors import safe_open
from sides import SMALL, open_sides
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

BUILD = os.path.join(ROOT, "build", "release")
logging.getLogger("tensorboard").setLevel(logging.ERROR)

CONFIG = """
task: {type: mlm}
tokenizer: {type: bytes}
data: {train: TEXT, length: 32, valid_fraction: 0.2}
model: {dim: 32, layers: 1, heads: 2, ffn: 64, dropout: 0.1}
trainer:
  steps: 400
  batch: 4
  log_every: 1
  evaluate_every: 15
  checkpoint_every: 20
  keep: 100
  threads: 1
  device: cpu
"""


def read_metrics(run):
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as lines:
        return [json.loads(line) for line in lines if line.endswith("\n")]


class RunFolder(unittest.TestCase):
    """A short run, killed between two checkpoints and resumed."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        words = "the a model of rotary position turns every query and key by an angle that grows with its place".split()
        choose = random.Random(1)
        with open(os.path.join(cls.folder.name, "text.txt"), "w") as text:
            for _ in range(20000):
                text.write(" ".join(choose.choices(words, k=12)) + ".\n")
        config = os.path.join(cls.folder.name, "config.yaml")
        with open(config, "w") as out:
            out.write(CONFIG.replace("TEXT", os.path.join(cls.folder.name, "text.txt")))
        cls.run_folder = os.path.join(cls.folder.name, "run")
        command = [os.path.join(BUILD, "roformer"), "train", config, "--run", cls.run_folder, "--quiet"]

        process = subprocess.Popen(command)
        while process.poll() is None and sum(r["split"] == "train" for r in read_metrics(cls.run_folder)) < 130:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
        # Wherever the kill met it, the run goes on at 100: records after it are written again and the old ones must go.
        checkpoints = os.path.join(cls.run_folder, "checkpoints")
        for name in os.listdir(checkpoints):
            if name.startswith("step-") and int(name[5:-12]) > 100:
                os.remove(os.path.join(checkpoints, name))
        cls.last_before_the_kill = read_metrics(cls.run_folder)[-1]["step"]
        subprocess.run([*command, "--resume"], check=True)

    def test_tensorboard_reads_what_metrics_say(self):
        records = read_metrics(self.run_folder)
        self.assertEqual(records[-1]["step"], 400)
        expected = {}
        for record in records:
            for name, value in record.items():
                if name not in ("step", "split", "tokens", "seconds"):
                    expected.setdefault(f"{record['split']}/{name}", []).append((record["step"], numpy.float32(value)))
        self.assertEqual(len(expected["train/loss"]), 400)
        self.assertIn("valid/loss", expected)

        self.assertGreater(self.last_before_the_kill, 100)
        self.assertEqual(sum(name.startswith("events.out.tfevents.") for name in os.listdir(self.run_folder)), 2)

        events = EventAccumulator(self.run_folder, size_guidance={SCALARS: 0}).Reload()
        self.assertEqual(sorted(events.Tags()[SCALARS]), sorted(expected))
        for tag, values in expected.items():
            self.assertEqual([(e.step, numpy.float32(e.value)) for e in events.Scalars(tag)], values, tag)
        times = [event.wall_time for event in events.Scalars("train/loss")]
        self.assertLess(abs(times[-1] - time.time()), 600)
        self.assertEqual(times, sorted(times))

    def test_safetensors_opens_checkpoints(self):
        folder = os.path.join(self.run_folder, "checkpoints")
        names = sorted(os.listdir(folder))
        self.assertIn("best.safetensors", names)
        self.assertIn("step-00000400.safetensors", names)
        with open(os.path.join(self.run_folder, "result.json")) as result:
            parameters = json.load(result)["parameters"]
        for name in names:
            with safe_open(os.path.join(folder, name), framework="pt") as file:
                metadata = file.metadata()
                self.assertEqual(metadata["format"], "roformer-1")
                step = json.loads(metadata["state"])["step"]
                if name.startswith("step-"):
                    self.assertEqual(step, int(name[5:-12]))
                weights = {key: file.get_tensor(key) for key in file.keys() if key.startswith("model.")}
            self.assertEqual(sum(tensor.numel() for tensor in weights.values()), parameters, name)
            self.assertEqual(weights["model.encoder.token.weight"].shape[1], 32)
            for key, tensor in weights.items():
                self.assertTrue(torch.isfinite(tensor).all(), key)


class SameWeightsSameLoss(unittest.TestCase):
    """A model made and saved by transformers, read here."""

    def compare(self, family, padded):
        smaller = {"dim": 64, "layers": 3, "ffn": 128, "vocab": 500, "max_length": 64, "lr": 1e-3}
        model = {**SMALL, **smaller, "family": family}
        sides = open_sides(BUILD)
        with tempfile.TemporaryDirectory() as folder:
            batches = os.path.join(folder, "batches.safetensors")
            request = {**model, "folder": folder, "batches": batches, "padded": padded}
            sides[1].ask("step_make", **request, batch=4, length=48, batch_count=2)
            weights = os.path.join(folder, "model.safetensors")
            results = []
            for side in sides:
                side.ask("step_load", **model, weights=weights, batches=batches)
                results.append([side.ask("loss")["loss"], *side.ask("losses", count=20)["losses"]])
        for side in sides:
            side.close()
        ours, theirs = results
        self.assertLess(abs(ours[0] / theirs[0] - 1), 1e-5, results)
        # Twenty updates, two batches in turn: gradients and AdamW agree as well.
        self.assertLess(theirs[-1], 0.98 * theirs[1], results)
        for a, b in zip(ours, theirs):
            self.assertLess(abs(a / b - 1), 1e-5, results)

    def test_roformer(self):
        self.compare("roformer", padded=False)

    def test_roformer_padded(self):
        self.compare("roformer", padded=True)

    def test_bert(self):
        self.compare("bert", padded=False)

    def test_bert_padded(self):
        self.compare("bert", padded=True)


def main():
    global BUILD
    if len(sys.argv) > 1:
        BUILD = os.path.abspath(sys.argv[1])
    tests = unittest.defaultTestLoader.loadTestsFromModule(sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    # A class whose set-up fails counts as one failure; its tests are then not among those run.
    failures = [test for test, _ in result.failures + result.errors]
    failed = len(failures)
    passed = result.testsRun - len({test for test in failures if isinstance(test, unittest.TestCase)})
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
