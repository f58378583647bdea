"""The text of a plan, as `fr3e plan` prints it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fr3e_jax.planning.compile import GIB, ProgramPlan
from fr3e_jax.planning.estimate import SAMPLING
from fr3e_jax.planning.plan import Plan
from fr3e_jax.planning.step_time import Expected


def gib(count: float) -> str:
    """Bytes as GiB with three or four digits, without the unit: ``26.4``."""
    return f"{count / GIB:.2f}" if count < 10 * GIB else f"{count / GIB:.1f}"


def seconds(value: float) -> str:
    """A duration with three digits and a fitting unit: ``13.7 ms``."""
    for unit, size in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if value >= size:
            return f"{digits(value / size)} {unit}"
    return f"{digits(value * 1e6)} us"


def amount(value: float) -> str:
    """A number with three digits and a suffix: ``1.2M``, ``35.1T``."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{digits(value / size)}{unit}"
    return digits(value)


def digits(value: float) -> str:
    """A number with three digits, whole where it is larger, without an exponent: ``0.0123``, ``57.9``, ``1,024``."""
    return f"{value:,.0f}" if value >= 99.95 else np.format_float_positional(value, 3, fractional=False, trim="-")


def progress_text(program: ProgramPlan) -> str:
    """A line for a program that was compiled."""
    used = f"{gib(program.total_bytes)} GiB ({program.share:.0%})"
    return f"{program.name}: {used}, compiled in {seconds(program.compile_seconds)}"


def plan_text(plan: Plan) -> str:
    """The text of a plan: programs, advice for those that do not fit, and the training step."""
    return "\n".join([*_heading(plan), *_programs(plan), *_misfits(plan), *_step(plan), *_verdict(plan)])


def _heading(plan: Plan) -> Iterator[str]:
    mesh, roll = plan.mesh, plan.rollout_mesh
    how = "ESTIMATED by arithmetic, nothing compiled" if plan.estimated else "compiled for the topology"
    yield f"{plan.recipe} ({plan.algorithm}) on {plan.topology}: {plan.devices} device{'s' * (plan.devices > 1)}, {how}"
    layout = f"{amount(plan.parameters)} parameters; training replica {mesh.replica} x fsdp {mesh.fsdp} x "
    layout += f"expert {mesh.expert} x " if mesh.expert > 1 else ""
    layout += f"context {mesh.context} x " if mesh.context > 1 else ""
    layout += f"tensor {mesh.tensor}"
    if roll != mesh:
        layout += f"; rollouts replica {roll.replica} x fsdp {roll.fsdp} x tensor {roll.tensor}"
    yield layout
    if plan.sampler_devices:
        yield (
            f"{', '.join(p.name for p in plan.programs if p.name in SAMPLING)}: on {plan.sampler_devices} devices that "
            f"only sample; the other programs: on the {plan.devices - plan.sampler_devices} that train"
        )
    yield ""


def _programs(plan: Plan) -> Iterator[str]:
    hbm = plan.programs[0].hbm_bytes
    yield f"GiB per device (of {gib(hbm)})"
    columns = (
        "arguments",
        "temporaries",
        "peak",
        "beside it",
        "total",
        "HBM",
        "FLOPs",
        "sent",
        "floor",
        "limited by",
    )
    yield f"{'':<11}" + "".join(f"{column:>13}" for column in columns)
    for p in plan.programs:
        compiled = [gib(p.argument_bytes), gib(p.temporary_bytes)] if not p.estimated else ["", ""]
        beside = sum(p.resident.values())
        sent = p.sent_bytes + p.sent_between_slices
        cells = [*compiled, gib(p.peak_bytes), gib(beside), gib(p.total_bytes), f"{p.share:.0%}"]
        cells += [amount(p.flops), gib(sent), seconds(p.floor_seconds), p.dominated_by]
        verdict = "" if p.fits else "  DOES NOT FIT"
        yield f"{p.name:<11}" + "".join(f"{cell:>13}" for cell in cells) + verdict
    yield "peak: of the program; beside it: what stays of the run, by estimate; total: both, with its share of the HBM"
    yield "FLOPs: of all devices; sent: by one of them; floor: least time of a call at published peaks; all by estimate"
    yield ""
    for p in plan.programs:
        if p.shape:
            yield f"{p.name:<11}{p.shape}"
    yield ""


def _misfits(plan: Plan) -> Iterator[str]:
    for p in plan.programs:
        if p.fits:
            continue
        yield _why(p)
        yield (
            "  largest: " + ", ".join(f"{name} {gib(size)}" for name, size in p.largest.items()) + " (GiB, estimated)"
        )
        changes = plan.advice.get(p.name, [])
        for change in changes:
            note = "" if change.keeps_results else ", changes the results"
            yield f"  change: {change}  (saves about {gib(change.saved_bytes)} GiB{note})"
        if not changes:
            yield "  no single setting helps: plan a larger topology"
        yield ""


