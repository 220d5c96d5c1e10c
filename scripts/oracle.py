#!/usr/bin/env python3
"""An independent trainer: what pico must compute, written in plain PyTorch.

It reads the weights and the data that picorun reads, trains as pico defines training, and prints one JSON line a
step: {"step": 1, "loss": ..., "grad_norm": ...}. The models follow Hugging Face (Llama, GPT-2, Qwen3) and
graphs/mlp.lua; nothing here looks at pico's code or text.

    oracle.py --model llama -D hidden_size=32 ... --init W.safetensors --data FILE --seq 16 --micro-batch 4 > log
    oracle.py --case NAME [--dtype f64] [--dump-grads F]     a case of tests/oracle/cases.txt, inputs made on the spot
    oracle.py --case NAME --make-inputs DIR                  only its inputs, and the arguments for picoc and picorun
    oracle.py --make-init FILE --model llama -D ...          initial weights;  --make-text FILE --bytes N --vocab V
    oracle.py --bless [NAME ...]                             writes tests/oracle/NAME.{f32,f64}.jsonl anew

Needs torch 1.13 or later (Debian: python3-torch) for training. Everything named --make-... and the list of cases use
the standard library alone, so that the fixtures can be tested without torch.

Training, step n from 1, G = micro_batch * accum:
  data    sample i is bytes [i*seq, i*seq + seq], targets shifted by one; (len - 1) // seq samples; step n takes
          samples (n-1)*G ... n*G-1, modulo their number, in order
  loss    cross entropy summed over the global batch / max(1, number of targets that are not `ignore`)
  norm    of all gradients of that loss, before clipping;  gradients * min(1, clip / (norm + 1e-6)) if clip > 0
  AdamW   weight_decay for parameters of two or more axes, weight_decay_1d for the others
  lr      linear warm-up lr*n/warmup, then constant, or cosine or linear down to min_lr, reached at the last step

Traps.
- The global batch is taken at once: accumulation, a mean of means, or a micro-batch without targets cannot go wrong.
- Loss and norm are those before the update of their step. --dump-grads writes the gradients before clipping.
- Rotary tables are computed in fp64 and rounded once to the dtype; Hugging Face's are fp32 even in an fp64 model.
- A gradient that is exactly zero in theory (GPT-2's key bias; q and k at seq 1) is noise in practice, and Adam makes
  steps of full size out of noise. Such a case needs an --eps well above the noise.
- Weights come from integer hashes and exactly rounded arithmetic, so they are the same bits everywhere.
"""
import argparse
import array
import json
import math
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "tests", "oracle")


def fail(message):
    sys.exit("oracle: " + message)


# ---- safetensors: u64 header length, JSON header, data; all little-endian ----------------------------------------

