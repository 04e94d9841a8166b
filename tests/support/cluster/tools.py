"""Builds Kubernetes, etcd and Helm from their Go modules: python -m tests.support.cluster.tools [NAME ...]

All of them take 15 CPU minutes and 4 GB of disk, once. They stay in SLUICE_CLUSTER, by default `var/cluster`.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from include.errors import SetupError, report
from include.settings import ROOT

KUBERNETES = "1.34.4"
# The modules of Kubernetes that its main module replaces by its own folders, which `go` ignores elsewhere.
STAGING = (
    *("api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go", "cloud-provider"),
    *("cluster-bootstrap", "code-generator", "component-base", "component-helpers", "controller-manager", "cri-api"),
    *("cri-client", "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt", "kms"),
    *("kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet", "metrics"),
    *("mount-utils", "pod-security-admission", "sample-apiserver", "sample-cli-plugin", "sample-controller"),
)


@dataclass(frozen=True)
class Tool:
    """package: of `module` at `version`. staging: versions of the modules that it replaces."""

    module: str
    version: str
    package: str
    staging: str = ""

    def build(self, target: Path, work: Path) -> None:
        """Raises SetupError."""
        folder = work / self.module.replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        replacements = [
            f"replace k8s.io/{name} => k8s.io/{name} {self.staging}" for name in STAGING * bool(self.staging)
        ]
        requirement = f"require {self.module} {self.version}"
        (folder / "go.mod").write_text("\n".join(["module local/tools", "go 1.25.0", requirement, *replacements, ""]))
        (folder / "main.go").write_text(f'package main\n\nimport _ "{self.package}"\n\nfunc main() {{}}\n')
        # Clients do not understand a server without a version.
        version = f"-X k8s.io/component-base/version.gitVersion={self.version}" if self.staging else ""
        for command in (["mod", "tidy", "-e"], ["build", "-o", str(target), f"-ldflags=-s -w {version}", self.package]):
            result = subprocess.run(["go", *command], cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
            if result.returncode:
                raise SetupError(f"{self.package} could not be built\n{result.stderr[-2_000:]}")


def _kubernetes(name: str) -> Tool:
    return Tool("k8s.io/kubernetes", f"v{KUBERNETES}", f"k8s.io/kubernetes/cmd/{name}", f"v0{KUBERNETES[1:]}")


TOOLS = {
    "helm": Tool("helm.sh/helm/v3", "v3.19.0", "helm.sh/helm/v3/cmd/helm"),
    "etcd": Tool("go.etcd.io/etcd/server/v3", "v3.6.5", "go.etcd.io/etcd/server/v3"),
    **{
        name: _kubernetes(name)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
    },
}


def directory() -> Path:
    """Of these programs, and of the engine that builds the image."""
    return Path(os.environ.get("SLUICE_CLUSTER") or ROOT / "var" / "cluster")


def find(name: str) -> str | None:
    """The program that was built, or else of the PATH; None if there is none."""
    built = directory() / name
    return str(built) if built.exists() else shutil.which(name)


def fetch(name: str) -> str:
    """Build the program unless `find` finds it. Raises SetupError."""
    if found := find(name):
        return found
    if not shutil.which("go"):
        raise SetupError(f"{name} is built by Go, which is missing: install Go 1.25 or later")
    print(f"building {name}", flush=True)
    directory().mkdir(parents=True, exist_ok=True)
    # The last step is a rename, so a program is either complete or missing.
    partial = directory() / f"{name}.{os.getpid()}"
    TOOLS[name].build(partial, directory() / "modules")
    partial.rename(directory() / name)
    return str(directory() / name)


def main() -> None:
    for name in sys.argv[1:] or TOOLS:
        print(fetch(name))


if __name__ == "__main__":
    report(main)
