import triton


def is_cuda():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"  # port: triton-backend


def is_hip():
    return triton.runtime.driver.active.get_current_target().backend == "hip"


class Convolution:
    def __init__(self, backend="triton"):
        self.backend = backend

    def forward(self, x):
        return x if self.backend == "cuda" else -x
