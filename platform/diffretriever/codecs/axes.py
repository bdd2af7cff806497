"""The axes that a product codec codes vectors along: principal axes, dealt out to bytes.

Legend: S vectors of the sample, H hidden size = G bytes x W dimensions of a byte.
"""

from __future__ import annotations

import numpy as np

_LEAST_VARIANCE = 1e-6
"""Relative to the largest: axes with less vary by rounding alone."""
_ROUNDING = 1e-12
"""Variance that unit vectors have by rounding alone, where all of them are equal."""


def principal_axes(sample_SH: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variances of the sample along its principal axes, descending, float64 [H], and the axes as columns.

    Variances of nothing but rounding are raised to a millionth of the largest.
    """
    mean_H = sample_SH.mean(axis=0, dtype=np.float64)
    centred_SH = sample_SH - mean_H.astype(np.float32)
    covariance_HH = (centred_SH.T @ centred_SH).astype(np.float64) / len(sample_SH)
    variances_H, axes_HH = np.linalg.eigh(covariance_HH)
    variances_H = variances_H[::-1]
    least = max(_LEAST_VARIANCE * variances_H[0], _ROUNDING)
    return np.maximum(variances_H, least), np.ascontiguousarray(axes_HH[:, ::-1])


def deal_out(weights_H: np.ndarray, width: int) -> np.ndarray:
    """Return the axes in the order of bytes, int64 [H]: the first W go to the first byte, and so on.

    From the weightiest down, each axis goes to the byte that has the smallest product of weights so far and a place
    left. So all bytes come to about the same product, and codebooks of one size lose least that way.

    Args:
        weights_H: positive, descending.
        width: W, places of a byte, a divisor of H.
    """
    n_bytes = len(weights_H) // width
    places_GW = np.empty((n_bytes, width), np.int64)
    taken_G, loads_G = np.zeros(n_bytes, np.int64), np.zeros(n_bytes)
    # Relative to the smallest weight, so that a further axis never takes from a load.
    for axis, load in enumerate(np.log(weights_H / weights_H[-1])):
        byte = int(np.argmin(np.where(taken_G < width, loads_G, np.inf)))
        places_GW[byte, taken_G[byte]] = axis
        taken_G[byte] += 1
        loads_G[byte] += load
    return places_GW.reshape(-1)
