"""Sensors: what Linux and NVIDIA's library tell is read, and what they do not is left out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from driftwalk_backends.hardware.sensors import CpuSensors, find_nvml

STUB = r"""
#include <string.h>
typedef void *H;
static int device;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *u, H *h) {
  *h = &device; return strcmp(u, "GPU-abc") != 0; }
int nvmlDeviceGetTemperature(H h, unsigned k, unsigned *t) {
  *t = 41; return h != &device || k != 0; }
int nvmlDeviceGetClockInfo(H h, unsigned k, unsigned *c) { *c = k == 1 ? 1980 : 2619; return 0; }
int nvmlDeviceGetPowerUsage(H h, unsigned *p) { *p = 123400; return 0; }
int nvmlDeviceGetTotalEccErrors(H h, unsigned kind, unsigned since, unsigned long long *n) {
  *n = 10 * kind + since; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(H h, unsigned long long *r) { *r = 0x45; return 0; }
int nvmlDeviceGetUtilizationRates(H h, unsigned *u) { u[0] = 97; u[1] = 5; return 0; }
int nvmlDeviceGetRemappedRows(H h, unsigned *a, unsigned *b, unsigned *c, unsigned *d) { return 3; }
int nvmlDeviceGetSerial(H h, char *s, unsigned n) { strncpy(s, "1654", n); return 0; }
int nvmlDeviceGetUUID(H h, char *s, unsigned n) { return 999; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.1", n); return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library with NVML's own signatures; most are there, one fails, some are missing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "stub.c").write_text(STUB)
    made = folder / "libstub.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(made), str(folder / "stub.c")], check=True
    )
    return str(made)


def test_everything_that_is_told(library: str) -> None:
    found = find_nvml(uuid="abc", path=library)
    assert found is not None
    assert found.values() == {
        "temperature": 41.0,
        "clock": 1980.0,
        "memory clock": 2619.0,
        "power": 123.4,
        "ecc corrected": 0.0,
        "ecc uncorrected": 10.0,
        "ecc corrected, ever": 1.0,
        "ecc uncorrected, ever": 11.0,
        "use": 97.0,
    }
    assert found.throttled() == ("power cap (software)", "temperature (hardware)")
    assert found.names() == {"serial": "1654", "driver": "580.1"}


def test_no_device_and_no_library(library: str) -> None:
    assert find_nvml(uuid="another", path=library) is None
    assert find_nvml(uuid="abc", path="/nowhere/libnvidia-ml.so") is None
    assert find_nvml(path=library) is None


def test_linux_tells_it_as_files(tmp_path: Path) -> None:
    def put(name: str, text: str) -> None:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    put("class/thermal/thermal_zone0/temp", "51000\n")
    put("class/thermal/thermal_zone1/temp", "not a number")
    put("class/hwmon/hwmon0/temp1_input", "63500")
    for core, clock in enumerate((2000000, 3000000)):
        put(f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", str(clock))
        put(f"devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count", "4")
    put("devices/system/edac/mc/mc0/ce_count", "7")
    put("devices/system/edac/mc/mc0/ue_count", "0")
    put("devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    sensors = CpuSensors(tmp_path)
    assert sensors.values() == {
        "temperature": 63.5,
        "clock": 2500.0,
        "ecc corrected": 7.0,
        "ecc uncorrected": 0.0,
    }
    assert sensors.throttled() == ()
    put("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "5")
    assert sensors.throttled() == ("temperature (counted by the cores)",)
    assert sensors.names() == {"governor": "performance"}
    assert CpuSensors(tmp_path / "nothing").values() == {}


def test_new_memory_errors_are_a_fault() -> None:
    from driftwalk.tasks.hardware.checks import new_memory_errors
    from driftwalk.tasks.hardware.repeats import Findings
    from driftwalk.tasks.hardware.result import Reading

    first = Reading(0.0, "idle", {"ecc corrected": 1.0, "ecc uncorrected": 0.0})
    for name, verdict in (("ecc corrected", None), ("ecc uncorrected", "fault")):
        findings = Findings("load")
        last = Reading(9.0, "end", {**first.values, name: 3.0})
        assert len(new_memory_errors(first, last, findings)) == 1
        assert findings.verdict == verdict
