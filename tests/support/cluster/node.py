"""A Kubernetes of one node on this machine, from the real programs, as root: etcd to kubelet, with containerd below.

Pods are in a network of their own, behind a bridge, on whose address the API server listens. There is no kube-proxy and
no DNS, so nothing is reached by the name or address of a service. Network policies are stored, and not enforced.
"""

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.cluster import tools
from tests.support.waiting import wait_until

BRIDGE, ADDRESS, PODS = "sluice-pods", "10.219.0.1", "10.219.0.0/24"
API = f"https://{ADDRESS}:6443"
NODE = "node-1"
# A Docker engine lets no bridge but its own forward.
FORWARD = ("FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")
PAUSE = "docker.io/local/pause:1"
START_SECONDS = 300
CONTAINERD = """version = 2
root = "{directory}/containerd"
state = "{directory}/run"
[grpc]
address = "{directory}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{directory}/cni"
"""
PAUSE_SOURCE = """#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>
static void reap(int signal) { while (waitpid(-1, NULL, WNOHANG) > 0); }
static void end(int signal) { _exit(0); }
int main() { signal(SIGCHLD, reap); signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""


def missing() -> str:
    """What this machine lacks for a cluster, in words; empty if nothing."""
    programs = ("containerd", "ctr", "runc", "ip", "iptables", "gcc", "openssl")
    absent = [name for name in programs if not shutil.which(name)]
    absent += [name for name in tools.TOOLS if not tools.find(name)]
    return ", ".join(absent + ([] if Path("/usr/lib/cni/bridge").exists() else ["/usr/lib/cni/bridge"]))


@dataclass
class Node:
    """directory: of all files; its path must be short, because it holds sockets."""

    directory: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @contextmanager
    def running(self) -> Iterator["Node"]:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
            yield self
        finally:
            self._stop()

    def kubectl(self, *words: str, given: str | None = None, code: int | None = 0, seconds: float = 120) -> str:
        """The output of kubectl. given: its standard input. code: the expected exit code; None: any."""
        options = ["--server", API, "--token", self.token, "--insecure-skip-tls-verify"]
        result = subprocess.run(
            [tools.fetch("kubectl"), *options, *words], input=given, capture_output=True, text=True, timeout=seconds
        )
        assert code is None or result.returncode == code, f"{words}: {result.stdout[-2_000:]}{result.stderr[-2_000:]}"
        return result.stdout + result.stderr * (code is None)

    def apply(self, *documents: Mapping[str, Any] | str) -> None:
        for document in documents:
            self.kubectl("apply", "-f", "-", given=document if isinstance(document, str) else json.dumps(document))

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def import_image(self, archive: Path) -> None:
        self.ctr("images", "import", str(archive), seconds=1_200)

    def ctr(self, *words: str, seconds: float = 120) -> str:
        command = ["ctr", "--address", str(self.directory / "containerd.sock"), "--namespace", "k8s.io", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds).stdout

    def processes_of(self, pod: str) -> list[psutil.Process]:
        """The processes of a pod's only container, the first one first."""
        status = self.get("pod", pod)["status"]["containerStatuses"][0]
        container = str(status["containerID"]).removeprefix("containerd://")
        tasks = [line.split() for line in self.ctr("tasks", "ls").splitlines()]
        first = psutil.Process(next(int(pid) for name, pid, _ in tasks if name == container))
        return [first, *first.children(recursive=True)]

    def log_of(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-3_000:]

    def _start(self) -> None:
        self._add_bridge()
        self._write_files()
        here = self.directory
        self._run("etcd", "--data-dir", str(here / "etcd"), "--unsafe-no-fsync")
        self._run(
            "kube-apiserver",
            *("--etcd-servers", "http://127.0.0.1:2379", "--bind-address", ADDRESS, "--advertise-address", ADDRESS),
            *("--cert-dir", str(here / "certificates"), "--token-auth-file", str(here / "tokens.csv")),
            *("--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.220.0.0/24"),
            *("--service-account-issuer", "https://kubernetes.default.svc"),
            *("--service-account-key-file", str(here / "account.pub")),
            *("--service-account-signing-key-file", str(here / "account.key")),
            *("--kubelet-preferred-address-types", "InternalIP"),
        )
        wait_until(lambda: self._answers("/readyz"), START_SECONDS, lambda: self.log_of("kube-apiserver"))
        self._run("containerd", "--config", str(here / "containerd.toml"))
        wait_until((here / "containerd.sock").exists, 60, lambda: self.log_of("containerd"))
        self.import_image(self._pause_image())
        kubeconfig = ("--kubeconfig", str(self.kubeconfig()))
        self._run(
            "kube-controller-manager",
            *(*kubeconfig, "--leader-elect=false"),
            *("--service-account-private-key-file", str(here / "account.key")),
            *("--root-ca-file", str(here / "certificates" / "apiserver.crt")),
        )
        self._run("kube-scheduler", *kubeconfig, "--leader-elect=false")
        self._run(
            "kubelet",
            *(*kubeconfig, "--config", str(here / "kubelet.json"), "--root-dir", str(here / "kubelet")),
            *("--hostname-override", NODE, "--node-ip", ADDRESS, "--cert-dir", str(here / "kubelet-certificates")),
        )
        wait_until(self._is_ready, START_SECONDS, lambda: self.log_of("kubelet"), 1)

    def _stop(self) -> None:
        if "kubelet" in self.processes:
            self.kubectl(
                "delete",
                "deployments,jobs,pods",
                "--all",
                "--all-namespaces",
                "--grace-period=1",
                code=None,
                seconds=180,
            )
        for process in reversed(self.processes.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for mount in reversed(Path("/proc/mounts").read_text().splitlines()):
            target = mount.split()[1]
            if target.startswith(f"{self.directory}/"):
                subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)
        subprocess.run(["iptables", "--delete", *FORWARD], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], check=False, capture_output=True)

    def _run(self, name: str, *options: str) -> None:
        program = tools.find(name) or name
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *options], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.directory
            )

    def _answers(self, path: str) -> bool:
        return self.kubectl("get", "--raw", path, code=None).startswith("ok")

    def _is_ready(self) -> bool:
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        conditions = [condition for node in nodes for condition in node["status"].get("conditions", ())]
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _add_bridge(self) -> None:
        subprocess.run(["ip", "link", "add", BRIDGE, "type", "bridge"], check=True)
        subprocess.run(["ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE], check=True)
        subprocess.run(["ip", "link", "set", BRIDGE, "up"], check=True)
        subprocess.run(["iptables", "--insert", *FORWARD], check=True)

    def _write_files(self) -> None:
        here = self.directory
        (here / "tokens.csv").write_text(f'{self.token},admin,1,"system:masters"\n')
        key = str(here / "account.key")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        public = ["openssl", "rsa", "-in", key, "-pubout", "-out", str(here / "account.pub")]
        subprocess.run(public, check=True, capture_output=True)
        self._write("kubeconfig", self._kubeconfig())
        (here / "containerd.toml").write_text(CONTAINERD.format(directory=here, pause=PAUSE))
        self._write("cni/10-bridge.conflist", _network(here))
        self._write("kubelet.json", _kubelet(here))

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        (self.directory / name).parent.mkdir(exist_ok=True)
        (self.directory / name).write_text(json.dumps(document))

    def _kubeconfig(self) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "own", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "admin"}}],
            "current-context": "own",
        }

    def _pause_image(self) -> Path:
        """An image with the process that holds the namespaces of a pod, and reaps its orphans."""
        root, archive = self.directory / "pause", self.directory / "pause.tar"
        layer = root / "layer"
        layer.mkdir(parents=True, exist_ok=True)
        compile_ = ["gcc", "-static", "-O1", "-x", "c", "-", "-o", str(layer / "pause")]
        subprocess.run(compile_, input=PAUSE_SOURCE, text=True, check=True)
        subprocess.run(["tar", "-C", str(layer), "-cf", str(root / "layer.tar"), "pause"], check=True)
        digest = subprocess.run(["sha256sum", str(root / "layer.tar")], check=True, capture_output=True, text=True)
        configuration = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest.stdout.split()[0]}"]},
        }
        (root / "config.json").write_text(json.dumps(configuration))
        manifest = [{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
        (root / "manifest.json").write_text(json.dumps(manifest))
        files = ["manifest.json", "config.json", "layer.tar"]
        subprocess.run(["tar", "-C", str(root), "-cf", str(archive), *files], check=True)
        return archive


def _network(directory: Path) -> dict[str, Any]:
    addresses = {"type": "host-local", "ranges": [[{"subnet": PODS, "gateway": ADDRESS}]], "dataDir": f"{directory}/ip"}
    routes = [{"dst": "0.0.0.0/0"}]
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": {**addresses, "routes": routes}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _kubelet(directory: Path) -> dict[str, Any]:
    """What runs in a container or a user namespace, too, as a machine of a CI is one."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # The API server has no login for it.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{directory}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "featureGates": {"KubeletInUserNamespace": True},
        "podLogsDir": f"{directory}/pods",
        "evictionHard": {"memory.available": "1%", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }
