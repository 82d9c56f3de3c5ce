"""Small traces in rocprofv3's two forms, written by hand for tests."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def record(start: int, end: int, correlation: int, **more: object) -> dict:
    return {"start_timestamp": start, "end_timestamp": end, "thread_id": 9,
            "correlation_id": {"internal": correlation, "external": 0}, **more}  # fmt: skip


def rocprof_json() -> dict:
    def dispatch(start: int, end: int, correlation: int, kernel: int) -> dict:
        info = {"agent_id": {"handle": 50}, "kernel_id": kernel}
        return record(start, end, correlation, kind=1, dispatch_info=info, stream_id={"handle": 3})

    return {"rocprofiler-sdk-tool": [{
        "metadata": {"pid": 77},
        "agents": [{"id": {"handle": 40}, "type": 1, "product_name": "EPYC"},
                   {"id": {"handle": 50}, "type": 2, "product_name": "AMD Instinct MI300X",
                    "cu_count": 304}],
        "strings": {"buffer_records": [
            {"kind": "HIP_RUNTIME_API", "operations": ["hipInit", "hipLaunchKernel"]},
            {"kind": "KERNEL_DISPATCH", "operations": []},
            {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}]},
        "kernel_symbols": [{"kernel_id": 4, "formatted_kernel_name": "gemm"},
                           {"kernel_id": 5, "formatted_kernel_name": "ncclDevKernel_Generic"},
                           {"kernel_id": 6,
                            "formatted_kernel_name": "__amd_rocclr_copyBufferAligned"}],
        "buffer_records": {
            "kernel_dispatch": [dispatch(1000, 2000, 1, 4), dispatch(1500, 4000, 2, 5),
                                dispatch(4500, 5000, 3, 6)],
            "hip_api": [record(100, 200, 1, kind=0, operation=1)],
            "memory_copy": [record(5000, 5100, 4, kind=2, operation=1, bytes=640,
                                   dst_agent_id={"handle": 50})]},
    }]}  # fmt: skip


def rocpd(path: Path) -> None:
    """The columns of rocpd's views that are read, in plain tables."""
    connection = sqlite3.connect(path)
    connection.executescript("""
        CREATE TABLE kernels (name, pid, tid, start, "end", stream_id, stack_id, agent_type_index);
        CREATE TABLE memory_copies (name, start, "end", size, stack_id, stream_id,
                                    dst_agent_type_index);
        CREATE TABLE regions (category, name, pid, tid, start, "end", stack_id);
        CREATE TABLE rocpd_info_agent (type, type_index, product_name);
        INSERT INTO kernels VALUES ('gemm', 7, 9, 1000, 2000, 3, 1, 0),
                                   ('rcclGenericKernel', 7, 9, 1500, 4000, 4, 2, 0);
        INSERT INTO memory_copies VALUES ('MEMORY_COPY_HOST_TO_DEVICE', 5000, 5100, 640, 4, 3, 0);
        INSERT INTO regions VALUES ('HIP_RUNTIME_API', 'hipLaunchKernel', 7, 9, 100, 200, 1),
                                   ('MARKER', 'forward', 7, 9, 50, 900, 8);
        INSERT INTO rocpd_info_agent VALUES ('CPU', 0, 'EPYC'), ('GPU', 0, 'AMD Instinct MI300X');
    """)
    connection.commit()
    connection.close()
