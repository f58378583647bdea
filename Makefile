# `make demo` trains the recipe that does best on a hard task for its time, and `make test` runs the tests. Both make .venv if it is missing.
# For another interpreter run `make PYTHON=python3.12 demo`, only when .venv does not exist yet.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# tests/conftest.py orders the files, so xdist shall not. A worker that dies ends the tests at once; without
# --max-worker-restart, pytest-xdist can wait for ever.
WORKERS := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
PYTEST := $(BIN)/python -m pytest $(WORKERS)

PARITY := .venv-parity
DOCS := .venv-docs

# The last line of the demo: configs/experiments/order_9/grpo.yaml (docs/users/results.md).
GRPO_BESIDE_IT := For comparison, GRPO++ with the same start ends at avg@16 8 to 11 % after as many sampled tokens (five seeds), \
	and at 14 to 20 % after about as many CPU seconds, with 2.4 million tokens (five seeds).

.PHONY: demo real-model test test-slow test-campaign test-long test-8 test-gpu test-optimised test-parity test-plan libtpu cuda-plan lint types docs lock

demo: $(VENV)/.installed
	$(BIN)/fr3e train configs/demo.yaml
	@echo "$(GRPO_BESIDE_IT)"

# SmolLM2-135M, fine-tuned to count letters and trained by rewards, in hours; docs/users/real_model.md says what comes of it. After a stop,
# the same command goes on.
real-model: models/counting/config.json
	$(BIN)/fr3e train configs/char_count.yaml --continue model.path=models/counting runtime.run_dir=runs/char_count

models/counting/config.json: | models/smollm2/tokenizer_config.json
	$(BIN)/fr3e sft configs/char_count.yaml --continue model.path=models/smollm2 \
		evaluation.start=false evaluation.end=false sft.output=models/counting runtime.run_dir=runs/char_count_sft

models/smollm2/tokenizer_config.json: | $(VENV)/.installed
	$(BIN)/python -m pip install --quiet gguf
	$(BIN)/python benchmarks/smollm2.py models/smollm2

test: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not campaign"

test-slow: $(VENV)/.installed-dev
	$(PYTEST) -m slow

# Kills, signals, damaged files, faulty verifiers, full disks, two writers. FR3E_CAMPAIGN_CASES multiplies the seeds of
# each fault, FR3E_CAMPAIGN_EXAMPLES sets the inputs of each reader.
test-campaign: $(VENV)/.installed-dev
	$(PYTEST) -m campaign tests/campaign

# Both in one session: they share runs and programs.
test-long: $(VENV)/.installed-dev
	$(PYTEST) -m "slow or campaign"

# Tests in which optimised code could round differently: sampling with any slots and lanes, shared rows' scores and
# gradients.
test-optimised: $(VENV)/.installed-dev
	FR3E_TEST_OPTIMISED=1 $(PYTEST) -m "not slow" tests/rollouts/test_engine.py tests/policy/test_rows.py \
		-k "changes_no_rollout or change_no_rollout or full_forward or flattened or do_not_depend"

# On eight virtual devices: the programs on their meshes, and what places arrays or counts shards around them.
test-8: $(VENV)/.installed-dev
	FR3E_TEST_DEVICES=8 $(PYTEST) -m "not slow" $(ON_EIGHT_DEVICES)

ON_EIGHT_DEVICES := tests/policy/test_huggingface.py \
	$(addprefix tests/programs/test_, checksums.py context_axis.py critic.py decode.py decode_memory.py every_mesh.py \
		expert_axis.py fused_rows.py fused_steps.py mesh.py mesh_programs.py replicas.py reshard.py train_programs.py \
		trunk_gradients.py) \
	$(addprefix tests/rollouts/test_, engine.py router_replay.py tool_calls.py declared_shapes.py) \
	$(addprefix tests/learning/test_, update.py learner.py reference.py batch_shaping.py) \
	$(addprefix tests/loop/test_, train.py resume.py evaluate.py kept_bases.py lora_runs.py int8_runs.py expert_runs.py sampling_ahead.py) \
	$(addprefix tests/verbs/test_, export.py sft.py rft.py compile.py) \
	$(addprefix tests/runs/test_, checkpoints.py compilation.py)

# Parity with torch and transformers. Without these packages the tests fail, because the variable is set; `make test`
# skips them.
test-parity: $(PARITY)/.installed
	FR3E_REQUIRE_TORCH=1 $(PARITY)/bin/python -m pytest $(WORKERS) \
		tests/policy/test_transformers_parity.py tests/policy/test_peft_parity.py tests/rollouts/test_transformers_generation.py \
		tests/verbs/test_smollm2.py::test_weights_configuration_and_tokenizer_are_those_that_transformers_reads \
		tests/loop/test_end_to_end.py::test_transformers_loads_the_export_without_a_warning_and_gives_equal_logits

