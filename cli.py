# SPDX-License-Identifier: GPL-2.0-only
"""The command line: one thin function per command; what they do is elsewhere."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from contextlib import nullcontext, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from . import __version__
from .errors import AgreementError, CannotRecordError, InterruptError, PrivilegeError, UsageError, WakescopeError
from .meta import SUFFIX, read_meta
from .trace import Trace, finish

# Newer typers carry a click of their own, so that click.UsageError is not to be had by one name.
_CommandLineError: Any = typer.BadParameter.__base__

app = typer.Typer(
    help="Why did this wakeup go to that CPU, and where would it have gone?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help=f"A {SUFFIX} directory.")]
LoaderOption = Annotated[str | None, typer.Option(help="libbpf, or bcc for kernels without BTF; else what fits.")]
VmlinuxOption = Annotated[
    Path | None, typer.Option(metavar="PATH", help="A vmlinux with DWARF to take types from, not BTF.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object instead of text (docs/json.md).")]

# Numbers are never split: on a narrow terminal the terminal wraps lines, and in a pipe there is no width.
_out = Console(highlight=False, emoji=False, width=max(160, shutil.get_terminal_size().columns))
_err = Console(stderr=True, highlight=False, emoji=False, width=None if sys.stderr.isatty() else 160)


@app.command()
def doctor(loader: LoaderOption = None, vmlinux: VmlinuxOption = None, as_json: JsonOption = False) -> None:
    """Say what can be recorded on this machine (with these options), what cannot, and what to do about it."""
    from .show import show_checks
    from .tracers.doctor import examine, to_json

    _check_loader(loader)
    checks = examine(vmlinux, loader)
    if as_json:
        _print_json(to_json(checks))
    else:
        show_checks(_out, checks)
    if not to_json(checks)["can_record"]:
        raise CannotRecordError("nothing can be recorded on this machine: what is wrong, and the remedy, is above")


@app.command(context_settings={"allow_interspersed_args": False})
def record(
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND…]", help="Recorded to its end.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The trace to make.")] = None,
    duration: Annotated[float | None, typer.Option(min=0.01, help="Seconds; with a workload 10 by default.")] = None,
    load: Annotated[str | None, typer.Option("--workload", help="tbench:N, pgbench:N or hackbench:N.")] = None,
    tier: Annotated[
        str | None, typer.Option(help="deep, decision or tracepoint; else the best of the last two.")
    ] = None,
    ring: Annotated[int, typer.Option(min=0, max=1024, help="MiB of each CPU's wakeup ring; 0: by memory.")] = 0,
    loader: LoaderOption = None,
    vmlinux: VmlinuxOption = None,
) -> None:
    """Record every wakeup, switch and migration while a command runs, or until Ctrl-C."""
    from .show import show_recorded, status_line
    from .tracers.doctor import BAD, privileges
    from .tracers.offsets import kernel_types
    from .tracers.probes import TIERS, Probes, plan
    from .tracers.recorder import check_output, give_to_caller
    from .tracers.recorder import record as run
    from .tracers.workloads import workload

    if command and load:
        raise UsageError("give either --workload or a command, not both")
    if tier not in (None, *TIERS):
        raise UsageError(f"--tier {tier}: choose from {', '.join(TIERS)}")
    _check_loader(loader)
    check = privileges()
    if check.state == BAD:
        raise PrivilegeError(f"recording needs privileges ({check.found}): {check.remedy}")
    path = output or _name(command[0] if command else (load or "trace"))
    check_output(path)
    seconds = duration or 10.0
    made = plan(kernel_types(vmlinux), tier, loader)
    with (
        workload(load, seconds) if load else nullcontext() as ready,
        Probes(made) as probes,
        status_line(_err) as status,
    ):
        argv, limit = command, duration
        if ready:
            argv, limit = ready.command, None if ready.ends else seconds
        code = run(probes, path, argv, limit, ring, status.progress, status.convert)
    give_to_caller(path)
    show_recorded(_err, Trace.open(path))
    with suppress(BrokenPipeError):  # whoever reads the name does not change how the command ended
        print(path, flush=True)
    raise typer.Exit(code)


def _check_loader(loader: str | None) -> None:
    from .tracers.probes import LOADERS

    if loader not in (None, *LOADERS):
        raise UsageError(f"--loader {loader}: choose from {', '.join(LOADERS)}")


def _name(what: str) -> Path:
    word = "".join(c if c.isalnum() else "-" for c in Path(what).name).strip("-") or "trace"
    return Path(f"{word}-{time.strftime('%Y%m%d-%H%M%S')}{SUFFIX}")


@app.command()
def recover(trace: TraceArgument) -> None:
    """Finish a trace whose recorder was killed or ran out of disk: nothing that was spooled is lost."""
    from .show import status_line

    read_meta(trace)
    if not (trace / "raw").exists():
        raise UsageError(f"{trace} is complete: there is nothing to recover")
    with status_line(_err) as status:
        rows = finish(trace, status.convert)
    _err.print(f"recovered {sum(rows.values()):,} records: " + ", ".join(f"{n:,} {t}" for t, n in rows.items() if n))


@app.command()
def info(trace: TraceArgument, as_json: JsonOption = False) -> None:
    """Say what a trace is: kernel, tier, counts, loss."""
    from .show import info_json, show_info

    opened = Trace.open(trace)
    if as_json:
        _print_json(info_json(opened))
    else:
        show_info(_out, opened)


@app.command()
def topology(
    trace: Annotated[Path | None, typer.Argument(metavar="[TRACE]", help="A trace; this machine if left out.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show sockets, LLCs, cores and threads as a tree, and every domain's flags, set and unset."""
    from .show import show_topology
    from .tracers.domains import this_machine

    found = Trace.open(trace).topology if trace else this_machine()
    if as_json:
        print(found.to_json())
    else:
        show_topology(_out, found)


