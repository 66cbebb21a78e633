"""The peers' side of the benchmark: torch and transformers from Python. Answers the same requests as bench.cpp."""

import json
import logging
import sys
import time
import warnings

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    BertTokenizerFast,
    RoFormerConfig,
    RoFormerForMaskedLM,
)
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from performer_pytorch import FastAttention

logging.getLogger("transformers").setLevel(logging.ERROR)


def measure(count, work):
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        work()
    cpu_after = time.process_time()
    return {"cpu": cpu_after - cpu, "wall": time.perf_counter() - start}


class Rope:
    """Rotation of q and k by Hugging Face's function, forward and backward."""

    def __init__(self, path):
        given = load_file(path)
        self.inputs = [given[name].requires_grad_() for name in ("q", "k")]
        self.grads = [given[name] for name in ("grad_q", "grad_k")]
        length, width = self.inputs[0].shape[2:]
        table = RoFormerSinusoidalPositionalEmbedding(length, width)
        table._init_weight()
        self.sinusoids = table((1, length))[None, None]

    def run(self):
        for tensor in self.inputs:
            tensor.grad = None
        self.outputs = RoFormerSelfAttention.apply_rotary_position_embeddings(self.sinusoids, *self.inputs)
        torch.autograd.backward(self.outputs, self.grads)

    def save(self, path):
        names = ("q", "k", "grad_q", "grad_k")
        tensors = [t.detach() for t in self.outputs] + [t.grad for t in self.inputs]
        save_file({name: tensor.contiguous() for name, tensor in zip(names, tensors)}, path)


class LinearAttention:
    """performer-pytorch's causal attention with ReLU features on the CPU, forward and backward."""

    def __init__(self, path):
        given = load_file(path)
        self.inputs = [given[name].requires_grad_() for name in ("q", "k", "v")]
        self.grad = given["grad_out"]
        features, width = given["projection"].shape
        self.attention = FastAttention(width, features, causal=True, generalized_attention=True)
        self.attention.projection_matrix.copy_(given["projection"])

    def run(self):
        for tensor in self.inputs:
            tensor.grad = None
        self.out = None
        self.out = self.attention(*self.inputs)
        self.out.backward(self.grad)

    def save(self, path):
        grads = {f"grad_{name}": tensor.grad for name, tensor in zip("qkv", self.inputs)}
        save_file({"out": self.out.detach().contiguous(), **grads}, path)


def make_model(request):
    """A new model with random weights. Dropout, attention and activation as BERT has them."""
    common = dict(
        vocab_size=request["vocab"],
        hidden_size=request["dim"],
        num_hidden_layers=request["layers"],
        num_attention_heads=request["heads"],
        intermediate_size=request["ffn"],
        hidden_dropout_prob=request["dropout"],
        attention_probs_dropout_prob=request["dropout"],
        max_position_embeddings=request["max_length"],
        attn_implementation="eager",
    )
    if request["family"] == "bert":
        return BertForMaskedLM(BertConfig(**common))
    return RoFormerForMaskedLM(RoFormerConfig(**common))


class Training:
    """Training of a masked language model on given batches in turn, with PyTorch's fused AdamW."""

    def __init__(self, request):
        self.model = make_model(request)
        state = load_file(request["weights"])
        unknown = self.model.load_state_dict(state, strict=False)
        tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
        assert not unknown.unexpected_keys and set(unknown.missing_keys) <= tied, unknown
        self.model.tie_weights()
        given = load_file(request["batches"])
        self.batches = []
        for i in range(len(given["tokens"])):
            batch = {"input_ids": given["tokens"][i], "labels": given["labels"][i]}
            if "keep" in given:
                batch["attention_mask"] = given["keep"][i]
            self.batches.append(batch)
        self.next = 0
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=request["lr"], fused=True)
        self.model.train()

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(**self.batches[self.next % len(self.batches)]).loss
        self.next += 1
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def first_loss(self):
        self.model.eval()
        loss = self.model(**self.batches[0]).loss.item()
        self.model.train()
        return loss