# The fused kernels on the GPU of this machine, against matrix products in float32; `make test` runs them as jax operations.
# It needs jax's GPU packages in .venv (docs/users/on_a_gpu.md).
test-gpu: $(VENV)/.installed-dev
	JAX_PLATFORMS=cuda JAX_DEFAULT_MATMUL_PRECISION=highest XLA_PYTHON_CLIENT_PREALLOCATE=false FR3E_TEST_OPTIMISED=1 \
		$(PYTEST) -W ignore::DeprecationWarning tests/policy/test_fused_attention.py tests/programs/test_fused_steps.py

# `fr3e plan` on small topologies, compiled by libtpu and by the CUDA plugin. Without these the tests fail, because the
# variable is set; `make test-slow` skips them.
test-plan: $(VENV)/.installed-dev $(VENV)/libtpu/.installed $(VENV)/cuda-plan/.installed
	FR3E_REQUIRE_COMPILERS=1 FR3E_TEST_OPTIMISED=1 $(BIN)/python -m pytest -m slow tests/planning

# The compiler of TPU programs (0.7 GB on disk), for `fr3e plan` on a machine without a TPU. It lies outside of
# site-packages; from there jax would look for a TPU in every process.
libtpu: $(VENV)/libtpu/.installed

# The compiler of GPU programs (0.6 GB on disk), for `fr3e plan` on a machine without a GPU.
cuda-plan: $(VENV)/cuda-plan/.installed

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy checks the modules that pyproject.toml names under [tool.mypy].
types: $(VENV)/.installed-dev
	$(BIN)/mypy

# The site of the documentation, in build/site: the pages of docs/ and the reference from docstrings. A broken link or
# reference fails.
docs: $(DOCS)/.installed
	$(DOCS)/bin/python docs/build_site.py

# The lock files name the same packages for every platform and every Python from 3.11 on.
lock: $(VENV)/.installed
	$(call compile,requirements.txt -o requirements.lock)
	$(call compile,requirements.txt requirements-dev.txt -c requirements.lock -o requirements-dev.lock)
	$(call compile,requirements-docs.txt -o requirements-docs.lock)

# uv takes half a minute, and pip takes minutes. pip is used where uv cannot be installed.
define install
	@if $(BIN)/python -m uv --version >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet uv; then \
		$(BIN)/python -m uv pip install --python $(BIN)/python $(1); \
	else \
		echo "uv could not be installed; going on with pip, which takes a few minutes longer"; \
		$(BIN)/python -m pip install $(1); \
	fi
endef

# uv leaves bytecode to the first import, which writes none where PYTHONDONTWRITEBYTECODE is set: each start would then
# compile 2,000 files, for 4 s.
BYTECODE = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c "import fr3e_jax.cli, fr3e_jax.loop.train, tensorboardX"

define compile
	$(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url \
		--no-emit-find-links --custom-compile-command "make lock" $(1)
endef

$(VENV)/.created:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed, this is ' + sys.version.split()[0] + '; try make PYTHON=python3.12')"
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: requirements.lock pyproject.toml $(VENV)/.created
	$(call install,-r requirements.lock)
	$(call install,--no-deps --editable .)
	$(BYTECODE)
	touch $@

$(VENV)/.installed-dev: requirements-dev.lock $(VENV)/.installed
	$(call install,-r requirements-dev.lock)
	touch $@

$(VENV)/libtpu/.installed: requirements-plan.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/libtpu -r requirements-plan.txt
	touch $@

$(VENV)/cuda-plan/.installed: requirements-cuda-plan.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/cuda-plan -r requirements-cuda-plan.txt
	touch $@

# torch has an environment of its own, which finds all other packages in .venv through a path file. pip installs torch,
# because pip picks the build for CPUs.
$(PARITY)/.installed: requirements-torch.txt $(VENV)/.installed-dev
	test -x $(PARITY)/bin/pip || $(BIN)/python -m venv $(PARITY)
	@$(PARITY)/bin/python -c "import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), \
		'main_environment.pth').write_text('import site; site.addsitedir(%r)' % sys.argv[1])" \
		"$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
	$(PARITY)/bin/python -m pip install --quiet -r requirements-torch.txt
	touch $@

$(DOCS)/.installed: requirements-docs.lock $(VENV)/.created
	test -x $(DOCS)/bin/pip || $(BIN)/python -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet -r requirements-docs.lock
	touch $@
