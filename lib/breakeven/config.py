"""Parameters in, one frozen configuration out. Unknown, missing and mistyped values are refused by name.

Each notebook has one settings class. Its fields, defaults and descriptions are the notebook's parameters cell
(a test holds the two together); a parameter file may set any field of any of the five.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from breakeven import artifacts, strict_yaml, variables
from breakeven.errors import UserError, did_you_mean

Arch = Literal["auto", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121"]


class Settings(BaseModel):
    """What every notebook knows: the folder of its run."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,  # JSON has neither: a run could not be resumed with them
        protected_namespaces=(),
    )

    run_dir: str = Field("outputs/by-hand", description="folder of this run, from the project's root")

    @field_validator("*")
    @classmethod
    def _fit_to_be_written_down(cls, value: Any, info: ValidationInfo) -> Any:
        variables.check(str(info.field_name), value)
        return value

    @classmethod
    def from_namespace(cls, namespace: Mapping[str, Any]) -> Self:
        """Settings from a notebook's globals, after its parameters cell ran.

        Raises UserError in one line when a parameter is missing or mistyped.
        """
        missing = [name for name in cls.model_fields if name not in namespace]
        if missing:
            raise UserError(f"the parameters cell no longer sets {', '.join(missing)}; run it again or restore it")
        return cls.checked({name: namespace[name] for name in cls.model_fields})

    @classmethod
    def checked(cls, values: Mapping[str, Any]) -> Self:
        """Settings from a mapping of names to values; UserError names the first value that doesn't fit."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise UserError(_explain(cls, error)) from None

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th scope='row'>{name}</th><td><code>{html.escape(repr(getattr(self, name)))}</code></td>"
            f"<td>{html.escape(field.description or '')}</td></tr>"
            for name, field in type(self).model_fields.items()
        )
        head = "<tr><th scope='col'>parameter</th><th scope='col'>value</th><th scope='col'>meaning</th></tr>"
        return f"<table class='parameters'><thead>{head}</thead><tbody>{rows}</tbody></table>"


class HostSettings(Settings):
    """Where SGLang is; every notebook that reads or runs it has these."""

    host: str = Field("local", description="where SGLang runs: local, an SSH destination, or attach:URL of a server")
    python: str = Field("auto", description="SGLang's Python on the host; auto: this one, python3 on another machine")
    command_prefix: list[str] = Field([], description="what stands before python: numactl, docker exec -i CONTAINER")
    secret_env: str = Field("", description="name of the environment variable with the SSH password or passphrase")


class SourceSettings(HostSettings):
    """Which sources are read and for which GPU; shared by notebooks 01 and 02."""

    arch: Arch = Field("auto", description="GPU architecture, such as sm120; auto: this GPU's, sm120 without one")
    sglang: str = Field("installed", description="SGLang's source: installed, a folder, or pypi:VERSION")
    flashinfer: str = Field(
        "pinned", description="FlashInfer's source: pinned (by SGLang), installed, a folder, pypi:VERSION"
    )
    model_arch: str = Field("DeepseekV3ForCausalLM", description="model class whose auto-enable rule is read")
    gate_tp: int = Field(8, ge=1, description="tensor-parallel size that the gates are judged for")

    @property
    def flashinfer_spec(self) -> str | None:
        """FlashInfer's source, None for the version that SGLang pins."""
        return None if self.flashinfer == "pinned" else self.flashinfer


class GateSettings(SourceSettings):
    """Notebook 01: read the gates."""

    gate_nodes: int = Field(1, ge=1, description="number of nodes that the gates are judged for")
    atlas_releases: list[str] = Field([], description="SGLang releases for the architecture map; empty: none fetched")


class FusionSettings(SourceSettings):
    """Notebook 02: open the gates in an overlay."""

    force_fusion: bool = Field(False, description="write the change even where FlashInfer would refuse the GPU")


