"""The inference engine: requests in, tokens and logprobs out, in a process of its own.

Rooms from the bottom to the top, each importing only the rooms before it and the contracts:

- `contracts` and single modules: what rooms share. `request`, `codec`, `submission` and `stats`
  cross to frontends; `config`, `speculative_config`, `errors`, `logs` and `progress` concern the
  start; `plan`, `rows`, `batch`, `blocks` and `buffers` are a step's.
- `kernels`: Triton kernels of the model and of a step's inputs.
- `attention`: attention over the paged KV cache.
- `models`: checkpoints, the fused models and the fallback to transformers.
- `speculation`: drafters.
- `planning`: who runs, and what a result means; no torch.
- `scoring`: requests for label probabilities; no torch.
- `engine`: the loop over planning, scoring and a runner.
- `runner`: runs a plan on the device.
- `startup`: builds an engine of a configuration.
- `process`, `client`: the two ends of the socket between the engine and its frontends.
"""