FORMATS = {"F32": ("f", 4), "F64": ("d", 8), "F16": ("e", 2), "BF16": ("H", 2)}


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, sequence of numbers); dtype F32 or F64."""
    header, blocks, offset = {}, [], 0
    for name in sorted(tensors):
        dtype, shape, values = tensors[name]
        data = array.array(FORMATS[dtype][0], values)
        if len(data) != math.prod(shape):
            fail("%s: %d values for shape %s" % (name, len(data), list(shape)))
        if sys.byteorder == "big":
            data.byteswap()
        blocks.append(data.tobytes())
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(blocks[-1])]}
        offset += len(blocks[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blocks)


def read_safetensors(path):
    """name -> (dtype, shape, list of floats)."""
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + struct.unpack_from("<Q", data)[0]
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in FORMATS:
            fail("%s: %s has dtype %s" % (path, name, entry["dtype"]))
        code, size = FORMATS[entry["dtype"]]
        begin, end = (start + n for n in entry["data_offsets"])
        count = math.prod(entry["shape"])
        if end - begin != count * size or end > len(data):
            fail("%s: %s has %d bytes for shape %s" % (path, name, end - begin, entry["shape"]))
        values = struct.unpack_from("<%d%s" % (count, code), data, begin)
        if entry["dtype"] == "BF16":
            values = struct.unpack("<%df" % count, struct.pack("<%dI" % count, *(v << 16 for v in values)))
        tensors[name] = (entry["dtype"], entry["shape"], list(values))
    return tensors


# ---- configurations and parameters -------------------------------------------------------------------------------

LLAMA = {
    "vocab_size": 256, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": None, "max_position_embeddings": 1024,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}
DEFAULTS = {
    "llama": LLAMA,
    "qwen3": dict(LLAMA, head_dim=32, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True),
    "gpt2": {
        "vocab_size": 256, "n_positions": 256, "n_embd": 192, "n_layer": 6, "n_head": 6, "n_inner": None,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
    },
    "mlp": {},
}


def make_config(model, fields):
    unknown = sorted(set(fields) - set(DEFAULTS[model]))
    if unknown:
        fail("%s has no field %s" % (model, ", ".join(unknown)))
    c = dict(DEFAULTS[model], **fields)
    if "head_dim" in c and c["head_dim"] is None:
        if c["hidden_size"] % c["num_attention_heads"]:
            fail("hidden_size %d is not a multiple of the heads: give head_dim" % c["hidden_size"])
        c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    if "n_inner" in c and c["n_inner"] is None:
        c["n_inner"] = 4 * c["n_embd"]
    return c


def llama_shapes(c, head_norms=False):
    hidden, ffn, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}
    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        shapes[p + "input_layernorm.weight"] = (hidden,)
        shapes[p + "self_attn.q_proj.weight"] = (q, hidden)
        shapes[p + "self_attn.k_proj.weight"] = (kv, hidden)
        shapes[p + "self_attn.v_proj.weight"] = (kv, hidden)
        if head_norms:
            shapes[p + "self_attn.q_norm.weight"] = (d,)
            shapes[p + "self_attn.k_norm.weight"] = (d,)
        shapes[p + "self_attn.o_proj.weight"] = (hidden, q)
        shapes[p + "post_attention_layernorm.weight"] = (hidden,)
        shapes[p + "mlp.gate_proj.weight"] = (ffn, hidden)
        shapes[p + "mlp.up_proj.weight"] = (ffn, hidden)
        shapes[p + "mlp.down_proj.weight"] = (hidden, ffn)
    shapes["model.norm.weight"] = (hidden,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    return shapes


def qwen3_shapes(c):
    return llama_shapes(c, head_norms=True)


def gpt2_shapes(c):
    hidden, ffn = c["n_embd"], c["n_inner"]
    shapes = {"transformer.wte.weight": (c["vocab_size"], hidden), "transformer.wpe.weight": (c["n_positions"], hidden)}

    def pair(name, *weight):
        shapes[name + ".weight"] = weight
        shapes[name + ".bias"] = weight[-1:]

    for i in range(c["n_layer"]):
        p = "transformer.h.%d." % i
        pair(p + "ln_1", hidden)
        pair(p + "attn.c_attn", hidden, 3 * hidden)
        pair(p + "attn.c_proj", hidden, hidden)
        pair(p + "ln_2", hidden)
        pair(p + "mlp.c_fc", hidden, ffn)
        pair(p + "mlp.c_proj", ffn, hidden)
    pair("transformer.ln_f", hidden)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], hidden)
    return shapes


def mlp_shapes(c):
    return {"embed.weight": (256, 32), "fc1.weight": (8, 32, 256), "fc1.bias": (256,), "fc2.weight": (256, 256)}


# ---- inputs out of integer hashes --------------------------------------------------------------------------------

MASK = (1 << 64) - 1


def mix(z):
    """splitmix64: a good 64-bit hash of a 64-bit number."""
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniform(key, count, scale, offset=0.0):
    """count numbers of offset +- scale: 24 bits each, then rounded to fp32 by whoever stores them."""
    return [((mix(key + i) >> 40) - 8388607.5) / 8388607.5 * scale + offset for i in range(count)]


def make_init(path, model, c, seed):
    """Weights of a model that is already lively: activations near 1, attention far from even, no gradient tiny.
    Matrices have variance 1/width, gains lie in 0.8 ... 1.2, biases in -0.2 ... 0.2, so that none can be left out."""
    tensors = {}
    shapes = SHAPES[model](c)
    width = c.get("hidden_size") or c.get("n_embd") or 32
    for name, shape in shapes.items():
        key = seed & MASK
        for byte in name.encode():
            key = mix(key ^ byte)
        if name.endswith("bias"):
            scale, offset = 0.2, 0.0
        elif len(shape) == 1:
            scale, offset = 0.2, 1.0
        else:
            scale, offset = math.sqrt(3.0 / width), 0.0
        tensors[name] = ("F32", shape, uniform(key, math.prod(shape), scale, offset))
    write_safetensors(path, tensors)


def make_text(path, count, vocab, seed, runs=None):
    """A Markov chain of order 1: each byte has four likely successors and, one time in eight, any at all.
    With runs = B, blocks of 48 bytes are turned into B now and then (three eighths of them)."""
    key, byte, text = mix(seed), 0, bytearray()
    for i in range(count):
        draw = mix(key + i)
        slot = draw & 7
        successor = mix(key ^ (byte << 8 | (0, 0, 0, 1, 1, 2, 3)[slot])) if slot < 7 else draw >> 8
        byte = successor % vocab
        text.append(byte)
    if runs is not None:
        for start in range(0, count, 48):
            if mix(key ^ start << 20) % 8 < 3:
                end = min(start + 48, count)
                text[start:end] = bytes([runs]) * (end - start)
    with open(path, "wb") as file:
        file.write(text)


# ---- torch, loaded only to train ---------------------------------------------------------------------------------

def load_torch():
    global torch
    try:
        import torch
    except ImportError:
        fail("training needs torch (Debian: python3-torch, for /usr/bin/python3)")


# ---- the models: token ids [batch, seq] -> logits [batch, seq, vocab]; w is name -> tensor ------------------------

def rms_norm(x, gain, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def causal_attention(q, k, v):
    """q [batch, heads, seq, d], k and v [batch, kv heads, seq, d]; query head h reads key head h // group."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    seq = q.shape[2]
    future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(future, -math.inf)
    return torch.softmax(scores, -1) @ v


