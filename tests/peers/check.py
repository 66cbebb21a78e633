"""Checks against the Python packages: check.py [folder of the build]. One line at the end: N passed, N failed."""

import inspect
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
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertTokenizer,
    BertTokenizerFast,
    LlamaConfig,
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
    return result.stdout


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
    inputs = {"input_ids": ids, "attention_mask": keep}
    if "token_type_ids" in inspect.signature(model.forward).parameters:
        inputs["token_type_ids"] = (torch.arange(12) > 6).long().repeat(3, 1)
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


    def test_nezha_masked_language_model(self):
        config = AutoConfig.for_model("nezha", **self.SHAPE, max_relative_position=5)
        self.there_and_back(AutoModelForMaskedLM, config)

    def test_nezha_alone_with_a_pooler(self):
        self.there_and_back(AutoModel, AutoConfig.for_model("nezha", **self.SHAPE, max_relative_position=50))

    def test_nezha_classifier(self):
        config = AutoConfig.for_model("nezha", **self.SHAPE, num_labels=3, classifier_dropout=None)
        self.there_and_back(AutoModelForSequenceClassification, config)

    def llama(self, scaling=None, dtype=torch.float32, safe=True, **options):
        shape = {**self.SHAPE, "num_key_value_heads": 2, "rope_theta": 500.0, "rope_scaling": scaling, **options}
        self.there_and_back(AutoModelForCausalLM, LlamaConfig(**shape), dtype, safe)

    def test_llama(self):
        self.llama(num_key_value_heads=4, rms_norm_eps=0.01, head_dim=10, hidden_act="gelu_pytorch_tanh")

    def test_llama_linear(self):
        self.llama({"rope_type": "linear", "factor": 3.0}, dtype=torch.bfloat16, eos_token_id=[2, 5])

    def test_llama_dynamic(self):
        self.llama({"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=8)

    def test_llama_yarn(self):
        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10, "beta_fast": 8.0}
        self.llama({**yarn, "mscale": 0.5, "mscale_all_dim": 1.0, "truncate": False})

    def test_llama3_tied_as_a_pickle(self):
        scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        scaling["original_max_position_embeddings"] = 32
        self.llama(scaling, safe=False, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)

    def test_llama_trained_here(self):
        with tempfile.TemporaryDirectory() as folder:
            names = ("text.txt", "config.yaml", "run", "target")
            text, config, run, target = (os.path.join(folder, name) for name in names)
            write_text(text, SENTENCES[0] * 200)
            write_text(
                config,
                f"task: {{type: byte_lm, file: {json.dumps(text)}, length: 32}}\n"
                "tokenizer: bytes\n"
                "model: {type: causal, dim: 32, layers: 2, heads: 4, kv_heads: 2, ffn: 48, norm: rms, gated: true,\n"
                "  activation: silu, bias: false, positions: rotary}\n"
                "trainer: {steps: 20, batch: 8, threads: 1, device: cpu, optimizer: {lr: 3e-3}}\n",
            )
            run_program("train", config, "--run", run, "--quiet")
            run_program("convert", run, target)
            model = open_whole(AutoModelForCausalLM, target)  # its pairs of columns are halves, the run's interleaved
            self.assertEqual((model.config.model_type, model.config.vocab_size), ("llama", 256))
            compare_encoded(self, folder, run, model)


SENTENCES = """
The cat sat on the mat , and the dog slept . | A dog was sleeping while the cat sat on its mat .
Shares of the company rose 4.5 % to $ 12.30 on Monday . | The company's shares fell on Monday .
It doesn't rain in Malmö tonight , the forecaster said . | The forecaster said that it would not rain in Malmö .
Every query is turned by an angle that grows with its place . | Rotary position embedding turns queries and keys .
""".strip().split("\n")

# Pairs and single texts; Chinese, accents, signs that are words of their own, a special token spelled out.
INPUTS = [
    {"text": "The company's shares rose.", "text_pair": "Shares didn't fall, the naïve café-owner said!"},
    {"text": "Rotary position embedding"},
    {"text": "我来到北京大学 in 1998", "text_pair": "喜欢手机 [SEP] iPhone12手机 ..."},
    {"text": "", "text_pair": "Nothing before this: $12.30, 4.5%"},
]


def write_mrpc(folder):
    """A few rows, the real ones if ROFORMER_DATA names a folder that has them."""
    os.makedirs(os.path.join(folder, "MRPC"))
    real = os.path.join(os.environ.get("ROFORMER_DATA", ""), "glue", "MRPC")
    for name, rows in (("train.tsv", 32), ("dev.tsv", 16)):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        if os.path.exists(os.path.join(real, name)):
            with open(os.path.join(real, name), encoding="utf-8", newline="\n") as text:
                lines = text.read().split("\n")[: rows + 1]
        while len(lines) < rows + 1:
            first, second = SENTENCES[len(lines) % len(SENTENCES)].split(" | ")
            lines.append(f"{len(lines) % 2}\t{2 * len(lines)}\t{2 * len(lines) + 1}\t{first}\t{second}")
        write_text(os.path.join(folder, "MRPC", name), "\n".join(lines) + "\n")


def write_text(path, text):
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        out.write(text)


def tokenize_objects(tokenizer, folder, objects):
    """What `roformer tokenize --jsonl` makes of them."""
    path = os.path.join(folder, "objects.jsonl")
    write_text(path, "".join(json.dumps(each) + "\n" for each in objects))
    return [json.loads(line) for line in run_program("tokenize", tokenizer, path, "--jsonl").splitlines()]


class FineTuned(unittest.TestCase):
    """A folder goes in, is fine-tuned, goes out, and is opened by transformers."""

    def fine_tune(self, folder, source, head, tokenizer=""):
        """Returns the run, the folder made of it, and transformers' model of that."""
        write_mrpc(folder)
        config, run, target = (os.path.join(folder, name) for name in ("config.yaml", "run", "target"))
        write_text(
            config,
            f"task: {{type: glue, name: mrpc, folder: {json.dumps(folder)}, length: 64, head: {head}}}\n"
            f"model: {{path: {json.dumps(source)}}}\n{tokenizer}\n"
            "trainer: {steps: 6, batch: 8, threads: 1, device: cpu, optimizer: {lr: 1e-3}}\n",
        )
        run_program("train", config, "--run", run, "--quiet")
        run_program("convert", run, target)
        model = open_whole(AutoModelForSequenceClassification, target)
        self.assertEqual(model.config.id2label, {0: "0", 1: "1"})
        before = AutoModel.from_pretrained(source, dtype=torch.float32).get_input_embeddings().weight
        self.assertGreater((model.get_input_embeddings().weight - before).abs().max().item(), 1e-3)  # it learned
        return run, target, model

    def compare_logits(self, folder, run, model, tokenized):
        """`roformer encode RUN INPUT.jsonl` against the model in Python on the same ids."""
        given, written = os.path.join(folder, "inputs.jsonl"), os.path.join(folder, "outputs.safetensors")
        write_text(given, "".join(json.dumps(each) + "\n" for each in INPUTS))
        run_program("encode", run, given, written)
        ours = load_file(written)
        width = max(len(each["ids"]) for each in tokenized)
        padded = lambda rows, value: torch.tensor([row + [value] * (width - len(row)) for row in rows])
        inputs = {
            "input_ids": padded([each["ids"] for each in tokenized], model.config.pad_token_id),
            "attention_mask": padded([[1] * len(each["ids"]) for each in tokenized], 0),
            "token_type_ids": padded([each["token_type_ids"] for each in tokenized], 0),
        }
        for name in ("input_ids", "attention_mask"):
            self.assertTrue(torch.equal(ours[name], inputs[name]), name)
        with torch.no_grad():
            logits = model(**inputs).logits
        self.assertEqual(logits.shape, (len(INPUTS), 2))
        self.assertGreater(logits.std(0).min().item(), 1e-4)  # they depend on the text
        self.assertLess((ours["logits"] - logits).abs().max().item(), 1e-5 * max(1.0, logits.abs().max().item()))

    def test_bert(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(ROOT, "build", "models", "minilm")
            if not os.path.exists(os.path.join(source, "config.json")):
                source = os.path.join(folder, "source")
                os.makedirs(source)
                text = os.path.join(folder, "text.txt")
                write_text(text, "\n".join(SENTENCES) + "\n" + "".join(i["text"] + "\n" for i in INPUTS))
                vocab = os.path.join(source, "vocab.txt")
                run_program("train-tokenizer", "wordpiece", vocab, text, "--vocab-size", "120")
                size = len(BertTokenizer(vocab).get_vocab())
                config = BertConfig(**{**HuggingFaceFolders.SHAPE, "vocab_size": size, "max_position_embeddings": 512})
                AutoModel.from_config(config).save_pretrained(source)
            run, target, model = self.fine_tune(folder, source, "bert")

            tokenized = tokenize_objects(run, folder, INPUTS)
            for fast in (True, False):
                tokenizer = AutoTokenizer.from_pretrained(target, use_fast=fast)
                self.assertEqual(tokenizer.is_fast, fast)
                for given, ours in zip(INPUTS, tokenized, strict=True):
                    theirs = tokenizer(given["text"], given.get("text_pair"))
                    self.assertEqual(ours["ids"], theirs["input_ids"], given)
                    self.assertEqual(ours["token_type_ids"], theirs["token_type_ids"], given)
                    self.assertEqual(ours["tokens"], tokenizer.convert_ids_to_tokens(theirs["input_ids"]))
            # Cut pairs: the slow one, which is left in `tokenizer`, says from where.
            cut = [{**given, "max_length": length} for given in INPUTS for length in (5, 8, 11)]
            for given, ours in zip(cut, tokenize_objects(run, folder, cut), strict=True):
                theirs = tokenizer(
                    given["text"], given.get("text_pair"), max_length=given["max_length"], truncation="longest_first"
                )
                self.assertEqual(ours["ids"], theirs["input_ids"], given)
                self.assertEqual(ours["token_type_ids"], theirs["token_type_ids"], given)
            self.compare_logits(folder, run, model, tokenized)

    def test_roformer(self):
        fixtures = os.path.join(ROOT, "data", "fixtures")
        with open(os.path.join(fixtures, "vocab.txt"), encoding="utf-8") as lines:
            vocabulary = lines.read().split("\n")[:-1]
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "source")
            config = RoFormerConfig(**{**HuggingFaceFolders.SHAPE, "vocab_size": len(vocabulary), "embedding_size": 24})
            AutoModel.from_config(config).save_pretrained(source)
            write_text(os.path.join(source, "vocab.txt"), "\n".join(vocabulary) + "\n")
            dictionary = os.path.join(fixtures, "dict.txt")
            tokenizer = json.dumps({"type": "words", "vocab": f"{source}/vocab.txt", "dictionary": dictionary})
            run, target, model = self.fine_tune(folder, source, "roformer", f"tokenizer: {tokenizer}")
            self.assertEqual(model.config.model_type, "roformer")
            self.assertEqual(model.classifier.dense.weight.shape, (32, 32))

            # transformers cuts words with the package rjieba and opens the tokenizer only where that is installed: so
            # the files themselves.
            with open(os.path.join(target, "vocab.txt"), encoding="utf-8") as lines:
                self.assertEqual(lines.read().split("\n")[:-1], vocabulary)
            with open(os.path.join(target, "tokenizer_config.json")) as text:
                settings = json.load(text)
            with open(os.path.join(target, "special_tokens_map.json")) as text:
                special = json.load(text)
            self.assertEqual((settings["tokenizer_class"], settings["do_lower_case"]), ("RoFormerTokenizer", True))
            roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
            self.assertEqual(special, roles)
            self.assertEqual({key: settings[key] for key in roles}, roles)

            tokenized = tokenize_objects(run, folder, INPUTS)
            for each in tokenized:
                self.assertEqual(each["tokens"], [vocabulary[i] for i in each["ids"]])
            self.assertIn("北京大学", tokenized[2]["tokens"])
            self.compare_logits(folder, run, model, tokenized)


class TrainedVocabulary(unittest.TestCase):
    """A WordPiece vocabulary made here, opened by both of transformers' tokenizers."""

    def compare(self, lowercase):
        choose = random.Random(7)
        syllables = "ka lo mi ré tu Ban Ster ing ed 北 手机 ü".split()
        words = ["".join(choose.choices(syllables, k=choose.randint(1, 4))) for _ in range(300)]
        ends = [" ", " ", " ", ", ", "-", "! "]
        lines = ["".join(choose.choice(words) + choose.choice(ends) for _ in range(9)) for _ in range(400)]
        with tempfile.TemporaryDirectory() as folder:
            text, vocab, config = (os.path.join(folder, name) for name in ("text.txt", "vocab.txt", "config.yaml"))
            write_text(text, "\n".join(lines[:300]) + "\n")
            cased = [] if lowercase else ["--cased"]
            run_program("train-tokenizer", "wordpiece", vocab, text, "--vocab-size", "150", *cased)
            options = {"type": "wordpiece", "vocab": vocab, "lowercase": lowercase}
            write_text(config, f"tokenizer: {json.dumps(options)}\n")
            # Lines it was made from, lines of the same words, and such as are foreign to it.
            lines += ["Straße №5 Ωmega 東京", *(each["text"] for each in INPUTS)]
            ours = tokenize_objects(config, folder, [{"text": line} for line in lines])
            for make in (BertTokenizer, BertTokenizerFast):
                tokenizer = make(vocab, do_lower_case=lowercase)
                self.assertEqual(tokenizer.vocab_size, 150)
                for line, each in zip(lines, ours, strict=True):
                    self.assertEqual(each["ids"], tokenizer(line)["input_ids"], line)
                    self.assertEqual(each["tokens"], tokenizer.convert_ids_to_tokens(each["ids"]), line)
            known = [each for each in ours[:400] if tokenizer.unk_token_id not in each["ids"]]
            self.assertGreater(len(known), 390)

    def test_uncased(self):
        self.compare(lowercase=True)

    def test_cased(self):
        self.compare(lowercase=False)


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
