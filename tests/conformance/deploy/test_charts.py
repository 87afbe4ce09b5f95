"""Kubernetes' manifests and the chart, by Helm itself and by the API's own schemas."""

import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.deploy.tools import CHART, DEPLOY, KUBERNETES, helm, program, run
from tests.conformance.serving import ROOT, tandem_python

VALUES = [
    (),
    ("--set", "gpus=0"),
    ("--set", "gpus=4,secretName=keys,models.existingClaim=shared"),
    ("--set", "autoscaling.enabled=true,podDisruptionBudget.enabled=false"),
    (
        "--set-json",
        'config={"max-batch-size":64,"json-output":true}',
    ),
    ("--set-json", 'tolerations=[{"operator":"Exists"}],nodeSelector={"gpu":"h100"}'),
]


def rendered(*args: str) -> str:
    made = helm("template", "trial", str(CHART), *args)
    assert made.returncode == 0, made.stderr
    return made.stdout


def objects(text: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    judge = program("kubernetes-validate", "python3-kubernetes-validate")
    return run(judge, "--strict", "--kubernetes-version", KUBERNETES, str(path))


@pytest.mark.parametrize("args", VALUES)
def test_the_chart_makes_what_kubernetes_takes(args: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "chart.yaml"
    file.write_text(rendered(*args))
    judged = validate(file)

    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert helm("lint", "--strict", str(CHART), *args).returncode == 0


def test_the_manifests_are_what_kubernetes_takes() -> None:
    judged = validate(DEPLOY / "kubernetes" / "tandem.yaml")

    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_a_validator_that_takes_anything_would_be_noticed(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(rendered().replace("containerPort: 3000", "containerPort: many"))

    assert validate(file).returncode != 0


@pytest.mark.parametrize(
    ("value", "words"),
    [("gpus=-1", "gpus"), ("modle=x", "modle"), ("models.storage=much", "storage")],
)
def test_a_wrong_value_is_refused_by_its_name(value: str, words: str) -> None:
    refused = helm("template", "trial", str(CHART), "--set", value)

    assert refused.returncode != 0
    assert words in refused.stderr


def test_the_settings_of_the_chart_are_the_launchers(tmp_path: Path) -> None:
    made = objects(rendered(*VALUES[4]))
    file = tmp_path / "tandem.yaml"
    file.write_text(made["ConfigMap"]["data"]["tandem.yaml"])
    code = (
        "import sys; from pathlib import Path; from launcher import serve_settings; "
        "from processes.config_file import with_config_file; "
        "print(sorted(with_config_file(Path(sys.argv[1]), serve_settings(), {}, {}).items()))"
    )
    read = subprocess.run(
        [tandem_python(), "-c", code, str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "('graceful_termination_timeout', '90')" in read.stdout
    assert "('max_batch_size', '64')" in read.stdout


def test_chart_and_manifests_agree() -> None:
    """What is said twice is said alike: probes, security, the time to drain."""
    chart = objects(rendered())["Deployment"]["spec"]["template"]["spec"]
    manifest = objects((DEPLOY / "kubernetes" / "tandem.yaml").read_text())["Deployment"]
    plain = manifest["spec"]["template"]["spec"]
    (mine,), (theirs,) = chart["containers"], plain["containers"]

    for name in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "securityContext"):
        assert mine[name] == theirs[name], name
    assert mine["resources"] == theirs["resources"]
    for name in ("terminationGracePeriodSeconds", "securityContext"):
        assert chart[name] == plain[name], name


def test_compose_names_files_and_targets_that_are_there() -> None:
    folder = DEPLOY / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    mounts = itertools.chain.from_iterable(each.get("volumes", ()) for each in services.values())
    for source in (mount.split(":")[0] for mount in mounts):
        assert not source.startswith(".") or (folder / source).exists(), source
    build = services["tandem"]["build"]
    dockerfile = (folder / build["context"] / build["dockerfile"]).read_text()

    assert f" AS {build['target']}\n" in dockerfile
    assert "USER 10001" in dockerfile
    for file in folder.glob("grafana/**/*.yaml"):
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


def test_the_dockerfile_has_no_known_mistake() -> None:
    ignored = ("DL3008", "DL3013", "DL3042")  # versions of packages; the cache is off
    flags = [flag for rule in ignored for flag in ("--ignore", rule)]
    judged = run(program("hadolint", "hadolint"), *flags, str(DEPLOY / "docker" / "Dockerfile"))

    assert judged.returncode == 0, judged.stdout + judged.stderr
