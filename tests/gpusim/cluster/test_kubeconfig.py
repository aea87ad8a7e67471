"""The kubeconfig of the simulated API server: foreign files are safe, and what cannot be is one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gpusim.cluster import kubeconfig
from gpusim.cluster.apiserver import ApiServer
from gpusim.errors import GpusimError

URL = "http://127.0.0.1:8001"


def apiserver(*arguments):
    command = [sys.executable, "-m", "gpusim.cli", "apiserver", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.daemon
def test_a_command_that_fails_before_it_wrote_leaves_the_users_file(tmp_path):
    theirs = tmp_path / "config"
    theirs.write_text("the only copy\n")
    done = apiserver("--kubeconfig", theirs, "--node", "Bad Name!")
    assert done.returncode == 1
    assert theirs.read_text() == "the only copy\n"


@pytest.mark.daemon
def test_a_foreign_file_is_refused_with_the_remedy_and_stays(tmp_path):
    theirs = tmp_path / "config"
    theirs.write_text("the only copy\n")
    done = apiserver("--kubeconfig", theirs)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gpusim apiserver: kubeconfig {theirs}: is there and was not written by gpusim: "
        "remove it, or choose another name\n"
    )
    assert theirs.read_text() == "the only copy\n"


def test_an_earlier_file_of_ours_is_replaced(tmp_path):
    path = kubeconfig.write(tmp_path / "config", "http://127.0.0.1:1")
    kubeconfig.write(path, URL)
    assert f"server: {URL}\n" in path.read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["config"]


def test_only_what_was_written_is_removed(tmp_path):
    path = kubeconfig.write(tmp_path / "config", URL)
    kubeconfig.write(path, "http://127.0.0.1:2")
    kubeconfig.remove(path, URL)
    assert path.exists()
    kubeconfig.remove(path, "http://127.0.0.1:2")
    assert not path.exists()
    kubeconfig.remove(path, URL)


@pytest.mark.parametrize("what", ["directory", "pipe", "dangling link", "no directory"])
def test_a_place_where_no_file_can_be_written_is_named_and_nothing_is_left_behind(tmp_path, what):
    path = tmp_path / "config"
    match what:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "dangling link":
            path.symlink_to("elsewhere")
        case _:
            path = tmp_path / "none" / "config"
    before = [entry.name for entry in tmp_path.iterdir()]
    with pytest.raises(GpusimError, match=f"kubeconfig {path}: .*(name a file|remove it)") as refused:
        kubeconfig.write(path, URL)
    assert "Errno" not in str(refused.value)
    assert [entry.name for entry in tmp_path.iterdir()] == before


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_cannot_be_is_refused_and_nothing_hangs(port):
    with pytest.raises(GpusimError, match=f"port {port}: TCP ports are 1 to 65535, and 0 for a free one"):
        ApiServer(port).start()


def test_whatever_goes_wrong_in_the_thread_reaches_start(monkeypatch):
    async def broken(self):
        raise ZeroDivisionError("anything")

    monkeypatch.setattr(ApiServer, "_listen", broken)
    server = ApiServer()
    with pytest.raises(ZeroDivisionError):
        server.start()
    monkeypatch.undo()
    with server:
        assert server.url


@pytest.mark.daemon
def test_an_api_server_with_a_kubeconfig_of_its_own_ends_on_a_signal_and_takes_it_along(tmp_path):
    path = tmp_path / "config"
    command = [sys.executable, "-m", "gpusim.cli", "apiserver", "--kubeconfig", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("apiserver ready")
        assert path.read_text().startswith(kubeconfig.MARK)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not path.exists()
