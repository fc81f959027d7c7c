"""What Windows lacks is not needed: runs work without fcntl, dir_fd, alarms and control over mapped pages."""

import subprocess
import sys
from pathlib import Path

import pytest

# All that others import first, so that only rayfl itself meets a system without these.
WITHOUT = """
import importlib, mmap, os, pkgutil, signal, sys
import numpy, pandas, pyarrow.parquet, ray, rich.progress, scipy.optimize, sklearn.datasets, torch, typer, threadpoolctl
import matplotlib, ray.util.placement_group, safetensors.numpy

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in {
    os: ["O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "sysconf", "posix_fallocate", "fork", "getuid"],
    signal: ["SIGALRM", "SIGKILL", "SIGHUP", "SIGUSR1", "setitimer", "ITIMER_REAL", "pthread_kill"],
    mmap: ["MADV_DONTNEED"],
}.items():
    for name in names:
        delattr(module, name)
"""


def python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + code], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_posix_all_modules_are_imported_and_a_run_is_written_stopped_and_resumed(tmp_path: Path) -> None:
    out = python(
        """
import rayfl

names = [m.name for m in pkgutil.walk_packages(rayfl.__path__, "rayfl.") if m.name != "rayfl.results.posix_folder"]
for name in names:
    importlib.import_module(name)

class Stop(rayfl.Callback):
    def on_round_end(self, record):
        if record.number == 2:
            signal.raise_signal(signal.SIGINT)

keys = {
    "federation": "serial", "quiet": True, "model": {"name": "mlp"}, "method": {"name": "ditto"},
    "partition": {"clients": 4}, "data": {"limit": 200}, "local": {"steps": 1}, "state": {"memory_mb": 0},
}
whole = rayfl.run(name="whole", rounds=3, **keys)
try:
    rayfl.run(name="stopped", rounds=3, callbacks=[Stop()], **keys)
except KeyboardInterrupt:
    pass
assert len(rayfl.load("runs/stopped").rounds) == 2
assert type(rayfl.load("runs/stopped")._storage._backend).__name__ == "PlainFolder"
again = rayfl.resume("runs/stopped", quiet=True)
columns = ["round", "client", "accuracy", "loss"]
assert again.clients[columns].equals(whole.clients[columns])
print(len(names))
""",
        tmp_path,
    )
    assert int(out) > 80


def test_a_folder_by_paths_refuses_links_and_notices_that_it_is_gone(tmp_path: Path) -> None:
    from rayfl.errors import InputError, RayflError
    from rayfl.results.plain_folder import PlainFolder

    folder = PlainFolder(tmp_path / "run")
    folder.write("a/b.txt", b"hello")
    assert (folder.names("a"), folder.read("a/b.txt"), folder.names("nothing")) == (["b.txt"], b"hello", [])
    (tmp_path / "run" / "link").symlink_to(tmp_path / "run" / "a")
    for call in (lambda: folder.read("link/b.txt"), lambda: folder.write("link/c", b""), lambda: folder.names("link")):
        with pytest.raises(InputError, match="is a link"):
            call()
    assert not folder.claim("config.yaml", b"x") and PlainFolder(tmp_path / "other").claim("config.yaml", b"x")
    with folder.locked() as mine:
        assert mine
        (tmp_path / "run").rename(tmp_path / "moved")
        with pytest.raises(RayflError, match="was deleted, moved or replaced"):
            folder.write("a/c.txt", b"x")
    assert not (tmp_path / "run").exists()
