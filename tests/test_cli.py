"""The command line as a user meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from wayfare import cli
from wayfare.cli import demo_location, main
from wayfare.cli.bench import BENCHES, draw
from wayfare.core.broker import ALL_RELOCATIONS
from wayfare.core.reduction import STRATEGIES
from wayfare.core.virtual import Ahead
from wayfare.eventlog import SCHEMA
from wayfare.sim import fuzz, scenario
from wayfare.sim.verdict import Verdict, Violation

# As users have it: what is written waits in a buffer, and may fail as late as at exit.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def wayfare(
    *arguments: str, redirect: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs in a shell of its own, where `redirect` is what a user would type behind the command."""
    command = shlex.join([sys.executable, "-m", "wayfare", *arguments])
    return subprocess.run(
        ["bash", "-c", f"{command} {redirect}"],
        capture_output=True,
        text=True,
        timeout=240,  # with Spark, on a busy machine
        check=False,
        env=BUFFERED | environment,
    )


def test_the_demo_is_readable_and_all_is_delivered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--simulated"]) == 0
    out = capsys.readouterr().out
    assert "anna wants  service = 'parking' and free > 0" in out
    assert out.count("free = 4, 2, 7") == 2, "what she missed is what she gets"
    assert "all, once, in order" in out
    assert "0 lost, 0 twice, 0 out of order, nothing left behind." in out


def test_the_demo_fits_80_columns() -> None:
    narrow, wide = (wayfare("demo", "--simulated", COLUMNS=width).stdout for width in ("80", "300"))
    assert max(map(len, wide.splitlines())) <= 80
    assert narrow == wide, "nothing is wrapped"


def test_the_demo_in_json_delivers_the_same_under_every_strategy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["demo", "--simulated", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts) == list(STRATEGIES)
    delivered = [
        {name: sorted(got) for name, got in one["delivered"].items()} for one in facts.values()
    ]
    assert all(one == delivered[0] for one in delivered)
    assert all(one["violations"] == [] for one in facts.values())
    entries = [facts[routing]["table_entries"] for routing in STRATEGIES if routing != "flooding"]
    assert entries == sorted(entries, reverse=True), (
        "each strategy needs no more than the one before"
    )


def test_sim_lists_its_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in scenario.shipped())
    assert main(["sim", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == scenario.shipped().keys()


def test_sim_plays_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "uncovering"]) == 0
    out = capsys.readouterr().out
    assert scenario.find("uncovering").trace.strip() in out


def test_sim_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "uncovering", "--json", "--seed", "3"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["seed"] == 3
    assert facts["delivered"] == facts["published"] == 2
    assert facts["violations"] == []
    assert facts["trace"][-1].endswith("complete, once, in order, tidy")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_sim_writes_the_event_log(tmp_path: Path, suffix: str) -> None:
    log = tmp_path / f"run{suffix}"
    assert main(["sim", "uncovering", "--log", str(log)]) == 0
    if suffix == ".parquet":
        table = pq.read_table(log)
        assert table.schema.equals(SCHEMA)
        rows = table.to_pylist()
    else:
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"published", "delivered", "sent", "subscribed"} <= {row["kind"] for row in rows}
    assert {row["run"] for row in rows} == {"uncovering-0"}


