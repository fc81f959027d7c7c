"""`make cluster-test`: the on-premise launcher between three virtual hosts on this machine, as a user would type it.

A laptop starts Ray by SSH on a head and a worker with cluster_configs/onprem.yaml, in which only addresses, user and
key are filled in. A run by `ray submit`, one by `ray job submit`, one that loses the worker half-way, and one of
cluster_configs/slurm.sbatch with SSH in the place of `srun`, must give the tables of a run without Ray. Needs root, and
the script that makes the hosts: $RAYFL_VIRTUAL_CLUSTER, by default ../shared/virtual-cluster.sh.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HOSTS = {"laptop": "10.77.0.10", "head": "10.77.0.11", "worker": "10.77.0.12"}
CPUS = {"head": 1, "worker": 2}
SHIPPED = [
    "rayfl",
    "experiments",
    "cluster_configs",
    "tests/cluster",
    "tests/tables.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
]
PARTS = ["submit", "job", "cut", "slurm"]
LAUNCHER = "/root/onprem.yaml"
CUT_ROUNDS, CUT_AFTER = 40, 6


class Failure(Exception):
    """A step did not give what it must."""


class Steps:
    """Prints what is being done, and in the end how long each step took."""

    def __init__(self) -> None:
        self._done: list[tuple[str, float, str]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        print(f"== {name}", flush=True)
        begin, result = time.monotonic(), "failed"
        try:
            yield
            result = "ok"
        finally:
            self._done.append((name, time.monotonic() - begin, result))

    def print_table(self) -> None:
        width = max(len(name) for name, _, _ in self._done)
        print()
        for name, seconds, result in self._done:
            print(f"{name:<{width}}  {seconds:6.1f} s  {result}")
        print(f"{'all':<{width}}  {sum(s for _, s, _ in self._done):6.1f} s", flush=True)


class VirtualHosts:
    """The hosts; a command on one of them goes by SSH, as between real ones."""

    def __init__(self, script: Path, folder: Path) -> None:
        self._folder = folder
        names = [f"{name}={address}" for name, address in HOSTS.items()]
        self._log = (folder / "hosts.log").open("w")
        self._process = subprocess.Popen(
            [str(script), str(folder), *names], stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        wait_for(lambda: (folder / "up").exists(), 120, "virtual hosts", lambda: self._process.poll() is not None)
        found = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True, check=True)
        self._inside = found.stdout.split()[0]

    def key(self) -> Path:
        return self._folder / "id"

    def _enter(self, *command: str) -> list[str]:
        return ["nsenter", "-t", self._inside, "-n", "-m", "-p", *command]

    def ssh(self, host: str, command: str) -> list[str]:
        """Return the words that run a shell command on a host."""
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=10"]
        flags = [word for option in options for word in ("-o", option)]
        # A login shell would not read ~/.bashrc without -i; what a user types does.
        typed = f"source ~/.bashrc; {command}"
        return self._enter("ssh", "-i", str(self.key()), *flags, f"root@{HOSTS[host]}", f"bash -c {shlex.quote(typed)}")

    def on(self, host: str, command: str, timeout: float = 60, stdin: bytes | None = None) -> str:
        """Run a shell command on a host; return what it printed."""
        try:
            done = subprocess.run(
                self.ssh(host, command),
                input=stdin,
                stdin=None if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{host}: {command}\nno end after {timeout} s\n{text_of(error.stdout)}") from None
        printed = text_of(done.stdout)
        if done.returncode:
            raise Failure(f"{host}: {command}\nexit code {done.returncode}\n{printed}")
        return printed

    def cable(self, host: str, state: str) -> None:
        """Pull the host's network cable (down), or plug it in again (up)."""
        subprocess.run(self._enter("ip", "link", "set", f"v{host}", state), check=True)

    def close(self) -> None:
        """End the hosts with everything on them."""
        self._process.kill()
        self._process.wait(30)
        self._log.close()


def wait_for(
    ready: Callable[[], bool], seconds: float, what: str, gone: Callable[[], bool] = lambda: False, pause: float = 0.2
) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if gone():
            raise Failure(f"{what}: ended before it was ready")
        if time.monotonic() > end:
            raise Failure(f"{what}: not ready after {seconds:g} s")
        time.sleep(pause)