class Tokenizing:
    """Lines of text to ids by the package `tokenizers`, without [CLS] and [SEP]."""

    CHUNK = 1000  # of 10 to 30,000, the fastest for short lines, and within noise of it for long ones

    def __init__(self, vocab, text):
        self.tokenizer = BertTokenizerFast(vocab_file=vocab).backend_tokenizer
        with open(text, encoding="utf-8", newline="\n") as lines:
            self.lines = lines.read().split("\n")[:-1]

    def run(self, take=len):
        """The ids stay on the library's side, unless `take` fetches them: encode_batch_fast skips the offsets."""
        for begin in range(0, len(self.lines), self.CHUNK):
            take(self.tokenizer.encode_batch_fast(self.lines[begin : begin + self.CHUNK], add_special_tokens=False))

    def save(self, path):
        with open(path, "w") as out:
            self.run(lambda encodings: out.writelines(" ".join(map(str, e.ids)) + "\n" for e in encodings))


class Session:
    def setup(self, request):
        torch.set_num_threads(request["threads"])
        torch.set_float32_matmul_precision(request["matmul"])
        torch.manual_seed(1)
        return {"threads": torch.get_num_threads()}

    def rope_make(self, request):
        """Writes the inputs that both sides read."""
        names = ("q", "k", "grad_q", "grad_k")
        save_file({name: torch.randn(request["shape"]) for name in names}, request["inputs"])

    def rope_load(self, request):
        self.rope_inputs = Rope(request["inputs"])

    def rope_save(self, request):
        self.rope_inputs.run()
        self.rope_inputs.save(request["path"])

    def compare(self, request):
        """The largest difference of each tensor of two files, as a share of its largest value."""
        ours, theirs = load_file(request["ours"]), load_file(request["theirs"])
        assert ours.keys() == theirs.keys()
        return {name: ((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max()).item() for name in ours}

    def rope(self, request):
        return measure(request["count"], self.rope_inputs.run)

    def linear_make(self, request):
        """Writes the inputs that both sides read."""
        shape = request["shape"]
        tensors = {name: torch.randn(shape) for name in ("q", "k", "v", "grad_out")}
        save_file({**tensors, "projection": torch.randn(request["features"], shape[-1])}, request["inputs"])

    def linear_load(self, request):
        self.linear_inputs = None
        self.linear_inputs = LinearAttention(request["inputs"])

    def linear_save(self, request):
        self.linear_inputs.run()
        self.linear_inputs.save(request["path"])

    def linear(self, request):
        return measure(request["count"], self.linear_inputs.run)

    def memory(self, request):
        """Resident memory of this process in bytes: now, and the most since the start."""
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
        return {name: 1024 * int(fields[key].split()[0]) for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}

    def step_make(self, request):
        """Writes a model's weights, and batches of random tokens with labels on 15 % of them."""
        make_model(request).save_pretrained(request["folder"])
        shape = (request["batch_count"], request["batch"], request["length"])
        labels = torch.randint(request["vocab"], shape)
        labels[torch.rand(shape) >= 0.15] = -100
        tensors = {"tokens": torch.randint(5, request["vocab"], shape), "labels": labels}
        if request.get("padded"):
            keep = torch.ones(shape, dtype=torch.int64)
            for row in range(request["batch"]):
                keep[:, row, request["length"] - row :] = 0
            tensors["keep"] = keep
            labels[keep == 0] = -100
        save_file(tensors, request["batches"])

    def step_load(self, request):
        self.training = Training(request)

    def loss(self, request):
        return {"loss": self.training.first_loss()}

    def losses(self, request):
        return {"losses": [self.training.step().item() for _ in range(request["count"])]}

    def step(self, request):
        return measure(request["count"], self.training.step)

    def tokenize_load(self, request):
        self.tokenizing = Tokenizing(request["vocab"], request["text"])

    def tokenize_save(self, request):
        self.tokenizing.save(request["path"])

    def tokenize(self, request):
        return measure(request["count"], self.tokenizing.run)

    def tokenize_slowly(self, request):
        """By the tokenizer in Python, which defines the ids where the two differ."""
        tokenizer = BertTokenizer(vocab_file=request["vocab"])
        return {"ids": [tokenizer.encode(line, add_special_tokens=False) for line in request["lines"]]}


def main():
    session = Session()
    answers, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(session, request["do"])(request) or {}
        except Exception as error:  # the driver reports it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
