"""Runs models of real shapes with the engine, PyTorch + PEFT and llama.cpp, in turns.

    python -m venv venv && venv/bin/pip install torch transformers peft gguf llama-cpp-python
    venv/bin/python benches/real_shapes.py [--shape 135M|0.6B] [--turns N] [--processor] [--bf16]

Random weights of SmolLM2-135M's or Qwen3-0.6B's shape: only the shape matters. Two threads. What is
trained is LoRA of rank 32 on every projection and the head, with AdamW; it is sampled from too, except
beside llama.cpp, which gets the base alone. The engine keeps its weights in bf16 in a file, or in Q8_0;
PyTorch has them in f32, and in bf16 too with `--bf16`. They take turns, each in a process of its own, and
each one's best turn counts: whatever else the machine does slows a turn down, never speeds it up. Prints
Markdown tables of tokens per second. What is not installed takes no part.

On a busy machine `--processor` says more: tokens per second of processor time, for which PyTorch gets a
single thread, because its threads wait for each other by spinning; llama.cpp takes no part for the same
reason.
"""

import argparse
import json
import os
import importlib.util
import re
import subprocess
import sys
import tempfile
import time

SECONDS = 4.0
SHAPES = {
    "135M": dict(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_position_embeddings=8192,
    ),
    "0.6B": dict(
        vocab_size=151936,
        hidden_size=1024,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        max_position_embeddings=40960,
    ),
}


def rate(tokens, work):
    """Tokens per second, by the clock and per second of processor time."""
    work()
    count, start, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS:
        work()
        count += tokens
    return [count / (time.perf_counter() - start), count / (time.process_time() - processor)]


