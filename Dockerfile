# syntax=docker/dockerfile:1
# Two images from one file:
#   docker build --target cpu  -t tailrace:cpu .
#   docker build --target cuda -t tailrace .
# The entry point is the server, so arguments follow the image's name:
#   docker run --gpus all --ipc=host -p 8000:8000 tailrace MODEL --use-fp64-gumbel

ARG CUDA=13.0.2
ARG UBUNTU=24.04

# -- CPU ----------------------------------------------------------------------------------------
FROM python:3.12-slim AS cpu-build
RUN apt-get update && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
# A package index that has CPU builds of torch keeps several GB of CUDA libraries out.
ARG TORCH_INDEX=
WORKDIR /src
COPY Makefile pyproject.toml README.md LICENSE tailrace_command.py ./
# Dependencies first: this layer is kept while only our own code changes.
RUN make skeleton && PIP_EXTRA_INDEX_URL=$TORCH_INDEX make install VENV=/opt/tailrace EXTRAS='[otel]'
COPY . .
RUN make install VENV=/opt/tailrace EXTRAS='[otel]'

FROM python:3.12-slim AS cpu
COPY --from=cpu-build /opt/tailrace /opt/tailrace
RUN useradd --uid 1000 --create-home tailrace
# By number, so that Kubernetes can tell that it is not root.
USER 1000
WORKDIR /home/tailrace
ENV PATH=/opt/tailrace/bin:$PATH PYTHONUNBUFFERED=1 TAILRACE_HOST=0.0.0.0
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=8s --start-period=120s \
    CMD ["tailrace", "health"]
ENTRYPOINT ["tailrace", "serve"]

# -- CUDA ---------------------------------------------------------------------------------------
FROM nvidia/cuda:${CUDA}-devel-ubuntu${UBUNTU} AS cuda-build
RUN apt-get update && apt-get install -y --no-install-recommends \
    python3 python3-dev python3-venv make ninja-build && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Makefile pyproject.toml README.md LICENSE tailrace_command.py ./
RUN make skeleton && make install VENV=/opt/tailrace EXTRAS='[cuda,otel]'
COPY . .
RUN make install VENV=/opt/tailrace EXTRAS='[cuda,otel]'
# FlashInfer's modules for the GPUs named here are compiled now, never inside a request.
ARG CUDA_ARCHS="8.0 8.6 8.9 9.0a 10.0a 12.0a"
ENV FLASHINFER_CUDA_ARCH_LIST=$CUDA_ARCHS FLASHINFER_WORKSPACE_BASE=/opt/kernels
RUN make kernels VENV=/opt/tailrace

FROM nvidia/cuda:${CUDA}-base-ubuntu${UBUNTU} AS cuda
# Triton's launchers are compiled with the C compiler of the machine that runs them.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=cuda-build /opt/tailrace /opt/tailrace
# Ubuntu's image has a user 1000 already.
RUN userdel --remove ubuntu && useradd --uid 1000 --create-home tailrace
COPY --from=cuda-build --chown=tailrace /opt/kernels /opt/kernels
USER 1000
WORKDIR /home/tailrace
ARG CUDA_ARCHS="8.0 8.6 8.9 9.0a 10.0a 12.0a"
ENV PATH=/opt/tailrace/bin:$PATH PYTHONUNBUFFERED=1 TAILRACE_HOST=0.0.0.0 \
    FLASHINFER_CUDA_ARCH_LIST=$CUDA_ARCHS FLASHINFER_WORKSPACE_BASE=/opt/kernels
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=8s --start-period=300s \
    CMD ["tailrace", "health"]
ENTRYPOINT ["tailrace", "serve"]
