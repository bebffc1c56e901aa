"""Trains the shipped model with PyTorch and with the engine in turns, and compares their speed.

    python -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python benches/training_speed.py

64 sequences of 64 tokens per step, LoRA of rank 32 on every projection and the head, AdamW, on one
thread and on two. The two take turns, each in a process of its own, and each one's best turn
counts: whatever else the machine does slows a turn down, never speeds it up. Prints tokens per
second by the clock and per second of processor time, and fails if PyTorch is faster.
"""

import json
import os
import re
import subprocess
import sys
import time

SECONDS = 4.0
TURNS = 3


def pytorch(threads):
    command = [sys.executable, __file__, "--pytorch", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return json.loads(output.splitlines()[-1])


def train_with_pytorch(threads):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained("src/local/engine/builtin", dtype=torch.float32)
    modules = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj lm_head".split()
    model = get_peft_model(model, LoraConfig(r=32, lora_alpha=32, target_modules=modules))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.randint(0, 256, (64, 65))

    def step():
        logits = model(tokens[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    steps, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < SECONDS:
        step()
        steps += 1
    count = steps * 64 * 64
    return count / (time.perf_counter() - start), count / (time.process_time() - cpu)


def engine(threads):
    command = "cargo run --release --example builtin_model -- speed"
    environment = os.environ | {"THREADS": str(threads)}
    output = subprocess.run(command.split(), capture_output=True, text=True, check=True, env=environment).stdout
    wall, cpu = re.search(r"training: (\d+) tokens/s, (\d+) per processor second", output).groups()
    return float(wall), float(cpu)


def compare():
    slower = []
    for threads in [1, 2]:
        turns = [(engine(threads), pytorch(threads)) for _ in range(TURNS)]
        best = [tuple(max(figures) for figures in zip(*side)) for side in zip(*turns)]
        for name, (wall, cpu) in zip(["engine", "PyTorch"], best):
            print(f"{threads} threads, {name}: {wall:,.0f} tokens/s, {cpu:,.0f} per processor second")
        ratio = best[0][0] / best[1][0]
        each = ", ".join(f"{ours[0] / theirs[0]:.2f}" for ours, theirs in turns)
        print(f"{threads} threads, engine / PyTorch: {ratio:.2f} (turn by turn: {each})")
        if ratio < 1:
            slower.append(threads)
    assert not slower, f"PyTorch is faster on {slower} threads"


if sys.argv[1:2] == ["--pytorch"]:
    print(json.dumps(train_with_pytorch(int(sys.argv[2]))))
else:
    compare()
