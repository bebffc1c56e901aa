"""Runs a model of a real shape with PyTorch, llama.cpp and the engine in turns.

    python -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python benches/real_shapes.py [--turns N] [--processor] [--bf16]

Random weights of SmolLM2-135M's shape: only the shape matters. LoRA of rank 32 on every projection and
the head, AdamW, two threads. The engine keeps its weights in bf16 in a file; PyTorch has them in f32,
and in bf16 too with `--bf16`. They take turns, each in a process of its own, and each one's best turn
counts: whatever else the machine does slows a turn down, never speeds it up. Prints a Markdown table of
tokens per second and what the engine's are in terms of PyTorch's.

On a busy machine `--processor` says more: tokens per second of processor time, for which PyTorch gets a
single thread, because its threads wait for each other by spinning.

llama.cpp takes part if its `llama-bench` is on the path and the package `gguf` is installed: prefill and
the decoding of one sequence, in bf16 and in Q8_0.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

SECONDS = 4.0
SHAPE = dict(
    vocab_size=49152,
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    max_position_embeddings=8192,
)


def pytorch(dtype, threads):
    command = [sys.executable, __file__, "--pytorch", dtype]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return json.loads(output.splitlines()[-1])


def measure_pytorch(dtype):
    import resource

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    modules = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head".split()
    base = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **SHAPE)).to(getattr(torch, dtype))
    model = get_peft_model(base, LoraConfig(r=32, lora_alpha=32, target_modules=modules))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def rate(tokens, work):
        work()
        count, start, processor = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < SECONDS:
            work()
            count += tokens
        return [count / (time.perf_counter() - start), count / (time.process_time() - processor)]

    out = {}
    for sequences, length in [(8, 128), (1, 512)]:
        tokens = torch.randint(0, 49152, (sequences, length + 1))

        def step():
            logits = model(tokens[:, :-1]).logits
            targets = tokens[:, 1:].flatten()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()

        out[f"training {sequences} x {length}"] = rate(sequences * length, step)
    with torch.inference_mode():
        prompt = torch.randint(0, 49152, (1, 512))
        out["prefill"] = rate(512, lambda: model(prompt, logits_to_keep=1))
        for sequences in [1, 16, 64]:
            prompt = torch.randint(0, 49152, (sequences, 16))

            def decode():
                cache, tokens = None, prompt
                for _ in range(32):
                    result = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    cache = result.past_key_values
                    tokens = torch.multinomial(result.logits[:, -1].float().softmax(-1), 1)

            out[f"decode {sequences}"] = rate(32 * sequences, decode)
    out["peak memory, MB"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024] * 2
    return out


def engine():
    command = "cargo run --release --example builtin_model -- shapes"
    output = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
    rates = re.findall(r"^(.+): (\d+) tokens/s, (\d+) per processor second", output, re.M)
    out = {name: [float(wall), float(processor)] for name, wall, processor in rates}
    out["peak memory, MB"] = [float(re.search(r"^peak memory: (\d+) MB", output, re.M)[1])] * 2
    return out


def llama(file):
    """What `llama-bench` says about a file; it measures by the clock only."""
    command = ["llama-bench", "-m", file, "-p", "512", "-n", "32", "-t", "2", "-r", "3", "-o", "json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rates = {"prefill" if one["n_prompt"] else "decode 1": one["avg_ts"] for one in json.loads(output)}
    return {name: [rate, float("nan")] for name, rate in rates.items()}


def write_gguf(file, quantised):
    import gguf
    import numpy as np

    kind = gguf.GGMLQuantizationType.Q8_0 if quantised else gguf.GGMLQuantizationType.BF16
    width, mlp, heads = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_attention_heads"]
    keys = width // heads * SHAPE["num_key_value_heads"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(mlp)
    writer.add_head_count(heads)
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(SHAPE["vocab_size"])
    random = np.random.default_rng(1)

    def matrix(name, rows, cols):
        data = gguf.quants.quantize(random.normal(0, 0.02, (rows, cols)).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    matrix("token_embd", SHAPE["vocab_size"], width)
    norm("output_norm")
    for layer in range(SHAPE["num_hidden_layers"]):
        for name, rows, cols in [
            ("attn_q", width, width),
            ("attn_k", keys, width),
            ("attn_v", keys, width),
            ("attn_output", width, width),
            ("ffn_gate", mlp, width),
            ("ffn_up", mlp, width),
            ("ffn_down", width, mlp),
        ]:
            matrix(f"blk.{layer}.{name}", rows, cols)
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def contestants(arguments, folder):
    threads = 1 if arguments.processor else 2
    yield "engine", engine
    yield "PyTorch f32", lambda: pytorch("float32", threads)
    if arguments.bf16:
        yield "PyTorch bf16", lambda: pytorch("bfloat16", threads)
    if shutil.which("llama-bench") is None or arguments.processor:
        print("llama.cpp takes no part: no llama-bench, or processor time is asked for", file=sys.stderr)
        return
    for name, quantised in [("bf16", False), ("Q8_0", True)]:
        file = os.path.join(folder, f"{name}.gguf")
        write_gguf(file, quantised)
        yield f"llama.cpp {name}", lambda file=file: llama(file)


def main(arguments):
    subprocess.run("cargo build --release --example builtin_model".split(), check=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = dict(contestants(arguments, folder))
        best = {name: {} for name in runs}
        for _ in range(arguments.turns):
            for name, run in runs.items():
                for key, rates in run().items():
                    rate = rates[1 if arguments.processor else 0]
                    better = min if "memory" in key else max
                    best[name][key] = better(rate, best[name].get(key, rate))
    print("| | " + " | ".join(best) + " | engine / PyTorch f32 |\n|" + "---|" * (len(best) + 2))
    for key, own in best["engine"].items():
        cells = [f"{rates[key]:.0f}" if key in rates else "–" for rates in best.values()]
        print(f"| {key} | " + " | ".join(cells) + f" | {own / best['PyTorch f32'][key]:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--processor", action="store_true", help="by processor time instead of the clock")
    parser.add_argument("--bf16", action="store_true", help="PyTorch in bf16 as well")
    parser.add_argument("--pytorch", metavar="DTYPE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.pytorch:
        print(json.dumps(measure_pytorch(arguments.pytorch)))
    else:
        main(arguments)
