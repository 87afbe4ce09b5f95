"""Kubernetes' manifests and the chart, by Helm itself and by the API's own schemas."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.deploy.tools import CHART, DEPLOY, KUBERNETES, helm, program, run
from tests.conformance.serving import MODEL, ROOT, free_port, tandem_python

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
# What is asked for by people who deploy: each makes other lines of the templates.
EVERYTHING = {
    "imagePullSecrets": [{"name": "registry"}],
    "config": {"max-batch-size": 64, "json-output": True},
    "extraArgs": ["--max-waiting-tokens=20"],
    "secretName": "tandem",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "extraEnvFrom": [{"configMapRef": {"name": "proxy"}}],
    "replicas": 2,
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
    "models": {"existingClaim": "shared", "accessMode": "ReadOnlyMany"},
    "service": {"type": "LoadBalancer", "annotations": {"team": "a"}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "hosts": ["tandem.example.com"],
        "tls": [{"secretName": "tls", "hosts": ["tandem.example.com"]}],
    },
    "serviceAccount": {"create": True, "annotations": {"role": "reader"}},
    "podAnnotations": {"team": "a"},
    "podLabels": {"team": "a"},
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "nodeSelector": {"gpu": "h100"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
}
# Several servers, each with a volume of its own.
SEVERAL: dict[str, Any] = {"replicas": 3, "models": {"ephemeral": True}}
FRONT: dict[str, Any] = {**SEVERAL, "secretName": "tandem", "front": {"enabled": True}}
MACHINES: dict[str, Any] = {
    **FRONT,
    "nodes": 2,
    "gpus": 8,
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True},
}
VALUES: dict[str, dict[str, Any]] = {
    "what is there by default": {},
    "CPUs": {"gpus": 0},
    "four GPUs, an old claim, keys in a file": {
        "gpus": 4,
        "apiKeyFileSecretName": "keys",
        "models": {"existingClaim": "shared"},
    },
    "servers that come and go, a volume each": {
        "autoscaling": {"enabled": True},
        "models": {"ephemeral": True},
        "podDisruptionBudget": {"enabled": False},
    },
    "everything": EVERYTHING,
    "a front of several servers": FRONT,
    "servers of two machines each, behind a front": MACHINES,
}
# What cannot work, with the value that the message names.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no GPU is -1", {"gpus": -1}, "gpus"),
    ("a value that is unknown", {"modle": "x"}, "modle"),
    ("a value that is unknown below another", {"ingress": {"hots": ["x"]}}, "hots"),
    ("no amount", {"models": {"storage": "much"}}, "models.storage"),
    ("several servers, one node's claim", {"replicas": 2}, "models.accessMode"),
    (
        "servers that come and go, one node's claim",
        {"autoscaling": {"enabled": True}},
        "models.accessMode",
    ),
    (
        "two servers for a moment, one node's claim",
        {"gpus": 0, "strategy": {"type": "RollingUpdate"}},
        "models.accessMode",
    ),
    (
        "an empty claim that nobody may fill",
        {"models": {"accessMode": "ReadOnlyMany"}},
        "models.existingClaim",
    ),
    (
        "two places for the model",
        {"models": {"ephemeral": True, "existingClaim": "shared"}},
        "models.existingClaim",
    ),
    ("ranks that are not the GPUs", {"config": {"num-shard": 2}}, "config.num-shard"),
    (
        "GPUs said twice",
        {"resources": {"limits": {"nvidia.com/gpu": 2}}},
        "resources.limits.nvidia.com/gpu",
    ),
    ("a flag that is misspelt", {"config": {"max-batch-sizes": 64}}, "max-batch-sizes"),
    ("another port than the probes'", {"config": {"port": 8080}}, "config.port"),
    ("machines that nobody makes", {"config": {"nnodes": 2}}, "config.nnodes"),
    ("the same as an argument", {"extraArgs": ["--port=8080"]}, "extraArgs.0"),
    ("a key that everybody may read", {"config": {"api-key": "sk-1"}}, "config.api-key"),
    (
        "a drain that the pod's end does not know of",
        {"config": {"graceful-termination-timeout": 600}},
        "config.graceful-termination-timeout",
    ),
    ("several machines, one node's claim", {**MACHINES, "models": {}}, "models.accessMode"),
    ("several machines, no secret", {**SEVERAL, "nodes": 2}, "secretName"),
    ("several machines without GPUs", {**MACHINES, "gpus": 0}, "gpus"),
    ("another kind's strategy", {**MACHINES, "strategy": {"type": "Recreate"}}, "strategy"),
    ("a front that servers do not know", {"front": {"enabled": True}}, "secretName"),
    ("an ingress for no host", {"ingress": {"enabled": True}}, "ingress.hosts"),
    (
        "parameters of another strategy",
        {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}},
        "strategy",
    ),
    (
        "more at least than at most",
        {
            "models": {"ephemeral": True},
            "autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 2},
        },
        "autoscaling.minReplicas=3: must be at most autoscaling.maxReplicas=2",
    ),
]


def chosen(values: dict[str, Any], tmp_path: Path) -> tuple[str, str]:
    """Helm's flags for these values."""
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    return ("--values", str(file))