@pytest.mark.parametrize(
    ("arguments", "run"),
    [
        (["roaming", "--brokers", "7", "--moves", "1", "--relocation", "naive"], "roaming-naive-0"),
        (["city", "--height", "2", "--minutes", "0.1", "--seed", "3"], "city-handoff-3"),
        (["location", "--side", "2", "--minutes", "1", "--nlb", "all"], "location-all-0"),
        (
            ["placement", "--side", "2", "--minutes", "1", "--placement", "publisher"],
            "placement-parking-fitting-publisher-0",
        ),
    ],
)
def test_experiments_write_their_event_log(
    tmp_path: Path, arguments: list[str], run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "run.jsonl"
    assert main(["sim", *arguments, "--log", str(log), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["run"] for row in rows} == {run}
    assert sum(row["kind"] == "placed" for row in rows) == figures["brokers"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["sim", "nowhere"], "there is no scenario 'nowhere'"),
        (["sim", "uncovering", "--log", "x.csv"], "has to end in .parquet or .jsonl"),
        (["sim", "uncovering", "--log", "/no/such/folder/x.jsonl"], "there is no folder"),
        (["sim", "roaming", "--table", "--log", "x.jsonl"], "--log is for one experiment"),
        (["sim", "city", "--log", "x.csv"], "has to end in .parquet or .jsonl"),
        (["sim", "fuzz", "--seeds", "0"], "--seeds is at least 1"),
        (["sim", "fuzz", "--workers", "0"], "--workers is at least 1"),
        (
            ["sim", "fuzz", "--rollbacks", "--mobile", "walkers"],
            "--rollbacks does not go with --mobile walkers",
        ),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_log_that_cannot_be_written_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    assert main(["sim", "uncovering", "--log", str(folder)]) == 2
    captured = capsys.readouterr()
    assert "cannot be written: Is a directory" in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == [folder]


def test_a_scenario_of_the_users_own_names_the_bad_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("# mine\nbrokers a - b\nattach anna a\nsubscribe anna price >\n")
    assert main(["sim", str(file)]) == 2
    assert "line 4" in capsys.readouterr().err


GOLDEN = """# Mine.
brokers porto - lisbon

attach ticker porto ; advertise ticker price > 0

----
     2.0 ms  porto -> lisbon         Update(+ad price > 0)
0 published, 0 delivered, 0 lost: complete, once, in order, tidy
"""


@pytest.mark.parametrize(
    ("text", "line", "there", "here"),
    [
        (GOLDEN.replace("2.0", "3.0"), 7, "3.0 ms  porto", "2.0 ms  porto"),
        (GOLDEN + "and more\n", 9, "and more", "(the end)"),
        (GOLDEN[: GOLDEN.index("0 published")], 8, "(the end)", "0 published"),
    ],
    ids=["another line", "a line less", "a line more"],
)
def test_another_trace_than_the_one_in_the_file_is_told(
    tmp_path: Path, text: str, line: int, there: str, here: str
) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(text)
    done = wayfare("sim", str(file))
    assert done.returncode == 1
    sentence, in_file, in_run = done.stderr.splitlines()
    assert sentence == f"wayfare: this is not the trace in {file}, from its line {line} on:"
    assert in_file.startswith("  in the file: ") and there in in_file
    assert in_run.startswith("  in this run: ") and here in in_run
    assert "complete, once, in order, tidy" in done.stdout, "it is played all the same"


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        (GOLDEN, "0"),
        (GOLDEN.rstrip(), "0"),
        (GOLDEN[: GOLDEN.index("----")], "0"),
        (GOLDEN[: GOLDEN.index("     2.0")], "0"),
        (scenario.find("lossy-link").script + "\n----\nthat of seed 0", "3"),
    ],
    ids=["the same", "no line end", "no trace", "an empty trace", "another seed"],
)
def test_nothing_is_told_where_there_is_nothing_to_compare(
    tmp_path: Path, text: str, seed: str
) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(text)
    done = wayfare("sim", str(file), "--seed", seed)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["bench"], ["sim", "a", "--seed", "x"], ["sim", "fuzz", "--seed", "5"]],
)
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