def _why(p: ProgramPlan) -> str:
    text, beside = f"{p.name}{' alone' * p.refused} needs {gib(p.peak_bytes)} GiB", sum(p.resident.values())
    if beside:
        text += f" beside {gib(beside)} GiB of {', '.join(p.resident)}: {gib(p.total_bytes)} GiB"
    return f"{text} on a device that has {gib(p.hbm_bytes)}"


def _step(plan: Plan) -> Iterator[str]:
    if plan.amounts is None:
        return
    a, assumed = plan.amounts, plan.assumed
    yield (
        f"one training step, responses of {assumed.response_tokens} tokens, "
        f"{assumed.kept_share:.0%} of the prompts kept:"
    )
    explored = f", {amount(a.explored_tokens)} of them in {a.explored_rollouts:.0f} rollouts from anchors"
    yield (
        f"  samples {amount(a.sampled_tokens)} tokens from {digits(a.prompts)} prompts"
        + (explored if a.explored_tokens else "")
    )
    if plan.route_bytes:
        size = gib(plan.route_bytes * (a.sampled_tokens + a.prefill_positions))
        yield f"  records the experts of each token: {plan.route_bytes} bytes a token, {size} GiB on the host"
    yield (
        f"  trains {amount(a.loss_tokens)} tokens of {a.trained_rollouts} rollouts in {a.updates} updates: "
        f"{amount(a.trained_positions)} positions pass the network, "
        f"{amount(a.flattened_positions)} would without shared prefixes"
    )
    total = plan.step_seconds
    yield f"  takes at least {seconds(total)}, {amount(a.sampled_tokens / total)} sampled tokens/s at most:"
    if plan.sampler_devices:
        sides = {stage.beside for stage in plan.stages if stage.beside}
        times = [
            f"{side} at least {seconds(sum(stage.seconds for stage in plan.stages if stage.beside == side))}"
            for side in sorted(sides)
        ]
        yield f"  devices of their own sample the next batch meanwhile, so the longer counts: {', '.join(times)}"
    busy = f"{a.base_lanes:.0%} of base rollouts"
    busy += f", {a.explored_lanes:.0%} of rollouts from anchors" if a.explored_tokens else ""
    yield f"  a round waits for its longest response, so lanes sample in this share of their steps: {busy}"
    for stage in sorted(plan.stages, key=lambda stage: -stage.seconds):
        yield (
            f"    {stage.name:<11}{seconds(stage.seconds):>10} {stage.seconds / total:>5.0%}  "
            f"{amount(stage.calls)} call{'s' * (stage.calls != 1)}, limited by {stage.dominated_by}"
        )


def _verdict(plan: Plan) -> Iterator[str]:
    """The last lines: fit, limiting resource, expected time, and one cheaper setting."""
    largest = max(plan.programs, key=lambda p: p.share)
    fits = "fits" if plan.fits else "DOES NOT FIT"
    line = f"verdict: {fits}; {largest.name} needs most, {largest.share:.0%} of the HBM"
    if plan.stages:
        slowest = max(plan.stages, key=lambda stage: stage.seconds)
        share = slowest.seconds / plan.step_seconds
        line += f"; slowest: {slowest.name}, {share:.0%} of a step, bound by {slowest.dominated_by}"
    yield ""
    yield line
    if not plan.estimated:
        took = seconds(sum(program.compile_seconds for program in plan.programs))
        yield f"  compiled {len(plan.programs)} programs in {took}; `fr3e compile --list` names all of a run"
    if plan.expected is not None:
        yield from _expectation(plan.expected)
    if plan.cheaper:
        settings = " ".join(map(str, plan.cheaper))
        yield f"  cheaper by estimate: {settings}  (a step takes {plan.cheaper[0].saved_time:.0%} less)"


def _expectation(e: Expected) -> Iterator[str]:
    assumed = ", ".join(f"{share:.0%} of {name}" for name, share in vars(e.efficiency).items())
    yield f"  expected, if programs reach {assumed} (assumed; --efficiency sets them):"
    yield (
        f"  {seconds(e.step_seconds)} a step, {amount(e.tokens_per_second_per_chip)} sampled tokens/s a chip, MFU "
        f"{e.mfu:.0%}, {amount(e.chip_hours_per_step)} chip-hours a step"
    )
    if e.steps:
        yield f"  {e.steps} steps: {amount(e.chip_hours)} chip-hours"