@app.command()
def report(
    trace: TraceArgument,
    section: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this: placement, flips, affine, latency, runqueue, numa, balance, loss; may be repeated."
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only this task: a pid, or a pattern of names or labels.")] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="One HTML file with figures, instead of text.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say what happened: an answer first, then placement, flips, affine pulls, NUMA, latency."""
    from .analysis.page import check_page, write_page
    from .analysis.report import build_report
    from .model.paths import df_replay

    if page:
        check_page(page)
    opened = Trace.open(trace)
    made = build_report(opened, section, task, df_replay)
    if page:
        write_page(page, made)
    if as_json:
        _print_json(made.to_json())
    elif page:
        print(page)
    else:
        made.render(_out)


@app.command()
def validate(
    trace: TraceArgument,
    minimum: Annotated[float | None, typer.Option("--min", help="Fail unless this % of exact decisions agree.")] = None,
    policy: Annotated[str | None, typer.Option(help="RELEASE[+PATCH…] to use; the trace's own by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace through the model of its own kernel and say how often the two agree."""
    from .model.validate import validate as run
    from .model.variants import named
    from .show import show_validation

    if minimum is not None and not 0 <= minimum <= 100:
        raise UsageError(f"--min {minimum}: give a percentage, 0 to 100")
    opened = Trace.open(trace)
    found = run(opened, named(policy, opened.meta) if policy else None, policy or "")
    if as_json:
        _print_json({"kernel": opened.meta.get("kernel"), "tier": opened.meta.get("tier"), **found.to_json()})
    else:
        show_validation(_out, opened, found)
    exact = {"wakeups": found.certainty["EXACT"].share, "forks and execs": found.forks.certainty["EXACT"].share}
    low = {what: share for what, share in exact.items() if share is not None and 100 * share < (minimum or 0)}
    if minimum is not None and (low or not any(share is not None for share in exact.values())):
        reached = ", ".join(f"{share:.3%} of {what} agree" for what, share in low.items()) or "none was decidable"
        raise AgreementError(f"below --min {minimum}: {reached}")


@app.command()
def explain(
    trace: TraceArgument,
    wakeup: Annotated[int | None, typer.Option(min=0, help="Row of the wakeups table.")] = None,
    task: Annotated[
        str | None, typer.Option(help="The wakee: a pid, or a pattern of names or labels; with --at.")
    ] = None,
    at: Annotated[float | None, typer.Option(help="Seconds into the recording: the next wakeup.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say why one wakeup went where it went, in the kernel's terms."""
    from .model.explain import explain_wakeup
    from .model.explain_find import find_wakeup, parties, who
    from .show import show_reasons

    if at is not None and not math.isfinite(at):
        raise UsageError(f"--at {at}: give seconds into the recording")
    if wakeup is not None and (task is not None or at is not None):
        raise UsageError("give either --wakeup, or --task and --at")
    opened = Trace.open(trace)
    number = find_wakeup(opened, task, at) if wakeup is None else wakeup
    reasons, verdict = explain_wakeup(opened, number)
    if as_json:
        rows = [{"function": r.function, "text": r.text, "source": r.source.value} for r in reasons]
        waker, wakee = parties(opened, number)
        _print_json({"wakeup": number, "waker": waker, "wakee": wakee, "reasons": rows, "verdict": verdict})
    else:
        show_reasons(_out, who(opened, number), reasons, verdict)


@app.command()
def patches(as_json: JsonOption = False) -> None:
    """List the patches contrast knows: origin, what they change, where they apply."""
    from .model.variants import PATCHES, to_json
    from .show_contrast import show_patches

    if as_json:
        _print_json(to_json())
    else:
        show_patches(_out, PATCHES.values())


@app.command()
def contrast(
    trace: TraceArgument,
    policy: Annotated[
        list[str],
        typer.Option(help="RELEASE[+PATCH…], such as 6.12+nak-affine, or own[+PATCH…]; the first is the base."),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Parquet: each decision by policy.")] = None,
    approximate: Annotated[
        bool, typer.Option(help="Take what was captured for what an old kernel looks at (docs/variants.md).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Replay a trace under several policies and say which decisions move, and where to."""
    from .model.contrast import contrast as run
    from .model.variants import OWN, named
    from .show_contrast import check_parquet, show_contrast, write_parquet

    if output:
        check_parquet(output)
    opened = Trace.open(trace)
    names = policy if len(policy) > 1 or policy == [OWN] else [OWN, *policy]
    found = run(opened, [(name, named(name, opened.meta)) for name in names], approximate)
    if output:
        write_parquet(output, found)
    if as_json:
        _print_json(found.to_json())
    else:
        show_contrast(_out, found)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=1, allow_nan=False))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        print(f"wakescope {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; errors a user can cause are one line on stderr and an exit status of their own."""
    from .testbox.commands import app as box

    app.add_typer(box, name="box")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not end a report half way
    try:
        sys.exit(app(standalone_mode=False))
    except WakescopeError as error:
        _fail(str(error), error.exit_code)
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # which typer makes a 1 of
            raise leaving.__context__ from None
        raise
    except typer.Abort:  # what older typers make of Ctrl-C
        sys.exit(InterruptError.exit_code)
    except _CommandLineError as error:
        said: str = error.format_message()  # empty where the help was shown for want of arguments
        command = error.ctx.command_path if error.ctx else "wakescope"
        _fail(said and f"{said.rstrip('.')}; see {command} --help", UsageError.exit_code)


def _fail(said: str, code: int) -> NoReturn:
    if said:
        print(f"wakescope: {' '.join(said.split())}", file=sys.stderr)
    sys.exit(code)
