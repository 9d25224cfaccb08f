"""The settings of the engine, with their limits and their help.

Each class is a group of the help, whose heading is its `TITLE`. Names are vLLM's wherever they mean
the same. Choices, defaults and variables are added to the help from here.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from sampling.params import SEED_MAX, SEED_MIN, LogprobsMode
from server.command.values import Count, DtypeName, Json, Several


class ModelSettings(BaseModel):
    """The model and how it is run."""

    TITLE: ClassVar = "model"

    model: str | None = Field(
        None,
        description="The folder of the model, or its id on the Hugging Face hub. Without one the "
        "small model answers that comes with tailrace.",
    )
    revision: str | None = Field(
        None, description="The branch, tag or commit of a model that is named by its hub id."
    )
    tokenizer: str | None = Field(
        None, description="The folder or hub id of the tokenizer, where it is not the model's."
    )
    chat_template: str | None = Field(
        None,
        description="The file of a template for chats, or the template itself, to use instead of "
        "the model's own.",
    )
    decision_template: str | None = Field(
        None,
        description="The file of a template, or the template itself, for the words in which "
        "/v1/decisions and /v1/systemone ask their questions.",
    )
    rerank_template: str | None = Field(
        None,
        description="How /v1/rerank asks the model: qwen3, mxbai-v2 or bge-gemma, or the file of a "
        "template over query, document and instruction whose answer is yes or no. By default what "
        "the model's name asks for.",
    )
    served_model_name: Several = Field(
        [], description="The names that the model answers to. Replies carry the first."
    )
    dtype: DtypeName = Field(
        "auto",
        description="The type of the weights and of the computation. auto is the type of the "
        "checkpoint on a GPU and float32 on a CPU.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs. auto is the GPU where there is one."
    )
    load_format: Literal["auto", "safetensors", "dummy"] = Field(
        "auto",
        description="How weights are read. dummy reads none and fills the model with random "
        "numbers, to try a configuration.",
    )
    model_impl: Literal["auto", "fused", "transformers"] = Field(
        "auto",
        description="Which code runs the model: tailrace's own fused modules, or those of "
        "transformers. auto takes the fused ones for the architectures they know.",
    )
    quantization: Literal["none", "fp8"] = Field(
        "none",
        description="How weights are rounded when they are loaded. fp8 takes half of bfloat16's "
        "bytes: 8-bit floats with a scale an output channel, inputs rounded with a scale a token.",
    )
    hf_overrides: Json | None = Field(
        None,
        description="Values in place of those of the model's config.json, as JSON. Objects are "
        "merged.",
    )
    rope_scaling: Json | None = Field(
        None,
        description="The scaling of RoPE in place of the model's own, as JSON, such as "
        '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}. The '
        "context grows by the factor.",
    )
    max_model_len: Count | None = Field(
        None,
        ge=1,
        description="The most tokens of a prompt and its reply together. By default as many as "
        "the model and the KV cache allow.",
    )
    trust_remote_code: bool = Field(
        False, description="Run the Python code that comes with a model."
    )
    batch_invariant: bool = Field(
        False,
        description="Make the bits of every logit depend on the weights, the tokens before it and "
        "the class of device alone: not on other requests, on chunks, on cached prefixes or on "
        "drafts. Steps are slower.",
    )
    tensor_parallel_size: int = Field(
        1,
        description="The number of ranks, a process each, that compute every step together: 1, 2, "
        "4 or 8; on CUDA each has a GPU of its own.",
    )
    enforce_eager: bool = Field(
        False, description="Run every step without CUDA graphs, which is slower, to debug."
    )
    wait_for_kernels: bool = Field(
        False,
        description="Be ready only when FlashInfer's kernels are built, which takes minutes once. "
        "By default prompts are computed by tailrace's own kernel until then, with other "
        "roundings. Coupled drafts wait in any case.",
    )
    num_threads: int | None = Field(
        None, ge=1, description="The threads that compute on a CPU. By default torch decides."
    )


class CacheSettings(BaseModel):
    """The KV cache."""

    TITLE: ClassVar = "KV cache"

    gpu_memory_utilization: float = Field(
        0.9, gt=0, le=1, description="The share of the GPU's memory that the server may use."
    )
    cpu_kvcache_space: float = Field(
        1.0, gt=0, description="The size of the KV cache on a CPU, in GiB."
    )
    num_gpu_blocks_override: Count | None = Field(
        None, ge=2, description="The number of blocks of the KV cache, instead of measuring it."
    )
    block_size: int = Field(16, ge=1, description="The number of tokens in a block.")
    enable_prefix_caching: bool = Field(
        True, description="Reuse the blocks of prompts that begin alike."
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3"] = Field(
        "auto",
        description="How keys and values are stored. auto is the type of the computation; fp8, "
        "also written fp8_e4m3, 8-bit floats with a scale a head, which hold twice as many tokens "
        "and round them.",
    )


class SchedulingSettings(BaseModel):
    """Which requests run when."""

    TITLE: ClassVar = "scheduling"

    max_num_seqs: Count = Field(256, ge=1, description="The most choices that run at once.")
    max_num_batched_tokens: Count | None = Field(
        None,
        ge=1,
        description="The most tokens of a step. By default 8192 on a GPU and 512 on a CPU.",
    )
    enable_chunked_prefill: bool = Field(
        True, description="Split long prompts over several steps, so that others go on meanwhile."
    )
    max_gap_ms: float | None = Field(
        None,
        gt=0,
        description="The longest gap, in milliseconds, that prompts of others should make between "
        "two tokens of a reply: a step then computes fewer prompt tokens while replies grow, so "
        "that first tokens come later. By default throughput comes first.",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs",
        description="Who runs first: who came first, or who has the lowest priority value in the "
        "request.",
    )
    step_timeout: float = Field(
        300.0,
        gt=0,
        description="The seconds after which a step counts as hung and the server ends.",
    )


class SamplingSettings(BaseModel):
    """How tokens are drawn and what is reported of them."""

    TITLE: ClassVar = "sampling and log-probabilities"

    seed: int | None = Field(
        None,
        ge=SEED_MIN,
        le=SEED_MAX,
        description="Make the seeds of requests without one a sequence that repeats with the "
        "server's start. By default they are random.",
    )
    generation_config: Literal["neutral", "vllm", "auto"] = Field(
        "neutral",
        description="Where the defaults of sampling fields come from. auto takes those of the "
        "model's generation_config.json; the others change nothing that a request leaves out.",
    )
    use_fp64_gumbel: bool = Field(
        False,
        description="Draw float64 noise on every path, or refuse to start. FlashInfer's sampler "
        "is then never used.",
    )
    use_flashinfer_sampler: Literal["0", "1"] | None = Field(
        None,
        description="1 insists on FlashInfer's sampler for top-k and top-p, 0 refuses it. By "
        "default it is used where it is faster.",
    )
    max_logprobs: int = Field(
        20,
        ge=-1,
        description="The most top tokens that a request may ask for; -1 for any number. On a GPU "
        "and over ranks tokens that are drawn have at most 128, those of prompts any number.",
    )
    logprobs_mode: LogprobsMode = Field(
        "raw_logprobs",
        description="Which values are reported where a request does not say: those before or "
        "after penalties, temperature and filters, as log-probabilities or logits.",
    )


class SpeculationSettings(BaseModel):
    """Speculative decoding."""

    TITLE: ClassVar = "speculative decoding"

    speculative_config: Json | None = Field(
        None,
        description="A JSON object that says who drafts tokens and how they are verified, such as "
        '{"method": "ngram", "num_speculative_tokens": 4}. By default nobody drafts.',
    )
