"""The launcher files, as far as they can be checked without the clusters that they start, and experiments/run.py.

`make cluster-test` runs the on-premise file for real, between virtual hosts.
"""

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import yaml
from forks import finished

from rayfl.results import Run

CHECKOUT = Path(__file__).parent.parent
FOLDER = CHECKOUT / "cluster_configs"
LAUNCHERS = ["aws.yaml", "gcp.yaml", "onprem.yaml"]
KUBERAY = ["kuberay-raycluster.yaml", "kuberay-rayjob.yaml"]
SLURM = FOLDER / "slurm.sbatch"


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def load(name: str) -> Any:
    return yaml.safe_load(text(name))


# Ray's cluster launcher


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ray_accepts_the_launcher_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    monkeypatch.chdir(CHECKOUT)
    prepared = prepare_config(load(name))
    validate_config(prepared)
    if name != "onprem.yaml":
        assert set(prepared["available_node_types"]) == {"head", "cpu", "gpu"}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_start_of_ray_asks_for_the_token_and_keeps_the_dashboard_on_the_node(name: str) -> None:
    config = load(name)
    (head,) = [c for c in config["head_start_ray_commands"] if "ray start" in c]
    (worker,) = [c for c in config["worker_start_ray_commands"] if "ray start" in c]
    for command in (head, worker):
        assert re.search(r"\bRAY_AUTH_MODE=token\b.* ray start ", command)
    assert "--dashboard-host=127.0.0.1" in head
    assert "--address=$RAY_HEAD_IP:6379" in worker
    # `ray submit` runs Python in a separate shell, which needs the token too.
    assert any("RAY_AUTH_MODE=token" in c and "rayfl-env.sh" in c for c in config["setup_commands"])


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_token_goes_to_the_nodes_as_a_file_that_only_its_owner_reads(name: str) -> None:
    config = load(name)
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("chmod 600 ~/.ray/auth_token" in c for c in config["setup_commands"])


@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_is_mounted_is_there_and_small_and_enough_to_install(name: str) -> None:
    mounts = {k: v for k, v in load(name)["file_mounts"].items() if "auth_token" not in k}
    for here in mounts.values():
        assert (CHECKOUT / here).exists(), here
    size = sum(f.stat().st_size for here in mounts.values() for f in [CHECKOUT / here, *(CHECKOUT / here).rglob("*")])
    assert size < 20e6  # Ray reads all of it at each `ray up`: an environment must not be among it
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    needed = {"rayfl", "pyproject.toml", project["readme"], *project["license-files"]}
    assert needed <= {Path(there).name for there in mounts if there.startswith("~/rayfl-project/")}
    assert mounts["~/experiments"] == "experiments"
    # A folder ~/rayfl without __init__.py would hide the installed package from scripts that run in ~.
    assert "~/rayfl" not in mounts


def test_the_on_premise_head_starts_its_workers_with_the_old_autoscaler() -> None:
    (head,) = [c for c in load("onprem.yaml")["head_start_ray_commands"] if "ray start" in c]
    assert re.search(r"\bRAY_enable_autoscaler_v2=0\b.* ray start ", head)


def test_clouds_open_nothing_to_the_world() -> None:
    """Left to itself, Ray makes an AWS group that opens SSH to all; Google's default network does too."""
    for kind in load("aws.yaml")["available_node_types"].values():
        assert kind["node_config"]["SecurityGroupIds"]
        assert kind["node_config"]["SubnetIds"]
        assert kind["node_config"]["MetadataOptions"] == {"HttpTokens": "required"}
    for kind in load("gcp.yaml")["available_node_types"].values():
        (interface,) = kind["node_config"]["networkInterfaces"]
        assert "default" not in interface["subnetwork"]
        assert kind["node_config"]["tags"] == {"items": ["rayfl"]}
    for name in ("aws.yaml", "gcp.yaml"):
        assert "security_group" not in load(name)["provider"]
        assert "# use_internal_ips: true" in text(name)


def test_gpus_are_on_the_gpu_machines_only() -> None:
    kinds = load("gcp.yaml")["available_node_types"]
    assert {k for k, v in kinds.items() if "guestAccelerators" in v["node_config"]} == {"gpu"}
    assert {k for k, v in kinds.items() if v["resources"].get("GPU")} == {"gpu"}
    for name in ("aws.yaml", "gcp.yaml"):
        for kind in ("cpu", "gpu"):
            node = load(name)["available_node_types"][kind]
            assert node["min_workers"] == node["max_workers"]  # a run uses the nodes that are there when it starts


