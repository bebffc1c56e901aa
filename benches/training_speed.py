"""Trains the shipped model with PyTorch and with the engine, one after the other, same shape.

    python -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python benches/training_speed.py

64 sequences of 64 tokens per step, LoRA of rank 32 on every projection and the head, AdamW,
on one thread and on two. Prints tokens per second by the clock and per second of processor time.
"""

import os
import re
import subprocess
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

SECONDS = 4.0


def pytorch(threads):
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
    command = "cargo test --release --lib milestones::speed -- --ignored --nocapture"
    environment = os.environ | {"THREADS": str(threads)}
    output = subprocess.run(command.split(), capture_output=True, text=True, check=True, env=environment).stdout
    wall, cpu = re.search(r"training: (\d+) tokens/s, (\d+) per processor second", output).groups()
    return float(wall), float(cpu)


for threads in [1, 2]:
    ours, theirs = engine(threads), pytorch(threads)
    for name, (wall, cpu) in {"engine": ours, "PyTorch": theirs}.items():
        print(f"{threads} threads, {name}: {wall:,.0f} tokens/s, {cpu:,.0f} per processor second")
    assert ours[0] >= theirs[0], "PyTorch is faster"
