"""What a study has left in its folder, as values. Small tables all of them: Spark is not needed to read.

OUT/study.json       About: which study, whether quick, and the command
OUT/points.parquet   POINTS: which run is which point of which experiment
OUT/runs             RUNS, see `sweep`
OUT/checks.parquet   CHECKS: what was published or promised, and whether it holds
OUT/analysis/NAME    see `analyse` and `traces`
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from wayfare.errors import PipelineError
from wayfare.studies.study import Row

POINTS = pa.schema(
    [
        pa.field("experiment", pa.string(), nullable=False),
        pa.field("varied", pa.string(), nullable=False),  # the parameter
        pa.field("x", pa.string(), nullable=False),  # its value, as JSON
        pa.field("series", pa.string(), nullable=False),  # the strategy
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("run", pa.string(), nullable=False),
    ]
)
CHECKS = pa.schema(
    [
        pa.field("experiment", pa.string(), nullable=False),
        pa.field("says", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),  # published, ours
        pa.field("holds", pa.bool_(), nullable=False),
        pa.field("measured", pa.string(), nullable=False),
        pa.field("note", pa.string(), nullable=False),
    ]
)
RUNS = pa.schema(
    [
        pa.field("run", pa.string(), nullable=False),  # names kind and parameters
        pa.field("kind", pa.string(), nullable=False),  # roaming, city
        pa.field("parameters", pa.string(), nullable=False),  # JSON, all of them
        pa.field("command", pa.string(), nullable=False),  # that runs it again
        pa.field("cpu_s", pa.float64(), nullable=False),
        pa.field("figures", pa.string()),  # JSON, as the simulator has them; null: it failed
        pa.field("error", pa.string()),  # null: it did not
    ]
)


class About(msgspec.Struct, frozen=True):
    """What OUT is of."""

    study: str
    quick: bool
    command: str


def read_about(out: Path) -> About:
    try:
        return msgspec.json.decode((out / "study.json").read_bytes(), type=About)
    except FileNotFoundError:
        raise PipelineError(
            f"{out} is no study: `wayfare study NAME --out {out}` makes one"
        ) from None
    except msgspec.MsgspecError as error:
        raise PipelineError(f"{out / 'study.json'} is damaged: {error}") from None


def read_runs(out: Path) -> dict[str, Row]:
    """RUNS by name."""
    files = sorted((out / "runs").glob("*.parquet"))  # not what a stopped sweep was writing
    rows = _read(out / "runs", files, RUNS)
    return {row["run"]: row for row in rows}


def read_points(out: Path) -> list[Row]:
    return _read(out / "points.parquet", [out / "points.parquet"], POINTS)


def read_checks(out: Path) -> list[Row]:
    return _read(out / "checks.parquet", [out / "checks.parquet"], CHECKS)


def read_analysed(out: Path, table: str, runs: Iterable[str] | None = None) -> list[Row]:
    """A table of the analysis, of these runs only."""
    folder = analysis(out) / table
    files = sorted(folder.glob("*.parquet"))
    which = None if runs is None else ds.field("run").isin(pa.array(runs, pa.string()))
    return _read(folder, files, None, which)


def analysis(out: Path) -> Path:
    """Where the tables of an analysis are: beside others in a study, else in the folder itself."""
    return out / "analysis" if (out / "study.json").exists() else out


def read_rows(out: Path) -> dict[str, list[Row]]:
    """By experiment: parameters and figures of its runs, and what is varied under its own name."""
    runs = read_runs(out)
    rows: dict[str, list[Row]] = {}
    for point in read_points(out):
        run = runs.get(point["run"])
        if run is None or run["figures"] is None:
            continue
        facts = json.loads(run["parameters"]) | json.loads(run["figures"])
        facts |= {point["varied"]: json.loads(point["x"])}
        facts |= {name: run[name] for name in ("run", "command", "cpu_s")}
        rows.setdefault(point["experiment"], []).append(facts)
    return rows


def write_table(path: Path, schema: pa.Schema, rows: list[Row]) -> None:
    """Beside its name, and then moved there."""
    part = path.with_name(path.name + ".part")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), part)
    part.replace(path)


def _read(path: Path, files: list[Path], schema: pa.Schema | None, which: Any = None) -> list[Row]:
    again = f"`wayfare study NAME --out {path.parent}` makes what is missing"
    if not files or not files[0].exists():
        raise PipelineError(f"{path} is not there: {again}")
    try:
        table = ds.dataset([str(file) for file in files], format="parquet").to_table(filter=which)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PipelineError(f"{path} cannot be read, remove it, and {again}: {reason}") from None
    missing = [name for name in (schema.names if schema else ()) if name not in table.column_names]
    if missing:
        raise PipelineError(f"{path} has no column {' and no '.join(missing)}: {again}")
    rows: list[Row] = table.to_pylist()
    return rows