def apart(arguments, threads=2):
    """What this program says about one contestant, in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=True, env=environment).stdout
    return json.loads(output.splitlines()[-1])


def measure_pytorch(name, dtype):
    import resource

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    modules = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head".split()
    shape = SHAPES[name]
    config = {"135M": LlamaConfig, "0.6B": Qwen3Config}[name](tie_word_embeddings=True, **shape)
    base = AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    model = get_peft_model(base, LoraConfig(r=32, lora_alpha=32, target_modules=modules))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    vocab = shape["vocab_size"]

    out = {}
    for sequences, length in [(8, 128), (1, 512)]:
        tokens = torch.randint(0, vocab, (sequences, length + 1))

        def step():
            logits = model(tokens[:, :-1]).logits
            targets = tokens[:, 1:].flatten()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()

        out[f"training {sequences} x {length}"] = rate(sequences * length, step)
    with torch.inference_mode():
        prompt = torch.randint(0, vocab, (1, 512))
        out["prefill"] = rate(512, lambda: model(prompt, logits_to_keep=1))
        for sequences in [1, 16, 64]:
            prompt = torch.randint(0, vocab, (sequences, 16))

            def decode():
                cache, tokens = None, prompt
                for _ in range(32):
                    result = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    cache = result.past_key_values
                    tokens = torch.multinomial(result.logits[:, -1].float().softmax(-1), 1)

            out[f"decode {sequences}"] = rate(32 * sequences, decode)
    out["peak memory, MB"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024] * 2
    return out


def engine(name, *options):
    command = ["cargo", "run", "--release", "--example", "builtin_model", "--", "shapes", *options]
    command += ["--large"] if name == "0.6B" else []
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=True).stdout
    rates = re.findall(r"^(.+): (\d+) tokens/s, (\d+) per processor second", output, re.M)
    out = {name: [float(wall), float(processor)] for name, wall, processor in rates}
    out["peak memory, MB"] = [float(re.search(r"^peak memory: (\d+) MB", output, re.M)[1])] * 2
    return out


def measure_llama(file):
    import random
    import resource

    import llama_cpp as llama

    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def context(sequences, length):
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * length, sequences
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = 2
        return llama.llama_init_from_model(model, params)

    def feed(context, batch, tokens):
        """One token for each of (sequence, position, whether its logits are wanted)."""
        batch.n_tokens = len(tokens)
        for index, (sequence, position, wanted) in enumerate(tokens):
            batch.token[index] = random.randrange(vocab)
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        assert llama.llama_decode(context, batch) == 0

    batch = llama.llama_batch_init(512, 0, 1)
    out = {}

    def prefill(context):
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        feed(context, batch, [(0, position, position == 511) for position in range(512)])

    one = context(1, 1024)
    out["prefill"] = rate(512, lambda: prefill(one))
    llama.llama_free(one)
    for sequences in [1, 16, 64]:
        several = context(sequences, 256)

        def decode():
            llama.llama_memory_clear(llama.llama_get_memory(several), True)
            # The prompt once, as the engine reads it; then a token each.
            feed(several, batch, [(0, position, False) for position in range(16)])
            for other in range(1, sequences):
                llama.llama_memory_seq_cp(llama.llama_get_memory(several), 0, other, -1, -1)
            for position in range(16, 48):
                feed(several, batch, [(number, position, True) for number in range(sequences)])

        out[f"decode {sequences}"] = rate(32 * sequences, decode)
        llama.llama_free(several)
    out["peak memory, MB"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024] * 2
    return out


def write_gguf(file, name, quantised):
    import gguf
    import numpy as np

    shape = SHAPES[name]
    family = {"135M": "llama", "0.6B": "qwen3"}[name]
    kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.BF16
    width, mlp, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = dim * shape["num_attention_heads"], dim * shape["num_key_value_heads"]
    writer = gguf.GGUFWriter(file, family)
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(shape["num_hidden_layers"])
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(shape["vocab_size"])
    random = np.random.default_rng(1)

    def matrix(name, rows, cols):
        data = gguf.quants.quantize(random.normal(0, 0.02, (rows, cols)).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    def norm(name, width):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", shape["vocab_size"], width)
    norm("output_norm", width)
    for layer in range(shape["num_hidden_layers"]):
        for part, rows, cols in [
            ("attn_q", queries, width),
            ("attn_k", keys, width),
            ("attn_v", keys, width),
            ("attn_output", width, queries),
            ("ffn_gate", mlp, width),
            ("ffn_up", mlp, width),
            ("ffn_down", width, mlp),
        ]:
            matrix(f"blk.{layer}.{part}", rows, cols)
        norm(f"blk.{layer}.attn_norm", width)
        norm(f"blk.{layer}.ffn_norm", width)
        if family == "qwen3":
            norm(f"blk.{layer}.attn_q_norm", dim)
            norm(f"blk.{layer}.attn_k_norm", dim)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def installed(*packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
    return not missing


def contestants(arguments, folder):
    """Those who meet with an adapter, then those who meet without."""
    name, threads = arguments.shape, 1 if arguments.processor else 2
    adapted = {"engine": lambda: engine(name)}
    if installed("torch", "transformers", "peft"):
        kinds = ["float32", "bfloat16"] if arguments.bf16 else ["float32"]
        for kind in kinds:
            title = "PyTorch f32" if kind == "float32" else "PyTorch bf16"
            adapted[title] = lambda kind=kind: apart(["--shape", name, "--pytorch", kind], threads)
    plain = {"engine bf16": lambda: engine(name, "--base"), "engine Q8_0": lambda: engine(name, "--q8_0")}
    if not arguments.processor and installed("gguf", "llama_cpp"):
        for title, quantised in [("bf16", False), ("Q8_0", True)]:
            file = os.path.join(folder, f"{title}.gguf")
            write_gguf(file, name, quantised)
            plain[f"llama.cpp {title}"] = lambda file=file: apart(["--llama", file])
    return adapted, plain


def table(best, pairs):
    ratios = [(own, other) for own, other in pairs if other in best]
    heads = [*best, *(f"{own} / {other}" for own, other in ratios)]
    yield "| tokens/s | " + " | ".join(heads) + " |\n|---|" + "---:|" * len(heads)
    for key in next(iter(best.values())):
        cells = [f"{rates[key]:.0f}" if key in rates else "–" for rates in best.values()]
        cells += [f"{best[own][key] / best[other][key]:.2f}" for own, other in ratios]
        yield f"| {key} | " + " | ".join(cells) + " |"


def main(arguments):
    subprocess.run("cargo build --release --example builtin_model".split(), check=True)
    with tempfile.TemporaryDirectory() as folder:
        groups = contestants(arguments, folder)
        best = [{name: {} for name in group} for group in groups]
        for _ in range(arguments.turns):
            for group, results in zip(groups, best):
                for name, run in group.items():
                    for key, rates in run().items():
                        value = rates[1 if arguments.processor else 0]
                        better = min if "memory" in key else max
                        results[name][key] = better(value, results[name].get(key, value))
    print(f"{arguments.shape}, with an adapter of rank 32:\n")
    print("\n".join(table(best[0], [("engine", "PyTorch f32")])))
    print("\nThe base alone:\n")
    pairs = [("engine bf16", "llama.cpp bf16"), ("engine Q8_0", "llama.cpp Q8_0")]
    print("\n".join(table(best[1], pairs)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="135M")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--processor", action="store_true", help="by processor time instead of the clock")
    parser.add_argument("--bf16", action="store_true", help="PyTorch in bf16 as well")
    parser.add_argument("--pytorch", metavar="DTYPE", help=argparse.SUPPRESS)
    parser.add_argument("--llama", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pytorch:
        print(json.dumps(measure_pytorch(arguments.shape, arguments.pytorch)))
    elif arguments.llama:
        print(json.dumps(measure_llama(arguments.llama)))
    else:
        main(arguments)