def rotary(seq, d, theta, dtype):
    frequency = theta ** (-torch.arange(d // 2, dtype=torch.float64) / (d // 2))
    angle = torch.arange(seq, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat([angle, angle], -1)
    return torch.cos(angle).to(dtype), torch.sin(angle).to(dtype)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def llama(w, c, tokens):
    d, eps = c["head_dim"], c["rms_norm_eps"]
    batch, seq = tokens.shape
    x = w["model.embed_tokens.weight"][tokens]
    cos, sin = rotary(seq, d, c["rope_theta"], x.dtype)

    def heads(x):
        return x.view(batch, seq, -1, d).transpose(1, 2)

    for i in range(c["num_hidden_layers"]):
        p = "model.layers.%d." % i
        h = rms_norm(x, w[p + "input_layernorm.weight"], eps)
        q, k, v = (heads(h @ w[p + "self_attn.%s_proj.weight" % name].T) for name in "qkv")
        if p + "self_attn.q_norm.weight" in w:
            q = rms_norm(q, w[p + "self_attn.q_norm.weight"], eps)
            k = rms_norm(k, w[p + "self_attn.k_norm.weight"], eps)
        a = causal_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + a.transpose(1, 2).reshape(batch, seq, -1) @ w[p + "self_attn.o_proj.weight"].T

        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], eps)
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"], eps)
    return x @ w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"].T


def gpt2(w, c, tokens):
    batch, seq = tokens.shape
    hidden = c["n_embd"]

    def norm(name, x):
        gain, bias = w[name + ".weight"], w[name + ".bias"]
        return torch.nn.functional.layer_norm(x, (hidden,), gain, bias, c["layer_norm_epsilon"])

    def linear(name, x):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def heads(x):
        return x.view(batch, seq, c["n_head"], -1).transpose(1, 2)

    def gelu_tanh(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:seq]
    for i in range(c["n_layer"]):
        p = "transformer.h.%d." % i
        q, k, v = linear(p + "attn.c_attn", norm(p + "ln_1", x)).split(hidden, -1)
        a = causal_attention(heads(q), heads(k), heads(v))
        x = x + linear(p + "attn.c_proj", a.transpose(1, 2).reshape(batch, seq, hidden))
        x = x + linear(p + "mlp.c_proj", gelu_tanh(linear(p + "mlp.c_fc", norm(p + "ln_2", x))))
    x = norm("transformer.ln_f", x)
    return x @ w["transformer.wte.weight" if c["tie_word_embeddings"] else "lm_head.weight"].T


def mlp(w, c, tokens):
    seq, taps = tokens.shape[1], w["fc1.weight"].shape[0]
    x = torch.nn.functional.pad(w["embed.weight"][tokens], (0, 0, taps - 1, 0))     # zeros before the first token
    h = w["fc1.bias"]
    for tap in range(taps):
        start = taps - 1 - tap
        h = h + x[:, start:start + seq] @ w["fc1.weight"][tap]
    return torch.tanh(h) @ w["fc2.weight"]


SHAPES = {"llama": llama_shapes, "qwen3": qwen3_shapes, "gpt2": gpt2_shapes, "mlp": mlp_shapes}
LOGITS = {"llama": llama, "qwen3": llama, "gpt2": gpt2, "mlp": mlp}


# ---- training ----------------------------------------------------------------------------------------------------

def learning_rate(o, n):
    if n <= o.warmup:
        return o.lr * n / o.warmup
    if o.decay == "constant":
        return o.lr
    t = (n - o.warmup) / (o.steps - o.warmup)
    down = 0.5 * (1 + math.cos(math.pi * t)) if o.decay == "cosine" else 1 - t
    return o.min_lr + (o.lr - o.min_lr) * down


def global_batch(data, o, n):
    """Tokens and targets of step n, each [micro_batch * accum, seq]."""
    samples = (len(data) - 1) // o.seq
    if samples < 1:
        fail("%s: %d bytes are too few for seq %d" % (o.data, len(data), o.seq))
    size = o.micro_batch * o.accum
    starts = [i % samples * o.seq for i in range((n - 1) * size, n * size)]
    windows = torch.tensor([list(data[s:s + o.seq + 1]) for s in starts])
    return windows[:, :-1], windows[:, 1:]


def load_weights(path, shapes, dtype):
    stored = read_safetensors(path)
    if set(stored) != set(shapes):
        fail("%s: missing or unknown: %s" % (path, ", ".join(sorted(set(stored) ^ set(shapes)))))
    weights = {}
    for name, shape in shapes.items():
        if tuple(stored[name][1]) != shape:
            fail("%s: %s has shape %s, the model needs %s" % (path, name, stored[name][1], list(shape)))
        weights[name] = torch.tensor(stored[name][2], dtype=dtype).view(shape).requires_grad_()
    return weights


def save_tensors(path, tensors, dtype):
    write_safetensors(path, {name: (dtype.upper(), tuple(t.shape), t.detach().flatten().tolist())
                             for name, t in tensors.items()})


def train(o, log):
    load_torch()
    torch.set_num_threads(1)
    c = make_config(o.model, o.fields)
    with open(o.data, "rb") as file:
        data = file.read()
    dtype = torch.float64 if o.dtype == "f64" else torch.float32
    w = load_weights(o.init, SHAPES[o.model](c), dtype)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": o.weight_decay},
         {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": o.weight_decay_1d}],
        betas=(o.beta1, o.beta2), eps=o.eps)

    for n in range(1, o.steps + 1):
        tokens, targets = global_batch(data, o, n)
        logits = LOGITS[o.model](w, c, tokens)
        count = int((targets != o.ignore).sum())
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=o.ignore, reduction="sum") / max(count, 1)
        optimizer.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in w.values()))
        if n == 1 and o.dump_grads:
            save_tensors(o.dump_grads, {name: p.grad for name, p in w.items()}, o.dtype)
        if o.clip > 0:
            for p in w.values():
                p.grad.mul_(min(1.0, o.clip / (norm + 1e-6)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(o, n)
        optimizer.step()
        log.write('{"step": %d, "loss": %.17g, "grad_norm": %.17g}\n' % (n, loss.item(), norm))
        log.flush()
    if o.save:
        save_tensors(o.save, w, o.dtype)


# ---- cases and the command line ----------------------------------------------------------------------------------

# options of training that picorun has under the same names, with the defaults used here
RUN_OPTIONS = [
    ("steps", int, 10), ("lr", float, 3e-3), ("beta1", float, 0.9), ("beta2", float, 0.95), ("eps", float, 1e-8),
    ("weight-decay", float, 0.0), ("weight-decay-1d", float, 0.0), ("clip", float, 0.0), ("warmup", int, 0),
    ("decay", str, "constant"), ("min-lr", float, 0.0), ("ignore", int, -100),
]
SHAPE_OPTIONS = [("seq", int, 16), ("micro-batch", int, 4), ("accum", int, 1)]


def read_cases():
    """name -> command line (a list of words), from lines of the form NAME: WORD WORD ..."""
    cases = {}
    with open(os.path.join(CASES, "cases.txt")) as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, words = line.split(":", 1)
                cases[name.strip()] = words.split()
    return cases


def parse(words):
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description="Trains a small model as pico must, in PyTorch; a JSON line a step. See the head of the file.")
    parser.add_argument("--case", metavar="NAME", help="take model, sizes and options from tests/oracle/cases.txt")
    parser.add_argument("--bless", nargs="*", metavar="NAME", help="write the fixtures of these cases, or of all")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--model", choices=sorted(SHAPES))
    parser.add_argument("--config", metavar="JSON", help="fields of the model, as an object")
    parser.add_argument("-D", action="append", default=[], metavar="FIELD=VALUE", dest="define")
    parser.add_argument("--dtype", choices=["f32", "f64"], default="f32")
    parser.add_argument("--data", metavar="FILE", help="bytes, one a token")
    parser.add_argument("--init", metavar="FILE", help="initial weights, safetensors")
    for name, kind, default in SHAPE_OPTIONS + RUN_OPTIONS:
        choices = ["constant", "cosine", "linear"] if name == "decay" else None
        parser.add_argument("--" + name, type=kind, default=default, choices=choices, help="default %(default)s")
    parser.add_argument("--dump-grads", metavar="FILE", help="gradients of step 1, before clipping")
    parser.add_argument("--save", metavar="FILE", help="weights after the last step")
    parser.add_argument("--make-init", metavar="FILE")
    parser.add_argument("--make-text", metavar="FILE")
    parser.add_argument("--make-inputs", metavar="DIR",
                        help="both, as DIR/init.safetensors and DIR/text.bin, with DIR/picoc.args and DIR/picorun.args")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=2000, help="length of the text, default %(default)s")
    parser.add_argument("--vocab", type=int, default=None, help="bytes below this; default vocab_size")
    parser.add_argument("--runs", type=int, default=None, metavar="B", help="stretches of byte B in the text")
    o = parser.parse_args(words)
    if o.case:
        cases = read_cases()
        if o.case not in cases:
            fail("no case '%s' in tests/oracle/cases.txt" % o.case)
        words = list(words)
        at = next(i for i, word in enumerate(words) if word.split("=")[0] == "--case")
        del words[at:at + (1 if "=" in words[at] else 2)]
        return parse(cases[o.case] + words)             # what the user says overrides the case
    o.fields = json.loads(o.config) if o.config else {}
    for field in o.define:
        name, _, value = field.partition("=")
        o.fields[name] = json.loads(value)
    return o