# Kubernetes

# Fields of ray.io/v1, from KubeRay's docs/reference/api.md, generated from its types; those of release 1.6.2.
FIELDS = {
    "RayCluster": "apiVersion kind metadata spec",
    "RayJob": "apiVersion kind metadata spec",
    "RayClusterSpec": "upgradeStrategy authOptions suspend managedBy autoscalerOptions headServiceAnnotations"
    " enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec rayVersion workerGroupSpecs",
    "AuthOptions": "enableK8sTokenAuth secretName mode",
    "HeadGroupSpec": "template headService enableIngress resources labels rayStartParams serviceType",
    "WorkerGroupSpec": "suspend groupName replicas minReplicas maxReplicas idleTimeoutSeconds resources labels"
    " rayStartParams template scaleStrategy numOfHosts",
    "RayJobSpec": "activeDeadlineSeconds backoffLimit rayClusterSpec submitterPodTemplate metadata clusterSelector"
    " submitterConfig managedBy deletionStrategy entrypoint runtimeEnvYAML jobId submissionMode entrypointResources"
    " entrypointNumCpus entrypointNumGpus ttlSecondsAfterFinished shutdownAfterJobFinishes suspend",
    # Of Kubernetes' own v1 API, what is used here.
    "PodTemplateSpec": "metadata spec",
    "PodSpec": "securityContext containers volumes tolerations nodeSelector serviceAccountName imagePullSecrets",
    "Container": "name image env resources securityContext volumeMounts ports",
}


def check_fields(kind: str, value: dict[str, Any]) -> None:
    assert set(value) <= set(FIELDS[kind].split()), kind


def cluster_spec(name: str) -> dict[str, Any]:
    spec = load(name)["spec"]
    return spec["rayClusterSpec"] if load(name)["kind"] == "RayJob" else spec


