"""The chart deploy/helm/sluice, rendered by Helm. tests/docs/test_helm_runs.py runs it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.support.cluster import tools

CHART = ROOT / "deploy" / "helm" / "sluice"
KINDS = ("database", "storage", "kafka", "spark", "airflow")
ALL_SECRETS = {"secrets": {kind: f"sluice-{kind}" for kind in KINDS}}
# By process, the kinds of secrets that it may know.
KNOWN_BY = {
    "driver": {"database", "storage", "kafka", "spark"},
    "executor": {"storage", "spark"},
    "watchdog": {"database", "storage", "kafka", "airflow"},
    "migration": {"database"},
}


def helm(*words: str) -> "subprocess.CompletedProcess[str]":
    program = tools.find("helm")
    if not program:
        pytest.skip("helm is neither on the PATH nor built: python -m tests.support.cluster.tools helm")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)


def template(*words: str) -> "subprocess.CompletedProcess[str]":
    return helm("template", "sluice", str(CHART), "--kube-version", tools.KUBERNETES, *words)


@pytest.fixture
def render(tmp_path: Path):
    def render(values: dict[str, Any]) -> list[dict[str, Any]]:
        (tmp_path / "values.json").write_text(json.dumps(values))
        result = template("--namespace", "data", "--values", str(tmp_path / "values.json"))
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return render


def find(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name))


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By process, the specification of its pods. Those of Spark are templates in a ConfigMap."""
    templates = find(documents, "ConfigMap", "sluice-spark")["data"]
    return {
        "driver": yaml.safe_load(templates["driver.yaml"])["spec"],
        "executor": yaml.safe_load(templates["executor.yaml"])["spec"],
        "watchdog": find(documents, "Deployment", "sluice-watchdog")["spec"]["template"]["spec"],
        "migration": find(documents, "Job", "sluice-migration")["spec"]["template"]["spec"],
    }


def spark_defaults(documents: list[dict[str, Any]]) -> dict[str, str]:
    text = find(documents, "ConfigMap", "sluice-spark")["data"]["spark-defaults.conf"]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in (line.split(None, 1) for line in lines)}


def test_helm_finds_no_fault_in_the_chart():
    result = helm("lint", "--strict", str(CHART))
    assert result.returncode == 0, result.stdout
    assert "0 chart(s) failed" in result.stdout
    assert "[WARNING]" not in result.stdout


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"settings": {"SLUICE_CONTROL_URL": "postgresql+psycopg://u:hush@h/d"}}, "SLUICE_CONTROL_URL"),
        ({"settings": {"SLUICE_CONTROL_URL": "sqlite:////control.db"}}, "SLUICE_CONTROL_URL"),
        ({"settings": {"AWS_SECRET_ACCESS_KEY": "hush"}}, "AWS_SECRET_ACCESS_KEY"),
        ({"settings": {"SLUICE_LAKE": "/var/lib/sluice/lake"}}, "SLUICE_LAKE"),
        ({"driver": {"memory": "1Gi"}}, "memory"),
        ({"executor": {"instances": 0}}, "instances"),
        ({"drivers": {}}, "drivers"),
    ],
)
def test_a_value_that_the_chart_cannot_use_is_refused_by_its_name(tmp_path: Path, values: dict[str, Any], reason: str):
    (tmp_path / "values.json").write_text(json.dumps(values))
    result = template("--values", str(tmp_path / "values.json"))
    assert result.returncode != 0
    assert reason in result.stderr


def test_each_process_knows_the_secrets_that_it_needs_alone(render):
    for process, pod in pods(render(ALL_SECRETS)).items():
        mounted = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        assert mounted == {f"sluice-{kind}" for kind in KNOWN_BY[process]}, process
        [container] = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        for kind in KNOWN_BY[process]:
            assert mounts[kind] == f"/run/secrets/sluice/{kind}", process
        assert "secretKeyRef" not in json.dumps(container), process
        assert not any("secretRef" in source for source in container.get("envFrom", ())), process


def test_each_part_may_have_a_login_of_its_own_for_the_control_database(render):
    logins = {"database": "supervisor", "databaseDriver": "driver", "databaseOwner": "owner"}
    documents = render({"settings": {"SLUICE_CONTROL_URL": "postgresql+psycopg://db/control"}, "secrets": logins})
    mounted = {
        process: {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
        & set(logins.values())
        for process, pod in pods(documents).items()
    }
    volumes = [volume["name"] for pod in pods(documents).values() for volume in pod["volumes"]]
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in volumes), "Kubernetes takes no other names"
    assert mounted == {"driver": {"driver"}, "executor": set(), "watchdog": {"supervisor"}, "migration": {"owner"}}


def test_a_secret_without_a_name_is_mounted_nowhere(render):
    documents = render({"secrets": {"kafka": "", "spark": ""}})
    for process, pod in pods(documents).items():
        assert not {"kafka", "spark"} & {volume["name"] for volume in pod["volumes"]}, process
    assert "spark.authenticate" not in spark_defaults(documents)


def test_no_process_runs_as_root_or_writes_outside_of_its_volumes(render):
    for process, pod in pods(render(ALL_SECRETS)).items():
        assert pod["securityContext"]["runAsNonRoot"], process
        # Of the user that the Dockerfile adds.
        assert pod["securityContext"]["runAsUser"] == 10001, process
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, process


def test_every_process_has_limits(render):
    documents = render({"driver": {"memory": "3g"}, "executor": {"instances": 4, "coreLimit": "3"}})
    defaults = spark_defaults(documents)
    assert defaults["spark.driver.memory"] == "3g"
    assert defaults["spark.executor.instances"] == "4"
    assert defaults["spark.kubernetes.executor.limit.cores"] == "3"
    assert defaults["spark.kubernetes.driver.limit.cores"] == "2"
    for process in ("watchdog", "migration"):
        [container] = pods(documents)[process]["containers"]
        assert {*container["resources"]["limits"]} == {"cpu", "memory"}