def vocab_of(o):
    if o.vocab is not None:
        return o.vocab
    return make_config(o.model, o.fields).get("vocab_size", 256) if o.model else 256


def make_inputs(o, folder):
    """The two input files and the two lists of arguments of a case, one argument a line."""
    os.makedirs(folder, exist_ok=True)
    o.init, o.data = os.path.join(folder, "init.safetensors"), os.path.join(folder, "text.bin")
    make_init(o.init, o.model, make_config(o.model, o.fields), o.seed)
    make_text(o.data, o.bytes, vocab_of(o), o.seed, o.runs)

    def options(table):
        for name, _, default in table:
            value = getattr(o, name.replace("-", "_"))
            if name != "ignore" or value != default:
                yield from ("--" + name, str(value))

    lists = {"picoc": ["graphs/%s.lua" % o.model], "picorun": ["--no-shuffle", *options(RUN_OPTIONS)]}
    for name, value in o.fields.items():
        lists["picoc"] += ["-D", "%s=%s" % (name, json.dumps(value))]
    lists["picoc"] += options(SHAPE_OPTIONS)
    for program, arguments in lists.items():
        with open(os.path.join(folder, program + ".args"), "w") as file:
            file.write("".join(argument + "\n" for argument in arguments))


def bless(names):
    cases = read_cases()
    for name in names or cases:
        for dtype in "f32", "f64":
            path = os.path.join(CASES, "%s.%s.jsonl" % (name, dtype))
            with tempfile.TemporaryDirectory() as folder:
                o = parse(["--case", name, "--dtype", dtype])
                make_inputs(o, folder)
                with open(path + ".new", "w") as log:
                    train(o, log)
            os.replace(path + ".new", path)
        print("blessed", name)


def main():
    o = parse(sys.argv[1:])
    made = False
    if o.list:
        print("\n".join(read_cases()))
        return
    if o.bless is not None:
        bless(o.bless)
        return
    if o.make_text:
        make_text(o.make_text, o.bytes, vocab_of(o), o.seed, o.runs)
        made = True
    if (o.make_init or o.make_inputs or not made) and not o.model:
        fail("give --model or --case; --help lists the options")
    if o.make_init:
        make_init(o.make_init, o.model, make_config(o.model, o.fields), o.seed)
        made = True
    if o.make_inputs:
        make_inputs(o, o.make_inputs)
        made = True
    if made:
        return
    with tempfile.TemporaryDirectory() as folder:
        if not (o.init and o.data):
            given = o.init, o.data
            make_inputs(o, folder)
            o.init, o.data = (there or here for there, here in zip(given, (o.init, o.data)))
        train(o, sys.stdout)


if __name__ == "__main__":
    main()
