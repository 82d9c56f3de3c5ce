"""rocprofv3's forms."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest
from made_rocprof import rocpd, rocprof_json

from ratchet.base.errors import TraceError
from ratchet.trace.answers.report import report
from ratchet.trace.ranks import read_ranks
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


TIMES = '"Correlation_Id","Start_Timestamp","End_Timestamp"'
KERNELS = f""""Kind","Agent_Id","Queue_Id","Kernel_Name",{TIMES}
"KERNEL_DISPATCH","Agent 4",1,"void gemm<float, 4>(float*)",7,1000,2000
"KERNEL_DISPATCH","Agent 4",2,"__amd_rocclr_fillBufferAligned",8,2500,2600
"""
COPIES = f""""Kind","Direction","Destination_Agent_Id",{TIMES}
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE","Agent 4",6,500,900
"""
CALLS = f""""Domain","Function","Process_Id","Thread_Id",{TIMES}
"HIP_RUNTIME_API","hipLaunchKernel",77,78,7,100,200
"""
AGENTS = """"Agent_Type","Cu_Count","Product_Name"
"CPU",0,"AMD EPYC"
"GPU",304,"AMD Instinct MI300X"
"""


def test_tables_of_one_run_are_one_trace(tmp_path: Path) -> None:
    kernels = tmp_path / "77_kernel_trace.csv"
    kernels.write_text(KERNELS)
    (tmp_path / "77_memory_copy_trace.csv").write_text(COPIES)
    (tmp_path / "77_hip_api_trace.csv").write_text(CALLS)
    (tmp_path / "77_agent_info.csv").write_text(AGENTS)
    (tmp_path / "78_hip_api_trace.csv").write_text(CALLS.replace("100,200", "1,2"))
    trace = read(kernels)
    kinds = [Kind.RUNTIME, Kind.COPY, Kind.KERNEL, Kind.FILL]
    assert [Kind(kind) for kind in trace.kind] == kinds
    assert trace.string(2) == "void gemm<float, 4>(float*)"
    assert (trace.platform, trace.device_name) == ("rocm", "AMD Instinct MI300X")
    found = report(trace)
    assert found.identity.times["compute"] == 1000
    assert found.identity.times["exposed_copy"] == 100  # the copy was not launched in the recording
    assert found.launches.count == 1
    assert read_ranks(tmp_path).reports[0].events == 4


def test_a_table_of_another_form_is_told(tmp_path: Path) -> None:
    path = tmp_path / "7_kernel_trace.csv"
    path.write_text('"Name","Calls"\n"gemm",4\n')
    with pytest.raises(TraceError, match="holds no kernel, copy or call of rocprofv3"):
        read(path)
    path = path.rename(tmp_path / "stats.csv")
    with pytest.raises(TraceError, match="looks like a table of another form"):
        read(path)


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
