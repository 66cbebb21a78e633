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
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sides import SMALL, open_sides
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    RoFormerConfig,
)

BUILD = os.path.join(ROOT, "build", "release")
logging.getLogger("tensorboard").setLevel(logging.ERROR)
transformers.logging.set_verbosity_error()

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

    def test_transformers_opens_the_converted_run(self):
        with tempfile.TemporaryDirectory() as folder:
            target = os.path.join(folder, "converted")
            run_program("convert", self.run_folder, target)
            model = open_whole(AutoModelForMaskedLM, target)
            self.assertEqual(model.config.model_type, "roformer")
            compare_encoded(self, folder, self.run_folder, model)


def run_program(*arguments):
    result = subprocess.run([os.path.join(BUILD, "roformer"), *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def open_whole(auto_class, folder):
    """The model of a folder in which every tensor has its place."""
    model, report = auto_class.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    problems = {key: value for key, value in report.items() if value}
    assert not problems, f"{folder}: {problems}"
    return model.eval()


def compare_encoded(test, folder, source, model):
    """What `roformer encode` writes for a run or folder, against the model in Python."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(5, model.config.vocab_size, (3, 12), generator=generator)
    keep = torch.ones_like(ids)
    keep[0, 8:] = 0  # padding on the right, on the left, and none
    keep[1, :5] = 0
    inputs = {"input_ids": ids, "attention_mask": keep, "token_type_ids": (torch.arange(12) > 6).long().repeat(3, 1)}
    given, written = os.path.join(folder, "inputs.safetensors"), os.path.join(folder, "states.safetensors")
    save_file(inputs, given)
    run_program("encode", source, given, written)
    ours = load_file(written)
    with torch.no_grad():
        theirs = model(**inputs, output_hidden_states=True)
    expected = {"last_hidden_state": theirs.hidden_states[-1]}
    for name in ("pooler_output", "logits"):
        if getattr(theirs, name, None) is not None:
            expected[name] = getattr(theirs, name)
    test.assertEqual(sorted(set(ours) - set(inputs)), sorted(expected))  # the ids are written too
    for name, value in expected.items():
        kept = keep.bool() if value.shape[:2] == keep.shape else slice(None)
        difference = (ours[name][kept] - value[kept]).abs().max().item()
        test.assertLess(difference, 2e-5 * max(1.0, value.abs().max().item()), name)


class HuggingFaceFolders(unittest.TestCase):
    """Models made by transformers: read here, written here, read there again."""

    SHAPE = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "initializer_range": 0.2,
    }

    def there_and_back(self, auto_class, config, dtype=torch.float32, safe=True):
        torch.manual_seed(3)
        model = auto_class.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "embed_positions" not in name:
                    parameter.copy_(torch.randn_like(parameter) * 0.2)
        model = model.to(dtype)
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "source"), os.path.join(folder, "target")
            model.save_pretrained(source, safe_serialization=safe)
            run_program("convert", source, target)
            original, copy = (open_whole(auto_class, path) for path in (source, target))
            weights = copy.state_dict()
            self.assertEqual(sorted(weights), sorted(original.state_dict()))
            for name, tensor in original.state_dict().items():
                self.assertTrue(torch.equal(weights[name], tensor), name)
            self.assertEqual(copy.config.id2label, original.config.id2label)
            with safe_open(os.path.join(target, "model.safetensors"), framework="pt") as file:
                self.assertEqual({file.get_tensor(key).dtype for key in file.keys()}, {dtype})
            compare_encoded(self, folder, source, original)

    def test_bert_masked_language_model(self):
        self.there_and_back(AutoModelForMaskedLM, BertConfig(**self.SHAPE))

    def test_bert_with_a_decoder_of_its_own(self):
        self.there_and_back(AutoModelForMaskedLM, BertConfig(**self.SHAPE, tie_word_embeddings=False))

    def test_bert_with_a_pooler_in_bfloat16(self):
        self.there_and_back(AutoModel, BertConfig(**self.SHAPE, hidden_act="silu"), dtype=torch.bfloat16)

    def test_bert_classifier(self):
        labels = {0: "no", 1: "maybe", 2: "yes"}
        config = BertConfig(**self.SHAPE, id2label=labels, hidden_act="gelu_new", classifier_dropout=0.3)
        self.there_and_back(AutoModelForSequenceClassification, config)

    def test_roformer_masked_language_model(self):
        config = RoFormerConfig(**self.SHAPE, embedding_size=24, rotary_value=True, hidden_act="gelu_pytorch_tanh")
        self.there_and_back(AutoModelForMaskedLM, config)

    def test_roformer_alone_as_a_pickle(self):
        self.there_and_back(AutoModel, RoFormerConfig(**self.SHAPE, hidden_act="relu"), safe=False)

    def test_roformer_regression(self):
        config = RoFormerConfig(**self.SHAPE, num_labels=1, hidden_act="tanh")
        self.there_and_back(AutoModelForSequenceClassification, config)


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