@pytest.mark.parametrize("arguments", [[], ["sim"], ["sim", "fuzz"], ["bench"]])
def test_help_has_examples(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--help"])
    assert "examples:" in capsys.readouterr().out


def test_fuzz_rotates_through_the_strategies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, str]] = []

    def noted(job: fuzz.Job) -> fuzz.Run:
        ran.append((job.seed, job.routing))
        return fuzz.Run(job, 1, 1, 1, Verdict((), 0, 0, 0, 0))

    monkeypatch.setattr(fuzz, "fuzz", noted)
    command = ["sim", "fuzz", "--seeds", "6", "--first-seed", "4", "--routing", "rotate"]
    assert main([*command, "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 6
    assert [seed for seed, _ in ran] == [4, 5, 6, 7, 8, 9]
    assert {routing for _, routing in ran[:5]} == {*STRATEGIES}
    assert ran[0][1] == ran[5][1]


@pytest.mark.parametrize(("mobile", "count"), [("walkers", len(ALL_RELOCATIONS)), ("both", 3)])
def test_fuzz_rotates_through_the_relocations(
    monkeypatch: pytest.MonkeyPatch, mobile: str, count: int
) -> None:
    jobs: list[fuzz.Job] = []

    def noted(job: fuzz.Job) -> fuzz.Run:
        jobs.append(job)
        return fuzz.Run(job, 1, 1, 0, Verdict((), 0, 0, 0, 0))

    monkeypatch.setattr(fuzz, "fuzz", noted)
    command = ["sim", "fuzz", "--seeds", "200", "--routing", "rotate", "--relocation", "rotate"]
    assert main([*command, "--mobile", mobile, "--workers", "1"]) == 0
    assert len(jobs) == 200
    assert len({job.relocation for job in jobs}) == count
    assert not any(job.routing == "flooding" and job.relocation == "junction" for job in jobs)


def test_fuzz_runs_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "fuzz", "--seeds", "2", "--first-seed", "7", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["runs"] == 10
    assert facts["failed"] == 0
    assert facts["required"] > 0


def test_a_failed_run_prints_the_command_that_repeats_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: fuzz.Job) -> fuzz.Run:
        verdict = Verdict((Violation("once", "anna got ticker 1 twice"),), 1, 2, 1, 0)
        return fuzz.Run(job, 1, 1, 1, verdict)

    monkeypatch.setattr(fuzz, "fuzz", broken)
    assert main(["sim", "fuzz", "--seeds", "1", "--routing", "simple", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "wayfare sim fuzz --seeds 1 --first-seed 0 --routing simple" in out
    assert "anna got ticker 1 twice" in out


def heed_ctrl_c() -> None:
    """A shell starts what runs in the background with Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_stops_cleanly() -> None:
    command = [sys.executable, "-m", "wayfare", "sim", "fuzz", "--seeds", "100000"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        try:
            time.sleep(3)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # nothing may outlive the test
    assert process.returncode == 130
    assert err.strip().endswith("wayfare: stopped")
    assert "Traceback" not in out + err


def test_too_many_workers_are_refused_in_one_sentence() -> None:
    command = f"ulimit -n 20; {sys.executable} -m wayfare sim fuzz --seeds 20 --workers 30"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "wayfare: cannot start 30 processes: Too many open files; try --workers 1\n"
    )


# Where the output goes

every_kind_of_output = pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--simulated"],
        ["config", "keys"],
        ["completion", "zsh"],
        ["sim"],
        ["sim", "uncovering"],
        ["bench", "backlog", "--quick"],
        ["--help"],
    ],
    ids=" ".join,
)


@every_kind_of_output
def test_a_full_disk_is_told_in_one_sentence(arguments: list[str]) -> None:
    done = wayfare(*arguments, redirect="> /dev/full")
    assert done.stderr == "wayfare: cannot write the output: No space left on device\n"
    assert done.returncode == 1


@every_kind_of_output
def test_a_closed_output_leaves_the_exit_code(arguments: list[str]) -> None:
    done = wayfare(*arguments, redirect=">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_stderr_sends_no_complaint_to_stdout() -> None:
    done = wayfare("sim", "nowhere", redirect="2>&-")
    assert (done.returncode, done.stdout) == (2, "")


@every_kind_of_output
def test_a_reader_who_has_left_is_nothing_to_complain_about(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # before the first line is written, however slow the machine is
    try:
        done = subprocess.run(
            [sys.executable, "-m", "wayfare", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=BUFFERED,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@every_kind_of_output
def test_ascii_is_enough(arguments: list[str]) -> None:
    done = wayfare(*arguments, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_what_ascii_lacks_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("# São João.\nbrokers porto\n", encoding="utf-8")
    done = wayfare("sim", str(file), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("S?o Jo?o.")


# Benches


LONG = ("move", "roam", "hostile")  # in many processes, or with many attacks
ON_SPARK = ("sweep", "analyse", "history")  # in the session of the other tests
every_bench = pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            one,
            marks=[
                # measured once for all tests
                pytest.mark.xdist_group("spark" if one in ON_SPARK else f"bench {one}"),
                *([pytest.mark.slow, pytest.mark.timeout(300)] if one in LONG + ON_SPARK else []),
            ],
        )
        for one in BENCHES
        if one != "jobs"  # test_bench_jobs.py
    ],
)


@cache
def measured(what: str) -> list[dict[str, Any]]:
    if what in ON_SPARK:
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(io.StringIO()) as out,
        ):
            # What is printed is the point here; the session of the tests is slow with many rows.
            patch.setattr("wayfare.bench.analyse.DELIVERIES", (100_000,))
            assert main(["bench", what, "--quick", "--json"]) == 0
        return [json.loads(line) for line in out.getvalue().splitlines()]
    done = wayfare("bench", what, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def rows(what: str, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if what in ON_SPARK:
        request.getfixturevalue("spark")
    return measured(what)


@every_bench
def test_benches_print_one_json_object_per_line(what: str, rows: list[dict[str, Any]]) -> None:
    assert rows
    assert all(isinstance(row, dict) for row in rows)


@every_bench
def test_no_figure_of_a_bench_is_cut_in_80_columns(what: str, rows: list[dict[str, Any]]) -> None:
    drawn = draw(rows, 80)
    assert max(map(len, drawn.splitlines())) <= 80
    for row in rows:
        for name, value in row.items():
            words = [*name.split("_"), *str("-" if value is None else value).split()]
            assert [word for word in words if word not in drawn.split()] == []


def test_the_head_of_a_bench_is_wrapped() -> None:
    row = {"workload": "zipf", "us_per_notification": 437.84, "naive_us": None}
    assert draw([row], 29) == (
        "                us per  naive\n"
        "workload  notification     us\n"
        "--------  ------------  -----\n"
        "zipf            437.84      -"
    )
    assert draw([row], 28).endswith("zipf           437.84     -")  # one space instead of two


def test_rows_of_a_bench_that_are_too_wide_stand_upright() -> None:
    """As many side by side as there is room for."""
    row = {"insert_us": 53.9, "remove_us": 7.1, "covered_us": 20.3, "coverers_us": None}
    assert draw([row] * 3, 23).splitlines() == [
        "insert us    53.9  53.9",
        "remove us     7.1   7.1",
        "covered us   20.3  20.3",
        "coverers us     -     -",
        "",
        "insert us    53.9",
        "remove us     7.1",
        "covered us   20.3",
        "coverers us     -",
    ]


def test_rows_of_a_bench_with_other_columns_are_another_table() -> None:
    rows = [{"bench": "a", "x": 1}, {"bench": "a", "x": 2}, {"bench": "b", "y": 3}]
    assert draw(rows, 80) == (
        "bench  x\n-----  -\na      1\na      2\n\nbench  y\n-----  -\nb      3"
    )


def test_the_backlog_bench_shows_that_each_notification_is_kept_once() -> None:
    here, elsewhere = measured("backlog")
    assert (here["case"], elsewhere["case"]) == ("here", "from elsewhere")
    for row in (here, elsewhere):
        assert (row["clients"], row["notifications"]) == (20, 100)
        assert 0 < row["share_of_copies"] < 0.5


def test_the_sim_bench_has_a_city_with_and_without_handoff() -> None:
    still, standard, handoff = measured("sim")
    assert still["bench"] == "sim"
    assert (standard["bench"], standard["algorithm"]) == ("city", "standard")
    assert (handoff["bench"], handoff["algorithm"]) == ("city", "handoff")
    assert standard["moves"] == handoff["moves"] > 0
    assert standard["messages"] > handoff["messages"]
    assert standard["lost"] > handoff["lost"] == 0
    for row in (still, standard, handoff):
        assert 0 < row["share_of_bare_loop"] < 1


@pytest.mark.parametrize("command", [*cli.ALONE])
def test_a_command_alone_is_the_same_as_among_others(command: str) -> None:
    def shown(parser: argparse.ArgumentParser) -> dict[str, str]:
        return {name: one.format_help() for name, one in commands_of(parser).items()}

    alone, all_of_them = shown(cli.parser(command)), shown(cli.parser())
    assert command in alone
    assert alone.items() <= all_of_them.items()


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (commands,) = (one for one in parser._actions if isinstance(one.choices, dict))
    assert isinstance(commands.choices, dict)
    return commands.choices


def test_who_subscribes_does_not_wait_for_the_simulator() -> None:
    code = "import sys; from wayfare.cli import main; main(['sub', 'nowhere:x', 'x > 0']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {*done.stdout.split()}
    assert "wayfare.net.client" in imported
    assert not imported & {"wayfare.sim", "wayfare.bench", "pyarrow"}


def test_version() -> None:
    assert wayfare("--version").stdout.startswith("wayfare ")


def test_the_live_demo_loses_nothing_with_support_and_something_without() -> None:
    done = wayfare("demo", "--seconds", "3", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    without, with_support = figures["no support"], figures["Wayfare"]
    assert with_support["published"] == with_support["delivered"] > 40
    assert (with_support["lost"], with_support["duplicates"], with_support["out_of_order"]) == (
        0,
        0,
        0,
    )
    assert without["lost"] > 3


def test_the_demo_of_locations_loses_nothing_and_the_past_is_there_on_arrival() -> None:
    done = wayfare("demo", "location", "--seconds", "2", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    first, *others = told["stops"]
    assert (first["past"], first["live"]) == ([], first["said"])
    for stop in others:
        # what was said on the way may come as either
        assert len(stop["past"]) >= demo_location.AHEAD
        assert stop["past"] + stop["live"] == stop["said"]
    wanted = sum(len(stop["said"]) for stop in told["stops"])
    figures = told["figures"]
    assert figures["wanted"] == figures["past"] + figures["live"] == wanted < figures["published"]
    assert [figures[name] for name in demo_location.WRONG] == [0, 0, 0, 0]


def test_the_demo_of_locations_tells_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without anybody who listens ahead, the past of every street is lost."""
    monkeypatch.setattr(demo_location, "PATIENCE_S", 0.2)
    monkeypatch.setattr(demo_location, "Ahead", lambda places, _: Ahead(places))
    assert main(["demo", "location", "--seconds", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("the car comes to estrela: 0 notices of the past" in line for line in lines)
    figures = dict(line.rsplit(maxsplit=1) for line in lines[-8:])
    assert int(figures["lost"]) >= 4 * demo_location.AHEAD
    assert max(map(len, lines)) <= 80
    assert main(["demo", "location", "--simulated"]) == 2
    assert "leave --simulated and --out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pipeline_comes_to_the_same_figures_as_the_live_demo(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = wayfare("demo", "--seconds", "3", "--json", "--out", str(out))
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    for side in ("no support", "Wayfare"):
        seen, analysed = told[side], told["analysed"][side]
        assert analysed["expected"] == seen["published"]
        assert analysed["lost"] == seen["lost"]
        assert analysed["duplicates"] == seen["duplicates"]
        assert analysed["order_violations"] == seen["out_of_order"]
        assert analysed["delay_p50_ms"] > 0
    assert told["no support"]["lost"] > 0
    assert {*told["written"]} == {"report", "picture", "log"}
    assert all(Path(path).exists() for path in told["written"].values())


def test_the_live_demo_tells_its_story_where_there_is_no_terminal() -> None:
    done = wayfare("demo", "--seconds", "2", COLUMNS="80", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert any(line.endswith("anna goes to faro") for line in lines)
    assert [
        line.split()[0] for line in lines[-5:]
    ] == "published delivered lost duplicates out".split()
    assert wayfare("demo", "--seconds", "1").stderr == (
        "wayfare: a demo takes 2 seconds at least, and an hour at most\n"
    )
