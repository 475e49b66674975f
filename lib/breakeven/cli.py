"""The command line: a thin face over the library.

Every command exits 0 when its question was answered (whatever the answer), 2 on bad input with one clear line, 1 on
failure. With ``--json`` it prints one JSON object on standard output; its log goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from breakeven import __version__, artifacts
from breakeven.errors import UserError, one_line

DESCRIPTION = """Find out whether speculative decoding pays in SGLang on this machine, and what would make it pay.

  breakeven run parameters/cpu.yaml              the whole suite; ends with a report
  breakeven gates --arch sm120                   is the fused all-reduce open for this GPU, and which line closes it
  breakeven patch --arch sm120 --sglang installed --dry-run
  breakeven logs server.log                      decode lines in normal form; why a server ended badly
  breakeven analyze records.csv                  break-even of figures that somebody wrote down
"""
Command = Callable[[argparse.Namespace], dict[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        answer = options.command(options)
        if options.json:
            print(json.dumps(answer, indent=1, ensure_ascii=False, default=str))
        else:
            print(options.words(answer))
        sys.stdout.flush()
    except UserError as error:
        print(f"breakeven: {one_line(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 1
    return int(answer.get("exit_status", 0)) if options.command is _run else 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven import config, pipeline

    overrides = dict(config.parse_override(text) for text in options.p)
    if options.resume:
        if options.parameters or overrides:
            raise UserError("--resume takes the run's own parameters; leave PARAMS.yaml and -p out")
        status = pipeline.resume(Path(options.resume), cell_timeout_s=options.cell_timeout)
    elif options.parameters:
        status = pipeline.run(Path(options.parameters), overrides, cell_timeout_s=options.cell_timeout)
    else:
        raise UserError("give a parameter file, for example: breakeven run parameters/cpu.yaml")
    run_dir = artifacts.project_root() / status["parameters"]["run_dir"]
    return {**status, "report": str(run_dir / "report" / "index.html"), "exit_status": int(status["status"] != "whole")}


def _run_in_words(answer: dict[str, Any]) -> str:
    from breakeven.pipeline import failure_line

    bad = [(name, each) for name, each in answer["notebooks"].items() if each["exit_class"] not in ("ok", "not-run")]
    lines = [failure_line(name, each) for name, each in bad]
    if bad or answer["status"] != "whole":
        lines.append(
            f"the run is {answer['status']}; what exists is published. Continue it with: "
            f"breakeven run --resume {answer['parameters']['run_dir']}"
        )
    return "\n".join([*lines, answer["report"]])


def _publish(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven import report

    run_dir = artifacts.run_path(options.run, "outputs")
    other = artifacts.run_path(options.compare, "outputs") if options.compare else None
    return report.publish(run_dir, compare_with=other, as_pdf=options.pdf)


def _gates(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven import gates, machine

    return gates.read_gates(
        machine.arch_to_judge(options.arch)[0],
        options.sglang,
        None if options.flashinfer == "pinned" else options.flashinfer,
        model_arch=options.model_arch,
        tp=options.tp,
        nnodes=options.nnodes,
        device_name=options.device_name,
        dp_attention=options.dp_attention,
        deterministic=options.deterministic,
    )


def _gates_in_words(answer: dict[str, Any]) -> str:
    from breakeven import gates

    return gates.explain(answer)


def _patch(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven import fusion, machine

    return fusion.patch(
        machine.arch_to_judge(options.arch)[0],
        options.sglang,
        None if options.flashinfer == "pinned" else options.flashinfer,
        mode=options.mode,
        dry_run=options.dry_run,
        force=options.force,
        out=Path(options.out) if options.out else None,
    )


def _patch_in_words(answer: dict[str, Any]) -> str:
    from breakeven import fusion

    return fusion.explain(answer)


def _revert(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven import fusion

    return fusion.revert(artifacts.located(options.path))


def _logs(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven import telemetry

    return telemetry.read_log(artifacts.located(options.file))


def _logs_in_words(answer: dict[str, Any]) -> str:
    lines = [f"{len(answer['decode'])} decode lines"]
    for row in answer["decode"][-5:]:
        length = "" if row["accept_length"] is None else f", accept length {row['accept_length']}"
        lines.append(f"  line {row['line']}: {row['gen_tok_s']} tok/s at {row['running']} running{length}")
    failure = answer["failure"]
    if failure:
        lines.append(f"ended badly: {failure['class']} at line {failure['line']}: {failure['text']}")
        lines.append(f"what to do: {failure['advice']}")
    return "\n".join(lines)


def _analyze(options: argparse.Namespace) -> dict[str, Any]:
    from breakeven.costs import records

    return records.analyze_csv(Path(options.file))


def _analyze_in_words(answer: dict[str, Any]) -> str:
    lines = ["reported figures, not measured here"]
    for row in answer["rows"]:
        figures = ", ".join(
            f"{name} {row[key]:.2f}{unit}"
            for name, key, unit in (
                ("speed-up", "speedup", ""),
                ("break-even accept length", "break_even_accept_length", ""),
                ("cycle", "cycle_ms", " ms"),
                ("baseline step", "baseline_step_ms", " ms"),
            )
            if row.get(key) is not None
        )
        lines.append(f"{row['id']}: {row['verdict']}" + (f" ({figures})" if figures else ""))
        lines += [f"  assumes {assumption}" for assumption in row["assumptions"]]
        lines += [f"  needs {need}" for need in row["needs"]]
        lines += [f"  {warning['code']}: {warning['text']}" for warning in row["warnings"]]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="breakeven", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"breakeven {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Command, words: Callable[[dict[str, Any]], str], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print one JSON object on standard output")
        sub.set_defaults(command=command, words=words)
        return sub

    run = add("run", _run, _run_in_words, "run the five notebooks with a parameter file and publish the report")
    run.add_argument("parameters", nargs="?", metavar="PARAMS.yaml", help="for example parameters/cpu.yaml")
    run.add_argument("-p", action="append", default=[], metavar="name=value", help="override one parameter; repeatable")
    run.add_argument("--resume", metavar="RUN", help="continue the run in this folder, for example outputs/cpu-...")
    run.add_argument("--cell-timeout", type=_positive, default=43200, metavar="S", help="seconds allowed for one cell")

    publish = add("publish", _publish, lambda answer: "\n".join(answer.values()), "write the report of a run again")
    publish.add_argument("run", metavar="RUN", help="folder of the run, for example outputs/by-hand")
    publish.add_argument("--compare", metavar="OTHER", help="folder of another run to set beside it")
    publish.add_argument("--pdf", action="store_true", help="print the report as PDF too (needs Chromium or Chrome)")

    gates = add("gates", _gates, _gates_in_words, "is FlashInfer's fused all-reduce open for a GPU architecture")
    _add_sources(gates)
    gates.add_argument("--model-arch", metavar="A", help="model class, for example DeepseekV3ForCausalLM")
    gates.add_argument("--tp", type=_positive, metavar="N", help="tensor-parallel size (default 8)")
    gates.add_argument("--nnodes", type=_positive, default=1, metavar="N", help="number of nodes (default 1)")
    gates.add_argument("--device-name", metavar="D", help="as the driver names it, for example 'NVIDIA H20'")
    gates.add_argument("--dp-attention", action="store_true", help="judge for a server with --enable-dp-attention")
    gates.add_argument("--deterministic", action="store_true", help="judge for --enable-deterministic-inference")

    patch = add("patch", _patch, _patch_in_words, "open the gates for an architecture, in an overlay or in place")
    _add_sources(patch)
    patch.add_argument("--mode", choices=("overlay", "in-place"), default="overlay", help="default %(default)s")
    patch.add_argument("--out", metavar="DIR", help="folder of the overlay (default: one in the cache; it is printed)")
    patch.add_argument("--dry-run", action="store_true", help="show the diff and write nothing")
    patch.add_argument("--force", action="store_true", help="write it even where FlashInfer would refuse the GPU")

    revert = add("revert", _revert, lambda answer: answer["text"], "undo a patch, byte for byte")
    revert.add_argument("path", metavar="PATH", help="the overlay, or the folder that was patched in place")

    logs = add("logs", _logs, _logs_in_words, "decode lines of a server log, and the class of its failure")
    logs.add_argument("file", metavar="FILE")

    analyze = add("analyze", _analyze, _analyze_in_words, "break-even of recorded figures")
    analyze.add_argument("file", metavar="RECORDS.csv", help="columns: see README, 'Recorded figures'")
    return parser


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="auto", metavar="ARCH", help="sm90, sm100, sm120, ...; default: this GPU's")
    parser.add_argument("--sglang", default="installed", metavar="S", help="installed, a folder, or pypi:VERSION")
    parser.add_argument("--flashinfer", default="pinned", metavar="S", help="the same; default: as SGLang pins")


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main())