def rendered(values: dict[str, Any], tmp_path: Path, chart: Path = CHART) -> str:
    made = helm("template", "tandem", str(chart), *chosen(values, tmp_path))
    assert made.returncode == 0, made.stderr
    return made.stdout


def objects(text: str) -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(text) if each}


def named(text: str, kind: str) -> dict[str, Any]:
    """The objects of a kind, by their names."""
    found = [each for each in yaml.safe_load_all(text) if each and each["kind"] == kind]
    return {each["metadata"]["name"]: each for each in found}


def selects(selector: dict[str, str], template: dict[str, Any]) -> bool:
    """Whether a template's pods are chosen."""
    labels: dict[str, str] = template["metadata"]["labels"]
    return selector.items() <= labels.items()


def pod_of(text: str) -> Any:
    return objects(text)["Deployment"]["spec"]["template"]["spec"]


def validate(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "objects.yaml"
    file.write_text(text)
    judge = program("kubernetes-validate", "python3-kubernetes-validate")
    return run(judge, "--strict", "--kubernetes-version", KUBERNETES, str(file))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
def test_the_chart_makes_what_kubernetes_takes(values: dict[str, Any], tmp_path: Path) -> None:
    judged = validate(rendered(values, tmp_path), tmp_path)

    assert judged.returncode == 0, judged.stdout + judged.stderr
    linted = helm("lint", "--strict", str(CHART), *chosen(values, tmp_path))
    assert linted.returncode == 0, linted.stdout


@pytest.mark.parametrize("name", ["tandem", "inferencepool"])
def test_the_manifests_are_what_kubernetes_takes(name: str, tmp_path: Path) -> None:
    judged = validate((DEPLOY / "kubernetes" / f"{name}.yaml").read_text(), tmp_path)

    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_a_gateway_finds_the_chart_s_servers_and_a_picker_that_reads_them(tmp_path: Path) -> None:
    made = objects((DEPLOY / "kubernetes" / "inferencepool.yaml").read_text())
    values = {**SEVERAL, "config": {"metrics-names": "vllm"}}
    servers = objects(rendered(values, tmp_path))["Deployment"]["spec"]["template"]
    (container,) = servers["spec"]["containers"]
    pool = made["InferencePool"]["spec"]
    picker = made["Deployment"]["spec"]["template"]
    (judge,) = picker["spec"]["containers"]

    assert pool["selector"]["matchLabels"].items() <= servers["metadata"]["labels"].items()
    (target,) = pool["targetPorts"]
    assert target["number"] == container["ports"][0]["containerPort"]
    (reference,) = made["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert reference["name"] == made["InferencePool"]["metadata"]["name"]
    assert f"--pool-name={reference['name']}" in judge["args"]
    service = made["Service"]
    (port,) = service["spec"]["ports"]
    assert pool["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert pool["endpointPickerRef"]["port"]["number"] == port["port"]
    assert port["targetPort"] in [each["name"] for each in judge["ports"]]
    assert service["spec"]["selector"].items() <= picker["metadata"]["labels"].items()
    account = made["ServiceAccount"]["metadata"]["name"]
    assert picker["spec"]["serviceAccountName"] == account
    assert [each["name"] for each in made["RoleBinding"]["subjects"]] == [account]
    (text,) = [each for each in judge["args"] if each.startswith("--config-text=")]
    config = yaml.safe_load(text.removeprefix("--config-text="))
    known = {each["type"] for each in config["plugins"]}
    assert {each["pluginRef"] for each in config["schedulingProfiles"][0]["plugins"]} == known


def test_a_validator_that_takes_anything_would_be_noticed(tmp_path: Path) -> None:
    wrong = rendered({}, tmp_path).replace("containerPort: 3000", "containerPort: many")

    assert validate(wrong, tmp_path).returncode != 0


@pytest.mark.parametrize(
    ("values", "named"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_what_cannot_work_is_refused_by_its_name(
    values: dict[str, Any], named: str, tmp_path: Path
) -> None:
    refused = helm("template", "tandem", str(CHART), *chosen(values, tmp_path))

    assert refused.returncode != 0
    assert named in refused.stderr


def test_every_value_has_a_rule_and_every_rule_a_value() -> None:
    def places(schema: dict[str, Any], at: str = "") -> set[str]:
        found = set()
        for name, each in schema["properties"].items():
            place = f"{at}{name}"
            is_open = each.get("additionalProperties") is not False
            found |= {place} if is_open else places(each, f"{place}.")
        return found

    def has(values: Any, place: str) -> bool:
        name, _, rest = place.partition(".")
        return name in values and (not rest or has(values[name], rest))

    schema = json.loads((CHART / "values.schema.json").read_text())
    schema["properties"].pop("global")  # Helm's own
    schema["properties"]["config"] = {}  # flags
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    # These have parts that are written out only where they are wanted.
    values["strategy"] = {"type": "", "rollingUpdate": {}}
    values["resources"]["claims"] = []

    assert {place for place in places(schema) if not has(values, place)} == set()
    assert values.keys() == schema["properties"].keys()


def test_what_people_change_is_in_the_pod(tmp_path: Path) -> None:
    text = rendered(EVERYTHING, tmp_path)
    made = objects(text)
    pod = pod_of(text)
    (container,) = pod["containers"]

    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity"):
        assert pod[name] == EVERYTHING[name], name
    for name in ("priorityClassName", "runtimeClassName", "topologySpreadConstraints"):
        assert pod[name] == EVERYTHING[name], name
    assert pod["serviceAccountName"] == made["ServiceAccount"]["metadata"]["name"] == "tandem"
    assert container["args"][-1] == "--max-waiting-tokens=20"
    assert [each["name"] for each in container["env"]] == ["API_KEY", "HF_TOKEN", "HTTPS_PROXY"]
    assert container["envFrom"] == EVERYTHING["extraEnvFrom"]
    assert made["Deployment"]["spec"]["strategy"] == EVERYTHING["strategy"]
    metadata = made["Deployment"]["spec"]["template"]["metadata"]
    assert metadata["labels"]["team"] == metadata["annotations"]["team"] == "a"


def test_an_ingress_passes_streams_on_and_leads_to_the_service(tmp_path: Path) -> None:
    made = objects(rendered(EVERYTHING, tmp_path))
    ingress = made["Ingress"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]

    assert (
        ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    )
    assert (rule["host"], ingress["spec"]["ingressClassName"]) == ("tandem.example.com", "nginx")
    assert path["backend"]["service"] == {"name": "tandem", "port": {"name": "http"}}
    (port,) = made["Service"]["spec"]["ports"]
    assert port["name"] == "http"


def test_a_service_monitor_finds_the_service_and_no_pod_is_scraped_twice(tmp_path: Path) -> None:
    key = {"credentials": {"name": "tandem", "key": "api-key"}}
    monitor = {"enabled": True, "labels": {"release": "prometheus"}, "authorization": key}
    made = objects(rendered({"serviceMonitor": monitor}, tmp_path))
    found = made["ServiceMonitor"]

    assert found["metadata"]["labels"]["release"] == "prometheus"
    wanted = found["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= made["Service"]["metadata"]["labels"].items()
    (endpoint,) = found["spec"]["endpoints"]
    assert endpoint.pop("authorization") == key
    assert endpoint == {"port": "http", "path": "/metrics", "interval": "15s"}
    annotations = made["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert "prometheus.io/scrape" not in annotations


def test_an_old_server_goes_first_where_the_new_one_needs_what_it_has(tmp_path: Path) -> None:
    def strategy(values: dict[str, Any]) -> Any:
        return objects(rendered(values, tmp_path))["Deployment"]["spec"].get("strategy")

    shared = {"models": {"accessMode": "ReadWriteMany"}}
    assert strategy({}) == strategy({"gpus": 0}) == {"type": "Recreate"}
    assert strategy(shared) == {"type": "Recreate"}
    assert strategy({"gpus": 0, **shared}) is None


def test_keys_of_a_file_take_the_place_of_one_in_a_variable(tmp_path: Path) -> None:
    text = rendered({"apiKeyFileSecretName": "keys", "secretName": "tandem"}, tmp_path)
    (container,) = pod_of(text)["containers"]
    settings = yaml.safe_load(objects(text)["ConfigMap"]["data"]["tandem.yaml"])
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}

    assert settings["api-key-file"] == f"{mounts['keys']}/keys.toml"
    assert [each["name"] for each in container["env"]] == ["HF_TOKEN"]


def launched_words(container: dict[str, Any], placed: dict[str, str]) -> list[str]:
    """The command of a container of the image, with some of its words in others' place."""
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    words = [*json.loads(entry)[1:], *container["args"]]
    return [tandem_python(), "-m", "launcher", *(placed.get(word, word) for word in words)]


@pytest.mark.parametrize(
    ("gpus", "nodes", "phrases"),
    [
        (1, 1, ("for 1 shard", "64 at once")),
        (2, 1, ("for 2 shards",)),
        (1, 2, ("for 2 shards",)),
    ],
)
def test_the_image_s_launcher_takes_what_the_chart_gives_it(
    gpus: int, nodes: int, phrases: tuple[str, ...], tmp_path: Path
) -> None:
    values = {**SEVERAL, "secretName": "tandem", "gpus": gpus, "nodes": nodes}
    text = rendered({**values, "model": str(MODEL), "config": {"max-batch-size": 64}}, tmp_path)
    made = objects(text)
    if nodes == 1:
        (container,) = pod_of(text)["containers"]
    else:
        group = made["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        (container,) = group["leaderTemplate"]["spec"]["containers"]
    settings = tmp_path / "tandem.yaml"
    settings.write_text(made["ConfigMap"]["data"]["tandem.yaml"])
    placed = {"/etc/tandem/tandem.yaml": str(settings), "3000": str(free_port())}
    # What LeaderWorkerSet says to a pod, and the secret of all.
    environ = {"LWS_GROUP_SIZE": f"{nodes}", "LWS_WORKER_INDEX": "0"}
    environ |= {"LWS_LEADER_ADDRESS": "127.0.0.1", "SHARD_TOKEN": "a-secret-of-all-machines"}
    tried = subprocess.run(
        [*launched_words(container, placed), "--dry-run"],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )

    assert tried.returncode == 0, tried.stderr
    said = tried.stdout + tried.stderr
    for words_said in phrases:
        assert words_said in said


def test_the_service_leads_to_fronts_which_find_the_servers_by_name(tmp_path: Path) -> None:
    text = rendered(FRONT, tmp_path)
    services = named(text, "Service")
    servers = named(text, "Deployment")["tandem"]["spec"]["template"]
    fronts = named(text, "Deployment")["tandem-front"]["spec"]["template"]
    budgets = named(text, "PodDisruptionBudget")

    public = services["tandem"]["spec"]["selector"]
    headless = services["tandem-servers"]["spec"]
    assert (selects(public, fronts), selects(public, servers)) == (True, False)
    assert (selects(headless["selector"], servers), headless["clusterIP"]) == (True, "None")
    assert not selects(headless["selector"], fronts)
    (front,) = fronts["spec"]["containers"]
    assert front["args"][0] == "--replica=http://tandem-servers:3000"
    secrets = [
        [each for each in pod["spec"]["containers"][0]["env"] if each["name"] == "FRONT_SECRET"]
        for pod in (fronts, servers)
    ]
    assert secrets[0] == secrets[1] != []
    for name, pod in (("tandem", servers), ("tandem-front", fronts)):
        assert selects(budgets[name]["spec"]["selector"]["matchLabels"], pod)


def test_the_image_s_launcher_is_a_front_with_what_the_chart_gives_it(tmp_path: Path) -> None:
    fronts = named(rendered(FRONT, tmp_path), "Deployment")["tandem-front"]["spec"]["template"]
    (container,) = fronts["spec"]["containers"]
    port = free_port()
    nobody = f"--replica=http://127.0.0.1:{free_port()}"
    placed = {"3000": str(port), container["args"][0]: nobody}
    environ = {**os.environ, "FRONT_SECRET": "a-secret-of-all-fronts"}
    front = subprocess.Popen(launched_words(container, placed), cwd=ROOT, env=environ)
    try:
        deadline_s = time.monotonic() + 60
        status = 0
        while status != 200 and front.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                status = urllib.request.urlopen(f"http://127.0.0.1:{port}/health/live").status
            time.sleep(0.1)
        assert status == 200
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready")
    finally:
        front.terminate()
        assert front.wait(20) == 0


def test_leaders_of_machines_answer_and_workers_are_only_watched(tmp_path: Path) -> None:
    text = rendered(MACHINES, tmp_path)
    made = objects(text)
    group = made["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    (leader,) = group["leaderTemplate"]["spec"]["containers"]
    (worker,) = group["workerTemplate"]["spec"]["containers"]
    settings = yaml.safe_load(made["ConfigMap"]["data"]["tandem.yaml"])
    headless = named(text, "Service")["tandem-servers"]["spec"]["selector"]
    scaled = made["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]

    assert "tandem" not in named(text, "Deployment")
    assert (group["size"], group["restartPolicy"], settings["num-shard"]) == (2, "None", 16)
    assert leader["args"] == worker["args"]
    assert leader["env"] == worker["env"]
    assert leader["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "tandem", "key": "shard-token"}
    assert leader["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert not [name for name in worker if name.endswith("Probe")]
    assert selects(headless, group["leaderTemplate"])
    assert not selects(headless, group["workerTemplate"])
    assert (scaled["kind"], scaled["name"]) == ("LeaderWorkerSet", "tandem")
    of_front, of_servers = made["ServiceMonitor"]["spec"]["endpoints"]
    assert of_front["metricRelabelings"][0]["regex"] == "tandem_fleet_.*"
    assert "metricRelabelings" not in of_servers


def test_the_manifests_are_what_the_chart_makes(tmp_path: Path) -> None:
    """Kind by kind, but for Helm's own labels."""

    def plain(text: str) -> dict[str, Any]:
        helms = re.compile(
            r"^\s*(app\.kubernetes\.io/(instance|version|managed-by)|helm\.sh/chart"
            r"|checksum/config): .*\n",
            re.MULTILINE,
        )
        found = objects(helms.sub("", text))
        for each in found.values():
            each["metadata"].pop("labels", None)
        settings = found["ConfigMap"]["data"]
        settings["tandem.yaml"] = yaml.safe_load(settings["tandem.yaml"])
        return found

    chart = plain(rendered({"secretName": "tandem"}, tmp_path))
    manifests = plain((DEPLOY / "kubernetes" / "tandem.yaml").read_text())

    assert manifests == chart


def test_a_server_is_killed_only_after_its_drain(tmp_path: Path) -> None:
    text = rendered({"gracefulTerminationSeconds": 600}, tmp_path)
    pod = pod_of(text)
    (container,) = pod["containers"]
    settings = yaml.safe_load(objects(text)["ConfigMap"]["data"]["tandem.yaml"])
    waited_s = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])

    drain_s = settings["graceful-termination-timeout"]
    assert drain_s == 600
    assert pod["terminationGracePeriodSeconds"] >= waited_s + drain_s + 20
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    assert compose["services"]["tandem"]["stop_grace_period"] == "120s"
    default = yaml.safe_load((CHART / "values.yaml").read_text())["gracefulTerminationSeconds"]
    assert default + 20 <= 120


def test_the_notes_say_what_comes_next(tmp_path: Path) -> None:
    """Helm shows notes to a cluster alone: here they are rendered as an object's text."""
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    shutil.move(chart / "templates" / "NOTES.txt", chart / "NOTES.txt")
    (chart / "templates" / "notes.yaml").write_text(
        'kind: Notes\ntext: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n'
    )

    def notes(values: dict[str, Any]) -> str:
        text: str = objects(rendered(values, tmp_path, chart))["Notes"]["text"]
        return text

    plain = notes({})
    assert "port-forward service/tandem 3000:80" in plain
    assert "No API key is asked for" in plain
    assert "set image.repository" in plain
    full = notes({**EVERYTHING, "image": {"repository": "registry.example.com/tandem"}})
    assert "https://tandem.example.com/" in full
    assert "No API key" not in full
    assert "image.repository" not in full
    assert "leaderworkerset/tandem" in notes(MACHINES)
    scaled = notes({"autoscaling": {"enabled": True}, "models": {"ephemeral": True}})
    assert "tgi_queue_size" in scaled


def test_compose_names_files_and_targets_that_are_there() -> None:
    folder = DEPLOY / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    for service in services.values():
        for source in (mount.split(":")[0] for mount in service.get("volumes", ())):
            assert not source.startswith(".") or (folder / source).exists(), source
    build = services["tandem"]["build"]
    dockerfile = (folder / build["context"] / build["dockerfile"]).resolve()
    assert dockerfile == DOCKERFILE
    on_gpus = yaml.safe_load((folder / "compose.cuda.yaml").read_text())["services"]["tandem"]
    for target, image in (
        (build["target"], services["tandem"]["image"]),
        (on_gpus["build"]["target"], on_gpus["image"]),
    ):
        assert f" AS {target}\n" in DOCKERFILE.read_text()
        assert image == f"tandem:{target}"
    for file in folder.glob("grafana/**/*.yaml"):
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


def test_the_dockerfile_has_no_known_mistake() -> None:
    judged = run(program("hadolint", "hadolint"), str(DOCKERFILE))

    assert (judged.returncode, judged.stdout) == (0, "")


def test_hadolint_would_notice_a_mistake(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text(DOCKERFILE.read_text().replace("build==1.3.0", "build"))

    assert "DL3013" in run(program("hadolint", "hadolint"), str(wrong)).stdout


def test_each_image_has_its_own_torch_within_our_bounds_and_no_root() -> None:
    text = DOCKERFILE.read_text()
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (bounds,) = [each for each in needs if each.startswith("torch")]
    targets = dict(re.findall(r"^FROM runtime AS (\w+)\n((?:(?!FROM).*\n)*)", text, re.MULTILINE))

    assert targets.keys() == {"cpu", "cuda"}
    for target, build in (("cpu", "cpu"), ("cuda", "cu130")):
        default = f"ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/{build}\n"
        assert default in targets[target]
        assert f"--index-url \"$TORCH_INDEX_URL\" '{bounds}'" in targets[target]
        assert "\nUSER 10001\n" in targets[target]
