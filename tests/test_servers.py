"""`make servers`, with an apt-get that only notes what it is asked for."""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent.parent
SENTENCE = "nats needs nats-server: apt-get install nats-server"

PYTHON = f"""#!/bin/sh
[ -e installed ] || case "$2" in *packages*) echo nats-server ;; *sentences*) echo "{SENTENCE}" ;; esac
"""
ID = "#!/bin/sh\necho $NUMBER\n"
# It wants its lists to be updated first, and sees whether servers may be started.
APT_GET = """#!/bin/sh
echo "$@" >>asked
cat policy >>policies 2>/dev/null
case "$*" in
*update*) touch updated ;;
*) if [ -e updated ] && [ ! -e offline ]; then touch installed; else echo "E: no lists" >&2; exit 100; fi ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    for name, text in {"python": PYTHON, "id": ID, "apt-get": APT_GET}.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def run(user="0"):
        command = ["make", "-f", HERE / "Makefile", "-o", ".venv/.ready", "servers"]
        ours = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("MAKE", "MFLAGS"))
        }
        return subprocess.run(
            [*command, "BIN=bin", f"POLICY={tmp_path}/policy"],
            cwd=tmp_path,
            env={**ours, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "NUMBER": user},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def asked(tmp_path):
    log = tmp_path / "asked"
    return [line.split()[-1] for line in log.read_text().splitlines()] if log.exists() else []


def test_what_is_missing_is_installed_and_not_started(make, tmp_path):
    done = make()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "installing nats-server (a minute or two)\n"
    assert asked(tmp_path) == ["nats-server", "update", "nats-server"]
    assert "install -y --no-install-recommends" in (tmp_path / "asked").read_text()
    assert (tmp_path / "policies").read_text().split() == ["#!/bin/sh", "exit", "101"] * 3
    assert not (tmp_path / "policy").exists()
    assert not (tmp_path / ".setup.log").exists()


def test_nothing_is_asked_when_all_is_there(make, tmp_path):
    (tmp_path / "installed").touch()
    done = make()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert asked(tmp_path) == []


def test_a_policy_of_the_machine_stays_as_it_is(make, tmp_path):
    (tmp_path / "policy").write_text("mine\n")
    make()
    assert (tmp_path / "installed").exists()
    assert (tmp_path / "policy").read_text() == "mine\n"


def test_who_is_not_root_is_told_what_to_install(make, tmp_path):
    done = make(user="1000")
    assert (done.returncode, done.stdout) == (0, SENTENCE + "\n")
    assert asked(tmp_path) == []


def test_what_cannot_be_installed_is_explained_and_does_not_stop_anybody(make, tmp_path):
    (tmp_path / "offline").touch()
    done = make()
    assert done.returncode == 0
    assert done.stdout.splitlines()[1:] == ["E: no lists", "E: no lists", SENTENCE]
    assert not (tmp_path / "policy").exists()
    assert "E: no lists" in (tmp_path / ".setup.log").read_text()