def test_rights_are_those_of_starting_pods_in_one_namespace(render):
    documents = render(ALL_SECRETS)
    assert not [document for document in documents if document["kind"].startswith("Cluster")]
    roles = {
        document["metadata"]["name"]: {
            resource: set(rule["verbs"]) for rule in document["rules"] for resource in rule["resources"]
        }
        for document in documents
        if document["kind"] == "Role"
    }
    assert {name: {*rights} for name, rights in roles.items()} == {
        "sluice-submitter": {"pods", "configmaps", "services"},
        "sluice-driver": {"pods", "configmaps"},
    }
    # Whoever reads or changes a ConfigMap knows or chooses what other pods do.
    assert not any({"get", "list", "watch", "update"} & rights["configmaps"] for rights in roles.values())
    assert pods(documents)["executor"]["automountServiceAccountToken"] is False
    assert pods(documents)["watchdog"]["automountServiceAccountToken"] is False
    assert spark_defaults(documents)["spark.kubernetes.authenticate.driver.serviceAccountName"] == "sluice-driver"


def test_a_driver_and_its_executors_are_reached_by_each_other_alone(render):
    documents = render(ALL_SECRETS)
    policy = find(documents, "NetworkPolicy", "sluice-spark")["spec"]
    chosen = policy["podSelector"]
    assert policy["ingress"] == [{"from": [{"podSelector": chosen}]}]
    assert chosen["matchExpressions"] == [{"key": "spark-role", "operator": "In", "values": ["driver", "executor"]}]
    templates = find(documents, "ConfigMap", "sluice-spark")["data"]
    for template in ("driver.yaml", "executor.yaml"):
        labels = yaml.safe_load(templates[template])["metadata"]["labels"]
        assert chosen["matchLabels"].items() <= labels.items()
    assert not [d for d in render({"networkPolicy": {"enabled": False}}) if d["kind"] == "NetworkPolicy"]


def test_settings_reach_drivers_airflow_and_the_job_before_the_installation(render):
    documents = render({"settings": {"SLUICE_LEASE_SECONDS": 20}})
    settings = find(documents, "ConfigMap", "sluice-settings")["data"]
    assert settings["SLUICE_LEASE_SECONDS"] == "20"
    assert settings["SLUICE_SECRETS"] == "/run/secrets/sluice"
    for process in ("watchdog", "migration"):
        [container] = pods(documents)[process]["containers"]
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        assert variables["SLUICE_LEASE_SECONDS"] == "20"
        assert variables["SLUICE_CONTROL_URL"] == settings["SLUICE_CONTROL_URL"]
    [driver] = pods(documents)["driver"]["containers"]
    assert driver["envFrom"] == [{"configMapRef": {"name": "sluice-settings"}}]


def test_airflow_and_drivers_share_one_home(render):
    documents = render({})
    claim = find(documents, "PersistentVolumeClaim", "sluice-home")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    own = render({"home": {"existingClaim": "shared"}})
    assert not [document for document in own if document["kind"] == "PersistentVolumeClaim"]
    for process in ("driver", "watchdog"):
        volumes = {volume["name"]: volume for volume in pods(own)[process]["volumes"]}
        assert volumes["home"]["persistentVolumeClaim"]["claimName"] == "shared"


def test_a_lost_node_holds_no_lock_that_another_pod_waits_for(render):
    driver = pods(render({}))["driver"]
    mounts = {mount["mountPath"]: mount["name"] for mount in driver["containers"][0]["volumeMounts"]}
    assert {"name": mounts["/var/lib/sluice/checkpoints"], "emptyDir": {}} in driver["volumes"]


def test_drivers_and_executors_authenticate_each_other_unless_somebody_takes_that_away(render):
    defaults = spark_defaults(render({}))
    assert defaults["spark.authenticate"] == "true"
    assert defaults["spark.network.crypto.cipher"] == "AES/GCM/NoPadding"
    assert not [name for name in defaults if name.endswith(".secret")]


def test_the_values_of_airflow_name_what_the_chart_creates(render):
    values = yaml.safe_load((CHART / "values-airflow.yaml").read_text())
    names = {document["metadata"]["name"] for document in render(ALL_SECRETS)} | {*ALL_SECRETS["secrets"].values()}
    text = json.dumps(values)
    mentioned = {word for word in names if f'"{word}"' in text}
    assert {"sluice-home", "sluice-spark", "sluice-submitter", "sluice-database", "sluice-storage"} <= mentioned
    assert "sluice-settings" in text
    mounted = {mount["name"]: mount["mountPath"] for mount in values["volumeMounts"]}
    assert mounted["sluice-spark"] == "/etc/sluice"
    [connection] = [json.loads(v["value"]) for v in values["env"] if v["name"] == "AIRFLOW_CONN_SPARK_DEFAULT"]
    assert connection["host"].startswith("k8s://")
    assert connection["extra"] == {"deploy-mode": "cluster"}


def test_the_files_that_spark_reads_are_where_the_chart_puts_them(render):
    documents = render({})
    settings = find(documents, "ConfigMap", "sluice-settings")["data"]
    files = find(documents, "ConfigMap", "sluice-spark")["data"]
    assert Path(settings["SLUICE_SPARK_DEFAULTS"]).name in files
    defaults = spark_defaults(documents)
    for name in ("driver", "executor"):
        assert Path(defaults[f"spark.kubernetes.{name}.podTemplateFile"]).name in files
