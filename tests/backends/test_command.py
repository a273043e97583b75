"""Any program as a backend: what it writes is judged, what it does wrong is shown."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import driftwalk
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from processes import alive, eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MODEL = "demo:decoder"
IDS = [[5, 17, 3, 8]]

PORT = """
import json, sys
sys.path.insert(0, {examples!r})
from write_trace import write_trace

stored, spoil = {stored!r}, {spoil!r}
probe, out = sys.argv[-2:]
length = int.from_bytes(open(probe, "rb").read(8), "little")
assert "input_ids" in json.loads(open(probe, "rb").read()[8 : 8 + length])
raw = open(stored + "/states.safetensors", "rb").read()
start = 8 + int.from_bytes(raw[:8], "little")
header = json.loads(raw[8:start])
states = {{}}
for point in json.load(open(stored + "/manifest.json"))["points"]:
    entry = header[point["name"]]
    first, last = (start + at for at in entry["data_offsets"])
    states[point["name"]] = entry["shape"], raw[first:last]
print("I read", len(states), "states")
{body}
write_trace(out, states)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("port") / "a.trace"
    return str(driftwalk.record(MODEL, probe={"input_ids": np.array(IDS)}).save(folder))


def port(recorded: str, tmp_path: Path, body: str = "", spoil: str = "") -> str:
    script = tmp_path / "port.py"
    code = PORT.format(examples=str(EXAMPLES), stored=recorded, spoil=spoil, body=body)
    script.write_text(code)
    return f"command:{sys.executable} '{script}' --flag"


def verify(spec: str) -> driftwalk.Report:
    return driftwalk.verify(MODEL, candidate=spec, probe={"input_ids": np.array(IDS)})


def test_a_port_without_driftwalk_is_verified(recorded, tmp_path):
    report = verify(port(recorded, tmp_path))
    assert report.verdict == "pass"
    assert len(report.layers) == 9
    assert report.candidate.name == "command"
    assert report.candidate.dtype == "fp32"
    assert not report.observer["candidate"].checked


def test_a_faulty_port_is_blamed_by_its_states_alone(recorded, tmp_path):
    spoil = """
import array
shape, data = states["layer.3"]
values = array.array("f", data)
for at in range(7, len(values), shape[-1]):
    values[at] *= 1.01
states["layer.3"] = shape, values.tobytes()
"""
    report = verify(port(recorded, tmp_path, spoil))
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.3"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('out of luck')", "ended with exit code 1.*out of luck"),
        ("sys.exit(0)", "cannot be used.*is no trace.*I read 9 states"),
        ("del states['embed']; states['embed'] = ([1, 1], b'')", "does not fit"),
        ("import time; time.sleep(60)", "still running after 2 s"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_what_a_program_does_wrong_is_shown(recorded, tmp_path, body, message, monkeypatch):
    if "still running" in message:
        monkeypatch.setenv("DRIFTWALK_COMMAND_TIMEOUT", "2")
    with pytest.raises(BackendError, match=f"(?s){message}"):
        verify(port(recorded, tmp_path, body))


def test_a_program_that_hangs_is_ended_with_what_it_started(recorded, tmp_path, monkeypatch):
    """A child that keeps the output open would have us wait for it."""
    monkeypatch.setenv("DRIFTWALK_COMMAND_TIMEOUT", "2")
    body = """
import subprocess, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
child.wait()
"""
    with pytest.raises(BackendError, match="still running after 2 s") as caught:
        verify(port(recorded, tmp_path, body))
    told = re.search(r"child (\d+)", str(caught.value))
    assert told is None or eventually(lambda: not alive(int(told[1])))


def test_a_missing_point_and_a_wrong_shape_are_verdicts(recorded, tmp_path):
    body = "del states['layer.2']; shape, data = states['norm']; states['norm'] = shape[1:], data"
    report = verify(port(recorded, tmp_path, body))
    found = {layer.point.name: layer.verdict for layer in report.layers}
    assert (found["layer.2"], found["norm"], report.verdict) == ("missing", "shape", "drift")


def test_commands_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="needs a program"):
        verify("command:")
    with pytest.raises(UsageError, match="No closing quotation"):
        verify("command:'x")
    with pytest.raises(BackendUnavailable, match="no program 'no-such-program'"):
        verify("command:no-such-program --flag")
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    plain.chmod(plain.stat().st_mode & ~stat.S_IXUSR)
    with pytest.raises(BackendUnavailable, match="make it executable"):
        verify(f"command:{plain}")


def test_names_of_a_port_are_mapped(recorded, tmp_path):
    body = """
import os
assert (os.environ["DRIFTWALK_DEPTH"], os.environ["DRIFTWALK_LAYER"]) == ("block", "")
states = {"x." + name: state for name, state in states.items()}
states["x.layer.2.mlp"] = states["x.layer.2"]
"""
    (tmp_path / "map.toml").write_text(
        '[points]\n"x.{name}" = "{name}"\n"x.layer.{i}" = "layer.{i}"\n'
        '"x.layer.{i}.mlp" = "layer.{i}.mlp"\n'
    )
    spec = port(recorded, tmp_path, body)
    report = verify(f"{spec},map={tmp_path / 'map.toml'}")
    assert report.verdict == "pass", "what lies inside a block was not asked for"
    assert report.layers[2].point.found == "map"
    assert report.candidate.spec.endswith(f",map={tmp_path / 'map.toml'}")
    (tmp_path / "map.toml").write_text('[points]\n"x.{name}" = "{name}"\n')
    with pytest.raises(BackendError, match=r"(?s)the state 'x\.layer\.0'.*I read 9"):
        verify(f"{spec},map={tmp_path / 'map.toml'}")
    with pytest.raises(UsageError, match="Cannot read 'nowhere"):
        verify(f"{spec},map=nowhere.toml")


def test_a_program_that_looks_away_is_blamed_by_its_blocks(recorded, tmp_path):
    """Asked for more on drift, it gives no more; nothing is said of what nobody saw."""
    spoil = "shape, data = states['layer.1']; states['layer.1'] = shape, data[4:] + data[:4]"
    report = verify(port(recorded, tmp_path, spoil))
    assert report.root_cause.point.name == "layer.1"
    assert "no module inside stands out" not in report.culprit.sentence


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_the_writer_for_node(tmp_path):
    arrays = {"embed": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "layer.0": np.ones((1, 4))}
    states = [[name, array.shape, array.ravel().tolist()] for name, array in arrays.items()]
    code = f"""
import {{ writeTrace }} from {json.dumps((EXAMPLES / "write_trace.mjs").as_uri())};
const states = {json.dumps(states)}.map(([n, s, v]) => [n, s, Float32Array.from(v)]);
writeTrace(process.argv[1], states);
"""
    folder = tmp_path / "node.trace"
    subprocess.run(["node", "--input-type=module", "-e", code, str(folder)], check=True)
    probe = driftwalk.Probe({"input_ids": np.zeros((1, 2), np.int64)})
    loaded = driftwalk.Trace.load(folder, probe)
    assert loaded.names == ("embed", "layer.0")
    for name, array in arrays.items():
        assert np.array_equal(loaded[name], array)
        assert loaded[name].dtype == np.float32
