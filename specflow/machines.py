"""What machines are able to, by their data sheets: the numbers that a roofline is drawn with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """One row of MACHINES.

    half, single  FLOPs a second in bfloat16 and float16, dense, and in float32
    bandwidth     bytes a second between memory and arithmetic
    memory        bytes of it, as the device reports them
    source        whose data sheet the numbers are from; or that they are assumed
    """

    name: str
    half: float
    single: float
    bandwidth: float
    memory: int
    source: str

    def flops(self, dtype: str) -> float:
        """FLOPs a second in a type."""
        return self.single if dtype == "float32" else self.half


# Dense rates: data sheets give twice as many with structured sparsity. Half precision is that of
# tensor cores, float32 that of the plain ones: torch does not round to TF32 unless told to.
# A data sheet's memory is a name, not a size: what a device has is the total of `nvidia-smi
# --query-gpu=memory.total`, in MiB.
MIB = 2**20
MACHINES: dict[str, Machine] = {
    "b200": Machine("b200", 2250e12, 75e12, 8.0e12, 183359 * MIB, "NVIDIA HGX B200, one of 8"),
    "h200": Machine("h200", 989e12, 67e12, 4.8e12, 143771 * MIB, "NVIDIA H200 SXM"),
    "h100": Machine("h100", 989e12, 67e12, 3.35e12, 81559 * MIB, "NVIDIA H100 SXM"),
    "a100": Machine("a100", 312e12, 19.5e12, 2.039e12, 81920 * MIB, "NVIDIA A100 80GB SXM"),
    "cpu": Machine("cpu", 5e11, 5e11, 5e10, 16 * 2**30, "assumed: a laptop, measured nowhere"),
}  # fmt: skip