def text_of(printed: bytes | None) -> str:
    """Return printed text without the colours and cursor movements of a terminal."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", (printed or b"").decode(errors="replace")).replace("\r", "\n")


def launcher_file() -> str:
    """Return the real launcher file with this test's addresses, user and key."""
    text = (CHECKOUT / "cluster_configs" / "onprem.yaml").read_text()
    for key, value in {
        "head_ip": HOSTS["head"],
        "worker_ips": f"[{HOSTS['worker']}]",
        "ssh_user": "root",
        "ssh_private_key": "/root/cluster_key",
    }.items():
        text, count = re.subn(rf"^(  {key}:).*$", rf"\1 {value}", text, flags=re.M)
        if count != 1:
            raise Failure(f"cluster_configs/onprem.yaml has {key} {count} times")
    return text


def prepare_hosts(hosts: VirtualHosts) -> None:
    """Copy the project and the key to the laptop, and give every host an environment with rayfl's dependencies.

    The environment stands for what the launcher's pip would install, which would take minutes: it finds the packages
    of this one, but not rayfl itself, which must come from where the launcher puts it.
    """
    packages, python = sysconfig.get_path("purelib"), Path(sys.executable)
    for host, code in {
        "laptop": "/root/rayfl-checkout",
        "head": "/root/rayfl-project",
        "worker": "/root/rayfl-project",
    }.items():
        hosts.on(
            host,
            f"""set -e
            {python} -m venv --without-pip ~/rayfl-venv
            cd ~/rayfl-venv/lib/python3.*/site-packages
            printf '%s\\n' {packages} {code} > rayfl.pth
            cd ~/rayfl-venv/bin
            printf '#!/root/rayfl-venv/bin/python\\nfrom ray.scripts.scripts import main\\nmain()\\n' > ray
            printf '#!/root/rayfl-venv/bin/python\\nfrom rayfl.cli import main\\nmain()\\n' > rayfl
            chmod +x ray rayfl
            : > ~/.bashrc
            echo '--num-cpus {CPUS.get(host, 0)} --object-store-memory 300000000' > ~/rayfl-node""",
        )
    packed = subprocess.run(
        ["tar", "-C", str(CHECKOUT), "--exclude=__pycache__", "-cz", *SHIPPED], stdout=subprocess.PIPE, check=True
    ).stdout
    hosts.on("laptop", "mkdir ~/rayfl-checkout && tar -C ~/rayfl-checkout -xz", stdin=packed)
    hosts.on("laptop", "umask 077 && cat > ~/cluster_key", stdin=hosts.key().read_bytes())
    hosts.on("laptop", f"cat > {LAUNCHER}", stdin=launcher_file().encode())
    hosts.on("laptop", "echo 'export PATH=~/rayfl-venv/bin:$PATH RAY_AUTH_MODE=token; cd ~/rayfl-checkout' > ~/.bashrc")
    hosts.on("laptop", "umask 077 && ray get-auth-token --generate >/dev/null && chmod 600 ~/.ray/auth_token")


class Laptop:
    """What the user types on the laptop, in the checkout."""

    def __init__(self, hosts: VirtualHosts) -> None:
        self._hosts = hosts

    def types(self, command: str, timeout: float = 120) -> str:
        print(f"   $ {command}", flush=True)
        return self._hosts.on("laptop", command, timeout)

    def nodes_up(self) -> int:
        count = "import ray; ray.init(address='auto'); print('up', sum(n['Alive'] for n in ray.nodes()))"
        printed = self._hosts.on("head", f"python -c {shlex.quote(count)}", 60)
        return int(printed.rpartition("up ")[2].split()[0])

    def run_serially(self, name: str, *overrides: str) -> None:
        words = " ".join(overrides)
        self.types(
            f"rayfl run tests/cluster/digits.yaml federation=serial name={name} output.dir=/root/serial {words}", 300
        )

    def fetch(self) -> None:
        """Copy all runs from the head."""
        self.types(f"ray rsync-down {LAUNCHER} '~/runs/' /root/fetched/")

    def compare(self, serial: str, name: str, *options: str) -> None:
        words = " ".join(
            ["python", "tests/cluster/compare_runs.py", f"/root/serial/{serial}", f"/root/fetched/{name}", *options]
        )
        print("   " + self.types(words).strip().splitlines()[-1], flush=True)


def submit_step(laptop: Laptop) -> None:
    printed = laptop.types(
        f"ray submit --no-config-cache {LAUNCHER} experiments/run.py --config digits.yaml name=submitted", 300
    )
    expect(printed, f"using the Ray cluster at {HOSTS['head']}:6379")
    expect(printed, "on 2 nodes")
    laptop.fetch()
    laptop.compare("short", "submitted")