def groups(name: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Give the name, the group and the pod of the head and of every group of workers."""
    spec = cluster_spec(name)
    yield "head", spec["headGroupSpec"], spec["headGroupSpec"]["template"]["spec"]
    for group in spec["workerGroupSpecs"]:
        yield group["groupName"], group, group["template"]["spec"]


@pytest.mark.parametrize("name", KUBERAY)
def test_kuberay_knows_every_field(name: str) -> None:
    document = load(name)
    assert document["apiVersion"] == "ray.io/v1"
    check_fields(document["kind"], document)
    if document["kind"] == "RayJob":
        check_fields("RayJobSpec", document["spec"])
        assert document["spec"]["submissionMode"] in ("K8sJobMode", "HTTPMode", "SidecarMode")
    check_fields("RayClusterSpec", cluster_spec(name))
    check_fields("AuthOptions", cluster_spec(name)["authOptions"])
    for group_name, group, pod in groups(name):
        check_fields("HeadGroupSpec" if group_name == "head" else "WorkerGroupSpec", group)
        check_fields("PodTemplateSpec", group["template"])
        check_fields("PodSpec", pod)
        (container,) = pod["containers"]
        check_fields("Container", container)


@pytest.mark.parametrize("name", KUBERAY)
def test_a_cluster_on_kubernetes_fits_together(name: str) -> None:
    spec = cluster_spec(name)
    assert [group for group, _, _ in groups(name)] == ["head", "cpu", "gpu"]
    claim = load("kuberay-storage.yaml")
    for group_name, group, pod in groups(name):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        (container,) = pod["containers"]
        assert container["image"].rpartition(":")[2] == spec["rayVersion"]
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert ("nvidia.com/gpu" in resources["limits"]) == (group_name == "gpu")
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert [m["name"] for m in container["volumeMounts"]] == [volume["name"]]
        if group_name != "head":
            assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]


@pytest.mark.parametrize("name", KUBERAY)
def test_a_cluster_on_kubernetes_asks_for_a_token_and_is_not_seen_from_outside(name: str) -> None:
    assert cluster_spec(name)["authOptions"] == {"mode": "token"}
    head = cluster_spec(name)["headGroupSpec"]
    assert head["serviceType"] == "ClusterIP"
    assert "enableIngress" not in head
    assert "LoadBalancer" not in text(name)
    assert "NodePort" not in text(name)
    for _, _, pod in groups(name):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}


def test_the_job_runs_a_config_that_is_in_the_image() -> None:
    words = load("kuberay-rayjob.yaml")["spec"]["entrypoint"].split()
    assert words[:2] == ["python", "/home/ray/rayfl-project/experiments/run.py"]
    assert (CHECKOUT / "experiments" / words[words.index("--config") + 1]).exists()
    copied = re.findall(r"^COPY \S+ (.*) /home/ray/rayfl-project/\S*$", text("Dockerfile"), re.M)
    sources = [source for line in copied for source in line.split()]
    assert set(sources) == {"pyproject.toml", "README.md", "LICENSE", "rayfl", "experiments"}
    kept = re.findall(r"^!(.*)$", text("Dockerfile.dockerignore"), re.M)
    assert set(kept) == set(sources)


def test_one_version_of_ray_everywhere_and_one_that_knows_tokens() -> None:
    versions = set()
    for file in FOLDER.iterdir():
        versions |= set(
            re.findall(r"ray\[default\]==([\d.]+)|rayproject/ray:([\d.]+)|rayVersion: ([\d.]+)", file.read_text())
        )
    found = {version for match in versions for version in match if version}
    assert len(found) == 1
    assert tuple(map(int, found.pop().split("."))) >= (2, 52)


# Slurm


@pytest.fixture
def dry_run(tmp_path: Path) -> list[str]:
    """Return the commands that the script would run, on two nodes and from an empty home folder."""
    done = subprocess.run(
        ["bash", str(SLURM), "--config", "experiments/fedtsdp/digits.yaml", "name=two words"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DRY_RUN": "1", "SLURM_SUBMIT_DIR": "/project"}
        | {"SLURM_JOB_ID": "41234", "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert not done.stderr
    assert not list(tmp_path.iterdir())
    return done.stdout.splitlines()


def test_shellcheck_finds_nothing_in_the_slurm_script() -> None:
    beside = Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    assert shellcheck, "shellcheck is missing: make install"
    done = subprocess.run([shellcheck, str(SLURM)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_slurm_starts_the_head_then_the_workers_then_the_run(dry_run: list[str]) -> None:
    head, worker = (i for i, line in enumerate(dry_run) if line.startswith("srun ") and " ray start " in line)
    assert " ray start --head " in dry_run[head]
    assert "--nodelist=node1 " in dry_run[head]
    assert "--head" not in dry_run[worker]
    assert "--nodelist=node2 " in dry_run[worker]
    assert head < worker < len(dry_run) - 1
    for line in (dry_run[head], dry_run[worker]):
        assert "--num-cpus=8 --num-gpus=2 " in line
        assert " --cpus-per-task=8 " in line
        assert " --block " in line
    last = "python /project/experiments/run.py --config experiments/fedtsdp/digits.yaml name=two\\ words"
    assert dry_run[-1].strip() == last


def test_slurm_listens_on_the_private_address_and_ports_of_the_job_without_a_dashboard(dry_run: list[str]) -> None:
    head, worker = (line for line in dry_run if " ray start " in line)
    port = 20000 + 41234 % 4000 * 3
    assert f"--node-ip-address=10.0.0.1 --port={port} " in head
    assert "--include-dashboard=false" in head
    assert f"--address=10.0.0.1:{port} " in worker
    assert 20000 <= port < 32768 - 2  # below the ports that Linux gives to anyone


def test_slurm_makes_a_token_for_the_owner_alone_before_ray_starts(dry_run: list[str], tmp_path: Path) -> None:
    assert dry_run[0].strip().replace("\\", "") == "bash -c umask 077 && ray get-auth-token --generate >/dev/null"
    assert dry_run[1].strip() == f"chmod 600 {tmp_path}/.ray/auth_token"
    script = SLURM.read_text()
    assert script.index("export RAY_AUTH_MODE=token\n") < script.index("ray start --head")


def test_the_slurm_script_keeps_its_gpu_lines_for_whoever_has_some() -> None:
    lines = SLURM.read_text().splitlines()
    assert "##SBATCH --gpus-per-node=1" in lines
    assert any(line.startswith("#SBATCH --nodes=") for line in lines)
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(
        i < first_command for i, line in enumerate(lines) if line.startswith("#SBATCH")
    )  # Slurm reads no further


# All of them


@pytest.mark.parametrize("name", [*LAUNCHERS, *KUBERAY, "slurm.sbatch"])
def test_every_file_switches_token_authentication_on_and_never_off(name: str) -> None:
    commands = re.sub(r"(^|\s)#.*", "", text(name))
    assert re.search(r"RAY_AUTH_MODE=token|authOptions:\s+mode: token", commands)
    assert not re.search(r"RAY_AUTH_MODE=(?!token)|mode: disabled", commands)
    if "0.0.0.0" in commands:
        assert name in KUBERAY  # behind the Service of the cluster, with a token


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda f: f.name)
def test_no_file_holds_a_secret(file: Path) -> None:
    found = re.findall(
        r"-----BEGIN|AKIA[0-9A-Z]{16}|\b[0-9a-f]{32,}\b|\b[A-Za-z0-9+/]{40,}={0,2}(?![\w/.])|"
        r"(?i:password|secret_key|api_key)\s*[:=]\s*\S+|RAY_AUTH_TOKEN=(?!\"\$\()\S",
        file.read_text(),
    )
    assert not found


def test_the_readme_names_files_that_exist_and_commands_that_ray_and_rayfl_have() -> None:
    from ray.scripts.scripts import cli as ray_cli

    from rayfl.cli import app

    lines = [line.strip() for line in text("README.md").splitlines() if line.startswith("    ")]
    assert len(lines) > 20
    for line in lines:
        for path in re.findall(r"(?<![\w/~.-])(?:cluster_configs|experiments)/[\w./-]+", line):
            assert (CHECKOUT / path).is_file(), line
    spoken = re.findall(r"`((?:ray|rayfl) [^`]+)`", text("README.md"))
    commands = [words.split() for line in [*lines, *spoken] for words in re.split(r"&&|\(|--template.*", line)]
    ray_words = {words[1] for words in commands if words[:1] == ["ray"]}
    assert {"up", "submit", "job", "rsync-down", "down"} <= ray_words <= {*ray_cli.commands}
    rayfl_words = {words[1] for words in commands if words[:1] == ["rayfl"]}
    assert rayfl_words <= {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    for file in FOLDER.iterdir():
        if file.name not in ("README.md", "Dockerfile.dockerignore"):
            assert f"`{file.name}`" in text("README.md")


# experiments/run.py

RUN = CHECKOUT / "experiments" / "run.py"
QUICK = ["rounds=1", "local.steps=1", "method.name=fedavg"]


def without_ray(folder: Path) -> dict[str, str]:
    """An environment in which no Ray is known."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "RAY_TMPDIR", "TMPDIR")}
    return kept | {"RAY_TMPDIR": str(folder / "no_ray")}


def run_script(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script as the launcher does, where no Ray is known but through `environment`."""
    return finished([str(RUN), *words], 120, cwd=cwd, env=without_ray(cwd) | environment)


def test_the_script_runs_a_config_found_beside_it_and_prints_the_folder(tmp_path: Path) -> None:
    done = run_script("seed=5", "--config", "fedtsdp/digits.yaml", "federation=serial", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    assert folder.parent == tmp_path / "runs"
    rounds = pd.read_parquet(folder / "rounds")
    assert rounds["seed"].tolist() == [5]
    assert yaml.safe_load((folder / "config.yaml").read_text())["partition"]["alpha"] == 0.2


def test_a_config_of_the_current_folder_goes_before_one_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "fedtsdp").mkdir()
    (tmp_path / "fedtsdp" / "digits.yaml").write_text("rouds: 3\n")
    done = run_script("--config", "fedtsdp/digits.yaml", "federation=serial", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'rounds'" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rouds=3"], "did you mean 'rounds'"),
        (["--config", "gone.yaml"], "gone.yaml cannot be read"),
        (["mine.yaml"], "--config mine.yaml"),
        (["--config", "a.yaml", "--resume", "runs/a"], "not allowed with"),
        (["--konfig", "a.yaml"], "--konfig"),
    ],
)
def test_bad_input_exits_with_2_and_leaves_nothing_behind(tmp_path: Path, words: list[str], told: str) -> None:
    done = run_script(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert "Ray cluster" not in done.stderr
    assert not done.stdout
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_exits_with_1(tmp_path: Path) -> None:
    done = run_script("federation=serial", "local.lr=1e6", "method.name=fedavg", cwd=tmp_path)
    assert done.returncode == 1, done.stderr


def test_results_of_a_job_go_to_the_home_folder_since_ray_removes_the_jobs_own(tmp_path: Path) -> None:
    shipped = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "pkg"
    shipped.mkdir(parents=True)
    done = run_script("federation=serial", "output.dir=mine", *QUICK, cwd=shipped, HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).parent == tmp_path / "home" / "mine"


def test_the_script_resumes_a_run(tmp_path: Path) -> None:
    done = run_script("federation=serial", "name=mine", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run_script("--resume", "runs/mine", "rounds=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert pd.read_parquet(tmp_path / "runs" / "mine" / "rounds")["round"].tolist() == [1, 2]
    assert "Ray" not in done.stderr  # the run was serial
    done = run_script("--resume", "runs/other", cwd=tmp_path)
    assert done.returncode == 2, done.stderr


def module_of(script: Path) -> Any:
    """Load a script that lies outside all packages, to call its parts."""
    spec = importlib.util.spec_from_file_location(script.stem, script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("RAY_ADDRESS", "")  # so that it is put back as it was, whatever the script does to it
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    return module_of(RUN)


def leave_note(folder: Path, address: str) -> None:
    (folder / "ray").mkdir()
    (folder / "ray" / "ray_current_cluster").write_text(address)


def test_the_cluster_of_this_node_is_joined_and_a_dead_ones_note_is_not_believed(
    tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        leave_note(tmp_path, address)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        run_module.join_cluster()
        assert os.environ["RAY_ADDRESS"] == address
        assert f"using the Ray cluster at {address}" in capsys.readouterr().err
    monkeypatch.delenv("RAY_ADDRESS")
    run_module.join_cluster()
    assert "RAY_ADDRESS" not in os.environ
    assert "starting a local Ray" in capsys.readouterr().err


def test_an_address_that_was_given_wins_over_the_cluster_of_this_node(
    tmp_path: Path, run_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        leave_note(tmp_path, f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        run_module.join_cluster_for(None, ["ray.address=10.1.1.1:6379"], [])
        assert "RAY_ADDRESS" not in os.environ
        run_module.join_cluster_for(None, ["federation=serial"], [])
        assert "RAY_ADDRESS" not in os.environ
        monkeypatch.setenv("RAY_ADDRESS", "10.2.2.2:6379")
        run_module.join_cluster_for(None, [], [])
        assert os.environ["RAY_ADDRESS"] == "10.2.2.2:6379"


def test_the_script_finds_rayfl_in_its_checkout_where_it_is_not_installed(tmp_path: Path) -> None:
    """The checkout's own folder is named, so that it cannot be the installed package that is found."""
    copy = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "rayfl", copy / "rayfl", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "experiments").mkdir()
    shutil.copy(RUN, copy / "experiments")
    (copy / "rayfl" / "version.py").write_text('"""The version."""\n\n__version__ = "from the copy"\n')
    hide = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f).lower()]\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(hide)
    done = subprocess.run(
        [sys.executable, str(copy / "experiments" / "run.py"), "federation=serial", *QUICK],
        cwd=tmp_path,
        env=without_ray(tmp_path) | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    config = Path(done.stdout.splitlines()[-1], "config.yaml").read_text()
    assert config.startswith("# rayfl from the copy")


# The cluster test itself


def test_the_cluster_test_says_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "tests" / "cluster" / "on_virtual_hosts.py")],
        env=os.environ | {"RAYFL_VIRTUAL_CLUSTER": str(tmp_path / "none.sh")},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert "none.sh is not there; RAYFL_VIRTUAL_CLUSTER says where" in done.stderr


