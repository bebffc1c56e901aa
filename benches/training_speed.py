"""Trains the shipped model with PyTorch and with the engine, one after the other, same shape.

    python -m venv venv && venv/bin/pip install torch transformers peft
    venv/bin/python benches/training_speed.py

64 sequences of 64 tokens per step, LoRA of rank 32 on every projection and the head, AdamW,
two threads each. Prints tokens per second by the clock and per second of processor time.
"""

import re
import subprocess
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

THREADS, SECONDS = 2, 4.0


def pytorch():
    torch.set_num_threads(THREADS)
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


def engine():
    command = "cargo test --release --lib milestones::speed -- --ignored --nocapture"
    output = subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
    wall, cpu = re.search(r"training: (\d+) tokens/s, (\d+) per processor second", output).groups()
    return float(wall), float(cpu)


ours, theirs = engine(), pytorch()
for name, (wall, cpu) in {"engine": ours, "PyTorch": theirs}.items():
    print(f"{name}: {wall:,.0f} tokens/s, {cpu:,.0f} per processor second")
print(f"engine / PyTorch: {ours[0] / theirs[0]:.1f}, per processor second {ours[1] / theirs[1]:.1f}")
assert ours[1] >= theirs[1]
