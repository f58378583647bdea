# One file for CPU, GPU and TPU:
#
#   docker build -t fr3e .                               # CPU
#   docker build -t fr3e:gpu --build-arg DEVICE=gpu .    # NVIDIA, CUDA 12 (cuda13: CUDA 13); run it with --gpus all
#   docker build -t fr3e:tpu --build-arg DEVICE=tpu .    # Cloud TPU; run it with --privileged --net=host
#   docker run -v "$PWD:/work" fr3e train demo           # writes ./runs; another recipe: a path below the folder
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

# cpu, gpu, cuda13, tpu: the extras of pyproject.toml, and none for cpu.
ARG DEVICE=cpu

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# The packages first, so that a change of the code does not install them again. The lock file bounds what extras bring.
WORKDIR /opt/fr3e_jax
COPY requirements.lock ./
RUN pip install -r requirements.lock \
    && case "$DEVICE" in \
        cpu) ;; \
        gpu) pip install -c requirements.lock "jax[cuda12]" ;; \
        cuda13) pip install -c requirements.lock "jax[cuda13]" ;; \
        tpu) pip install -c requirements.lock "jax[tpu]" ;; \
        *) echo "DEVICE=$DEVICE is unknown; expected cpu, gpu, cuda13 or tpu" >&2; exit 1 ;; \
    esac

COPY pyproject.toml setup.py MANIFEST.in requirements.txt README.md LICENSE ./
COPY fr3e_jax fr3e_jax
COPY configs configs
COPY warm_starts warm_starts
COPY launch launch
RUN pip install --no-deps . && fr3e methods > /dev/null

# Runs, compiled programs and fetched models (~/.cache) stay in the mounted folder.
WORKDIR /work
ENV HOME=/work
ENTRYPOINT ["fr3e"]
CMD ["--help"]