def change(table: Path, column: str, how: Callable[[Any], Any]) -> None:
    """Write the table again, in one file, with one value of its second row changed."""
    found = pyarrow.parquet.read_table(table)
    values = found[column].to_pylist()
    values[1] = how(values[1])
    at = found.schema.get_field_index(column)
    found = found.set_column(at, found.schema.field(at), [values])
    shutil.rmtree(table)
    table.mkdir()
    pyarrow.parquet.write_table(found, table / "0.parquet")


def compare(*words: str | Path) -> subprocess.CompletedProcess[str]:
    script = CHECKOUT / "tests" / "cluster" / "compare_runs.py"
    return subprocess.run(
        [sys.executable, str(script), *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_comparison_sees_a_last_bit_and_asks_for_a_recovery_where_there_must_be_one(
    simulate_quietly: Callable[..., Run],
) -> None:
    a, b = (
        Path(simulate_quietly("federation=serial", f"name={name}", "rounds=2", "local.steps=1").path) for name in "ab"
    )
    done = compare(a, b, "--recovered")
    assert done.returncode == 1
    assert "notes no recovery" in done.stderr
    change(b / "rounds", "extras", lambda extras: json.dumps(json.loads(extras) | {"recoveries": ["worker 1"]}))
    done = compare(a, b, "--recovered")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 rounds, equal; recoveries: ['worker 1']\n"
    change(b / "clients", "loss", lambda loss: np.nextafter(loss, 9))
    done = compare(a, b)
    assert done.returncode == 1
    assert 'column name="loss"' in done.stderr
