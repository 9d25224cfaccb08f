"""What the commands of `tailrace` do.

`parser` makes flags of the settings (`engine_settings`, `http_settings`, of the kinds in `values`)
and of vLLM's flags that change nothing (`vllm_flags`); `settings` reads flags, environment and
file; `configure` makes the configurations of engine and server of them; `models` checks that the
models they name can be found. `serve` runs the server: it binds the address (`listen`), sets the
log up (`logs`), shows the engine's start (`progress`), answers, drains and ends. `bench` measures a
server, by the flags in `bench_flags`.
"""
