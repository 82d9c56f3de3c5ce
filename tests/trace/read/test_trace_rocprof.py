"""rocprofv3's two forms."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from made_rocprof import rocpd, rocprof_json

from ratchet.base.errors import TraceError
from ratchet.trace.answers.report import report
from ratchet.trace.read import read
from ratchet.trace.read.columns import Kind


@pytest.mark.parametrize("packed", [False, True])
def test_rocprofv3_json(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "results.json"
    text = json.dumps(rocprof_json()).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    trace = read(path)
    assert (trace.platform, trace.devices[0].name) == ("rocm", "AMD Instinct MI300X")
    names = [trace.string(row) for row in range(len(trace))]
    assert names == ["hipLaunchKernel", "gemm", "ncclDevKernel_Generic",
                     "__amd_rocclr_copyBufferAligned", "MEMORY_COPY_HOST_TO_DEVICE"]  # fmt: skip
    assert trace.rows(Kind.COPY).size == 2
    whole = report(trace).identity
    assert whole.parts == (1000, 2000, 600, 500)


def test_rocprofv3_without_records_says_how_to_record(tmp_path: Path) -> None:
    document = rocprof_json()
    document["rocprofiler-sdk-tool"][0]["buffer_records"] = {}
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match="--kernel-trace"):
        read(path)


def test_rocpd_database(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    rocpd(path)
    trace = read(path)
    assert trace.devices[0].name == "AMD Instinct MI300X"
    assert trace.rows(Kind.RUNTIME).size == trace.rows(Kind.ANNOTATION).size == 1
    found = report(trace)
    assert found.identity.parts == (1000, 2000, 100, 1000)
    assert found.launches.count == 1


def test_another_database_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE people (name)")
    connection.commit()
    with pytest.raises(TraceError, match="holds no rocpd"):
        read(path)
    connection.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(TraceError, match="looks like an export of Nsight Systems, which is not"):
        read(path)


def test_the_recorded_rocprofv3_trace() -> None:
    import made_traces as mt

    trace = mt.recorded("rocprofv3-908")
    assert len(trace) == 43_915
    assert trace.devices[0].name == "AMD Instinct MI350X"
