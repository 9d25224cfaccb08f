"""TRL's client for vLLM, or its GRPO trainer in server mode: WHAT ADDRESS FOLDER PORT.

WHAT is `calls` or `train`; what came of it is printed as JSON.

Two things differ from a machine with GPUs. `vllm` is the stand-in of this folder's neighbor, which
broadcasts over gloo. And the trainer would give the client its own device, a CPU, which the client
refuses; it is given `cuda` without an index, with which it calls nothing of CUDA.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.generation.vllm_client import VLLMClient

MAX_TOKENS = 8


def client_calls(client: VLLMClient, folder: str) -> dict[str, Any]:
    """What the client's calls give, before and after an update by all weights doubled."""
    prompts, wish = [[40, 41, 42], [50, 51]], {"n": 2, "max_tokens": 4, "temperature": 0.0}
    found = {"before": client.generate(prompts, **wish)}
    messages = [[{"role": "user", "content": "Hello"}]]
    found["chat"] = client.chat(messages, max_tokens=4, temperature=0.0)
    sequences = [[40, 41, 42, 43, 44], [50, 51, 52]]
    found["teacher"] = client.get_sequence_logprobs(sequences, [3, 1], top_logprobs=5)
    client.init_communicator(device="cuda")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own = {name: param.data for name, param in model.named_parameters()}
    for param in own.values():
        param.mul_(1.25)
    client.update_model_params(model)
    client.reset_prefix_cache()
    found["after"] = client.generate(prompts, **wish)
    with client.weight_update():
        for name, param in own.items():
            client.update_named_param(name, param / 1.25)
    client.reset_prefix_cache()
    found["restored"] = client.generate(prompts, **wish)
    client.close_communicator()
    return found


def reward(completions: list[Any], **others: Any) -> list[float]:
    return [float(len(set(str(completion)))) for completion in completions]


def train(url: str, folder: str, port: int) -> list[dict[str, Any]]:
    """Two steps of GRPO; what the trainer logs of each."""
    init_communicator = VLLMClient.init_communicator
    VLLMClient.init_communicator = lambda self, device: init_communicator(self, "cuda")
    config = GRPOConfig(
        output_dir="unused",
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=url,
        vllm_group_port=port,
        use_cpu=True,
        bf16=False,
        model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=MAX_TOKENS,
        max_steps=2,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    data = Dataset.from_dict({"prompt": ["def f(", "import os", "class A:", "return "] * 2})
    trainer = GRPOTrainer(model=folder, reward_funcs=reward, args=config, train_dataset=data)
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def main() -> None:
    what, url, folder, port = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if what == "train":
        print(json.dumps(train(url, folder, port)))
        return
    client = VLLMClient(base_url=url, group_port=port, connection_timeout=60)
    info = client.get_server_info()
    found = {"world_size": client.get_world_size(), "info": info, **client_calls(client, folder)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
