"""Runs a model of SmolLM2-135M's shape with PyTorch and with the engine in turns.

    python -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python benches/real_shapes.py [--turns N]

Random weights: only the shape matters. LoRA of rank 32 on every projection and the head, AdamW, two
threads. The engine keeps its weights in bf16 in a file; PyTorch has them in f32. The two take turns,
each in a process of its own, and each one's best turn counts: whatever else the machine does slows a
turn down, never speeds it up. Prints a Markdown table of tokens per second and their ratio.
"""

import json
import os
import re
import subprocess
import sys
import time

SECONDS = 4.0
THREADS = 2


def pytorch():
    command = [sys.executable, __file__, "--pytorch"]
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return json.loads(output.splitlines()[-1])


def measure_pytorch():
    import resource

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(THREADS)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    modules = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head".split()
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=32, lora_alpha=32, target_modules=modules))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def rate(tokens, work):
        work()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            work()
            count += tokens
        return count / (time.perf_counter() - start)

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
                    tokens = torch.multinomial(result.logits[:, -1].softmax(-1), 1)

            out[f"decode {sequences}"] = rate(32 * sequences, decode)
    out["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return out


def engine():
    command = "cargo run --release --example builtin_model -- shapes"
    output = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
    return {name: float(rate) for name, rate in re.findall(r"^(.+): (\d+) tokens/s", output, re.M)}


def main():
    turns = int(sys.argv[2]) if sys.argv[1:2] == ["--turns"] else 3
    subprocess.run("cargo build --release --example builtin_model".split(), check=True)
    best = {"engine": {}, "pytorch": {}}
    for _ in range(turns):
        for name, run in [("engine", engine), ("pytorch", pytorch)]:
            for key, value in run().items():
                best[name][key] = max(value, best[name].get(key, 0.0))
    print("| | engine | PyTorch f32 | ratio |\n|---|---|---|---|")
    for key, value in best["engine"].items():
        other = best["pytorch"][key]
        print(f"| {key} | {value:.0f} | {other:.0f} | {value / other:.2f} |")
    print(f"PyTorch's peak memory: {best['pytorch']['peak MB']:.0f} MB")


if sys.argv[1:] == ["--pytorch"]:
    print(json.dumps(measure_pytorch()))
else:
    main()