class ServingSettings(HostSettings):
    """How a server is launched; shared by notebooks 03 and 04."""

    model: str = Field(
        "embedded", description="model folder; embedded: SmolLM2-135M-Instruct from PyPI; none: nothing is launched"
    )
    engine: Literal["auto", "embedded", "native"] = Field(
        "auto", description="embedded: PyTorch operations on the CPU; native: SGLang as installed; auto: by GPU"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field("bfloat16", description="weights and activations")
    tp: int = Field(1, ge=1, description="GPUs that the server uses")
    context_length: int = Field(2048, ge=128, description="tokens, prompt and answer together")
    max_running_requests: int = Field(8, ge=1, description="the same in every arm; SGLang's default differs by arm")
    server_flags: list[str] = Field([], description="further flags of sglang.launch_server, the same in every arm")
    server_env: dict[str, str] = Field({}, description="environment variables of the server, the same in every arm")
    use_overlay: bool = Field(False, description="serve through the overlay that notebook 02 wrote")
    ready_timeout_s: float = Field(600.0, gt=0, description="seconds until a server that is not ready has failed")


class ServerSettings(ServingSettings):
    """Notebook 03: launch once, prove readiness."""

    allreduce_ranks: int = Field(0, ge=0, description="processes or GPUs of the all-reduce bench; 0: none")


class SweepSettings(ServingSettings):
    """Notebook 04: measure the baseline and every drafter."""

    drafters: list[dict[str, Any]] = Field(
        [{"algorithm": "NGRAM", "draft_tokens": [4]}], description="drafters and their settings; a list is a grid"
    )
    variants: dict[str, dict[str, Any]] = Field(
        {}, description="server settings to compare: name to any of flags, env, fusion, use_overlay; empty: one"
    )
    search: bool = Field(False, description="measure only what could win, told from few launches; false: the grid")
    restarts: int = Field(2, ge=1, description="fresh servers per cell")
    aa_pair: bool = Field(False, description="measure the baseline twice, as if it were two cells: the noise floor")
    concurrency: list[int] = Field([1], description="requests in flight; each value is measured on every server")
    temperature: list[float] = Field([0.0], description="sampling temperatures; 0 is greedy")
    context_tokens: list[int] = Field([0], description="prompts lengthened to about so many tokens; 0: as written")
    prompts: str = Field("shipped", description="JSONL file of prompts, or shipped: the suite's own")
    prompts_per_kind: int = Field(1, ge=1, description="prompts of each kind per server and condition, each used once")
    kinds: list[str] = Field([], description="kinds of prompt to measure; empty: all")
    request_timeout_s: float = Field(300.0, gt=0, description="seconds until a request counts as hung")
    profile_steps: int = Field(8, ge=0, description="decode steps traced per cell, 3 or more; 0: none")
    workers: int = Field(0, ge=0, description="Ray workers that share the restarts; 0: one launch after the other")
    resume: bool = Field(False, description="keep what run_dir already holds of this sweep and measure the rest")

    @field_validator("profile_steps")
    @classmethod
    def _enough_for_a_cycle(cls, steps: int) -> int:
        if steps in (1, 2):
            raise ValueError(
                f"{steps} steps hold no whole cycle, one is the prefill; give 3 or more, or 0 for no trace"
            )
        return steps


class BreakEvenSettings(Settings):
    """Notebook 05: break-even of what was measured."""

    level: float = Field(0.95, gt=0.5, lt=1.0, description="confidence level of every interval")
    records: str = Field("none", description="CSV of recorded figures to judge beside the measured ones, or none")


NOTEBOOKS: dict[str, type[Settings]] = {
    "01_read_gating": GateSettings,
    "02_apply_fusion": FusionSettings,
    "03_launch_server": ServerSettings,
    "04_sweep_drafters": SweepSettings,
    "05_break_even": BreakEvenSettings,
}


def field_types() -> dict[str, Any]:
    """Every parameter of the suite: name to annotated type."""
    return {name: field.annotation for cls in NOTEBOOKS.values() for name, field in cls.model_fields.items()}


def parameters_cell(notebook: str) -> str:
    """The source of a notebook's parameters cell: one assignment a line, its meaning as a comment."""
    lines = []
    for name, field in NOTEBOOKS[notebook].model_fields.items():
        annotation = _plain_type(field.annotation).__name__
        literal = _literal(field.default)
        lines.append(f"{name}: {annotation} = {literal}  # {field.description}")
    return "\n".join(lines)


def parameter_file(given: Path) -> Path:
    """The parameter file of that name here, in the project's root or in ``parameters/``. Raises UserError if none."""
    path = artifacts.located(given, "parameters")
    if path.exists():
        return path
    folders = (path.parent, artifacts.project_root() / "parameters")
    near = did_you_mean(given.name, [file.name for folder in folders for file in folder.glob("*.yaml")])
    raise UserError(f"no parameter file {given}{near or '; give one, such as parameters/cpu.yaml'}")


def load_parameters(path: Path) -> dict[str, Any]:
    """Read a parameter file, as papermill would, refusing what YAML 1.1 silently turns into something else.

    Raises UserError with the line for bad YAML, duplicate names and ambiguous scalars.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as a text file: {error}") from None
    values = strict_yaml.read(text, str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} holds a {type(values).__name__}; expected lines of `name: value`")
    return values


def parse_override(text: str) -> tuple[str, Any]:
    """``name=value`` of the command line, the value read by the parameter's declared type."""
    name, equals, raw = text.partition("=")
    types = field_types()
    if not equals or not name:
        raise UserError(f"-p {text!r} is not of the form name=value")
    if name not in types:
        raise UserError(f"no notebook has a parameter {name!r}{did_you_mean(name, types)}")
    if _plain_type(types[name]) is str:
        return name, raw
    return name, strict_yaml.read(raw, f"-p {name}")


def settle(values: Mapping[str, Any]) -> dict[str, Settings]:
    """Check a suite's parameters before any kernel starts; the settings of each notebook by its name.

    Raises UserError on an unknown name (with a suggestion), a value that doesn't fit, and nothing to be judged.
    """
    types = field_types()
    if unknown := [str(name) for name in values if name not in types]:
        raise UserError(f"no notebook has a parameter {unknown[0]!r}{did_you_mean(unknown[0], types)}")
    if values.get("model") == values.get("records", "none") == "none":
        raise UserError("model and records are both none: nothing to measure or judge; give a model or records: FILE")
    return {
        notebook: cls.checked({name: value for name, value in values.items() if name in cls.model_fields})
        for notebook, cls in NOTEBOOKS.items()
    }


def _plain_type(annotation: Any) -> type:
    """The bare type that papermill can show: ``list`` for ``list[str]``, ``str`` for a Literal."""
    choices = get_args(annotation)
    origin = getattr(annotation, "__origin__", annotation)
    if origin is Literal:
        return type(choices[0])
    return origin


def _literal(value: Any) -> str:
    """The default as Python source, in double quotes, as the formatter leaves it."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _explain(cls: type[Settings], error: ValidationError) -> str:
    """One line for the first of pydantic's complaints: the name, what was given, what is allowed."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    name = str(first["loc"][0])
    given = first["input"]
    if first["type"] == "extra_forbidden":
        return f"no parameter {name!r}{did_you_mean(name, cls.model_fields)}"
    field = cls.model_fields[name]
    if first["type"] == "literal_error":
        allowed = [str(choice) for choice in get_args(field.annotation)]
        return f"{where} is {given!r}{did_you_mean(str(given), allowed)}; allowed: {', '.join(allowed)}"
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    hint = ""
    if isinstance(given, str) and _plain_type(field.annotation) is bool:
        hint = "; write true or false without quotes"
    return f"{where} is {given!r} ({type(given).__name__}); expected {wanted}{hint} ({field.description})"
