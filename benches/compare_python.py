"""One measurement of the official Python SDK, in a process of its own: CASE URL [FILE].

The cases are those of `benches/clients.rs`, with the same requests; prints one line of JSON.
`benches/compare.py` runs both in turns.
"""

import json
import logging
import os
import sys
import time
import warnings

logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")

SAMPLES, STEPS, GROUPS = 10_000, 200, (200, 16, 512)


def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def prompt(T):
    return T.ModelInput.from_ints([1000 + token for token in range(256)])


def batch(T, datums, tokens):
    def datum():
        inputs = {"target_tokens": [8] * tokens, "weights": [1.0] * tokens}
        return T.Datum(model_input=T.ModelInput.from_ints([7] * tokens), loss_fn_inputs=inputs)

    return [datum() for _ in range(datums)]


def prepare(case, file):
    """Everything before the clock starts; returns what is measured."""
    import tinker
    from tinker import types as T

    if case == "decode":
        from tinker.proto.response_conv import deserialize_sample_response

        body = open(file, "rb").read()
        return lambda: deserialize_sample_response(body)

    service = tinker.ServiceClient()
    if case in ("sample", "groups", "idle", "first"):
        prompts, samples, tokens = (SAMPLES, 1, 64) if case == "sample" else GROUPS
        params = T.SamplingParams(max_tokens=64)

        def one(sampler):
            sampler.sample(prompt=prompt(T), num_samples=1, sampling_params=params).result()

        if case == "first":
            return lambda: one(service.create_sampling_client(base_model="m"))
        sampler = service.create_sampling_client(base_model="m")
        one(sampler)
        if case == "idle":
            return lambda: time.sleep(30)
        params = T.SamplingParams(max_tokens=tokens)

        def run():
            open_ = [
                sampler.sample(prompt=prompt(T), num_samples=samples, sampling_params=params)
                for _ in range(prompts)
            ]
            assert all(len(each.result().sequences) == samples for each in open_)

        return run

    training = service.create_lora_training_client(base_model="m", rank=4)
    data = batch(T, 1024, 4096) if case == "big" else batch(T, 32, 512)
    training.forward_backward(data[:1], "cross_entropy").result()
    if case == "big":
        return lambda: training.forward_backward(data, "cross_entropy").result()

    def steps():
        for _ in range(STEPS):
            gradients = training.forward_backward(data, "cross_entropy")
            update = training.optim_step(T.AdamParams())
            gradients.result()
            update.result()

    return steps


def main():
    case, url, *file = sys.argv[1:]
    os.environ.update(TINKER_BASE_URL=url, TINKER_API_KEY="tml-bench")
    run = prepare(case, *file or [None])
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    figures = {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "peak": peak(),
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)


main()