def job_step(laptop: Laptop, hosts: VirtualHosts) -> None:
    forwarding = subprocess.Popen(
        hosts.ssh("laptop", f"ray dashboard --no-config-cache {LAUNCHER}"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        knock = "exec 3<>/dev/tcp/127.0.0.1/8265"
        wait_for(
            lambda: quiet(hosts.ssh("laptop", knock)), 60, "ray dashboard", lambda: forwarding.poll() is not None, 1
        )
        hosts.on("laptop", """echo '__version__ = "as shipped"' > rayfl/version.py""")
        submit = "ray job submit --address http://127.0.0.1:8265 --working-dir . --"
        printed = laptop.types(f"{submit} python experiments/run.py --config tests/cluster/digits.yaml name=job", 300)
        expect(printed, "on 2 nodes")
        expect(printed, "succeeded")
        refused = hosts.on(
            "laptop", "RAY_AUTH_TOKEN=wrong ray job list --address http://127.0.0.1:8265 || echo refused"
        )
        expect(refused, "refused")
    finally:
        forwarding.kill()
        forwarding.wait()
    laptop.fetch()
    expect(hosts.on("laptop", "head -n 1 /root/fetched/job/config.yaml"), "# rayfl as shipped")
    laptop.compare("short", "job")


def cut_off_step(laptop: Laptop, hosts: VirtualHosts) -> None:
    command = (
        f"ray submit --no-config-cache {LAUNCHER} experiments/run.py --config digits.yaml name=cut"
        f" rounds={CUT_ROUNDS} local.steps=10 ray.lost_after=10"
    )
    print(f"   $ {command}", flush=True)
    running = subprocess.Popen(
        hosts.ssh("laptop", command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed = bytearray()

    def read() -> None:
        assert running.stdout
        while piece := os.read(running.stdout.fileno(), 65536):
            printed.extend(piece)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()

    def rounds_done() -> int:
        return max(map(int, re.findall(r"\bround +(\d+)/", text_of(bytes(printed)))), default=0)

    try:
        wait_for(lambda: rounds_done() >= CUT_AFTER, 180, "first rounds", lambda: running.poll() is not None)
        at = rounds_done()
        if at >= CUT_ROUNDS - 5:
            raise Failure(f"the run was at round {at} of {CUT_ROUNDS} before the worker could be cut off")
        hosts.cable("worker", "down")
        print(f"   worker cut off in round {at + 1} of {CUT_ROUNDS}", flush=True)
        begin = time.monotonic()
        wait_for(lambda: rounds_done() > at + 1, 180, "a round after the loss", lambda: running.poll() is not None)
        print(f"   rounds went on {time.monotonic() - begin:.0f} s later", flush=True)
        running.wait(300)
    except (Failure, subprocess.TimeoutExpired) as error:
        raise Failure(f"{error}\n{text_of(bytes(printed))[-4000:]}") from None
    finally:
        running.kill()
        running.wait()
    if running.returncode:
        raise Failure(f"exit code {running.returncode}\n{text_of(bytes(printed))[-4000:]}")
    laptop.fetch()
    laptop.compare("long", "cut", "--recovered")


SRUN = """#!/bin/bash
# Plays Slurm's srun: the command runs on the node that --nodelist names, and ends when this ends.
while [[ $1 == --* ]]; do
  [[ $1 == --nodelist=* ]] && node=${1#*=}
  shift
done
exec ssh -tt -q -i ~/ray_bootstrap_key.pem -o StrictHostKeyChecking=no "$node" \\
  env PATH="$PATH" RAY_AUTH_MODE="$RAY_AUTH_MODE" "$@"
"""


def slurm_step(laptop: Laptop, hosts: VirtualHosts) -> None:
    """Run the script on the head, which has the launcher's key and token: they stand for Slurm and its shared home."""
    project = "/root/slurm-project"
    hosts.on("head", f"mkdir {project} && ln -s ~/rayfl-venv {project}/.venv && cp -r ~/experiments {project}")
    hosts.on("head", "cat > ~/slurm.sbatch", stdin=(CHECKOUT / "cluster_configs" / "slurm.sbatch").read_bytes())
    hosts.on("head", "cat > ~/rayfl-venv/bin/srun && chmod +x ~/rayfl-venv/bin/srun", stdin=SRUN.encode())
    names = "#!/bin/bash\nprintf '%s\\n' head worker\n"
    hosts.on("head", "cat > ~/rayfl-venv/bin/scontrol && chmod +x ~/rayfl-venv/bin/scontrol", stdin=names.encode())
    variables = f"SLURM_JOB_ID=7 SLURM_JOB_NODELIST=x SLURM_CPUS_PER_TASK=1 RAYFL_PROJECT={project}"
    command = f"{variables} bash slurm.sbatch --config digits.yaml name=slurm"
    print(f"   head$ {command}", flush=True)
    expect(hosts.on("head", f"cd && {command}", 300), "on 2 nodes")
    for host in ("head", "worker"):
        wait_for(lambda host=host: raylets(hosts, host) == 0, 30, f"end of Ray on the {host}", pause=1)  # type: ignore[misc]
    hosts.on("laptop", "rsync -a -e 'ssh -i ~/cluster_key -o StrictHostKeyChecking=no' head:runs/ /root/fetched/")
    laptop.compare("short", "slurm")


def raylets(hosts: VirtualHosts, host: str) -> int:
    return int(hosts.on(host, "pgrep -c raylet || true"))


def expect(printed: str, words: str) -> None:
    if words not in printed:
        raise Failure(f"'{words}' was not printed, but:\n{printed}")


def quiet(command: list[str]) -> bool:
    return (
        subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=False).returncode == 0
    )


def run_all(script: Path, parts: list[str], steps: Steps) -> None:
    # Short: Ray's sockets lie in paths of limited length below it.
    folder = Path(tempfile.mkdtemp(prefix="rayfl-hosts-"))
    hosts = None
    try:
        with steps.step("three virtual hosts"):
            hosts = VirtualHosts(script, folder)
            prepare_hosts(hosts)
        laptop = Laptop(hosts)
        with steps.step("serial runs on the laptop"):
            laptop.run_serially("short")
            if "cut" in parts:
                laptop.run_serially("long", f"rounds={CUT_ROUNDS}", "local.steps=10")
        with steps.step("ray up"):
            laptop.types(f"ray up -y --no-config-cache {LAUNCHER}", 300)
        with steps.step("the worker joins"):
            wait_for(lambda: laptop.nodes_up() == 2, 180, "two nodes", pause=2)
            laptop.types(f"ray rsync-up {LAUNCHER} tests/cluster/digits.yaml '~/digits.yaml'")
        if "submit" in parts:
            with steps.step("ray submit"):
                submit_step(laptop)
        if "job" in parts:
            with steps.step("ray job submit"):
                job_step(laptop, hosts)
        if "cut" in parts:
            with steps.step("ray submit, worker cut off"):
                cut_off_step(laptop, hosts)
        with steps.step("ray down"):
            laptop.types(f"ray down -y {LAUNCHER}")
            if left := raylets(hosts, "head"):
                raise Failure(f"{left} raylets are left on the head")
        with steps.step("the worker leaves by itself"):
            hosts.cable("worker", "up")
            wait_for(lambda: raylets(hosts, "worker") == 0, 180, "end of Ray on the worker", pause=2)
        if "slurm" in parts:
            with steps.step("the Slurm script"):
                slurm_step(laptop, hosts)
    except Failure:
        if hosts is not None:
            print_logs(hosts)
        raise
    finally:
        if hosts is not None:
            hosts.close()
        shutil.rmtree(folder, ignore_errors=True)


def print_logs(hosts: VirtualHosts) -> None:
    """Show the end of what the head's autoscaler wrote, where the reason often is."""
    with_errors = hosts.ssh("head", "grep -hv VINFO /tmp/ray/session_latest/logs/monitor.{log,out} | tail -n 30")
    try:
        printed = subprocess.run(
            with_errors, capture_output=True, stdin=subprocess.DEVNULL, timeout=30, check=False
        ).stdout
        print(text_of(printed), file=sys.stderr)
    except subprocess.TimeoutExpired:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the on-premise launcher between virtual hosts.")
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"{', '.join(PARTS)}; default: all")
    parts = parser.parse_args().parts
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(unknown)}")
    script = CHECKOUT / os.environ.get("RAYFL_VIRTUAL_CLUSTER", "../shared/virtual-cluster.sh")
    if not script.is_file():
        parser.error(f"{script.resolve()} is not there; RAYFL_VIRTUAL_CLUSTER says where the virtual hosts' script is")
    if os.geteuid() != 0:
        parser.error("virtual hosts need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    steps = Steps()
    try:
        run_all(script.resolve(), parts, steps)
    except Failure as failure:
        print(f"\nfailed: {failure}", file=sys.stderr)
        sys.exit(1)
    finally:
        steps.print_table()


if __name__ == "__main__":
    main()
