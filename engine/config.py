"""The engine's configuration, validated when it is made. Reads no environment variables."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import structs

from engine.errors import ConfigError as ConfigError  # speculation's config raises it too
from engine.logs import LogFormat
from engine.speculative_config import SpeculativeConfig
from sampling.params import LogprobsMode

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Device = Literal["auto", "cpu", "cuda"]
CacheDtype = Literal["auto", "fp8"]
FlashInferSampler = Literal["auto", "always", "never"]

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model, its arithmetic and its device.

    Attributes:
        model: folder or hub id of the model.
        revision: branch, tag or commit of a hub id; None is the default branch.
        dtype: "auto" is the checkpoint's dtype on CUDA and float32 on CPU.
        device: "auto" is CUDA where torch finds a GPU, else CPU.
        load_format: "dummy" makes random weights from the model's config alone.
        model_impl: "fused" is this project's code for the model, "transformers" that library's;
            "auto" takes the former where it supports the model.
        quantization: "fp8" rounds the weights of the layers' products to float8 at load, a scale an
            output channel, and their inputs in each step, a scale a token; None changes nothing.
        max_model_len: context length in tokens; None takes the model's.
        trust_remote_code: run modelling code that comes with the model.
        hf_overrides: values in place of those of the model's config.json.
        batch_invariant: the bits of a position's logits depend on the weights, on the tokens up to
            it and on the class of device alone (`--batch-invariant`).
        returns_routes: replies can say which experts tokens took.
    """

    model: str
    revision: str | None = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    model_impl: Literal["auto", "fused", "transformers"] = "auto"
    quantization: Literal["fp8"] | None = None
    max_model_len: int | None = None
    trust_remote_code: bool = False
    hf_overrides: dict[str, Any] = {}
    batch_invariant: bool = False
    returns_routes: bool = False


MAX_ADAPTER_RANK = 256
"""The largest rank of an adapter that kernels multiply."""


class AdaptersConfig(msgspec.Struct, frozen=True, kw_only=True):
    """LoRA adapters that are served beside the model.

    Attributes:
        max_loras: adapters that rows of one step can have, which are on the device at once.
        max_rank: the largest rank of one.
        max_cpu_loras: adapters on the host at most; others are read again when they are asked for.
            None keeps all.
        modules: names and folders of those that are there from the start.
        target_modules: names of the model's modules, or ends of them, that adapters may change;
            None is all.
    """

    max_loras: int = 1
    max_rank: int = 16
    max_cpu_loras: int | None = None
    modules: tuple[tuple[str, str], ...] = ()
    target_modules: tuple[str, ...] | None = None


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The paged KV cache.

    Attributes:
        block_size: tokens in a block.
        num_blocks: number of blocks; None sizes the cache from memory.
        num_snapshots: snapshots of rows' states; None sizes them with the blocks.
        memory_utilization: share of the GPU's memory that the server may use.
        cpu_bytes: size of the cache on CPU where num_blocks is None.
        prefix_caching: reuse blocks of equal prefixes.
        dtype: "fp8" stores keys and values in float8, a scale a head; "auto" in the model's dtype.
    """

    block_size: int = 16
    num_blocks: int | None = None
    num_snapshots: int | None = None
    memory_utilization: float = 0.9
    cpu_bytes: int = 1 << 30
    prefix_caching: bool = True
    dtype: CacheDtype = "auto"


CPU_STEP_TOKENS, GPU_STEP_TOKENS = 512, 8192
"""Whoever comes while a step computes waits for its end and for that of the step issued after it.
On a CPU core 2048 tokens of the demo model take 0.2 s, and are computed no faster than 4 x 512."""

CPU_WHOLE_PROMPT_TOKENS = 2048
"""The budget where prompts are not split over steps."""

CPU_BURST_ROWS = 32


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The choices that run and the tokens of a step.

    Attributes:
        max_rows: choices running at once (`--max-num-seqs`).
        max_step_tokens: token budget of a step (`--max-num-batched-tokens`); None takes the
            default of the device.
        burst_rows: choices that one step may admit, or twice as many as run. A burst fills the rows
            over some steps, so that its first ones are short.
        chunked_prefill: split prompts over steps; where off, a prompt must fit into one step.
        max_gap_s: the longest that a step should last in which rows decode: it bounds the prompt
            tokens beside them (`--max-gap-ms`); None bounds them by the budget alone.
        policy: "priority" orders by (priority, turn); "fcfs" by turn, `engine.rows.Choice.turn`.
    """

    max_rows: int = 256
    max_step_tokens: int | None = None
    burst_rows: int = CPU_BURST_ROWS
    chunked_prefill: bool = True
    max_gap_s: float | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"

    @property
    def step_tokens(self) -> int:
        """The token budget of a step."""
        if self.max_step_tokens is not None:
            return self.max_step_tokens
        budget = CPU_STEP_TOKENS if self.chunked_prefill else CPU_WHOLE_PROMPT_TOKENS
        return max(budget, self.max_rows)

    def on_gpu(self) -> SchedulerConfig:
        """The same with a GPU's defaults: larger steps, since each costs more to launch."""
        budget = self.max_step_tokens or max(GPU_STEP_TOKENS, self.max_rows)
        return structs.replace(self, max_step_tokens=budget, burst_rows=self.max_rows)


class SamplingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the sampler.

    Attributes:
        use_fp64_gumbel: draw float64 noise on every path, or fail at startup.
        flashinfer: whether FlashInfer's sampler may serve rows (`TAILRACE_USE_FLASHINFER_SAMPLER`).
        max_logprobs: top tokens a request may ask for; -1 for no limit.
        logprobs_mode: the mode of requests that name none.
        seed: begins the sequence of seeds of requests that name none; None draws them at random.
    """

    use_fp64_gumbel: bool = False
    flashinfer: FlashInferSampler = "auto"
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int | None = None


class GrammarLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what one grammar may cost, since a thread that compiles it cannot be stopped.

    All but the first are llguidance's own, `LLParserLimits`.

    Attributes:
        max_source_bytes: size of a grammar's source.
        max_grammar_size: symbols of its productions.
        initial_lexer_fuel: work of building its regular expressions, some 50,000 a millisecond.
        max_lexer_states: states of its lexer, 1 to 2 KiB each.
        max_items_in_row: alternatives open at one byte.
        step_lexer_fuel: work of the lexer for one mask, some 14,000 a millisecond.
        step_max_items: parser items for one mask, some 20,000 a millisecond.
    """

    max_source_bytes: int = 1 << 20
    max_grammar_size: int = 500_000
    initial_lexer_fuel: int = 1_000_000
    max_lexer_states: int = 50_000
    max_items_in_row: int = 2_000
    step_lexer_fuel: int = 200_000
    step_max_items: int = 50_000


class StructuredConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Generation under grammars, which needs the texts of the model's tokens.

    Attributes:
        tokenizer: folder or hub id of the tokenizer.
        revision: branch, tag or commit of a hub id; None is the default branch.
        trust_remote_code: run tokenizer code that comes with it.
        mask_threads: threads that fill masks; None is all CPUs but one, 32 at most.
        compile_threads: grammars compiled at a time; None is a quarter of all CPUs, 2 to 8.
        cache_size: compiled grammars that are kept; None is two for each row, and at least 128, so
            that a batch with a schema a row finds them all again.
        limits: of one grammar.
    """

    tokenizer: str
    revision: str | None = None
    trust_remote_code: bool = False
    mask_threads: int | None = None
    compile_threads: int | None = None
    cache_size: int | None = None
    limits: GrammarLimits = GrammarLimits()


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration of an engine process.

    Attributes:
        structured: generation under grammars; None serves none.
        adapters: LoRA adapters (`--enable-lora`); None serves none.
        tensor_parallel_size: ranks that compute each step together, a process each.
        cuda_graphs: replay decode steps from CUDA graphs (`--enforce-eager` turns them off).
        wait_for_kernels: serve only when FlashInfer's modules are built, so that no step's bits
            change while the server runs (`--wait-for-kernels`).
        num_threads: torch threads on CPU; None leaves torch's choice.
        step_timeout_s: seconds after which a step counts as hung.
        sleep_mode: weights and cache lie where their memory can be given back.
        report_times: outputs report when their choices were queued, started and drew.
        log_level: least level of the engine's log lines.
        log_format: what its log lines look like.
    """

    model: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    sampling: SamplingConfig = SamplingConfig()
    speculation: SpeculativeConfig | None = None
    structured: StructuredConfig | None = None
    adapters: AdaptersConfig | None = None
    tensor_parallel_size: int = 1
    cuda_graphs: bool = True
    wait_for_kernels: bool = False
    num_threads: int | None = None
    step_timeout_s: float = 300.0
    sleep_mode: bool = False
    report_times: bool = False
    log_level: str = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        _at_least("--max-num-seqs", self.scheduler.max_rows, 1)
        _at_least("--max-num-batched-tokens", self.scheduler.step_tokens, 1)
        _at_least("--block-size", self.cache.block_size, 1)
        if self.scheduler.step_tokens < self.scheduler.max_rows:
            raise ConfigError(
                f"--max-num-batched-tokens ({self.scheduler.step_tokens}) must be at least "
                f"--max-num-seqs ({self.scheduler.max_rows}), one token a row"
            )
        if self.speculation is not None:
            num_drafts = self.speculation.num_speculative_tokens
            _at_least("--max-num-batched-tokens", self.scheduler.step_tokens, 1 + num_drafts)
        if self.scheduler.max_gap_s is not None and not self.scheduler.chunked_prefill:
            gap_ms = 1e3 * self.scheduler.max_gap_s
            raise ConfigError(
                f"--max-gap-ms {gap_ms:g} cuts prompts into chunks: leave out "
                "--no-enable-chunked-prefill"
            )
        if self.adapters is not None:
            _check_adapters(self.adapters)
        if self.cache.num_blocks is not None:
            _at_least("--num-gpu-blocks-override", self.cache.num_blocks, 2)
        if self.tensor_parallel_size not in TENSOR_PARALLEL_SIZES:
            raise ConfigError(
                f"--tensor-parallel-size must be 1, 2, 4 or 8, got {self.tensor_parallel_size}"
            )
        if self.model.batch_invariant:
            self._check_invariance()
        if not 0.0 < self.cache.memory_utilization <= 1.0:
            raise ConfigError(
                f"--gpu-memory-utilization must be in (0, 1], got {self.cache.memory_utilization}"
            )

    def _check_invariance(self) -> None:
        """Refuse what cannot keep the promise of `--batch-invariant`."""
        lacks = {
            "--model-impl transformers": self.model.model_impl == "transformers",
            "TAILRACE_USE_FLASHINFER_SAMPLER=1": self.sampling.flashinfer == "always",
        }
        for flag, is_given in lacks.items():
            if is_given:
                raise ConfigError(
                    f"--batch-invariant cannot be promised with {flag}; leave one out"
                )


def _at_least(flag: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(f"{flag} must be at least {low}, got {value}")


def _check_adapters(adapters: AdaptersConfig) -> None:
    _at_least("--max-loras", adapters.max_loras, 1)
    if not 1 <= adapters.max_rank <= MAX_ADAPTER_RANK:
        raise ConfigError(
            f"--max-lora-rank must be from 1 to {MAX_ADAPTER_RANK}, got {adapters.max_rank}"
        )
    if adapters.max_cpu_loras is not None and adapters.max_cpu_loras < adapters.max_loras:
        raise ConfigError(
            f"--max-cpu-loras ({adapters.max_cpu_loras}) must be at least --max-loras "
            f"({adapters.max_loras})"
        )
